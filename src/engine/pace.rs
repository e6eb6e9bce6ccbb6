//! How many calls that begin something are begun a second where the processor does not keep up.
//!
//! A store that is late shows in answers that are late ([`super::admission`]). A processor that is short shows before: what came in
//! waits to be read, renewals and releases with it, and nobody sees since when. So it is measured how long a task waits
//! for its turn. While that is long, fewer are begun, down to what leaves no queue; the rest is refused before it is read.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::log_throttle::LogThrottle;

/// A task that waits for so long for its turn …
const LONG: Duration = Duration::from_millis(60);
/// … for this long without a pause, and the processor does not keep up.
const LONG_FOR: Duration = Duration::from_millis(500);
/// What is begun grows again while tasks wait no longer than this.
const SHORT: Duration = Duration::from_millis(20);
/// It is decided so often.
const TICK: Duration = Duration::from_millis(100);
/// Each time, of what may be begun: so much less, unless the queue became shorter by itself …
const LESS: f64 = 0.93;
/// … and where a task waits for longer than this, so much …
const VERY_LONG: Duration = Duration::from_millis(150);
const MUCH_LESS: f64 = 0.85;
/// … or more.
const MORE: f64 = 1.02;
/// So many a second are always begun: no processor is too slow for that, and whatever else a machine does must not end all.
const LEAST: f64 = 200.0;
/// There is no limit any more once this many times less was begun than might have been, for this long.
const UNUSED_TIMES: f64 = 2.0;
const UNUSED_FOR: Duration = Duration::from_secs(10);
/// What may be begun at once, as far as it was not begun before.
const AT_ONCE: Duration = Duration::from_millis(50);
/// … and these at least.
const AT_ONCE_LEAST: f64 = 32.0;

/// Decides what is begun. All times are of CLOCK_BOOTTIME.
#[derive(Debug, Default)]
pub(super) struct Pace {
    state: Mutex<PaceState>,
    limited: LogThrottle,
}

#[derive(Debug, Default)]
struct PaceState {
    limit: Option<RateLimit>,
    ticked_at: Duration,
    /// The longest wait since then, and between the two ticks before.
    waited: Duration,
    waited_before: Duration,
    /// How many were begun since then, and lately, a second.
    begun: u32,
    begun_lately: f64,
    /// Since when tasks wait for long.
    long_since: Option<Duration>,
}

#[derive(Debug)]
struct RateLimit {
    /// A second.
    rate: f64,
    /// What may be begun now.
    left: f64,
    filled_at: Duration,
    /// Since when it is not used.
    unused_since: Duration,
}

impl Pace {
    fn state(&self) -> MutexGuard<'_, PaceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call that comes now would be refused.
    pub fn is_full(&self, now: Duration) -> bool {
        let mut state = self.state();
        state
            .limit
            .as_mut()
            .is_some_and(|limit| limit.left(now) < 1.0)
    }

    /// Begins a call, unless that is too much.
    pub fn begin(&self, now: Duration) -> bool {
        self.state().begin(now)
    }

    /// A task waited for so long for its turn.
    pub fn note_wait(&self, now: Duration, waited: Duration) {
        let limited = self.state().note_wait(now, waited);
        let what = "the processor does not keep up: of what begins something so much is begun a second, and the rest refused (OVERLOADED)";
        if let Some(rate) = limited
            && let Some(times) = self.limited.met(now, what)
        {
            tracing::warn!(rate, ?waited, times, "{what}");
        }
    }
}

impl RateLimit {
    fn left(&mut self, now: Duration) -> f64 {
        let since = now.saturating_sub(self.filled_at).as_secs_f64();
        let most = (self.rate * AT_ONCE.as_secs_f64()).max(AT_ONCE_LEAST);
        self.left = (self.left + self.rate * since).min(most);
        self.filled_at = now;
        self.left
    }
}

impl PaceState {
    fn begin(&mut self, now: Duration) -> bool {
        if let Some(limit) = &mut self.limit {
            if limit.left(now) < 1.0 {
                return false;
            }
            limit.left -= 1.0;
        }
        self.begun = self.begun.saturating_add(1);
        true
    }

