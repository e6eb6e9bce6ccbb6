//! Budgets: what each connection may hold of this replica's memory, and all of them together.
//!
//! [`Accounts`] are the open connections; an [`Account`] counts what one of them holds. [`ReceivedBody`] counts messages until
//! their call is answered, [`AnswerBody`] answers until HTTP/2 has sent them. What HTTP/2 keeps by itself (windows, streams,
//! headers) its settings bound, in server.rs. What must not be here: what a call means.

mod account;
mod accounts;
mod answer;
mod received_body;
mod share_of;

pub use account::{Account, CallInFlight, Charge, OwnListings};
pub use accounts::{AccountLimits, Accounts, Connection, Held};
pub use answer::{AnswerBody, AnswerForm};
pub use received_body::{Arrival, ReceivedBody};
pub use share_of::{ConnectionInfo, ShareOf};

/// Messages and answers of up to this many bytes neither wait nor are refused: those that keep locks alive are among them.
const SMALL_BYTES: usize = 16 * 1024;

/// `usize` -> `u64`, which holds it on every platform there is.
pub(super) fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
