//! One key at its home: the state, the rules ([`decide()`]), and the machine ([`machine::Machine`]), which takes events and returns
//! effects.
//!
//! Nothing here knows a store, a socket, a task, a clock or a source of ids: time and outcomes come in with the events.
//! The numbers H1 to H12 stand in `docs/decisions/0001-one-home-per-key.md`.

mod command;
mod decide;
pub mod machine;
mod next_row;
mod state;

pub use command::{Command, NewEntry, Outcome, Refusal, WritesOfHolder};
pub use decide::{Applied, Decider, Decision, apply, decide};
pub use next_row::{CommitMode, NextRow, Reserve, Survivors, changes};
pub use state::{Entry, Home, KeyState, Reserved};
