//! An adaptive limit of calls in flight. Like TCP's congestion window it halves when answers come late, and grows by one with every
//! few answers in time (AIMD).

use std::time::Duration;

/// So many answers in time let one more call in.
const GROWS_AFTER: usize = 4;
/// So many late answers more than answers in time halve the limit: a few slow calls among many are no overload.
const SHRINKS_AFTER: usize = 8;
/// An answer that takes so many times as long as the fastest one lately is late: it waited behind others …
const TIMES_THE_FASTEST: u32 = 4;
/// … but one that any pause of a disk or a runtime delays is not.
pub const LATE_AFTER_LEAST: Duration = Duration::from_millis(100);
/// The fastest answer of so many calls is remembered, and of those since.
const FASTEST_OF: usize = 1_024;

/// A limit of calls in flight. Times are of any clock that does not go back.
#[derive(Debug)]
pub struct AdaptiveLimit {
    now: usize,
    /// So few calls wait little for each other: what they take is what the way to the answer takes.
    least: usize,
    most: usize,
    /// An answer that takes longer is late, however long the fastest one took.
    late_after_most: Duration,
    /// Answers in time since it grew or shrank.
    in_time: usize,
    /// Late answers beyond those in time, as far as that is above 0.
    late: usize,
    /// When it shrank last: calls that were begun before tell nothing new.
    shrunk_at: Option<Duration>,
    fastest: Fastest,
    mean: Duration,
}

/// When a call was begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BegunAt {
    /// The moment.
    pub at: Duration,
    /// How many others were in flight then.
    pub ahead: usize,
}

/// How long the fastest answer took lately.
#[derive(Debug, Default)]
struct Fastest {
    before: Option<Duration>,
    now: Option<Duration>,
    answers: usize,
}

impl AdaptiveLimit {
    /// A limit that is `most` until answers come late, and never less than `least`.
    pub fn new(least: usize, most: usize, late_after_most: Duration) -> AdaptiveLimit {
        AdaptiveLimit {
            now: most,
            least: least.min(most),
            most,
            late_after_most,
            in_time: 0,
            late: 0,
            shrunk_at: None,
            fastest: Fastest::default(),
            mean: Duration::ZERO,
        }
    }

    /// How many may be in flight.
    pub fn now(&self) -> usize {
        self.now
    }

    /// How many may ever be in flight.
    pub fn most(&self) -> usize {
        self.most
    }

    /// What a call took lately, on average.
    pub fn mean(&self) -> Duration {
        self.mean
    }

    /// A call ended, one of so many in flight. `measures`: it tells how fast answers can be; one that failed, or needed no store,
    /// does not. The new limit, where it shrank.
    pub fn ended(
        &mut self,
        begun: BegunAt,
        now: Duration,
        in_flight: usize,
        measures: bool,
    ) -> Option<usize> {
        let took = now.saturating_sub(begun.at);
        self.mean = self.mean - self.mean / 8 + took / 8;
        if measures {
            self.fastest.note(took, begun.ahead < self.least);
        }
        if took > self.late_after() {
            return self.late(begun, now, in_flight);
        }
        self.late = self.late.saturating_sub(1);
        self.in_time += 1;
        if self.in_time >= GROWS_AFTER {
            self.in_time = 0;
            self.now = self.now.saturating_add(1).min(self.most);
        }
        None
    }

    /// As [`AdaptiveLimit::ended`], of a call that is known to be late.
    pub fn late(&mut self, begun: BegunAt, now: Duration, in_flight: usize) -> Option<usize> {
        let is_new = self.shrunk_at.is_none_or(|at| begun.at >= at);
        // Few calls are not slow because of each other.
        if !is_new || begun.ahead < self.least {
            return None;
        }
        self.late += 1;
        if self.late < SHRINKS_AFTER {
            return None;
        }
        self.shrunk_at = Some(now);
        (self.in_time, self.late) = (0, 0);
        // Of what is in flight, not of what might be (RFC 5681).
        self.now = (in_flight.min(self.now) / 2).max(self.least);
        Some(self.now)
    }

    /// What takes longer is late.
    fn late_after(&self) -> Duration {
        let fastest = self.fastest.so_far().unwrap_or(self.late_after_most);
        let late = fastest.saturating_mul(TIMES_THE_FASTEST);
        late.max(LATE_AFTER_LEAST).min(self.late_after_most)
    }
}

