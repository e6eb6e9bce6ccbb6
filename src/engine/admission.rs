//! The limit of calls in flight. When clients ask for more than this replica and its store can do, work that is not answered in time
//! is wasted. So calls that begin something are refused early, and the calls of holders and waiters go on. A call above the limit
//! is refused at once, because a queue in front would only make late calls later.

use std::collections::VecDeque;

use std::time::Duration;

use fermata_guard::{AdaptiveLimit, BegunAt, LATE_AFTER_LEAST};
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::metrics::counter::Counter;

use crate::clock::Clock;
use crate::log_throttle::LogThrottle;

/// The lowest limit of calls in flight.
const LEAST: usize = 64;
/// The highest limit of new entries and sessions. It is low, because all begun calls are still done after the first is late.
pub(super) const MOST_BEGUN: usize = 1_024;
/// The highest limit of reads without a lock: nothing follows them.
pub(super) const MOST_READ: usize = 8_192;
/// A longer call is late, however far the store is.
const LATE_AFTER_MOST: Duration = Duration::from_secs(1);
/// The shortest pause before a refused client's retry; twice the length of a call if that is longer.
const AGAIN_MIN: Duration = Duration::from_millis(100);

/// Admits or refuses calls. All times are of CLOCK_BOOTTIME.
#[derive(Debug)]
pub(super) struct Admission {
    begun: Mutex<CallsInFlight>,
    shrunk: LogThrottle,
    /// The name of the limited calls, for the log.
    what: &'static str,
    refused: Counter,
}

/// Too many calls are in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMuch {
    /// The pause before a retry.
    pub again_after: Duration,
}

/// The means by which a call was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DoneBy {
    /// The store had to be asked.
    Store,
    /// Memory alone.
    Memory,
}

/// A call that was begun. A drop means that its caller gave up; its work goes on.
pub(super) struct BegunCall<'a> {
    admission: &'a Admission,
    clock: &'a dyn Clock,
    came: BegunAt,
    outcome: CallOutcome,
}

/// The outcome of a call that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallOutcome {
    Done(DoneBy),
    /// Nothing was done, for another reason than overload: the call is no measurement.
    Refused,
    GivenUp,
}

impl Admission {
    /// An admission of at most `most` calls at once. `what` names them in the log; refusals are counted in
    /// `refused`.
    pub fn new(what: &'static str, most: usize, refused: Counter) -> Admission {
        Admission {
            begun: Mutex::new(CallsInFlight::new(most)),
            shrunk: LogThrottle::default(),
            what,
            refused,
        }
    }

    fn begun(&self) -> MutexGuard<'_, CallsInFlight> {
        self.begun.lock()
    }

    /// The refusal of a call that came now, if any.
    pub fn is_full(&self, now: Duration) -> Option<TooMuch> {
        self.counted(self.begun().room(now)).err()
    }

    /// The number of calls in flight.
    pub fn in_flight(&self) -> usize {
        self.begun().in_flight
    }

    /// The present limit of calls in flight.
    pub fn limit(&self) -> usize {
        self.begun().limit.now()
    }

    fn counted<T>(&self, admitted: Result<T, TooMuch>) -> Result<T, TooMuch> {
        admitted.inspect_err(|_| {
            self.refused.inc();
        })
    }

    /// Begins a call that has already waited for `waited`.
    pub fn begin<'a>(
        &'a self,
        clock: &'a dyn Clock,
        waited: Duration,
    ) -> Result<BegunCall<'a>, TooMuch> {
        let now = clock.boot();
        let ahead = self.counted(self.begun().begin(now))?;
        Ok(BegunCall {
            admission: self,
            clock,
            came: BegunAt {
                at: now.saturating_sub(waited),
                ahead,
            },
            outcome: CallOutcome::GivenUp,
        })
    }

    fn note_shrunk(&self, now: Duration, limit: usize) {
        let what = self.what;
        if let Some(times) = self.shrunk.met(now, what) {
            tracing::warn!(
                what,
                limit,
                times,
                "overloaded: concurrency limit lowered; calls above it get OVERLOADED"
            );
        }
    }
}

impl BegunCall<'_> {
    /// It was done.
    pub fn done(mut self, by: DoneBy) {
        self.outcome = CallOutcome::Done(by);
    }

    /// It was refused, for a reason of its own.
    pub fn refused(mut self) {
        self.outcome = CallOutcome::Refused;
    }
}