    /// How many are begun a second from now on, where these are fewer than before.
    fn note_wait(&mut self, now: Duration, waited: Duration) -> Option<u64> {
        self.waited = self.waited.max(waited);
        let since = now.saturating_sub(self.ticked_at);
        if since < TICK {
            return None;
        }
        let waited = std::mem::take(&mut self.waited);
        let waited_before = std::mem::replace(&mut self.waited_before, waited);
        let begun = f64::from(std::mem::take(&mut self.begun)) / since.as_secs_f64();
        self.begun_lately += (begun - self.begun_lately) / 4.0;
        self.ticked_at = now;
        if waited < LONG {
            self.long_since = None;
            self.relax(now, waited);
            return None;
        }
        let long_since = *self.long_since.get_or_insert(now.saturating_sub(waited));
        if now.saturating_sub(long_since) < LONG_FOR {
            return None;
        }
        let before = self.limit.as_ref().map_or(f64::MAX, |limit| limit.rate);
        let less = if waited < VERY_LONG { LESS } else { MUCH_LESS };
        let rate = (before.min(self.begun_lately) * less).max(LEAST);
        // A long queue is to become shorter by a fiftieth each time.
        let shorter = match waited < VERY_LONG {
            true => waited_before,
            false => waited_before - waited_before / 50,
        };
        if rate >= before || waited < shorter {
            return None;
        }
        self.limit = Some(RateLimit {
            rate,
            left: 0.0,
            filled_at: now,
            unused_since: now,
        });
        // It is below what an integer holds: it was counted.
        Some(rate as u64)
    }

    fn relax(&mut self, now: Duration, waited: Duration) {
        let Some(limit) = &mut self.limit else { return };
        if waited <= SHORT {
            limit.rate *= MORE;
        }
        if self.begun_lately * UNUSED_TIMES >= limit.rate {
            limit.unused_since = now;
        } else if now.saturating_sub(limit.unused_since) >= UNUSED_FOR {
            self.limit = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// So many are asked for a second, of a processor that takes so long for each that is begun and each that is refused. How many
    /// were begun in each second, and how long the queue was at its end.
    fn overloaded(
        pace: &mut PaceState,
        (asked, takes, refused_takes): (u64, Duration, Duration),
        seconds: u64,
    ) -> Vec<(u64, Duration)> {
        let mut queue = Duration::ZERO;
        let mut begun = 0;
        let mut each = Vec::new();
        let mut asked_for = 0;
        for tick in 1..=seconds * 100 {
            let now = ms(10_000 + 10 * tick);
            while asked_for < asked * tick / 100 {
                asked_for += 1;
                let is_begun = pace.begin(now);
                begun += u64::from(is_begun);
                queue += if is_begun { takes } else { refused_takes };
            }
            queue = queue.saturating_sub(ms(10));
            pace.note_wait(now, queue);
            if tick % 100 == 0 {
                each.push((std::mem::take(&mut begun), queue));
            }
        }
        each
    }

    #[test]
    fn as_many_are_begun_as_leave_no_queue() {
        let mut pace = PaceState::default();
        // A thousand a second could be done alone; refusals leave seven tenths of that.
        let each = overloaded(&mut pace, (3_000, ms(1), Duration::from_micros(130)), 60);
        for (begun, queue) in &each[20..] {
            assert!((550..=800).contains(begun), "{each:?}");
            assert!(*queue < ms(150), "{each:?}");
        }
        let all: u64 = each[20..].iter().map(|(begun, _)| begun).sum();
        assert!(all / 40 > 630, "{each:?}");
    }

    #[test]
    fn what_a_processor_can_do_is_not_limited() {
        let mut pace = PaceState::default();
        overloaded(&mut pace, (900, ms(1), ms(0)), 10);
        assert!(pace.limit.is_none());
        // A pause of all, such as of a machine that does something else.
        pace.note_wait(ms(30_000), ms(400));
        pace.note_wait(ms(30_100), ms(0));
        assert!(pace.limit.is_none());
    }

    #[test]
    fn a_slow_machine_on_which_little_is_begun_goes_on() {
        let mut pace = PaceState::default();
        for tick in 0..600 {
            let now = ms(10_000 + 100 * tick);
            for _ in 0..15 {
                assert!(pace.begin(now), "{tick}");
            }
            pace.note_wait(now, ms(300));
        }
    }

    #[test]
    fn a_limit_that_nobody_meets_any_more_is_gone() {
        let mut pace = PaceState::default();
        overloaded(&mut pace, (3_000, ms(1), Duration::from_micros(130)), 30);
        assert!(pace.limit.is_some());
        for tick in 0..300 {
            let now = ms(50_000 + 100 * tick);
            pace.begin(now);
            pace.note_wait(now, ms(0));
        }
        assert!(pace.limit.is_none());
    }
}
