//! Budgets: what each connection may hold of this replica's memory, and all of them together.
//!
//! [`Accounts`] are the open connections; an [`Account`] is what one of them holds. By [`FrameScan`] it counts what comes in
//! until it is read, and streams until their end was sent; [`ReceivedBody`] counts what of it is kept, [`UnsentBody`] what goes
//! out, until HTTP/2 has sent it. What must not be here: what a call means.

mod account;
mod accounts;
mod charge;
mod frames;
mod header_table;
mod received_body;
mod share_of;
mod streams;
mod unread;
mod unsent;
mod unsent_body;

pub use account::{Account, CallForm, CallInFlight, OwnListings};
pub use accounts::{AccountLimits, Accounts, Connection, Held};
pub use charge::{Charge, KeptBytes, ReservedBytes};
pub use frames::{FrameHead, FrameScan, PREFACE_BYTES};
pub use received_body::{Arrival, ReceivedBody};
pub use share_of::{ConnectionInfo, ShareOf};
pub use unread::UnreadBody;
pub use unsent_body::{UnsentBody, WithoutRoom};

/// Answers and messages of up to so many bytes are never refused, and never wait: what keeps locks alive is among them.
const SMALL_BYTES: usize = 16 * 1024;

/// Messages that are counted: a stream takes about as much by itself.
const COUNTED_BYTES: usize = 1024;

/// `usize` -> `u64`, which holds it on every platform there is.
pub(super) fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
