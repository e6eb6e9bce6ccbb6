//! How much is begun at once. Where more is asked for than this replica and its store can do, what is begun and not answered
//! in time was done for nothing; so calls that begin something are refused early, and those of who holds or waits for a lock
//! already go on.
//!
//! As TCP does with a path that it does not know, the window halves when most answers come late for a while, and grows with every
//! few that do not: a burst is no overload, and neither are a few slow calls among many. A call that comes while as many as that
//! are in flight is refused at once: a queue in front would only make the late ones later. While there is a queue in front of
//! the engine that does not go away, a call that waited in it is refused as well.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Clock;
use crate::log_throttle::LogThrottle;

/// So many are always begun …
const LEAST: usize = 64;
/// … and of entries and sessions never more than this: whatever was begun before the first of it came late is done all the same, and
/// makes what comes after it late …
pub(super) const MOST_BEGUN: usize = 1_024;
/// … nor reads than this, which nothing comes after.
pub(super) const MOST_READ: usize = 8_192;
/// One more is begun at once after so many answers in time.
const GROWS_AFTER: usize = 4;
/// What takes so many times as long as the fastest that went to the store lately is late …
const TIMES_THE_FASTEST: u32 = 4;
/// … but not what any pause makes slow.
const LATE_AFTER_LEAST: Duration = Duration::from_millis(250);
/// One that is given up by its caller is late from here on, and after what the fastest and most of what others take: what it took
/// is what its caller waited, and not what it would have.
const GIVEN_UP_LATE_AFTER_LEAST: Duration = Duration::from_millis(50);
/// The fastest one lately: of the present span of this length, and the one before.
const SPAN: Duration = Duration::from_secs(30);
/// In spans of this length it is looked at whether most came late.
const SLOT: Duration = Duration::from_millis(250);
/// So long most answers must have come late before fewer are begun …
const LATE_FOR: Duration = Duration::from_millis(500);
/// … without a pause of this length, or of twice what they take.
const PAUSE_LEAST: Duration = Duration::from_secs(1);
/// For so long after it was halved the fastest is what it was before: what waits in a queue is no measure of a store.
const HALVED_LATELY: Duration = Duration::from_secs(60);
/// It grows while no more than one in so many is late.
const GROWS_WITH_LATE: usize = 8;
/// While answers came late within this, what is older than that is not begun.
const LATELY: Duration = Duration::from_secs(2);
const AGE_MAX: Duration = Duration::from_millis(250);
/// When to come again: after twice what a call takes, within these.
const AGAIN_MIN: Duration = Duration::from_millis(100);
const AGAIN_MAX: Duration = Duration::from_secs(2);

/// Decides what is begun. All times are of CLOCK_BOOTTIME.
#[derive(Debug)]
pub(super) struct Admission {
    window: Mutex<AdmissionWindow>,
    halved: LogThrottle,
    /// What is begun, in words.
    what: &'static str,
}

/// Too much is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMuch {
    /// When to come again.
    pub again_after: Duration,
}

/// How a call was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DoneBy {
    /// The store had to be asked.
    Store,
    /// Memory alone.
    Memory,
}

/// A call that was begun. One that is dropped was given up by its caller; what it began goes on.
pub(super) struct BegunCall<'a> {
    admission: &'a Admission,
    clock: &'a dyn Clock,
    begun: Duration,
    came_of: CameOf,
}

/// What came of a call that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CameOf {
    Done(DoneBy),
    /// Nothing was done, for another reason than that there is too much: it says nothing.
    Refused,
    GivenUp,
}

impl Admission {
    /// Nothing is in flight, and never more than `most` will be. `what` is begun, in words.
    pub fn new(what: &'static str, most: usize) -> Admission {
        Admission {
            window: Mutex::new(AdmissionWindow::new(most)),
            halved: LogThrottle::default(),
            what,
        }
    }

