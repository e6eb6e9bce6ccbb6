//! A lease: a TTL that renewals extend.

use std::time::Duration;

use super::observer::Observed;

/// The lease of a session, at its keeper, or of a lockRef without one, at the home of the key.
///
/// Once ended it stays ended: its replica may already have ended the entries that live by the lease.
///
/// With a `disconnect_grace` the lease of a disconnected client ends sooner: this long after the end of its renewal stream,
/// unless the client renews on another stream.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lease {
    ttl: Duration,
    /// At most the TTL.
    disconnect_grace: Option<Duration>,
    renewed: Observed,
    /// The end of a stream of its client; `None` since a renewal on a stream.
    disconnected: Option<Observed>,
    ended: bool,
}

impl Lease {
    /// A lease that begins now.
    pub fn new(ttl: Duration, now: Observed) -> Self {
        Lease {
            ttl,
            disconnect_grace: None,
            renewed: now,
            disconnected: None,
            ended: false,
        }
    }

    /// A lease that began earlier elsewhere, with this much left of its TTL.
    pub fn with_left(ttl: Duration, left: Duration, now: Observed) -> Self {
        Lease::new(ttl, now.minus(ttl.saturating_sub(left)))
    }

    /// Adds a grace for a disconnected client.
    #[must_use]
    pub fn with_disconnect_grace(self, grace: Option<Duration>) -> Self {
        Lease {
            disconnect_grace: grace.map(|grace| grace.min(self.ttl)),
            ..self
        }
    }

    /// Its time to live.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The last renewal of its client.
    pub fn heard(&self) -> Observed {
        self.renewed
    }

    /// Its grace for a disconnected client.
    pub fn disconnect_grace(&self) -> Option<Duration> {
        self.disconnect_grace
    }

    /// The longest time for which a client may be told that it is safe: its grace if it has one, even while it is connected,
    /// since the stream may end at any time.
    ///
    /// Every answered renewal, on a stream or not, keeps this promise. After a renewal at r, `renewed` is r or later for good. So
    /// the lease ends no earlier than r + TTL, or, after the end of a stream, than r + grace. The grace is at most the TTL.
    pub fn safe_for_most(&self) -> Duration {
        self.disconnect_grace.unwrap_or(self.ttl)
    }

    /// Renews it. Returns how long the client is safe, counted from when it sent the renewal; `None` if the lease has ended.
    pub fn renew(&mut self, now: Observed) -> Option<Duration> {
        if self.ended {
            return None;
        }
        self.renewed = self.renewed.max(now);
        Some(self.safe_for_most())
    }

    /// As [`Lease::renew`], on a stream: its client is connected, even if an earlier stream ended. (The end of an older stream
    /// may be seen later; the next renewal, in a quarter of the grace, corrects that.)
    pub fn renew_on_stream(&mut self, now: Observed) -> Option<Duration> {
        let safe_for = self.renew(now)?;
        self.disconnected = None;
        Some(safe_for)
    }

    /// A stream with renewals of its client ended.
    pub fn disconnect(&mut self, now: Observed) {
        self.disconnected = self.disconnected.max(Some(now));
    }

    /// Its expiry without another renewal (I8).
    pub fn expires(&self) -> Observed {
        let silent = self.renewed.plus(self.ttl);
        match (self.disconnected, self.disconnect_grace) {
            (Some(at), Some(grace)) => self.renewed.max(at).plus(grace).min(silent),
            (None, _) | (_, None) => silent,
        }
    }

    /// The time left; zero once it has ended.
    pub fn left(&self, now: Observed) -> Duration {
        if self.ended {
            Duration::ZERO
        } else {
            self.expires().since(now)
        }
    }

    /// Ends it after its TTL or its grace without a renewal. `true` if it has ended.
    pub fn expire(&mut self, now: Observed) -> bool {
        if self.expires() <= now {
            self.ended = true;
        }
        self.ended
    }

    /// Ends it.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::super::observer::Observer;
    use super::*;

    const TTL: Duration = Duration::from_secs(10);
    const GRACE: Duration = Duration::from_secs(2);

