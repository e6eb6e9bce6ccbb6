//! How long a lock may be believed in.

use std::time::Duration;

use crate::clock::Moment;

/// What is taken off a promised span, as a divisor: clock rates of two machines agree within 10 %.
const RATE_MARGIN_DIVISOR: u32 = 10;

/// The end of what the server promised, as seen from here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Validity {
    sent: Moment,
    until: Moment,
}

impl Validity {
    /// From an answer's `valid_for` and the moment its request was SENT: the answer may have taken any
    /// time to come, and the server counts from no earlier than when the request was sent.
    pub(crate) fn promised(sent: Moment, valid_for: Duration) -> Validity {
        let margin = valid_for / RATE_MARGIN_DIVISOR;
        Validity {
            sent,
            until: sent.after(valid_for.saturating_sub(margin)),
        }
    }

    /// Of what does not end by itself.
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

    /// When it was asked for.
    pub(crate) fn sent(self) -> Moment {
        self.sent
    }

    /// How long it was good for when it was asked for.
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

    /// Whether it has ended. At the very moment of its end it has.
    pub(crate) fn has_ended(self, now: Moment) -> bool {
        now >= self.until
    }

    /// What is left.
    pub(crate) fn left(self, now: Moment) -> Duration {
        now.until(self.until)
    }
}

/// What an answer about a lock promised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Promise {
    /// Until when.
    pub(crate) validity: Validity,
    /// The lock survives a crash of the replica that serves its key. Where this is false it is safe no longer than the
    /// promise, whatever its session was promised.
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