    fn window(&self) -> MutexGuard<'_, AdmissionWindow> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When to come again, where a call that comes now would be refused.
    pub fn is_full(&self, now: Duration) -> Option<TooMuch> {
        let mut window = self.window();
        window.end_given_up(now);
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
            came_of: CameOf::GivenUp,
        })
    }

    fn note_halved(&self, now: Duration, at_once: usize) {
        let what = self.what;
        if let Some(times) = self.halved.met(now, what) {
            tracing::warn!(
                what,
                at_once,
                times,
                "more is asked for than can be answered in time: what comes while so many are in flight is refused (OVERLOADED)"
            );
        }
    }
}

impl BegunCall<'_> {
    /// It was done.
    pub fn done(mut self, by: DoneBy) {
        self.came_of = CameOf::Done(by);
    }

    /// It was refused, for a reason of its own.
    pub fn refused(mut self) {
        self.came_of = CameOf::Refused;
    }
}

impl Drop for BegunCall<'_> {
    fn drop(&mut self) {
        let now = self.clock.boot();
        let halved = self.admission.window().ended(self.begun, now, self.came_of);
        if let Some(at_once) = halved {
            self.admission.note_halved(now, at_once);
        }
    }
}

/// How many may be in flight, by when they are answered.
#[derive(Debug)]
struct AdmissionWindow {
    size: usize,
    /// It is never larger.
    most: usize,
    in_flight: usize,
    /// Those among them that were given up, by when what they began is taken to be done.
    given_up: VecDeque<Duration>,
    grows: usize,
    /// What the fastest took that went to the store, in this span and in the one before.
    fastest: [Duration; 2],
    span_begun: Duration,
    /// What they took lately.
    usual: Duration,
    slot: LateSlot,
    /// The one before, where that is just before.
    slot_before: LateSlot,
    /// Since when most that was begun was late, and when the last one was.
    late: Option<(Duration, Duration)>,
    /// When it was halved for the last time: those that were begun before were late for the same reason.
    halved_at: Option<Duration>,
}

/// How many answers came in time in one span, and how many late.
#[derive(Clone, Copy, Debug, Default)]
struct LateSlot {
    number: u128,
    in_time: usize,
    late: usize,
}

impl AdmissionWindow {
    fn new(most: usize) -> AdmissionWindow {
        AdmissionWindow {
            size: most,
            most,
            in_flight: 0,
            given_up: VecDeque::new(),
            grows: 0,
            fastest: [Duration::MAX; 2],
            span_begun: Duration::ZERO,
            usual: Duration::ZERO,
            slot: LateSlot::default(),
            slot_before: LateSlot::default(),
            late: None,
            halved_at: None,
        }
    }

    fn begin(&mut self, now: Duration, waited: Duration) -> Result<(), TooMuch> {
        self.end_given_up(now);
        let was_late = |at| now.saturating_sub(at) < LATELY;
        let is_old = waited > AGE_MAX && self.halved_at.is_some_and(was_late);
        if is_old || self.in_flight >= self.size {
            return Err(self.too_much());
        }
        self.in_flight += 1;
        Ok(())
    }

    fn end_given_up(&mut self, now: Duration) {
        while self.given_up.front().is_some_and(|at| *at <= now) {
            self.given_up.pop_front();
            self.in_flight -= 1;
        }
    }

    fn too_much(&self) -> TooMuch {
        TooMuch {
            again_after: (self.usual * 2).clamp(AGAIN_MIN, AGAIN_MAX),
        }
    }

