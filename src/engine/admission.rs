//! How much is begun at once. Where more is asked for than this replica and its store can do, what is begun and not answered
//! in time was done for nothing; so calls that begin something are refused early, and those of who holds or waits for a lock
//! already go on.
//!
//! As TCP does with a path that it does not know, the window halves when answers come late, and grows with every few that do
//! not. It halves only once they have come late for a while: a burst is no overload. A call that comes while as many as that are in flight is refused at once: a queue in front would only make the late
//! ones later. While there is a queue in front of the engine that does not go away, a call that waited in it is refused as well.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Clock;

/// So many are always begun …
const LEAST: usize = 64;
/// … and never more.
const MOST: usize = 8_192;
/// One more is begun at once after so many answers in time.
const GROWS_AFTER: usize = 4;
/// What takes so many times as long as the fastest lately is late …
const TIMES_THE_FASTEST: u32 = 4;
/// … but not what any pause makes slow.
const LATE_AFTER_LEAST: Duration = Duration::from_millis(250);
/// The fastest one lately: of the present span of this length, and the one before.
const SPAN: Duration = Duration::from_secs(30);
/// So long answers must have come late, and none in time, before fewer are begun.
const LATE_FOR: Duration = Duration::from_millis(500);
/// While answers came late within this, what is older than that is not begun.
const LATELY: Duration = Duration::from_secs(2);
const AGE_MAX: Duration = Duration::from_millis(250);
/// When to come again: after twice what a call takes, within these.
const AGAIN_MIN: Duration = Duration::from_millis(100);
const AGAIN_MAX: Duration = Duration::from_secs(2);

/// Decides what is begun. All times are of CLOCK_BOOTTIME.
#[derive(Debug)]
pub(super) struct Admission(Mutex<AdmissionWindow>);

/// Too much is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMuch {
    /// When to come again.
    pub again_after: Duration,
}

/// A call that was begun. One that is dropped was late.
pub(super) struct BegunCall<'a> {
    admission: &'a Admission,
    clock: &'a dyn Clock,
    begun: Duration,
    is_answered: bool,
}

impl Admission {
    /// Nothing is in flight.
    pub fn new() -> Admission {
        Admission(Mutex::new(AdmissionWindow::new()))
    }

    fn window(&self) -> MutexGuard<'_, AdmissionWindow> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When to come again, where a call that comes now would be refused.
    pub fn is_full(&self) -> Option<TooMuch> {
        let window = self.window();
        (window.in_flight >= window.size).then(|| window.too_much())
    }

    /// Begins a call that waited for so long to be.
    pub fn begin<'a>(
        &'a self,
        clock: &'a dyn Clock,
        waited: Duration,
    ) -> Result<BegunCall<'a>, TooMuch> {
        let begun = clock.boot();
        self.window().begin(begun, waited)?;
        Ok(BegunCall {
            admission: self,
            clock,
            begun,
            is_answered: false,
        })
    }
}

impl BegunCall<'_> {
    /// It was answered, whatever with.
    pub fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for BegunCall<'_> {
    fn drop(&mut self) {
        let now = self.clock.boot();
        let took = now.saturating_sub(self.begun);
        let mut window = self.admission.window();
        match self.is_answered {
            true => window.answered(self.begun, now, took),
            false => window.left(self.begun, now),
        }
    }
}

/// How many may be in flight, by when they are answered.
#[derive(Debug)]
struct AdmissionWindow {
    size: usize,
    in_flight: usize,
    in_time: usize,
    /// What the fastest took in this span, and in the one before.
    fastest: [Duration; 2],
    span_begun: Duration,
    /// What they took lately.
    usual: Duration,
    /// Since when all that was begun was late.
    late_since: Option<Duration>,
    /// When it was halved for the last time: those that were begun before were late for the same reason.
    halved_at: Option<Duration>,
}

impl AdmissionWindow {
    fn new() -> AdmissionWindow {
        AdmissionWindow {
            size: MOST,
            in_flight: 0,
            in_time: 0,
            fastest: [Duration::MAX; 2],
            span_begun: Duration::ZERO,
            usual: Duration::ZERO,
            late_since: None,
            halved_at: None,
        }
    }

    fn begin(&mut self, now: Duration, waited: Duration) -> Result<(), TooMuch> {
        let was_late = |at| now.saturating_sub(at) < LATELY;
        let is_old = waited > AGE_MAX && self.halved_at.is_some_and(was_late);
        if is_old || self.in_flight >= self.size {
            return Err(self.too_much());
        }
        self.in_flight += 1;
        Ok(())
    }

    fn too_much(&self) -> TooMuch {
        TooMuch {
            again_after: (self.usual * 2).clamp(AGAIN_MIN, AGAIN_MAX),
        }
    }