impl Drop for BegunCall<'_> {
    fn drop(&mut self) {
        let now = self.clock.boot();
        let mut begun = self.admission.begun();
        let shrunk = begun.ended(self.came, now, self.outcome);
        drop(begun);
        if let Some(limit) = shrunk {
            self.admission.note_shrunk(now, limit);
        }
    }
}

/// The calls in flight.
#[derive(Debug)]
struct CallsInFlight {
    limit: AdaptiveLimit,
    in_flight: usize,
    /// The presumed ends of cancelled calls among them.
    given_up: VecDeque<Duration>,
}

impl CallsInFlight {
    fn new(most: usize) -> CallsInFlight {
        CallsInFlight {
            limit: AdaptiveLimit::new(LEAST, most, LATE_AFTER_MOST),
            in_flight: 0,
            given_up: VecDeque::new(),
        }
    }

    fn room(&mut self, now: Duration) -> Result<(), TooMuch> {
        while self.given_up.front().is_some_and(|at| *at <= now) {
            self.given_up.pop_front();
            self.in_flight -= 1;
        }
        match self.in_flight < self.limit.now() {
            true => Ok(()),
            false => Err(TooMuch {
                again_after: (self.limit.mean() * 2).clamp(AGAIN_MIN, LATE_AFTER_MOST * 2),
            }),
        }
    }

    /// Begins a call. Returns the number of calls ahead of it.
    fn begin(&mut self, now: Duration) -> Result<usize, TooMuch> {
        self.room(now)?;
        self.in_flight += 1;
        Ok(self.in_flight - 1)
    }

