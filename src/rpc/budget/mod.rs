//! Budgets: the memory of each connection, and of all together.
//!
//! [`Accounts`] are the open connections; an [`Account`] counts the bytes of one. [`ReceivedBody`] counts messages until their
//! call is answered, [`AnswerBody`] answers until HTTP/2 has sent them. The settings of HTTP/2 in server.rs bound the rest:
//! windows, streams, headers. What must not be here: the meaning of a call.

mod account;
mod accounts;
mod answer;
mod metrics;
mod received_body;
mod total;

pub use account::{
    Account, CALL_BYTES, CallInFlight, Charge, ChargeKind, ConnectionInfo, READS_MAX,
};
pub use accounts::{Accounts, Connection, Held};
pub use answer::{AnswerBody, AnswerForm};
pub use received_body::{Arrival, ReceivedBody};
pub use total::AccountLimits;

/// Messages and answers of up to this many bytes, a frame of HTTP/2, neither wait nor are refused: renewals and releases are
/// among them. Larger answers go out in slices of this size.
const SMALL_BYTES: usize = 16 * 1024;

/// `usize` -> `u64`, which holds it on every platform there is.
pub(super) fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