    fn answered(&mut self, begun: Duration, now: Duration, took: Duration) {
        let [this_span, last_span] = self.fastest;
        self.fastest = match now.saturating_sub(self.span_begun) < SPAN {
            true => [this_span.min(took), last_span],
            false => {
                self.span_begun = now;
                [took, this_span]
            }
        };
        let fastest = self.fastest[0].min(self.fastest[1]);
        self.usual = self.usual - self.usual / 8 + took / 8;
        if took > (fastest * TIMES_THE_FASTEST).max(LATE_AFTER_LEAST) {
            return self.left(begun, now);
        }
        self.late_since = None;
        // A window that is not used says nothing of a larger one.
        if self.in_flight * 2 >= self.size {
            self.in_time += 1;
            if self.in_time >= GROWS_AFTER {
                self.in_time = 0;
                self.size = (self.size + 1).min(MOST);
            }
        }
        self.in_flight -= 1;
    }

    /// It was late, or nobody waited for it any more.
    fn left(&mut self, begun: Duration, now: Duration) {
        self.in_flight -= 1;
        let late_since = *self.late_since.get_or_insert(now);
        let lasts = now.saturating_sub(late_since) >= LATE_FOR;
        if lasts && self.halved_at.is_none_or(|at| begun >= at) {
            // Of what is in flight, not of what might be.
            let used = self.size.min((self.in_flight + 1).max(LEAST) * 2);
            self.size = (used / 2).max(LEAST);
            self.halved_at = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// So many are begun at once, as far as that may be, and answered after this.
    fn round(window: &mut AdmissionWindow, calls: usize, begun: Duration, took: Duration) -> usize {
        let admitted = (0..calls).filter(|_| window.begin(begun, Duration::ZERO).is_ok());
        let admitted = admitted.count();
        for _ in 0..admitted {
            window.answered(begun, begun + took, took);
        }
        admitted
    }

    #[test]
    fn what_comes_late_makes_it_smaller_and_what_does_not_larger_again() {
        let mut window = AdmissionWindow::new();
        assert_eq!(round(&mut window, 1_000, ms(0), ms(5)), 1_000);
        // A burst.
        assert_eq!(round(&mut window, 1_000, ms(10), ms(400)), 1_000);
        assert_eq!(window.size, MOST);
        // All of a round were late for one reason.
        assert_eq!(round(&mut window, 1_000, ms(600), ms(400)), 1_000);
        assert_eq!(window.size, 1_000);
        assert_eq!(round(&mut window, 2_000, ms(1_100), ms(400)), 1_000);
        assert_eq!(round(&mut window, 2_000, ms(1_600), ms(400)), 500);
        for turn in 3..12 {
            round(&mut window, 2_000, ms(1_000 * turn), ms(400));
        }
        assert_eq!(window.size, LEAST);
        let mut now = ms(20_000);
        for _ in 0..100 {
            round(&mut window, 2_000, now, ms(50));
            now += ms(50);
        }
        assert!(window.size > 4 * LEAST, "{}", window.size);
        assert_eq!(window.in_flight, 0);
    }

    #[test]
    fn a_store_that_is_slow_by_nature_is_not_late() {
        let mut window = AdmissionWindow::new();
        for turn in 0..10 {
            round(&mut window, 1_000, ms(1_000 * turn), ms(350));
        }
        assert_eq!(window.size, MOST);
    }

    #[test]
    fn old_calls_are_refused_only_while_there_is_too_much() {
        let mut window = AdmissionWindow::new();
        assert_eq!(window.begin(ms(0), ms(9_000)), Ok(()));
        assert_eq!(window.begin(ms(0), ms(0)), Ok(()));
        window.left(ms(0), ms(100));
        window.left(ms(0), ms(700));
        let refused = window.begin(ms(800), ms(300)).unwrap_err();
        assert_eq!(refused.again_after, AGAIN_MIN);
        assert_eq!(window.begin(ms(800), ms(200)), Ok(()));
        assert_eq!(window.begin(ms(2_800), ms(300)), Ok(()));
    }

    #[test]
    fn whoever_is_refused_comes_again_when_others_were_answered() {
        let mut window = AdmissionWindow::new();
        for turn in 0..60 {
            round(&mut window, LEAST, ms(1_000 * turn), ms(800));
        }
        for _ in 0..window.size {
            window.begin(ms(60_000), ms(0)).unwrap();
        }
        let refused = window.begin(ms(60_000), ms(0)).unwrap_err();
        assert!(
            (ms(1_500)..=ms(1_600)).contains(&refused.again_after),
            "{refused:?}"
        );
    }
}
