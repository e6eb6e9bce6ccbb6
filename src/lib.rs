//! Fermata: a distributed lock service with fencing tokens, first come first served, over gRPC.
//!
//! This is the server; programs use `fermata_client` (in `crates/client`).
//!
//! The rooms, and the rooms that each may use (`tests/project/rooms.rs` checks this):
//!
//! | room | what lives there | uses |
//! |---|---|---|
//! | [`lock`] | the parts of a lock: keys, lockRefs, fences, lives and ends of entries | nothing of ours |
//! | [`session`] | leases: their end, and the time that counts | nothing of ours |
//! | [`key`] | one key at its home: the rules, and the machine that takes events and gives effects | `lock`, `session` |
//! | [`membership`] | the replicas: which exist, which are down, whether this one may answer | `lock`, `store` (the traits) |
//! | [`store`] | the traits of durable records, and the stores | `key` (the state), `lock` |
//! | [`engine`] | runs the machines of keys; sessions, timers, start and stop of this replica | `key`, `membership`, `session`, `lock`, `store` (the traits) |
//! | [`access`] | identities of callers, and their permissions | `lock` |
//! | [`rpc`] | gRPC: parses calls, routes them to the home of their key, maps errors | `engine`, `lock`, `access` |
//! | [`server`] | connections, health, reflection, the orderly end | `rpc`, `engine`, `access` |
//! | [`agent`] | the proxy beside programs | `server`, `access`, `fermata_client` |
//! | [`monitor`] | HTTP for operators: metrics, liveness, readiness, the console | `server`, `access` |
//! | [`clock`], [`log_throttle`], [`process`] | time and ids as traits; throttled log lines of lasting faults; memory and files of this process | nothing of ours |
//! | [`trace`] | the spans of traces, and their context from call to call | nothing of ours |
//! | [`limits`], [`config`], [`telemetry`] | every limit; all settings; logs, and the export of traces | |
//! | [`build`] | the version, and the commit | nothing of ours |
//! | [`cli`] | the commands; puts the parts together | all of them |
//! | `fuzz` | the promises of the parsers; for tests and fuzzing only | all of them |

pub mod access;
pub mod agent;
pub mod build;
pub mod cli;
#[deny(clippy::disallowed_methods)]
pub mod clock;
pub mod config;
#[deny(clippy::disallowed_methods)]
pub mod engine;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
#[deny(clippy::disallowed_methods)]
pub mod key;
pub mod limits;
#[deny(clippy::disallowed_methods)]
pub mod lock;
pub mod log_throttle;
#[deny(clippy::disallowed_methods)]
pub mod membership;
pub mod monitor;
pub mod process;
pub mod protocol;
pub mod rpc;
pub mod server;
#[deny(clippy::disallowed_methods)]
pub mod session;
pub mod store;
pub mod telemetry;
pub mod trace;

/// Compiles what the README shows.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
