//! The calls of the contract, one by one: repeated where that can help, but with nothing kept alive in
//! the background. [`super::LockGuard`] and [`super::Session`] are made of these; use them directly where a
//! lockRef came from another process. (What operators call is in `admin.rs`.)

mod entry;
mod session;
mod value;

use std::time::Duration;

use super::connect::Answer;
use super::validity::{Promise, Validity};

/// Until when what an answer is about is safe from expiry.
fn validity<T>(answer: &Answer<T>, valid_for: Option<prost_types::Duration>) -> Validity {
    Validity::promised(answer.sent, from_wire(valid_for))
}

/// What an answer about a lock promises.
fn promise<T>(
    answer: &Answer<T>,
    valid_for: Option<prost_types::Duration>,
    durable: bool,
) -> Promise {
    Promise {
        validity: validity(answer, valid_for),
        durable,
    }
}

/// A span of the contract; nothing where it is absent or negative.
pub(crate) fn from_wire(span: Option<prost_types::Duration>) -> Duration {
    span.and_then(|span| Duration::try_from(span).ok())
        .unwrap_or(Duration::ZERO)
}

/// A span for the contract; `None` where it has no room for it, which asks for the server's maximum or
/// default.
fn to_wire(span: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(span).ok()
}
