//! The validity of a lock, as its client computes it from answers.

use std::time::Duration;

use crate::clock::Moment;

/// The divisor of the part that is subtracted from a promised span: clock rates of two machines agree within 10 %.
const RATE_MARGIN_DIVISOR: u32 = 10;

/// The end of the server's promise, by the clock of this client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Validity {
    sent: Moment,
    until: Moment,
}

impl Validity {
    /// From an answer's `valid_for`, counted from the SENDING of its request: the answer may have taken any time, and the server
    /// never begins to count before the sending.
    pub(crate) fn promised(sent: Moment, valid_for: Duration) -> Validity {
        let margin = valid_for / RATE_MARGIN_DIVISOR;
        Validity {
            sent,
            until: sent.after(valid_for.saturating_sub(margin)),
        }
    }

    /// The validity of a lock that does not end by itself.
    pub(crate) fn endless() -> Validity {
        let end = Moment::from_zero(Duration::MAX);
        Validity {
            sent: end,
            until: end,
        }
    }

    pub(crate) fn is_endless(self) -> bool {
        self == Validity::endless()
    }

    /// The sending of its request.
    pub(crate) fn sent(self) -> Moment {
        self.sent
    }

    /// The whole span, from the sending of the request.
    pub(crate) fn span(self) -> Duration {
        self.sent.until(self.until)
    }

    /// When it ends.
    pub(crate) fn until(self) -> Moment {
        self.until
    }

    /// Both promises hold, so the later one counts: answers may overtake each other.
    #[must_use]
    pub(crate) fn or_later(self, other: Validity) -> Validity {
        if other.until > self.until {
            other
        } else {
            self
        }
    }

    /// Both must hold, so the earlier one counts.
    #[must_use]
    pub(crate) fn or_earlier(self, other: Validity) -> Validity {
        if other.until < self.until {
            other
        } else {
            self
        }
    }

    /// Whether it has ended; true at the very moment of its end.
    pub(crate) fn has_ended(self, now: Moment) -> bool {
        now >= self.until
    }

    /// The time left.
    pub(crate) fn left(self, now: Moment) -> Duration {
        now.until(self.until)
    }
}

/// The promise of an answer about a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Promise {
    /// Until when.
    pub(crate) validity: Validity,
    /// The lock survives a crash of the replica that serves its key. Otherwise the lock is safe only for this promise, even if
    /// the promise of its session is longer.
    pub(crate) durable: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_zero(Duration::from_millis(ms))
    }

    #[test]
    fn a_promise_counts_from_the_sending_with_a_tenth_taken_off() {
        let validity = Validity::promised(at(5_000), Duration::from_secs(30));
        assert_eq!(validity.until(), at(32_000));
        assert_eq!(validity.span(), Duration::from_secs(27));
        assert!(!validity.has_ended(at(31_999)));
        assert!(validity.has_ended(at(32_000)));
        assert_eq!(validity.left(at(31_000)), Duration::from_secs(1));
        assert_eq!(validity.left(at(40_000)), Duration::ZERO);
    }

    #[test]
    fn an_answer_that_took_longer_than_its_promise_is_worth_nothing() {
        let validity = Validity::promised(at(0), Duration::from_secs(10));
        assert!(validity.has_ended(at(9_500)));
    }

    #[test]
    fn an_answer_that_was_overtaken_shortens_nothing() {
        let newer = Validity::promised(at(10_000), Duration::from_secs(10));
        let older = Validity::promised(at(5_000), Duration::from_secs(10));
        assert_eq!(newer.or_later(older), newer);
        assert_eq!(older.or_later(newer), newer);
    }

    #[test]
    fn nothing_promised_has_ended_at_once_and_forever_does_not_overflow() {
        assert!(Validity::promised(at(7), Duration::ZERO).has_ended(at(7)));
        let forever = Validity::promised(at(7), Duration::MAX);
        assert!(!forever.has_ended(at(u64::MAX / 2)));
    }
}
