//! One run: so many workers, for so long.
//!
//! The load is a closed loop, unless a rate is given: a worker begins a section when its last one ends. What is measured is
//! every section that began after the warm-up, to its end, however late: a stall of the server shows in
//! the highest latencies and in the rate, but as no more slow sections than there are workers.
//!
//! With a rate it is an open loop: sections are due at equal distances, each on the key whose turn it is, and any worker that is
//! free begins the next one. How long a section took counts from when it was due, so all that came during a stall, of the service
//! or of a key, are slow. Those that were due and had not begun at the end are counted, and not measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use hdrhistogram::CreationError;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::arrivals::Arrivals;
use super::counters::CounterCheck;
use super::interrupt::Interrupt;
use super::measure::{Failure, Measured, Phase};
use super::progress::Progress;
use super::workload::{Form, Worker, Workload};

/// How long a worker leaves the server alone after an error.
const ERROR_PAUSE: Duration = Duration::from_millis(50);
/// Into so many histograms of each phase at most workers measure: to grow a thousand of them took a third of a second, at the
/// moment from which sections count.
const MEASURED_MAX: usize = 8;
/// How often the progress is shown.
const SHOW_EVERY: Duration = Duration::from_millis(250);
/// How many counters are read at once after the run.
const READERS: usize = 64;

/// How long a run takes, and how fast it is to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) warm_up: Duration,
    pub(super) duration: Duration,
    /// Sections a second of all workers together; `None`: as fast as they are answered.
    pub(super) rate: Option<f64>,
}

/// What came of a run.
#[derive(Debug)]
pub(super) struct Outcome {
    /// From the end of the warm-up to the end of the last section.
    pub(super) elapsed: Duration,
    pub(super) measured: Measured,
    /// Workers whose last section did not end in time.
    pub(super) unfinished: usize,
    /// Sections that were due and for which no worker was free before the end.
    pub(super) not_begun: u64,
    /// `None` where there are no counters, or they were not read.
    pub(super) check: Option<CounterCheck>,
    /// Ended early by Ctrl-C.
    pub(super) interrupted: bool,
}

/// What the workers of a run share with whoever watches it.
#[derive(Debug, Default)]
struct Seen {
    stop: AtomicBool,
    /// Wakes those who wait for a section to be due.
    stopped: Notify,
    /// Sections that were due after the warm-up and were begun.
    begun: AtomicU64,
    sections: AtomicU64,
    errors: AtomicU64,
}

/// Runs so many workers, and as many more as read the counters; `hands` has no end.
pub(super) async fn run<W: Worker>(
    workload: &Workload,
    hands: impl Iterator<Item = W> + Clone,
    workers: usize,
    span: Span,
    interrupt: &mut Interrupt,
) -> Result<Outcome, CreationError> {
    let start = Instant::now();
    let measure_from = start + span.warm_up;
    let end = measure_from + span.duration;
    // A lock that was left behind is free again after its TTL.
    let patience = workload.ttl + workload.call_within;

    let seen = Arc::new(Seen::default());
    let arrivals = span.rate.map(|rate| Arc::new(Arrivals::new(start, rate)));
    let mut tasks = JoinSet::new();
    let one = |_| Measured::new().map(|one| Arc::new(Mutex::new(one)));
    let measured: Result<Vec<_>, _> = (0..workers.clamp(1, MEASURED_MAX)).map(one).collect();
    let measured = measured?;
    for (number, worker) in hands.clone().take(workers).enumerate() {
        let own = Arc::clone(&measured[number % measured.len()]);
        tasks.spawn(work(
            worker,
            number,
            own,
            Arc::clone(&seen),
            arrivals.clone(),
            measure_from..end,
        ));
    }

    let mut progress = Progress::new(workers, start, end);
    let mut show = interval(SHOW_EVERY);
    show.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut give_up_at = end + patience;
    let mut ended = 0;
    loop {
        tokio::select! {
            joined = tasks.join_next() => match joined {
                Some(Ok(())) => ended += 1,
                Some(Err(_cut_off)) => {}
                None => break,
            },
            _ = show.tick() => {
                progress.show(seen.sections.load(Relaxed), seen.errors.load(Relaxed));
            }
            () = sleep_until(give_up_at) => tasks.abort_all(),
            () = interrupt.pressed() => {
                // The second one does not wait for what is in flight.
                if seen.stop.swap(true, Relaxed) {
                    tasks.abort_all();
                }
                seen.stopped.notify_waiters();
                give_up_at = give_up_at.min(Instant::now() + patience);
            }
        }
    }
    let elapsed = Instant::now().saturating_duration_since(measure_from);
    progress.clear();

    let mut all = Measured::new()?;
    for own in measured {
        all.add(&own.lock());
    }
    let unfinished = workers - ended;
    let interrupted = seen.stop.load(Relaxed);
    let due = arrivals.filter(|_| !interrupted);
    let due = due.map(|arrivals| arrivals.between(measure_from, end));
    let not_begun = due.map_or(0, |due| due.saturating_sub(seen.begun.load(Relaxed)));
    let mut check = None;
    if workload.form != Form::Lock && unfinished == 0 {
        check = check_counters(workload, hands, &mut all, interrupt).await;
    }
    Ok(Outcome {
        elapsed,
        measured: all,
        unfinished,
        not_begun,
        check,
        interrupted,
    })
}

