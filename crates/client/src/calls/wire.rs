//! Spans of time, to and from the contract.

use std::time::Duration;

/// A span of the contract; zero if it is absent or negative.
pub(crate) fn from_wire(span: Option<prost_types::Duration>) -> Duration {
    span.and_then(|span| Duration::try_from(span).ok())
        .unwrap_or(Duration::ZERO)
}

/// A span for the contract; `None` if it is too long. Then the server uses its maximum or its default.
pub(crate) fn to_wire(span: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(span).ok()
}
