//! Histories: what the clients of a test asked and were told, and whether a lock service that keeps its promises
//! could have answered so.
//!
//! A [`Recorder`] notes every try of every call, those of unknown outcome too. [`check`] is a pure function of
//! what was noted: it knows nothing of the service but its promises. What lives here starts nothing, and asks
//! nobody.
#![allow(
    dead_code,
    unused_imports,
    reason = "each program that includes this uses a part of it"
)]

mod check;
mod event;
#[path = "../figures.rs"]
pub mod figures;
mod recorder;
mod rpc;

pub use check::{Checked, Rule, Violation, check};
pub use event::{Entry, Event, Learned, Op, Outcome, Value};
pub use recorder::{Call, CheckedAtEnd, Judged, Recorder};
pub use rpc::RecordedRequest;