/// Section after section until the end. Errors count from the beginning, times after the warm-up.
async fn work(
    mut worker: impl Worker,
    number: usize,
    measured: Arc<Mutex<Measured>>,
    seen: Arc<Seen>,
    arrivals: Option<Arc<Arrivals>>,
    measure: std::ops::Range<Instant>,
) {
    loop {
        let free = Instant::now();
        if free >= measure.end || seen.stop.load(Relaxed) {
            return;
        }
        // In a closed loop a worker has turns of its own.
        let (turn, due) = match &arrivals {
            Some(arrivals) => arrivals.next(),
            None => (number, free),
        };
        if due >= measure.end {
            return;
        }
        if due > free {
            // A timer is late by up to two milliseconds, also at the end: who was free in time begins it.
            tokio::select! {
                () = sleep_until(due) => {}
                () = seen.stopped.notified() => return,
            }
        }
        if due >= measure.start {
            seen.begun.fetch_add(1, Relaxed);
        }
        let begun = Instant::now();
        let waited = begun.saturating_duration_since(due);
        let key = worker.pick(turn);
        let done = worker.section(key).await;
        {
            let mut measured = measured.lock();
            if due >= measure.start {
                for (phase, took) in worker.times() {
                    let took = match phase {
                        Phase::Section => *took + waited,
                        _ => *took,
                    };
                    measured.record(*phase, took);
                }
            }
            if let Err(failure) = &done {
                measured.fail(failure);
            }
        }
        match done {
            Ok(()) => drop(seen.sections.fetch_add(1, Relaxed)),
            Err(_) => {
                seen.errors.fetch_add(1, Relaxed);
                sleep(ERROR_PAUSE).await;
            }
        }
    }
}

/// Reads every counter that was incremented, under its lock, and compares. `None` if interrupted.
async fn check_counters<W: Worker>(
    workload: &Workload,
    hands: impl Iterator<Item = W>,
    measured: &mut Measured,
    interrupt: &mut Interrupt,
) -> Option<CounterCheck> {
    let touched = workload.counters.touched();
    let read = stream::iter(touched.into_iter().zip(hands))
        .map(|(key, mut worker)| async move { (key, worker.read(key).await) })
        .buffer_unordered(READERS)
        .collect::<Vec<(usize, Result<u64, Failure>)>>();
    let read = tokio::select! {
        read = read => read,
        () = interrupt.pressed() => return None,
    };
    let stored: Vec<_> = read
        .into_iter()
        .map(|(key, counter)| (key, counter.map_err(|failure| measured.fail(&failure)).ok()))
        .collect();
    Some(workload.counters.check(&stored))
}

#[cfg(test)]
mod tests {
    use super::super::counters::Counters;
    use super::super::keys::{KeyChoice, Keys, Near, Random};
    use super::*;

    const HANGS: Duration = Duration::from_secs(1);

    /// Locks within the process. The first section on the first key takes long.
    #[derive(Clone)]
    struct Fake {
        keys: Arc<[tokio::sync::Mutex<u64>]>,
        names: Arc<Keys>,
        times: Vec<(Phase, Duration)>,
    }

    impl Worker for Fake {
        fn pick(&mut self, turn: usize) -> usize {
            self.names.pick(turn, &mut Random::new())
        }

        async fn section(&mut self, key: usize) -> Result<(), Failure> {
            let begun = Instant::now();
            let mut done = self.keys[key].lock().await;
            sleep(match (key, *done) {
                (0, 0) => HANGS,
                _ => Duration::from_millis(1),
            })
            .await;
            *done += 1;
            self.times = vec![(Phase::Section, begun.elapsed())];
            Ok(())
        }

        fn times(&self) -> &[(Phase, Duration)] {
            &self.times
        }

        async fn read(&mut self, _: usize) -> Result<u64, Failure> {
            Ok(0)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn in_an_open_loop_a_key_that_stands_still_makes_all_slow_that_are_due_on_it_and_no_others()
     {
        const WORKERS: usize = 32;
        let keys = || Keys::new(KeyChoice::Own, "", WORKERS, 0, 0.0, Near::default());
        let workload = Workload {
            form: Form::Lock,
            table: String::new(),
            call_within: Duration::from_secs(5),
            keys: keys(),
            counters: Counters::new(0),
            ttl: Duration::from_secs(5),
            hold: Duration::ZERO,
            value_bytes: 0,
        };
        let fake = Fake {
            keys: (0..WORKERS).map(|_| tokio::sync::Mutex::new(0)).collect(),
            names: Arc::new(keys()),
            times: Vec::new(),
        };
        // Each key is due once in 100 ms.
        let span = Span {
            warm_up: Duration::ZERO,
            duration: Duration::from_secs(2),
            rate: Some(10.0 * WORKERS as f64),
        };
        let hands = std::iter::repeat(fake);
        let mut interrupt = Interrupt::listen();
        let outcome = run(&workload, hands, WORKERS, span, &mut interrupt).await;
        let outcome = outcome.unwrap();
        assert_eq!((outcome.unfinished, outcome.not_begun), (0, 0));
        let (_, sections) = outcome.measured.phases().last().unwrap();
        let above = |ms: u64| sections.len() - sections.count_between(0, ms * 1_000);
        // Those that were due 0, 100, …, 900 ms after the first one.
        assert_eq!((sections.len(), above(50), above(350)), (640, 10, 7));
    }
}