    /// A call ended. How many may be in flight from now on, where these are fewer than before.
    fn ended(&mut self, begun: Duration, now: Duration, came_of: CameOf) -> Option<usize> {
        let in_flight = self.in_flight;
        let took = now.saturating_sub(begun);
        match came_of {
            CameOf::GivenUp if took < self.usual => self.given_up.push_back(begun + self.usual),
            CameOf::GivenUp | CameOf::Refused | CameOf::Done(_) => self.in_flight -= 1,
        }
        match came_of {
            CameOf::Refused => return None,
            CameOf::Done(DoneBy::Store) => self.note_fastest(now, took),
            CameOf::Done(DoneBy::Memory) | CameOf::GivenUp => {}
        }
        let fastest = self.fastest[0].min(self.fastest[1]);
        let fastest = if fastest == Duration::MAX {
            Duration::ZERO
        } else {
            fastest
        };
        let late_after = match came_of {
            // No caller listens for so many times the fastest where all are late.
            CameOf::GivenUp => GIVEN_UP_LATE_AFTER_LEAST
                .max(fastest)
                .max(self.usual * 3 / 4),
            CameOf::Refused | CameOf::Done(_) => {
                LATE_AFTER_LEAST.max(fastest.saturating_mul(TIMES_THE_FASTEST))
            }
        };
        let is_late = took > late_after;
        if came_of == CameOf::GivenUp && !is_late {
            return None;
        }
        self.usual = self.usual - self.usual / 8 + took / 8;
        let number = now.as_nanos() / SLOT.as_nanos();
        if self.slot.number != number {
            if !self.most_are_late() {
                self.late = None;
            }
            self.slot_before = match self.slot.number + 1 == number {
                true => self.slot,
                false => LateSlot::default(),
            };
            self.slot = LateSlot {
                number,
                ..LateSlot::default()
            };
        }
        match is_late {
            true => self.came_late(begun, now, in_flight),
            false => {
                // What memory does in time says nothing of the store, which may be late with all.
                self.slot.in_time += usize::from(came_of == CameOf::Done(DoneBy::Store));
                self.came_in_time(in_flight);
                None
            }
        }
    }

    fn note_fastest(&mut self, now: Duration, took: Duration) {
        let [this_span, last_span] = self.fastest;
        let since = now.saturating_sub(self.span_begun);
        let was_halved = self
            .halved_at
            .is_some_and(|at| now.saturating_sub(at) < HALVED_LATELY);
        if since >= SPAN && was_halved && self.size > LEAST {
            self.fastest[0] = this_span.min(took);
            return;
        }
        self.fastest = match since {
            since if since < SPAN => [this_span.min(took), last_span],
            since if since < SPAN * 2 => [took, this_span],
            _ => [took, Duration::MAX],
        };
        if since >= SPAN {
            self.span_begun = now;
        }
    }

    fn most_are_late(&self) -> bool {
        let [slot, before] = [&self.slot, &self.slot_before];
        slot.late + before.late > slot.in_time + before.in_time
    }

    fn came_in_time(&mut self, in_flight: usize) {
        // A window that is not used says nothing of a larger one.
        let is_used = in_flight * 2 >= self.size;
        let [slot, before] = [&self.slot, &self.slot_before];
        let late = slot.late + before.late;
        if is_used && late * GROWS_WITH_LATE <= slot.in_time + before.in_time {
            self.grows += 1;
            if self.grows >= GROWS_AFTER {
                self.grows = 0;
                self.size = (self.size + 1).min(self.most);
            }
        }
    }

