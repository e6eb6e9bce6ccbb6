//! Whole sections, or locks alone: all runs of a plan, and their report.

use std::sync::Arc;
use std::time::Duration;

use fermata_command::Failure;
use fermata_command::exit;
use fermata_command::output::Format;
use uuid::Uuid;

use super::args::Plan;
use super::arrivals::Search;
use super::baseline::{Baseline, System};
use super::connect::{connect, connection, connections_for, unary};
use super::counters::Counters;
use super::disk;
use super::failure::BenchError;
use super::interrupt::Interrupt;
use super::keys::{KeyChoice, Keys};
use super::load;
use super::music::{Music, MusicWorker};
use super::puts::PutsWorker;
use super::report::{DiskReport, HighestRate, Report, Settings, Transport, print};
use super::rounds::{Comparison, alternate};
use super::run::{Run, millis, tenths};
use super::sessions::KeptSessions;
use super::table;
use super::workload::{Caller, Form, Replicas, Workload};

/// The rate that the search for the highest one begins with, unless one is given: sections a second.
const FIRST_RATE: f64 = 100.0;

/// Measures, and prints the report.
pub(super) async fn run(plan: &Plan, format: Format) -> Result<u8, Failure> {
    let report = measure(plan).await?;
    print(&report, format, || table::text(&report))?;
    Ok(if report.clean { 0 } else { exit::NOT_CLEAN })
}

/// All runs of a plan, one after the other; ends early when interrupted.
pub(super) async fn measure(plan: &Plan) -> Result<Report, BenchError> {
    let mut interrupt = Interrupt::listen();
    // A server that is not there is told at once, and not after the disk was probed.
    connect(
        (&plan.endpoints, &plan.options),
        plan.endpoints.len(),
        false,
    )
    .await?;
    let interrupt = &mut interrupt;
    let before = match &plan.disk_probe {
        Some(directory) => Some((directory, disk::probe(directory).await?)),
        None => None,
    };
    let (runs, comparisons, highest_rates) = match plan.p999_below {
        Some(bound) => {
            let (runs, found) = find_rates(plan, bound, interrupt).await?;
            (runs, Vec::new(), found)
        }
        None => {
            let (runs, comparisons) = measure_all(plan, interrupt).await?;
            (runs, comparisons, Vec::new())
        }
    };
    let disk = match before {
        Some((directory, before)) => Some(DiskReport {
            directory: directory.display().to_string(),
            before,
            after: disk::probe(directory).await?,
        }),
        None => None,
    };
    let counted = plan.form != Form::Lock;
    Ok(Report {
        settings: plan.settings(),
        // A rate that is too high may bring errors; to be lost nothing may, and some rate must have been served.
        clean: match plan.p999_below {
            Some(_) => {
                let exact = runs.iter().all(|run| run.is_exact() || !counted);
                exact && highest_rates.iter().all(|found| found.rate.is_some())
            }
            None => runs.iter().all(|run| run.is_clean(counted)),
        },
        runs,
        comparisons,
        highest_rates,
        disk,
    })
}

/// The runs with each number of workers, and where there is a baseline, which of the two did more.
async fn measure_all(
    plan: &Plan,
    interrupt: &mut Interrupt,
) -> Result<(Vec<Run>, Vec<Comparison>), BenchError> {
    let Some(baseline) = &plan.baseline else {
        let mut runs = Vec::new();
        for &workers in &plan.workers {
            let run = measure_one(plan, (workers, plan.span), interrupt).await?;
            let interrupted = run.interrupted;
            runs.push(run);
            if interrupted {
                break;
            }
        }
        return Ok((runs, Vec::new()));
    };
    let (tag, ..) = Uuid::new_v4().as_fields();
    let music = Arc::new(Music::make(&baseline.cluster, tag).await?);
    let measured = measure_in_turns(plan, baseline, &music, interrupt).await;
    if let Err(fault) = music.drop_tables().await {
        eprintln!("fermata-bench: the tables music_…_{tag:08x} could not be dropped: {fault}");
    }
    measured
}

/// The service and the baseline in turns, with each number of workers.
async fn measure_in_turns(
    plan: &Plan,
    baseline: &Baseline,
    music: &Arc<Music>,
    interrupt: &mut Interrupt,
) -> Result<(Vec<Run>, Vec<Comparison>), BenchError> {
    let (mut runs, mut comparisons) = (Vec::new(), Vec::new());
    for &workers in &plan.workers {
        let turn = async |system, round| match system {
            System::Fermata => measure_one(plan, (workers, plan.span), interrupt).await,
            other => measure_baseline(plan, other, music, (workers, round), interrupt).await,
        };
        let turns = alternate(baseline.system, baseline.rounds, turn).await?;
        comparisons.extend(Comparison::of(workers, &turns));
        runs.extend(turns);
        if runs.last().is_some_and(|run| run.interrupted) {
            break;
        }
    }
    Ok((runs, comparisons))
}

