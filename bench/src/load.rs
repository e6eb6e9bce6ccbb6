//! One run of some workers for some time.
//!
//! The load is a closed loop, unless a rate is given: a worker begins a section when its last one ends. Every section that begins
//! after the warm-up is measured to its end, however late: a stall of the server shows in the highest latencies and in the
//! rate, but as no more slow sections than there are workers.
//!
//! With a rate it is an open loop: sections are due at equal distances, the keys take turns, and any free worker begins the next
//! section. The time of a section counts from when it was due, so a stall, of the service or of a key, makes all sections slow
//! that came meanwhile. Sections that were due and had not begun at the end are counted, and not measured.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::arrivals::Arrivals;
use super::connect::AT_ONCE;
use super::counters::CounterCheck;
use super::interrupt::Interrupt;
use super::measure::{Measured, Phase};
use super::plan::Form;
use super::workload::{Worker, Workload};

/// The pause of a worker after an error, so that a server that is down is not called in a busy loop.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// The outcome of a run.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// From the end of the warm-up to the end of the last section.
    pub(super) elapsed: Duration,
    /// Workers whose last section did not end in time.
    pub(super) unfinished: usize,
    /// Sections that were due and found no free worker before the end.
    pub(super) not_begun: u64,
    /// `None` where there are no counters, or they were not read.
    pub(super) check: Option<CounterCheck>,
    /// Ended early by Ctrl-C.
    pub(super) interrupted: bool,
}

/// The things that the workers of a run share.
struct Shared {
    /// From the end of the warm-up to the end of the run.
    span: Range<Instant>,
    /// Absent in a closed loop.
    arrivals: Option<Arrivals>,
    /// Sections that were due after the warm-up and were begun.
    begun: AtomicU64,
    measured: Arc<Mutex<Measured>>,
}

/// Runs this many workers. `worker` makes one with a number, and is called for the reading of the counters as well.
pub(super) async fn run<W: Worker>(
    workload: &Workload,
    worker: impl Fn(usize) -> W,
    workers: usize,
    measured: &Arc<Mutex<Measured>>,
    interrupt: &mut Interrupt,
) -> Outcome {
    let load = &workload.plan.load;
    let start = Instant::now();
    let measure_from = start + load.warm_up.duration();
    let end = measure_from + load.duration.duration();
    // A lock that was left behind is free again after its TTL.
    let patience = load.ttl.duration() + workload.plan.options.timeout;
    let shared = Arc::new(Shared {
        span: measure_from..end,
        arrivals: load.rate.map(|rate| Arrivals::new(start, rate)),
        begun: AtomicU64::new(0),
        measured: Arc::clone(measured),
    });
    let mut tasks = JoinSet::new();
    for number in 0..workers {
        let shared = Arc::clone(&shared);
        tasks.spawn(work(worker(number), number, shared, interrupt.clone()));
    }
    let mut give_up_at = end + patience;
    let mut is_interrupted = false;
    let mut ended = 0;
    loop {
        tokio::select! {
            joined = tasks.join_next() => match joined {
                Some(Ok(())) => ended += 1,
                Some(Err(_cut_off)) => {}
                None => break,
            },
            () = sleep_until(give_up_at) => tasks.abort_all(),
            () = interrupt.pressed(1), if !is_interrupted => {
                is_interrupted = true;
                give_up_at = give_up_at.min(Instant::now() + patience);
            }
        }
    }
    let is_interrupted = interrupt.is_pressed();
    let elapsed = Instant::now().saturating_duration_since(measure_from);
    let unfinished = workers - ended;
    let not_begun = match &shared.arrivals {
        Some(arrivals) if !is_interrupted => {
            let due = arrivals.between(measure_from, end);
            due.saturating_sub(shared.begun.load(Relaxed))
        }
        Some(_) | None => 0,
    };
    let check = match workload.plan.form != Form::Lock && unfinished == 0 {
        true => Some(check_counters(workload, worker, measured).await),
        false => None,
    };
    Outcome {
        elapsed,
        unfinished,
        not_begun,
        check,
        interrupted: is_interrupted,
    }
}