    fn came_late(&mut self, begun: Duration, now: Duration, in_flight: usize) -> Option<usize> {
        self.slot.late += 1;
        let since = match self.late {
            Some((since, last)) if now.saturating_sub(last) <= PAUSE_LEAST.max(self.usual * 2) => {
                since
            }
            Some(_) | None => now,
        };
        self.late = Some((since, now));
        let lasts = now.saturating_sub(since) >= LATE_FOR && self.most_are_late();
        let is_new = self.halved_at.is_none_or(|at| begun >= at);
        if !lasts || !is_new || in_flight < LEAST {
            return None;
        }
        // Of what is in flight, not of what might be.
        let used = self.size.min(in_flight * 2);
        self.size = (used / 2).max(LEAST);
        self.halved_at = Some(now);
        Some(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = MOST_BEGUN;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// So many are begun at once, as far as that may be, and answered after this.
    fn round(window: &mut AdmissionWindow, calls: usize, begun: Duration, took: Duration) -> usize {
        let admitted = (0..calls).filter(|_| window.begin(begun, Duration::ZERO).is_ok());
        let admitted = admitted.count();
        for _ in 0..admitted {
            window.ended(begun, begun + took, CameOf::Done(DoneBy::Store));
        }
        admitted
    }

    #[test]
    fn what_comes_late_makes_it_smaller_and_what_does_not_larger_again() {
        let mut window = AdmissionWindow::new(MOST);
        assert_eq!(round(&mut window, 400, ms(0), ms(5)), 400);
        // A burst.
        assert_eq!(round(&mut window, 400, ms(1_010), ms(400)), 400);
        assert_eq!(window.size, MOST);
        // All of a round were late for one reason.
        assert_eq!(round(&mut window, 400, ms(1_600), ms(400)), 400);
        assert_eq!(window.size, 400);
        assert_eq!(round(&mut window, 2_000, ms(2_100), ms(400)), 400);
        assert_eq!(round(&mut window, 2_000, ms(2_600), ms(400)), 200);
        for turn in 4..12 {
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
        let mut window = AdmissionWindow::new(MOST);
        for turn in 0..10 {
            round(&mut window, 1_000, ms(1_000 * turn), ms(350));
        }
        assert_eq!(window.size, MOST);
    }

    #[test]
    fn old_calls_are_refused_only_while_there_is_too_much() {
        let mut window = AdmissionWindow::new(MOST);
        for _ in 0..2 * LEAST {
            assert_eq!(window.begin(ms(0), ms(9_000)), Ok(()));
        }
        assert_eq!(window.ended(ms(0), ms(200), CameOf::GivenUp), None);
        assert_eq!(window.ended(ms(0), ms(300), CameOf::GivenUp), None);
        assert_eq!(window.ended(ms(0), ms(900), CameOf::GivenUp), Some(126));
        let refused = window.begin(ms(950), ms(300)).unwrap_err();
        assert!(refused.again_after > AGAIN_MIN, "{refused:?}");
        assert_eq!(window.begin(ms(950), ms(200)), Ok(()));
        window.ended(ms(950), ms(960), CameOf::Done(DoneBy::Store));
        assert_eq!(window.begin(ms(2_950), ms(300)), Ok(()));
    }

    #[test]
    fn a_few_that_are_given_up_now_and_then_are_no_overload() {
        let mut window = AdmissionWindow::new(MOST);
        for hour in 0..3 {
            let begun = ms(3_600_000 * hour);
            round(&mut window, 100, begun, ms(400));
            window.begin(begun, ms(0)).unwrap();
            window.ended(begun, begun + ms(900), CameOf::GivenUp);
        }
        // Neither is what a single caller waits for, however long that goes on.
        for turn in 0..100 {
            let begun = ms(20_000_000 + 500 * turn);
            window.begin(begun, ms(0)).unwrap();
            window.ended(begun, begun + ms(900), CameOf::Done(DoneBy::Store));
        }
        assert_eq!(window.size, MOST);
    }

    /// As many as the store takes, late, among others that need no store or are refused for another reason.
    #[test]
    fn what_is_fast_by_itself_does_not_hide_what_is_late() {
        for (came_of, each_round) in [
            (CameOf::Refused, 5_000),
            (CameOf::Done(DoneBy::Memory), 100),
        ] {
            let mut window = AdmissionWindow::new(MOST);
            round(&mut window, 500, ms(0), ms(5));
            for turn in 1..20 {
                let begun = ms(500 * turn);
                let stored = (0..500).filter(|_| window.begin(begun, ms(0)).is_ok());
                let stored = stored.count();
                for _ in 0..each_round {
                    if window.begin(begun, ms(0)).is_ok() {
                        window.ended(begun, begun + ms(1), came_of);
                    }
                }
                for _ in 0..stored {
                    window.ended(begun, begun + ms(450), CameOf::Done(DoneBy::Store));
                }
            }
            assert!(window.size < 2 * LEAST, "{came_of:?}: {}", window.size);
        }
    }

    /// Whoever makes calls and takes them back at once makes nobody else's late.
    #[test]
    fn calls_that_are_given_up_at_once_are_no_overload() {
        let mut window = AdmissionWindow::new(MOST);
        for turn in 0..100 {
            let begun = ms(100 * turn);
            for _ in 0..80 {
                window.begin(begun, ms(0)).unwrap();
                window.ended(begun, begun + ms(2), CameOf::GivenUp);
            }
            assert_eq!(round(&mut window, 10, begun, ms(8)), 10);
        }
        assert_eq!(window.size, MOST);
        assert!(window.in_flight <= 80, "{}", window.in_flight);
    }

    /// What they began goes on, and has its room until it is done.
    #[test]
    fn calls_that_are_given_up_at_once_keep_their_room_for_as_long_as_others_take() {
        let mut window = AdmissionWindow::new(MOST);
        for turn in 0..20 {
            round(&mut window, 10, ms(100 * turn), ms(80));
        }
        let now = ms(3_000);
        let begun = (0..2 * MOST).filter(|_| {
            let is_begun = window.begin(now, ms(0)).is_ok();
            if is_begun {
                window.ended(now, now + ms(1), CameOf::GivenUp);
            }
            is_begun
        });
        assert_eq!(begun.count(), MOST);
        window.begin(now + ms(60), ms(0)).unwrap_err();
        assert_eq!(window.begin(now + ms(81), ms(0)), Ok(()));
        assert_eq!(window.in_flight, 1);
    }

    /// What is done in memory does not make a store late that is far away.
    #[test]
    fn a_store_is_slow_by_nature_whatever_needs_none() {
        let mut window = AdmissionWindow::new(MOST);
        for turn in 0..20 {
            let begun = ms(500 * turn);
            for _ in 0..100 {
                window.begin(begun, ms(0)).unwrap();
                window.ended(begun, begun, CameOf::Done(DoneBy::Memory));
            }
            round(&mut window, 1_000, begun, ms(350));
        }
        assert_eq!(window.size, MOST);
    }

    #[test]
    fn whoever_is_refused_comes_again_when_others_were_answered() {
        let mut window = AdmissionWindow::new(MOST);
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

    /// A store that does one after the other, a thousand a second, and goes on with what was given up; three times as much is
    /// asked for, for ten minutes, with this deadline. How many are done in time in the last minute.
    fn done_in_time(deadline: Duration) -> usize {
        let mut window = AdmissionWindow::new(MOST);
        let mut queue: std::collections::VecDeque<(Duration, bool)> = Default::default();
        let mut done = 0;
        // In front of it there is nothing for the first second.
        for tick in 0..600_000 {
            let now = ms(tick);
            let asks = if tick < 1_000 { tick % 2 } else { 3 };
            for _ in 0..asks {
                if window.begin(now, ms(0)).is_ok() {
                    queue.push_back((now, false));
                }
            }
            // Given up by their callers, in their order.
            if tick % 10 == 0 {
                for (begun, gone) in queue.iter_mut() {
                    if now.saturating_sub(*begun) <= deadline {
                        break;
                    }
                    if !*gone {
                        *gone = true;
                        window.ended(*begun, now, CameOf::GivenUp);
                    }
                }
            }
            if let Some((begun, gone)) = queue.pop_front()
                && !gone
            {
                window.ended(begun, now + ms(1), CameOf::Done(DoneBy::Store));
                done += usize::from(tick >= 540_000);
            }
        }
        done
    }

    #[test]
    fn as_much_is_done_after_ten_minutes_of_overload() {
        // As many as may ever be begun take this store a second: with a longer deadline none would be late.
        let done = done_in_time(ms(800));
        assert!(done > 55_000, "{done}");
        let done = done_in_time(ms(200));
        assert!(done > 10_000, "{done}");
    }
}