/// For each number of workers the highest rate at which 99.9 % of the sections stay under the bound, with the run of each rate
/// that was tried.
async fn find_rates(
    plan: &Plan,
    p999_below: Duration,
    interrupt: &mut Interrupt,
) -> Result<(Vec<Run>, Vec<HighestRate>), BenchError> {
    let (mut runs, mut found) = (Vec::new(), Vec::new());
    for &workers in &plan.workers {
        let mut search = Search::default();
        let mut next = Some(plan.span.rate.unwrap_or(FIRST_RATE));
        while let Some(rate) = next {
            let span = load::Span {
                rate: Some(rate),
                ..plan.span
            };
            let run = measure_one(plan, (workers, span), interrupt).await?;
            let (interrupted, in_time) = (run.interrupted, run.is_in_time(p999_below));
            runs.push(run);
            if interrupted {
                return Ok((runs, found));
            }
            next = search.next(rate, in_time);
        }
        let rate = search.served().map(tenths);
        found.push(HighestRate { workers, rate });
    }
    Ok((runs, found))
}

/// One run, on connections of its own.
async fn measure_one(
    plan: &Plan,
    (workers, span): (usize, load::Span),
    interrupt: &mut Interrupt,
) -> Result<Run, BenchError> {
    let connections = plan.connections.unwrap_or(connections_for(workers));
    let clients = connect((&plan.endpoints, &plan.options), connections, plan.pipeline).await?;
    let opened = clients.len();
    let keys = Keys::new(
        plan.keys,
        &plan.key_prefix,
        workers,
        plan.key_count,
        plan.zipf_skew,
        plan.near,
    );
    let workload = Arc::new(plan.workload(keys));
    let replicas = Arc::new(Replicas::new(clients, workload.keys.count()));
    let callers = (0..).map(|number| Caller::new(&replicas, number, Arc::clone(&workload)));
    let sessions = match plan.endpoints.first() {
        Some(endpoint) if plan.sessions > 0 => {
            let client = unary(connection(endpoint, &plan.options).await?);
            let keys = (plan.key_prefix.as_str(), plan.sessions);
            Some(KeptSessions::open(&client, &workload, keys, span.warm_up).await?)
        }
        _ => None,
    };
    let mut outcome = load::run(&workload, callers, workers, span, interrupt).await?;
    if let Some(sessions) = sessions {
        sessions.end(&mut outcome.measured).await;
    }
    Ok(Run {
        rate: span.rate.map(tenths),
        ..Run::new(workers, opened, outcome)
    })
}

/// One run of the baseline.
async fn measure_baseline(
    plan: &Plan,
    system: System,
    music: &Arc<Music>,
    (workers, round): (usize, u32),
    interrupt: &mut Interrupt,
) -> Result<Run, BenchError> {
    // Every section leaves a tombstone in its key's queue, which a peek has to read past: with keys of its own
    // no round pays for those before it. Nor need the first put of a round be above those of the one before.
    let prefix = format!("{}/{workers}/{round}", plan.key_prefix);
    let keys = Keys::new(KeyChoice::Own, &prefix, workers, 0, 0.0, plan.near);
    let workload = Arc::new(plan.workload(keys));
    let shared = || (Arc::clone(music), Arc::clone(&workload));
    let span = plan.span;
    let outcome = match system {
        System::Puts => {
            let hands = std::iter::repeat_with(shared).map(|(m, w)| PutsWorker::new(m, w));
            load::run(&workload, hands, workers, span, interrupt).await?
        }
        System::Music | System::Fermata => {
            let hands = std::iter::repeat_with(shared).map(|(m, w)| MusicWorker::new(m, w));
            load::run(&workload, hands, workers, span, interrupt).await?
        }
    };
    Ok(Run::new(workers, 1, outcome))
}

impl Plan {
    fn workload(&self, keys: Keys) -> Workload {
        Workload {
            form: self.form,
            table: self.table.clone(),
            call_within: self.call_within,
            counters: Counters::new(keys.count()),
            keys,
            ttl: self.ttl,
            hold: self.hold,
            value_bytes: self.value_bytes,
        }
    }

    fn settings(&self) -> Settings {
        let zipf = self.keys == KeyChoice::Zipf;
        let near = self.keys == KeyChoice::Near;
        Settings {
            version: env!("CARGO_PKG_VERSION"),
            form: self.form,
            transport: match self.pipeline {
                true => Transport::Pipeline,
                false => Transport::Grpc,
            },
            endpoints: self.endpoints.clone(),
            table: self.table.clone(),
            keys: self.keys,
            key_count: (zipf || near).then_some(self.key_count),
            near: near.then_some(self.near),
            zipf_skew: zipf.then_some(self.zipf_skew),
            value_bytes: (self.form != Form::Lock).then_some(self.value_bytes),
            sessions: self.sessions,
            ttl_ms: millis(self.ttl),
            hold_ms: millis(self.hold),
            warm_up_ms: millis(self.span.warm_up),
            duration_ms: millis(self.span.duration),
            load_loop: match self.span.rate.is_some() || self.p999_below.is_some() {
                true => "open",
                false => "closed",
            },
            p999_below_ms: self.p999_below.map(millis),
            baseline: self.baseline.as_ref().map(Baseline::settings),
        }
    }
}
