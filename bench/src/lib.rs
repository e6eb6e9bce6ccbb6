//! `fermata bench`: how fast is a running server, over real sockets?
//!
//! It calls the generated client directly, so that each call is timed by itself and nothing is repeated
//! behind its back. Beside it can be measured what the same work costs by MUSIC's statements; the sockets can then be
//! left out.
//!
//! Nothing of the server lives here. What the benchmark takes of the program that it is a command of, the settings for
//! Cassandra and a replica in its own process, is a [`Program`].

mod args;
mod arrivals;
mod baseline;
mod connect;
mod counters;
mod crowd;
mod disk;
mod handover;
mod idle;
mod interrupt;
mod keys;
mod load;
mod measure;
mod music;
mod program;
mod progress;
mod puts;
mod report;
mod rounds;
mod rounds_table;
mod service;
mod sessions;
mod table;
#[cfg(test)]
mod tests;
mod workload;

use std::sync::Arc;
use std::time::Duration;

use fermata_cassandra::Fault;
use fermata_command::output::{Format, print_text};
use fermata_command::{Failure, Remote, exit};
use uuid::Uuid;

pub use self::args::Args;
use self::args::{Plan, What};
use self::arrivals::Search;
use self::baseline::Baseline;
use self::connect::{ConnectError, Connected, connect, connection, connections_for, unary};
use self::counters::Counters;
use self::disk::ProbeError;
use self::interrupt::Interrupt;
use self::keys::{KeyChoice, Keys};
pub use self::music::Music;
use self::music::MusicWorker;
pub use self::program::{InProcess, Program, StartReplica};
use self::puts::PutsWorker;
use self::report::{DiskReport, HighestRate, Report, Run, Transport, millis, tenths};
use self::rounds::{Comparison, alternate};
use self::sessions::KeptSessions;
use self::workload::{Caller, Form, Replicas, Workload};

const EXIT_STATUS: &str = "Exit status: 0 no errors and every counter exact; 1 errors, lost increments, \
    sections cut off or, at a rate, not begun (the report says which); 64 wrong usage; 69 no server or no Cassandra is reached; 74 it cannot be printed, or the disk cannot be \
    probed; 78 the settings for Cassandra are not valid.";

/// The rate that the search for the highest one begins with, unless one is given: sections a second.
const FIRST_RATE: f64 = 100.0;

/// Whose sections are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum System {
    /// The service.
    Fermata,
    /// A baseline: MUSIC's statements for a section.
    Music,
    /// A baseline: the put of a section alone.
    Puts,
}