    /// Ends a call. Returns the new limit if it shrank.
    fn ended(&mut self, came: BegunAt, now: Duration, outcome: CallOutcome) -> Option<usize> {
        let in_flight = self.in_flight;
        // The work of a cancelled call goes on for as long as others take.
        let goes_on_until = came.at + self.limit.mean();
        match outcome {
            CallOutcome::GivenUp if goes_on_until > now => self.given_up.push_back(goes_on_until),
            CallOutcome::GivenUp | CallOutcome::Refused | CallOutcome::Done(_) => {
                self.in_flight -= 1;
            }
        }
        match outcome {
            CallOutcome::Refused => None,
            CallOutcome::Done(by) => {
                let measures = by == DoneBy::Store;
                self.limit.ended(came, now, in_flight, measures)
            }
            // A call that was cancelled sooner than others were answered is no measurement.
            CallOutcome::GivenUp if now <= came.at + LATE_AFTER_LEAST.max(self.limit.mean()) => {
                None
            }
            CallOutcome::GivenUp => self.limit.late(came, now, in_flight),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = MOST_BEGUN;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Ends a call that came at `came`, when `ahead` were in flight.
    fn end(
        begun: &mut CallsInFlight,
        (came, now): (Duration, Duration),
        ahead: usize,
        outcome: CallOutcome,
    ) {
        begun.ended(BegunAt { at: came, ahead }, now, outcome);
    }

    /// Begins `calls` at once, as far as admitted, and ends them after `took`. Returns the number admitted.
    fn round(begun: &mut CallsInFlight, calls: usize, came: Duration, took: Duration) -> usize {
        let admitted = (0..calls).map_while(|_| begun.begin(came).ok());
        let admitted: Vec<usize> = admitted.collect();
        for ahead in &admitted {
            let done = CallOutcome::Done(DoneBy::Store);
            end(begun, (came, came + took), *ahead, done);
        }
        admitted.len()
    }

    /// Late calls to the store, among calls that need no store or are refused for another reason.
    #[test]
    fn what_is_fast_by_itself_does_not_hide_what_is_late() {
        let others = [CallOutcome::Refused, CallOutcome::Done(DoneBy::Memory)];
        for outcome in others {
            let mut begun = CallsInFlight::new(MOST);
            round(&mut begun, 500, ms(0), ms(5));
            for turn in 1..20 {
                let came = ms(500 * turn);
                let stored = (0..500).map_while(|_| begun.begin(came).ok());
                let stored: Vec<usize> = stored.collect();
                for _ in 0..100 {
                    if let Ok(ahead) = begun.begin(came) {
                        end(&mut begun, (came, came + ms(1)), ahead, outcome);
                    }
                }
                for ahead in stored {
                    let done = CallOutcome::Done(DoneBy::Store);
                    end(&mut begun, (came, came + ms(450)), ahead, done);
                }
            }
            let limit = begun.limit.now();
            assert!(limit < 3 * LEAST, "{outcome:?}: {limit}");
        }
    }

    /// Calls that are cancelled at once make no other call late.
    #[test]
    fn calls_that_are_given_up_at_once_are_no_overload() {
        let mut begun = CallsInFlight::new(MOST);
        for turn in 0..100 {
            let came = ms(100 * turn);
            for _ in 0..80 {
                let ahead = begun.begin(came).unwrap();
                end(
                    &mut begun,
                    (came, came + ms(2)),
                    ahead,
                    CallOutcome::GivenUp,
                );
            }
            assert_eq!(round(&mut begun, 10, came, ms(8)), 10);
        }
        assert_eq!(begun.limit.now(), MOST);
        assert!(begun.in_flight <= 80, "{}", begun.in_flight);
    }

    /// Their work goes on, and occupies room until it is done.
    #[test]
    fn calls_that_are_given_up_at_once_keep_their_room_for_as_long_as_others_take() {
        let mut begun = CallsInFlight::new(MOST);
        for turn in 0..20 {
            round(&mut begun, 10, ms(100 * turn), ms(80));
        }
        let now = ms(3_000);
        let given_up = (0..2 * MOST).filter(|_| {
            let ahead = begun.begin(now);
            if let Ok(ahead) = ahead {
                end(&mut begun, (now, now + ms(1)), ahead, CallOutcome::GivenUp);
            }
            ahead.is_ok()
        });
        assert_eq!(given_up.count(), MOST);
        begun.begin(now + ms(60)).unwrap_err();
        assert_eq!(begun.begin(now + ms(81)), Ok(0));
        assert_eq!(begun.in_flight, 1);
    }

    /// Calls in memory do not make a distant store late.
    #[test]
    fn a_store_is_slow_by_nature_whatever_needs_none() {
        let mut begun = CallsInFlight::new(MOST);
        for turn in 0..20 {
            let came = ms(500 * turn);
            for _ in 0..100 {
                let ahead = begun.begin(came).unwrap();
                end(
                    &mut begun,
                    (came, came),
                    ahead,
                    CallOutcome::Done(DoneBy::Memory),
                );
            }
            round(&mut begun, 900, came, ms(350));
        }
        assert_eq!(begun.limit.now(), MOST);
    }

    #[test]
    fn a_client_that_is_refused_comes_again_when_others_were_answered() {
        let mut begun = CallsInFlight::new(MOST);
        for turn in 0..60 {
            round(&mut begun, 20, ms(1_000 * turn), ms(800));
        }
        while begun.begin(ms(60_000)).is_ok() {}
        let refused = begun.begin(ms(60_000)).unwrap_err();
        let expected = ms(1_500)..=ms(1_600);
        assert!(expected.contains(&refused.again_after), "{refused:?}");
    }

    /// The calls done in time in the last of ten minutes, with this deadline. The store does one call after the other, 1,000 a
    /// second, cancelled ones as well, and gets 3,000 a second.
    fn done_in_time(deadline: Duration) -> usize {
        let mut begun = CallsInFlight::new(MOST);
        let mut queue: VecDeque<(Duration, usize, bool)> = VecDeque::new();
        let mut done = 0;
        // For the first second the load is light.
        for tick in 0..600_000 {
            let now = ms(tick);
            let asks = if tick < 1_000 { tick % 2 } else { 3 };
            for _ in 0..asks {
                if let Ok(ahead) = begun.begin(now) {
                    queue.push_back((now, ahead, false));
                }
            }
            // Callers cancel late calls, in order.
            if tick % 10 == 0 {
                for (came, ahead, gone) in queue.iter_mut() {
                    if now.saturating_sub(*came) <= deadline {
                        break;
                    }
                    if !*gone {
                        *gone = true;
                        end(&mut begun, (*came, now), *ahead, CallOutcome::GivenUp);
                    }
                }
            }
            if let Some((came, ahead, gone)) = queue.pop_front()
                && !gone
            {
                let done_by = CallOutcome::Done(DoneBy::Store);
                end(&mut begun, (came, now + ms(1)), ahead, done_by);
                done += usize::from(tick >= 540_000);
            }
        }
        done
    }

    #[test]
    fn as_much_is_done_after_ten_minutes_of_overload() {
        // The lowest limit of calls takes a third of the shorter deadline.
        for (deadline, least) in [(ms(800), 55_000), (ms(200), 30_000)] {
            let done = done_in_time(deadline);
            assert!(done > least, "{deadline:?}: {done}");
        }
    }
}