/// Section after section until the end. Errors count from the beginning, times after the warm-up.
async fn work(
    mut worker: impl Worker,
    number: usize,
    shared: Arc<Shared>,
    mut interrupt: Interrupt,
) {
    let Range { start, end } = shared.span;
    loop {
        let free = Instant::now();
        if free >= end || interrupt.is_pressed() {
            return;
        }
        // In a closed loop each turn is the worker's own.
        let (turn, due) = match &shared.arrivals {
            Some(arrivals) => arrivals.next(),
            None => (number, free),
        };
        if due >= end {
            return;
        }
        if due > free {
            // A timer is late by up to two milliseconds, also at the end: a worker that was free in time begins the section.
            tokio::select! {
                () = sleep_until(due) => {}
                () = interrupt.pressed(1) => return,
            }
        }
        if due >= start {
            shared.begun.fetch_add(1, Relaxed);
        }
        let waited = Instant::now().saturating_duration_since(due);
        let done = worker.section(turn).await;
        let failed = done.is_err();
        {
            let mut measured = shared.measured.lock();
            for (phase, took) in worker.times().iter().filter(|_| due >= start) {
                let waited = match phase {
                    Phase::Section => waited,
                    _ => Duration::ZERO,
                };
                measured.record(*phase, *took + waited);
            }
            if let Err(failed) = done {
                measured.fail(failed);
            }
        }
        if failed {
            sleep(ERROR_PAUSE).await;
        }
    }
}

/// Reads every counter that was incremented, under its lock, and compares.
async fn check_counters<W: Worker>(
    workload: &Workload,
    worker: impl Fn(usize) -> W,
    measured: &Mutex<Measured>,
) -> CounterCheck {
    let read = stream::iter(workload.counters.touched().into_iter().enumerate())
        .map(|(number, key)| {
            let mut worker = worker(number);
            async move { (key, worker.read(key).await) }
        })
        .buffer_unordered(AT_ONCE)
        .map(|(key, counter)| {
            (
                key,
                counter.map_err(|failed| measured.lock().fail(failed)).ok(),
            )
        })
        .collect::<Vec<_>>();
    workload.counters.check(&read.await)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeyChoice;
    use crate::measure::{FailedCall, Times};
    use crate::plan::tests::plan;

    const HANGS: Duration = Duration::from_secs(1);

    /// Locks within the process. The first section on the first key takes long.
    #[derive(Clone)]
    struct Fake {
        keys: Arc<[tokio::sync::Mutex<u64>]>,
        times: Times,
    }

    impl Worker for Fake {
        async fn section(&mut self, turn: usize) -> Result<(), FailedCall> {
            let begun = Instant::now();
            let key = turn % self.keys.len();
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

        fn times(&self) -> &Times {
            &self.times
        }

        async fn read(&mut self, _: usize) -> Result<u64, FailedCall> {
            Ok(0)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn in_an_open_loop_a_key_that_stands_still_makes_all_sections_slow_that_are_due_on_it() {
        const WORKERS: usize = 32;
        // Each key is due once in 100 ms.
        let plan = plan("lock --rate 320 --warm-up 0s --duration 2s --ttl 5s").unwrap();
        let workload = Workload::new(&plan, KeyChoice::Own, "", WORKERS);
        let fake = Fake {
            keys: (0..WORKERS).map(|_| tokio::sync::Mutex::new(0)).collect(),
            times: Times::new(),
        };
        let measured = Arc::new(Mutex::new(Measured::new().unwrap()));
        let mut interrupt = Interrupt::listen();
        let worker = |_| fake.clone();
        let outcome = run(&workload, worker, WORKERS, &measured, &mut interrupt).await;
        assert_eq!((outcome.unfinished, outcome.not_begun), (0, 0));
        let measured = measured.lock();
        let (_, sections) = measured.phases().last().unwrap();
        let above = |ms: u64| sections.len() - sections.count_between(0, ms * 1_000);
        // The sections that were due 0, 100, …, 900 ms after the first one.
        assert_eq!((sections.len(), above(50), above(350)), (640, 10, 7));
    }
}