impl System {
    fn name(self) -> &'static str {
        match self {
            System::Fermata => "fermata",
            System::Music => "music",
            System::Puts => "puts",
        }
    }
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
enum BenchError {
    /// Start the server, or name another endpoint.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Name a directory that can be written to.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// Start Cassandra, name other nodes, or make the keyspace.
    #[error("the tables of the baseline cannot be made in Cassandra: {0}")]
    Baseline(#[from] Fault),
    /// Never seen: the histograms are of a valid kind.
    #[error("cannot measure: {0}")]
    Measure(#[from] hdrhistogram::CreationError),
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Failure {
        let code = match error {
            BenchError::Connect(ConnectError::Endpoint(_)) => exit::USAGE,
            BenchError::Connect(ConnectError::Unreachable { .. }) => exit::UNAVAILABLE,
            BenchError::Baseline(_) => exit::UNAVAILABLE,
            BenchError::Probe(_) => exit::IO,
            BenchError::Measure(_) => exit::SOFTWARE,
        };
        Failure::new(code, error.to_string())
    }
}

/// Runs the command.
pub async fn run<P: Program>(args: Args<P>, before: &Remote) -> Result<u8, Failure> {
    let (plan, replica, format) = match args.plan(before)? {
        What::Load {
            plan,
            replica,
            format,
        } => (plan, replica, format),
        What::Handover(args) => return handover::run(args, before).await,
        What::Waiters(args) => return crowd::run(args, before).await,
        What::Idle(args) => return idle::run(args, before).await,
    };
    let report = measure(&plan, replica).await?;
    print(&report, format, || table::text(&report))?;
    Ok(if report.clean { 0 } else { exit::NOT_CLEAN })
}

fn print(
    report: &impl serde::Serialize,
    format: Format,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    match format {
        Format::Text => print_text(&text())?,
        Format::Json => {
            let mut text = serde_json::to_string_pretty(report).map_err(std::io::Error::from)?;
            text.push('\n');
            print_text(&text)?;
        }
    }
    Ok(())
}

/// All runs of a plan, one after the other; ends early when interrupted.
async fn measure(plan: &Plan, replica: Option<Box<dyn StartReplica>>) -> Result<Report, Failure> {
    let mut interrupt = Interrupt::listen();
    let Some(replica) = replica else {
        // A server that is not there is told at once, and not after the disk was probed.
        let connected = connect(
            (&plan.endpoints, &plan.options),
            plan.endpoints.len(),
            false,
        )
        .await;
        connected.map_err(BenchError::from)?;
        return Ok(measure_by(plan, None, &mut interrupt).await?);
    };
    let replica = replica.start().await?;
    let measured = measure_by(plan, Some(&replica), &mut interrupt).await;
    replica.stop().await;
    Ok(measured?)
}

/// The same, by this replica or else by the servers of the plan.
async fn measure_by(
    plan: &Plan,
    replica: Option<&InProcess>,
    interrupt: &mut Interrupt,
) -> Result<Report, BenchError> {
    let before = match &plan.disk_probe {
        Some(directory) => Some((directory, disk::probe(directory).await?)),
        None => None,
    };
    let (runs, comparisons, highest_rates) = match plan.p999_below {
        Some(bound) => {
            let (runs, found) = find_rates(plan, replica, bound, interrupt).await?;
            (runs, Vec::new(), found)
        }
        None => {
            let (runs, comparisons) = measure_all(plan, replica, interrupt).await?;
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
    replica: Option<&InProcess>,
    interrupt: &mut Interrupt,
) -> Result<(Vec<Run>, Vec<Comparison>), BenchError> {
    let Some(baseline) = &plan.baseline else {
        let mut runs = Vec::new();
        for &workers in &plan.workers {
            let run = measure_one(plan, replica, (workers, plan.span), interrupt).await?;
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
    let measured = measure_in_turns(plan, replica, baseline, &music, interrupt).await;
    if let Err(fault) = music.drop_tables().await {
        eprintln!("fermata: the tables music_…_{tag:08x} could not be dropped: {fault}");
    }
    measured
}

/// The service and the baseline in turns, with each number of workers.
async fn measure_in_turns(
    plan: &Plan,
    replica: Option<&InProcess>,
    baseline: &Baseline,
    music: &Arc<Music>,
    interrupt: &mut Interrupt,
) -> Result<(Vec<Run>, Vec<Comparison>), BenchError> {
    let (mut runs, mut comparisons) = (Vec::new(), Vec::new());
    for &workers in &plan.workers {
        let turn = async |system, round| match system {
            System::Fermata => measure_one(plan, replica, (workers, plan.span), interrupt).await,
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
    replica: Option<&InProcess>,
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
            let run = measure_one(plan, replica, (workers, span), interrupt).await?;
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

/// One run, on connections of its own where it takes any.
async fn measure_one(
    plan: &Plan,
    replica: Option<&InProcess>,
    (workers, span): (usize, load::Span),
    interrupt: &mut Interrupt,
) -> Result<Run, BenchError> {
    let (clients, connections) = match replica {
        Some(replica) => {
            let client = replica.client();
            let address = String::new();
            (vec![Connected { address, client }], 0)
        }
        None => {
            let connections = plan.connections.unwrap_or(connections_for(workers));
            let clients =
                connect((&plan.endpoints, &plan.options), connections, plan.pipeline).await?;
            let opened = clients.len();
            (clients, opened)
        }
    };
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
        ..Run::new(workers, connections, outcome)
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

    fn settings(&self) -> report::Settings {
        let zipf = self.keys == KeyChoice::Zipf;
        let near = self.keys == KeyChoice::Near;
        report::Settings {
            version: env!("CARGO_PKG_VERSION"),
            form: self.form,
            transport: match (self.is_in_process(), self.pipeline) {
                (true, _) => Transport::InProcess,
                (false, true) => Transport::Pipeline,
                (false, false) => Transport::Grpc,
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
