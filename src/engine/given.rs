//! What a replica gives away before it stops, while it serves: keys in use, and sessions.

use std::collections::HashSet;
use std::hash::Hash;
use std::ops::RangeInclusive;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::clock::Clock;

/// How many are given away at once: as few as get done in time, since calls wait for the hand-over of their key, which
/// takes longer beside others.
const AT_ONCE: RangeInclusive<usize> = 2..=8;
/// What one takes, until it is known what they take.
const ONE_TAKES: Duration = Duration::from_millis(20);
/// One that takes longer is the last one: the store takes its time, and what is not begun is served meanwhile.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// What came of it.
pub(super) struct Given {
    /// How many there were.
    pub found: usize,
    /// How many were given.
    pub given: usize,
}

/// Gives away what `find` finds, in its order, each by `give`, which says whether it did; again until nothing else is found,
/// since more may come meanwhile, from a replica that is about to stop as well. None is begun later than `within`; what was
/// begun is brought to its end, or who has it next would not hear of it.
pub(super) async fn give_all<T, Found, Giving>(
    clock: &dyn Clock,
    within: Duration,
    find: impl Fn() -> Found,
    give: impl Fn(T) -> Giving,
) -> Given
where
    T: Clone + Eq + Hash,
    Found: Future<Output = Vec<T>>,
    Giving: Future<Output = bool>,
{
    let until = clock.boot().saturating_add(within);
    let time_left = || until.saturating_sub(clock.boot());
    let timed = async |one: T| {
        let begun = clock.boot();
        let given = tokio::select! {
            biased;
            given = give(one) => Some(given),
            () = clock.sleep(STUCK_AFTER) => None,
        };
        (given, clock.boot().saturating_sub(begun))
    };
    let mut seen = HashSet::new();
    let mut given = 0;
    let mut each = TimeEach::default();
    let mut is_stuck = false;
    while !is_stuck {
        let mut found = find().await;
        found.retain(|one| seen.insert(one.clone()));
        if found.is_empty() || time_left().is_zero() {
            break;
        }
        let mut waiting = found.into_iter();
        let mut in_flight = FuturesUnordered::new();
        loop {
            let at_once = match is_stuck || time_left().is_zero() {
                true => 0,
                false => each.at_once(waiting.len() + in_flight.len(), time_left()),
            };
            let room = at_once.saturating_sub(in_flight.len());
            in_flight.extend(waiting.by_ref().take(room).map(&timed));
            let Some((answer, took)) = in_flight.next().await else {
                break;
            };
            each.one_took(took);
            is_stuck |= answer.is_none();
            given += usize::from(answer == Some(true));
        }
    }
    Given {
        found: seen.len(),
        given,
    }
}

/// What they take so far.
#[derive(Default)]
struct TimeEach {
    count: u32,
    took: Duration,
}

impl TimeEach {
    fn one_took(&mut self, took: Duration) {
        self.count = self.count.saturating_add(1);
        self.took = self.took.saturating_add(took);
    }

    /// How many of this many are to be given at once to be done in `within`.
    fn at_once(&self, left: usize, within: Duration) -> usize {
        let one_takes = self.took.checked_div(self.count).unwrap_or(ONE_TAKES);
        let all_take = one_takes.as_micros().saturating_mul(left as u128);
        let needed = all_take.div_ceil(within.as_micros().max(1));
        let needed = usize::try_from(needed).unwrap_or(usize::MAX);
        needed.clamp(*AT_ONCE.start(), *AT_ONCE.end())
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::clock::Sleep;

    /// The runtime's clock, which a test can stop.
    struct Stopped(Instant);

    impl Stopped {
        #[allow(clippy::disallowed_methods)] // no machine sleeps here
        fn now() -> Stopped {
            Stopped(Instant::now())
        }
    }

    impl Clock for Stopped {
        fn boot(&self) -> Duration {
            self.0.elapsed()
        }

        fn wall_us(&self) -> u64 {
            0
        }

        fn sleep(&self, span: Duration) -> Sleep {
            Box::pin(sleep(span))
        }
    }

    /// How many of these, which take so long each, are given within two seconds, and how many at once at most.
    async fn given_of(found: usize, one_takes: Duration) -> (usize, usize) {
        let clock = Stopped::now();
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let give = async |_| {
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            sleep(one_takes).await;
            now.fetch_sub(1, Ordering::Relaxed);
            true
        };
        let find = || ready((0..found).collect());
        let all = give_all(&clock, Duration::from_secs(2), find, give).await;
        assert_eq!(all.found, found);
        assert!(clock.boot() < Duration::from_secs(2) + one_takes);
        (all.given, most.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_longer_than_was_thought_is_given_in_time_by_more_at_once() {
        assert_eq!(given_of(40, Duration::from_millis(10)).await, (40, 2));
        let (given, most) = given_of(100, Duration::from_millis(100)).await;
        assert_eq!(given, 100);
        assert!((5..=8).contains(&most), "{most} at once");
        let (given, most) = given_of(1_000, Duration::from_millis(100)).await;
        assert!((150..=168).contains(&given), "{given} given");
        assert_eq!(most, 8);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_begun_once_one_is_stuck() {
        let clock = Stopped::now();
        let begun = AtomicUsize::new(0);
        let give = async |_| {
            begun.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_secs(60)).await;
            true
        };
        let find = || ready((0..100).collect());
        let all = give_all(&clock, Duration::from_secs(20), find, give).await;
        assert_eq!((all.found, all.given, begun.into_inner()), (100, 0, 2));
        assert_eq!(clock.boot().as_secs(), STUCK_AFTER.as_secs());
    }

    #[test]
    fn few_are_given_at_once_unless_there_are_many_for_the_time() {
        let within = Duration::from_secs(2);
        let of =
            |each: &TimeEach| [0, 1, 200, 201, 500, 1_000_000].map(|n| each.at_once(n, within));
        let mut each = TimeEach::default();
        assert_eq!(of(&each), [2, 2, 2, 3, 5, 8]);
        each.one_took(Duration::from_millis(5));
        each.one_took(Duration::from_millis(15));
        assert_eq!(of(&each), [2, 2, 2, 2, 3, 8]);
        for _ in 0..8 {
            each.one_took(Duration::from_millis(100));
        }
        assert_eq!(of(&each), [2, 2, 8, 8, 8, 8]);
        assert_eq!(each.at_once(1, Duration::ZERO), 8);
    }
}
