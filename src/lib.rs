//! Fermata: a distributed lock service with fencing tokens, first come first served, over gRPC.
//!
//! Programs want `fermata_client` (in `crates/client`); this is the server. The rooms, and which may use which (`tests/project/rooms.rs` checks it):
//!
//! | room | what lives there | uses |
//! |---|---|---|
//! | [`lock`] | what a lock is made of: keys, lockRefs, fences, how entries live and end | nothing of ours |
//! | [`session`] | leases: when one has ended, and what time counts | nothing of ours |
//! | [`key`] | one key at its home: the rules, and the machine that takes events and gives effects | `lock`, `session` |
//! | [`membership`] | the replicas: who is there, whether this one may answer, who is down | `lock`, `store` (the traits) |
//! | [`store`] | the traits of what is durable, and the stores | `key` (the state), `lock` |
//! | [`engine`] | runs the machines of keys; sessions, timers, start and stop of this replica | `key`, `membership`, `session`, `lock`, `store` (the traits) |
//! | [`access`] | who calls, and what that one may do | `lock` |
//! | [`rpc`] | gRPC: parse, take a call to the home of its key, map errors | `engine`, `lock`, `access` |
//! | [`server`] | connections, health, reflection, the orderly end | `rpc`, `engine` |
//! | [`clock`], [`log_throttle`] | time and ids as traits; faults that go on, logged now and then | nothing of ours |
//! | [`limits`], [`config`], [`telemetry`] | every limit; all settings; logging | |
//! | [`cli`] | the commands; puts the parts together | all of them |
//! | `fuzz` | what the parsers promise; while testing or fuzzing only | all of them |

pub mod access;
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
pub mod rpc;
pub mod server;
#[deny(clippy::disallowed_methods)]
pub mod session;
pub mod store;
pub mod telemetry;

/// Compiles what the README shows.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
