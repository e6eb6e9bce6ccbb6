//! A lease: how long something lives without a sign of life.

use std::time::Duration;

use super::observer::Observed;

/// What keeps a session, or a lockRef without one, alive at the replica that vouches for it.
///
/// Once over it stays over: the replica that found it expired may already have ended what lives by it.
#[derive(Clone, Debug)]
pub struct Lease {
    ttl: Duration,
    renewed: Observed,
    /// Calls that are open right now, each a sign of life by itself.
    open_calls: u32,
    over: bool,
}

impl Lease {
    /// A lease that begins now.
    pub fn new(ttl: Duration, now: Observed) -> Self {
        Lease {
            ttl,
            renewed: now,
            open_calls: 0,
            over: false,
        }
    }

    /// One that begins now, with calls that are open already.
    pub fn with_open_calls(ttl: Duration, now: Observed, open_calls: u32) -> Self {
        Lease {
            open_calls,
            ..Lease::new(ttl, now)
        }
    }

    /// Its time to live.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// A sign of life: what the client may be told (how long it is safe, from the moment it sent that
    /// sign), or `None` if the lease is over.
    pub fn renew(&mut self, now: Observed) -> Option<Duration> {
        if self.over {
            return None;
        }
        self.renewed = self.renewed.max(now);
        Some(self.ttl)
    }

    /// A call opens that keeps it alive until it closes. False if the lease is over.
    pub fn open_call(&mut self, now: Observed) -> bool {
        if self.renew(now).is_none() {
            return false;
        }
        self.open_calls = self.open_calls.saturating_add(1);
        true
    }

    /// A call that kept it alive closes; the TTL counts from here.
    pub fn close_call(&mut self, now: Observed) {
        self.open_calls = self.open_calls.saturating_sub(1);
        self.renew(now);
    }

    /// When it expires unless there is another sign of life.
    pub fn expires(&self, now: Observed) -> Observed {
        let from = if self.open_calls > 0 {
            self.renewed.max(now)
        } else {
            self.renewed
        };
        from.plus(self.ttl)
    }

    /// What is left of it; zero once it is over.
    pub fn left(&self, now: Observed) -> Duration {
        if self.over {
            Duration::ZERO
        } else {
            self.expires(now).since(now)
        }
    }

    /// Ends it if nothing was heard for its TTL. True if it is over now.
    pub fn expire(&mut self, now: Observed) -> bool {
        if self.expires(now) <= now {
            self.over = true;
        }
        self.over
    }

    /// Ends it.
    pub fn end(&mut self) {
        self.over = true;
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.over
    }
}

#[cfg(test)]
mod tests {
    use super::super::observer::Observer;
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Observed {
        Observer::new(Duration::MAX)
            .observe(Duration::ZERO)
            .plus(Duration::from_secs(seconds))
    }

    #[test]
    fn a_lease_lives_for_its_ttl_after_each_sign_of_life_and_no_longer() {
        let mut lease = Lease::new(TTL, at(0));
        assert!(!lease.expire(at(9)));
        assert_eq!(lease.renew(at(9)), Some(TTL));
        assert_eq!(lease.left(at(18)), Duration::from_secs(1));
        assert!(!lease.expire(at(18)));
        assert!(lease.expire(at(19)));
    }

    #[test]
    fn a_lease_that_is_over_cannot_be_renewed() {
        let mut lease = Lease::new(TTL, at(0));
        assert!(lease.expire(at(10)));
        assert_eq!(lease.renew(at(10)), None);
        assert!(!lease.open_call(at(10)));
        assert_eq!(lease.left(at(10)), Duration::ZERO);
    }

    #[test]
    fn an_open_call_keeps_it_alive_and_its_close_starts_the_ttl() {
        let mut lease = Lease::new(TTL, at(0));
        assert!(lease.open_call(at(1)));
        assert!(!lease.expire(at(1_000)));
        assert_eq!(lease.left(at(1_000)), TTL);
        lease.close_call(at(1_000));
        assert!(!lease.expire(at(1_009)));
        assert!(lease.expire(at(1_010)));
    }
}
