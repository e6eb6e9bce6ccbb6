//! The time of one observer: only its time awake counts (I9).

use std::time::Duration;

/// A moment on an observer's own clock. Times of two observers must not be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Observed(Duration);

impl Observed {
    /// The moment this much later; the end of time if there is none.
    #[must_use]
    pub fn plus(self, span: Duration) -> Observed {
        Observed(self.0.saturating_add(span))
    }

    /// The moment this much earlier; the beginning of time if there is none.
    #[must_use]
    pub fn minus(self, span: Duration) -> Observed {
        Observed(self.0.saturating_sub(span))
    }

    /// The moment as a number, for [`Observed::from_nanos`].
    pub fn to_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The moment of [`Observed::to_nanos`], on the clock of the same observer.
    pub fn from_nanos(nanos: u64) -> Observed {
        Observed(Duration::from_nanos(nanos))
    }

    /// The time from `earlier` to this moment; zero if it is not later.
    pub fn since(self, earlier: Observed) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Turns the machine's boot time into observed time. A stopped, suspended or starved process could not hear its clients, and a
/// silent replica turns them away. Such time is taken out: nobody expires by the observer's own sleep or silence.
#[derive(Clone, Debug)]
pub struct Observer {
    last: Option<Duration>,
    missed: Duration,
    gap_max: Duration,
    is_silent: bool,
}

impl Observer {
    /// An observer that reads the clock more often than once per `gap_max` while it is awake: a longer pause between two reads
    /// means that it was not.
    pub fn new(gap_max: Duration) -> Self {
        Observer {
            last: None,
            missed: Duration::ZERO,
            gap_max,
            is_silent: false,
        }
    }

    /// From `boot` on the observer hears no client, or hears them again.
    pub fn set_silent(&mut self, is_silent: bool, boot: Duration) {
        self.observe(boot);
        self.is_silent = is_silent;
    }

    /// Reads the clock. `boot` is the machine's time since boot, time asleep counted.
    pub fn observe(&mut self, boot: Duration) -> Observed {
        if let Some(last) = self.last {
            let gap = boot.saturating_sub(last);
            if gap > self.gap_max || self.is_silent {
                self.missed = self.missed.saturating_add(gap);
            }
        }
        // A clock that stepped back (it must not) is not followed.
        let last = self.last.map_or(boot, |last| last.max(boot));
        self.last = Some(last);
        Observed(last.saturating_sub(self.missed))
    }

    /// The time taken out so far.
    pub fn missed(&self) -> Duration {
        self.missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn time_that_the_observer_slept_through_does_not_count() {
        let mut observer = Observer::new(ms(1_000));
        let start = observer.observe(ms(10_000));
        assert_eq!(observer.observe(ms(10_900)).since(start), ms(900));
        // Stopped for a minute.
        assert_eq!(observer.observe(ms(70_900)).since(start), ms(900));
        assert_eq!(observer.observe(ms(71_900)).since(start), ms(1_900));
        assert_eq!(observer.missed(), ms(60_000));
    }

    #[test]
    fn time_in_which_the_observer_hears_nobody_does_not_count() {
        let mut observer = Observer::new(ms(1_000));
        let start = observer.observe(ms(10_000));
        observer.set_silent(true, ms(10_100));
        assert_eq!(observer.observe(ms(10_900)).since(start), ms(100));
        observer.set_silent(false, ms(11_800));
        assert_eq!(observer.observe(ms(12_000)).since(start), ms(300));
    }

    #[test]
    fn observed_time_never_goes_back() {
        let mut observer = Observer::new(ms(1_000));
        let a = observer.observe(ms(5_000));
        let b = observer.observe(ms(4_000));
        assert_eq!(b, a);
        assert_eq!(observer.observe(ms(5_100)).since(a), ms(100));
    }
}