impl Fastest {
    /// An answer. Only of a call with few ahead it tells that all have become slower: else it waited for those.
    fn note(&mut self, took: Duration, has_few_ahead: bool) {
        self.now = Some(self.now.map_or(took, |fastest| fastest.min(took)));
        self.answers += usize::from(has_few_ahead);
        if self.answers == FASTEST_OF {
            self.answers = 0;
            self.before = self.now.take();
        }
    }

    fn so_far(&self) -> Option<Duration> {
        self.before.into_iter().chain(self.now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: usize = 32;
    const MOST: usize = 1_024;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn limit() -> AdaptiveLimit {
        AdaptiveLimit::new(LEAST, MOST, ms(1_000))
    }

    /// So many calls at once, each answered after this.
    fn round(limit: &mut AdaptiveLimit, calls: usize, begun: u64, took: u64) {
        for ahead in 0..calls {
            let begun_at = BegunAt {
                at: ms(begun),
                ahead,
            };
            limit.ended(begun_at, ms(begun + took), calls, true);
        }
    }

    #[test]
    fn calls_that_are_late_together_halve_it_once_and_answers_in_time_let_it_grow() {
        let mut limit = limit();
        round(&mut limit, 100, 0, 5);
        round(&mut limit, 1_000, 1_000, 400);
        assert_eq!(limit.now(), 500);
        round(&mut limit, 500, 2_000, 400);
        assert_eq!(limit.now(), 250);
        for turn in 3..20 {
            round(&mut limit, LEAST + 1, 1_000 * turn, 400);
        }
        assert_eq!(limit.now(), LEAST);
        round(&mut limit, GROWS_AFTER * 10, 60_000, 50);
        assert_eq!(limit.now(), LEAST + 10);
        for turn in 0..200 {
            round(&mut limit, 100, 70_000 + 100 * turn, 50);
        }
        assert_eq!(limit.now(), MOST, "no more than it may be");
    }

    #[test]
    fn what_is_late_depends_on_how_far_the_answer_is() {
        for (usual, late) in [(5, 101), (60, 241), (400, 1_001)] {
            let mut limit = limit();
            round(&mut limit, MOST, 0, usual);
            round(&mut limit, MOST, 2_000, late - 1);
            assert_eq!(limit.now(), MOST, "{usual} ms");
            round(&mut limit, MOST, 4_000, late);
            assert_eq!(limit.now(), MOST / 2, "{usual} ms");
        }
    }

    #[test]
    fn the_fastest_answer_is_forgotten_once_few_calls_take_longer_as_well() {
        let mut limit = limit();
        round(&mut limit, 10, 0, 5);
        for turn in 0..100_u64 {
            let (at, ahead) = (ms(1_000 * turn), MOST);
            limit.ended(BegunAt { at, ahead }, at + ms(200), MOST, true);
        }
        assert_eq!(limit.late_after(), LATE_AFTER_LEAST);
        for turn in 0..3 * FASTEST_OF as u64 {
            round(&mut limit, 1, 200_000 + turn, 200);
        }
        assert_eq!(limit.late_after(), ms(800));
    }

    #[test]
    fn a_few_late_calls_are_no_overload() {
        let mut limit = limit();
        round(&mut limit, 100, 0, 5);
        for turn in 1..100 {
            round(&mut limit, LEAST, 1_000 * turn, 900);
        }
        assert_eq!(limit.now(), MOST);
    }

    #[test]
    fn one_late_call_in_a_hundred_is_no_overload() {
        let mut limit = limit();
        round(&mut limit, 100, 0, 5);
        for turn in 1..10_000_u64 {
            let (at, took) = (ms(10 * turn), if turn % 100 == 0 { 900 } else { 5 });
            limit.ended(BegunAt { at, ahead: 200 }, at + ms(took), 200, true);
        }
        assert_eq!(limit.now(), MOST);
    }

    #[test]
    fn a_small_limit_stays_as_it_is() {
        let mut limit = AdaptiveLimit::new(LEAST, 3, ms(1_000));
        round(&mut limit, 100, 0, 2_000);
        assert_eq!(limit.now(), 3);
    }
}
