//! Decides which failed calls are repeated, and when.
//!
//! Every call of the contract may be repeated (a create by its request_id, a critical call under a higher `call_no`). So the only
//! question is whether a repeat can help.

use std::error::Error as _;
use std::time::Duration;

use fermata_proto::DOMAIN;
use tonic::{Code, Status};
use tonic_types::StatusExt;
use uuid::Uuid;

/// The first pause, before jitter; also the least time between two renewals.
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest pause that the client itself chooses, before jitter.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The reason of a refusal under overload.
const OVERLOADED: &str = "OVERLOADED";
/// The reason of a call on a lockRef whose release is in flight: its outcome is known soon.
const RELEASING: &str = "RELEASING";

/// What to do about a failed call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Repeat it, but no sooner than the server asked.
    Repeat {
        /// From RetryInfo.
        not_before: Option<Duration>,
        /// Whether to repeat it on another replica, if there is one. Otherwise the same replica may be used.
        elsewhere: bool,
    },
    /// A repeat would change nothing; the caller must act.
    Final,
}

/// Judges a failed call.
pub(crate) fn judge(status: &Status) -> Verdict {
    let repeat = Verdict::Repeat {
        not_before: retry_delay(status),
        elsewhere: true,
    };
    let repeat_there = Verdict::Repeat {
        not_before: retry_delay(status),
        elsewhere: false,
    };
    match status.code() {
        Code::Unavailable => repeat,
        // Its outcome is unknown: the deadline was our own, or a connection was closed under the call.
        Code::Cancelled | Code::DeadlineExceeded => repeat,
        // A status with a source was made here, out of a broken connection; without one a server sent it.
        Code::Unknown | Code::Internal | Code::DataLoss if status.source().is_some() => repeat,
        Code::Unknown | Code::Internal | Code::DataLoss => Verdict::Final,
        // Nothing was done, and the home of the key stays the same: other replicas would pass the call on to it.
        Code::ResourceExhausted if has_reason(status, OVERLOADED) => repeat_there,
        Code::FailedPrecondition if has_reason(status, RELEASING) => repeat_there,
        // A limit: how long to wait for room is the caller's choice.
        Code::ResourceExhausted => Verdict::Final,
        Code::Ok
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Unauthenticated => Verdict::Final,
    }
}

/// The reason given by a Fermata server (`google.rpc.ErrorInfo`).
pub(crate) fn reason(status: &Status) -> Option<String> {
    let info = status.get_details_error_info();
    info.filter(|info| info.domain == DOMAIN)
        .map(|info| info.reason)
}

/// Whether a Fermata server gives this reason.
pub(crate) fn has_reason(status: &Status, name: &str) -> bool {
    reason(status).is_some_and(|reason| reason == name)
}

/// How long the server asks to wait before the call is repeated.
pub(crate) fn retry_delay(status: &Status) -> Option<Duration> {
    status.get_details_retry_info()?.retry_delay
}

/// Growing, jittered pauses between attempts.
#[derive(Debug)]
pub(crate) struct Backoff {
    pause: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff { pause: PAUSE_MIN }
    }

    /// The next pause: from half of the present step to all of it; or the pause that the server asked for, up to twice as long.
    pub(crate) fn next(&mut self, not_before: Option<Duration>) -> Duration {
        self.next_with(not_before, random_fraction())
    }

    fn next_with(&mut self, not_before: Option<Duration>, fraction: f64) -> Duration {
        let half = self.pause / 2;
        let own = half + half.mul_f64(fraction);
        self.pause = self.pause.saturating_mul(2).min(PAUSE_MAX);
        match not_before {
            Some(asked) => own.max(asked.saturating_add(half.mul_f64(fraction))),
            None => own,
        }
    }

    /// Starts over, after a success.
    pub(crate) fn reset(&mut self) {
        self.pause = PAUSE_MIN;
    }
}

/// From 0 to 1. The random part of a UUID is good enough, because only the spread of retries depends on it.
fn random_fraction() -> f64 {
    let (_, low) = Uuid::new_v4().as_u64_pair();
    f64::from(low as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tonic_types::ErrorDetails;

    use super::*;

    #[test]
    fn what_may_pass_is_repeated_and_what_will_not_is_final() {
        let again = Verdict::Repeat {
            not_before: None,
            elsewhere: true,
        };
        for (code, expected) in [
            (Code::Unavailable, again),
            (Code::Cancelled, again),
            (Code::DeadlineExceeded, again),
            (Code::Internal, Verdict::Final),
            (Code::Unknown, Verdict::Final),
            (Code::ResourceExhausted, Verdict::Final),
            (Code::FailedPrecondition, Verdict::Final),
            (Code::InvalidArgument, Verdict::Final),
            (Code::NotFound, Verdict::Final),
            (Code::PermissionDenied, Verdict::Final),
            (Code::Unauthenticated, Verdict::Final),
        ] {
            assert_eq!(judge(&Status::new(code, "")), expected, "{code:?}");
        }
    }

    #[test]
    fn a_connection_that_broke_under_a_call_is_repeated() {
        let mut status = Status::unknown("transport error");
        status.set_source(Arc::new(std::io::Error::other("connection reset")));
        let again = Verdict::Repeat {
            not_before: None,
            elsewhere: true,
        };
        assert_eq!(judge(&status), again);
    }

    #[test]
    fn the_server_is_given_the_time_it_asked_for() {
        let asked = Duration::from_secs(3);
        let status = Status::with_error_details(
            Code::Unavailable,
            "no majority",
            ErrorDetails::with_retry_info(Some(asked)),
        );
        let Verdict::Repeat { not_before, .. } = judge(&status) else {
            panic!("it must be repeated");
        };
        assert_eq!(not_before, Some(asked));
        assert!(Backoff::new().next(not_before) >= asked);
    }

    #[test]
    fn a_replica_that_is_overloaded_is_asked_again_and_not_left() {
        let asked = Duration::from_millis(300);
        let mut details = ErrorDetails::with_retry_info(Some(asked));
        let of = |details| Status::with_error_details(Code::ResourceExhausted, "", details);
        details.set_error_info(OVERLOADED, DOMAIN, std::collections::HashMap::new());
        let expected = Verdict::Repeat {
            not_before: Some(asked),
            elsewhere: false,
        };
        assert_eq!(judge(&of(details.clone())), expected);
        // Other limits are for the caller.
        details.set_error_info("LIMIT_REACHED", DOMAIN, std::collections::HashMap::new());
        assert_eq!(judge(&of(details)), Verdict::Final);
    }

    #[test]
    fn pauses_grow_to_a_bound_and_start_over() {
        let mut backoff = Backoff::new();
        assert_eq!(backoff.next_with(None, 0.0), Duration::from_millis(25));
        assert_eq!(backoff.next_with(None, 1.0), Duration::from_millis(100));
        for _ in 0..20 {
            assert!(backoff.next(None) <= PAUSE_MAX);
        }
        assert_eq!(backoff.next_with(None, 1.0), PAUSE_MAX);
        backoff.reset();
        assert_eq!(backoff.next_with(None, 1.0), PAUSE_MIN);
    }
}
