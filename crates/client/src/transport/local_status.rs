//! Statuses of the client itself, for calls without an answer of a server.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tonic::{Status, TimeoutExpired};

/// An answer that the contract does not allow.
pub(crate) fn unexpected(what: &str) -> Status {
    Status::internal(format!(
        "the server answered with {what}, which the contract does not allow"
    ))
}

/// The time limit passed before an answer came.
pub(crate) fn no_answer_within(span: Duration) -> Status {
    Status::deadline_exceeded(format!("no answer within {}", rounded(span)))
}

/// A status with other words, and the given one as its source.
pub(crate) fn in_other_words(status: Status, words: String) -> Status {
    let details = Bytes::copy_from_slice(status.details());
    let metadata = status.metadata().clone();
    let mut other = Status::with_details_and_metadata(status.code(), words, details, metadata);
    other.set_source(Arc::new(status));
    other
}

/// Whether the transport gave the attempt up at its deadline, a moment before the client itself would.
pub(crate) fn is_of_deadline(status: &Status) -> bool {
    causes(status).any(|cause| cause.is::<TimeoutExpired>())
}

/// The causes of a status of this client; none for a status of a server.
pub(crate) fn causes(status: &Status) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(status.source(), |error: &&(dyn Error + 'static)| {
        (**error).source()
    })
}

/// A span in words: rounded to milliseconds, from a second on to tenths of a second.
pub(crate) fn rounded(span: Duration) -> String {
    let tenths = span.saturating_add(Duration::from_millis(50)).as_millis() / 100;
    let (whole, tenth) = (tenths / 10, tenths % 10);
    match (whole, tenth) {
        (0, _) => match span.as_millis() {
            0 => "0s".to_owned(),
            ms => format!("{ms}ms"),
        },
        (_, 0) => format!("{whole}s"),
        (_, _) => format!("{whole}.{tenth}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_said_as_people_say_it() {
        for (span, said) in [
            (Duration::ZERO, "0s"),
            (Duration::from_micros(999), "0s"),
            (Duration::from_millis(300), "300ms"),
            (Duration::from_millis(949), "949ms"),
            (Duration::from_nanos(999_997_746), "1s"),
            (Duration::from_secs(2), "2s"),
            (Duration::from_nanos(7_999_997_746), "8s"),
            (Duration::from_millis(1_250), "1.3s"),
            (Duration::from_secs(90), "90s"),
        ] {
            assert_eq!(rounded(span), said, "{span:?}");
        }
    }
}