    fn at(seconds: u64) -> Observed {
        Observer::new(Duration::MAX)
            .observe(Duration::ZERO)
            .plus(Duration::from_secs(seconds))
    }

    #[test]
    fn a_lease_lives_for_its_ttl_after_each_renewal_and_no_longer() {
        let mut lease = Lease::new(TTL, at(0));
        assert!(!lease.expire(at(9)));
        assert_eq!(lease.renew(at(9)), Some(TTL));
        assert_eq!(lease.left(at(18)), Duration::from_secs(1));
        assert!(!lease.expire(at(18)));
        assert!(lease.expire(at(19)));
    }

    #[test]
    fn a_lease_that_has_ended_cannot_be_renewed() {
        let mut lease = Lease::new(TTL, at(0));
        assert!(lease.expire(at(10)));
        assert_eq!(lease.renew(at(10)), None);
        assert_eq!(lease.left(at(10)), Duration::ZERO);
    }

    /// The lease of a client that sent a renewal on a stream at 0.
    fn graceful() -> Lease {
        let mut lease = Lease::new(TTL, at(0)).with_disconnect_grace(Some(GRACE));
        assert_eq!(lease.renew_on_stream(at(0)), Some(GRACE));
        lease
    }

    #[test]
    fn a_lease_whose_stream_ended_lives_for_its_grace_and_no_longer() {
        let mut lease = graceful();
        assert_eq!(lease.expires(), at(10));
        lease.disconnect(at(3));
        assert_eq!(lease.left(at(4)), Duration::from_secs(1));
        assert!(!lease.expire(at(4)));
        assert!(lease.expire(at(5)));
        // Where the TTL has passed sooner, that is its end.
        let mut lease = graceful();
        lease.disconnect(at(9));
        assert_eq!(lease.expires(), at(10));
    }

    #[test]
    fn a_stream_that_ends_means_nothing_to_a_lease_without_a_grace() {
        let mut lease = Lease::new(TTL, at(0));
        lease.disconnect(at(1));
        assert_eq!(lease.expires(), at(10));
        assert_eq!(lease.renew(at(1)), Some(TTL));
    }

    #[test]
    fn only_a_renewal_on_another_stream_makes_up_for_the_end_of_one() {
        let mut lease = graceful();
        lease.disconnect(at(1));
        assert_eq!(lease.renew_on_stream(at(2)), Some(GRACE));
        assert_eq!(lease.expires(), at(12));
        lease.disconnect(at(3));
        // One by another way gives it another grace, from there.
        assert_eq!(lease.renew(at(4)), Some(GRACE));
        assert_eq!(lease.expires(), at(6));
        assert!(lease.expire(at(6)));
        assert_eq!(lease.renew_on_stream(at(6)), None);
    }

    #[test]
    fn whatever_streams_end_no_lease_ends_before_what_an_answered_renewal_promised() {
        for seed in 0..2_000_u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut below = |most: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % most
            };
            let grace = match below(4) {
                0 => None,
                _ => Some(Duration::from_secs(1 + below(TTL.as_secs()))),
            };
            let mut now = 0;
            let mut lease = Lease::new(TTL, at(now)).with_disconnect_grace(grace);
            let most = grace.unwrap_or(TTL);
            let (mut promised, mut last) = (at(0), at(0));
            for step in 0..60 {
                now += below(4);
                let answered = match below(4) {
                    0 => lease.renew(at(now)),
                    1 => lease.renew_on_stream(at(now)),
                    // A stream that ended a while ago may be learned of late.
                    2 => {
                        lease.disconnect(at(now.saturating_sub(below(3))));
                        None
                    }
                    _ => None,
                };
                if let Some(answered) = answered {
                    assert!(answered <= most, "seed {seed}, step {step}");
                    promised = promised.max(at(now).plus(answered));
                    last = at(now);
                }
                if lease.expire(at(now)) {
                    assert!(promised <= at(now), "seed {seed}, step {step}");
                } else {
                    assert!(at(now) < last.plus(TTL), "seed {seed}, step {step}");
                }
            }
        }
    }
}
