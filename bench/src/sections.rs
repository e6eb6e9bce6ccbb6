//! All runs of a plan, and their report.

use std::sync::Arc;

use fermata_command::{Failure, exit};
use nix::sys::signal::Signal;
use parking_lot::Mutex;
use uuid::Uuid;

use super::baseline::{Baseline, System};
use super::caller::{Caller, Replicas};
use super::connect::Connection;
use super::interrupt::Interrupt;
use super::keys::KeyChoice;
use super::load;
use super::measure::Measured;
use super::music::{Music, MusicWorker};
use super::plan::Plan;
use super::report::{Report, print, text};
use super::rounds::{Comparison, alternate};
use super::run::Run;
use super::sessions::Sessions;
use super::workload::Workload;

/// Workers that share a connection, unless the plan says otherwise.
const WORKERS_PER_CONNECTION: usize = 16;

/// Measures, and prints the report.
pub(super) async fn run(plan: Plan) -> Result<u8, Failure> {
    let mut interrupt = Interrupt::listen();
    let measured = measure(&plan, interrupt.clone());
    let report = tokio::select! {
        report = measured => report?,
        () = interrupt.pressed(2) => return Err(Failure::signal(Signal::SIGINT, "interrupted")),
    };
    print(&report, plan.format, || text(&report))?;
    Ok(if report.clean { 0 } else { exit::NEGATIVE })
}

/// All runs of a plan, one after the other. Ctrl-C ends them early.
pub(super) async fn measure(plan: &Plan, mut interrupt: Interrupt) -> Result<Report, Failure> {
    let Some(baseline) = &plan.baseline else {
        let mut runs = Vec::new();
        for &workers in &plan.load.workers {
            runs.push(measure_one(plan, workers, &mut interrupt).await?);
            if interrupt.is_pressed() {
                break;
            }
        }
        return Ok(Report::new(plan, runs, Vec::new()));
    };
    // A service that is down is reported before tables are made.
    for endpoint in &plan.endpoints {
        Connection::open(endpoint, &plan.options, false).await?;
    }
    let (tag, ..) = Uuid::new_v4().as_fields();
    let music = Music::make(&baseline.cluster, tag).await.map_err(|fault| {
        let message = format!("cannot make the tables of the baseline in Cassandra: {fault}");
        Failure::new(exit::UNAVAILABLE, message)
    })?;
    let music = Arc::new(music);
    let measured = measure_in_turns(plan, baseline, &music, &mut interrupt).await;
    if let Err(fault) = music.drop_tables().await {
        eprintln!("fermata-bench: cannot drop the tables music_…_{tag:08x}: {fault}");
    }
    measured
}

/// The service and the baseline in turns, with each number of workers.
async fn measure_in_turns(
    plan: &Plan,
    baseline: &Baseline,
    music: &Arc<Music>,
    interrupt: &mut Interrupt,
) -> Result<Report, Failure> {
    let (mut runs, mut comparisons) = (Vec::new(), Vec::new());
    for &workers in &plan.load.workers {
        let turn = async |system, round| match system {
            System::Fermata => measure_one(plan, workers, interrupt).await,
            System::Music | System::Puts => {
                let turn = (system, workers, round);
                measure_baseline(plan, music, turn, interrupt).await
            }
        };
        let turns = alternate(baseline.system, baseline.rounds, turn).await?;
        comparisons.extend(Comparison::of(workers, &turns));
        runs.extend(turns);
        if interrupt.is_pressed() {
            break;
        }
    }
    Ok(Report::new(plan, runs, comparisons))
}

/// One run, on connections of its own.
async fn measure_one(
    plan: &Plan,
    workers: usize,
    interrupt: &mut Interrupt,
) -> Result<Run, Failure> {
    let connections = plan.load.connections;
    let connections = connections.unwrap_or(workers.div_ceil(WORKERS_PER_CONNECTION));
    let workload = Workload::new(plan, plan.load.keys, &plan.load.key_prefix, workers);
    let workload = Arc::new(workload);
    let replicas = Replicas::connect(plan, connections, workload.keys.count()).await?;
    let replicas = Arc::new(replicas);
    let measured = Arc::new(Mutex::new(Measured::new()?));
    let sessions = Sessions::open(plan, &measured).await?;
    let worker = |number| Caller::new(number, &replicas, &workload);
    let outcome = load::run(&workload, worker, workers, &measured, interrupt).await;
    sessions.close().await;
    let measured = measured.lock();
    Ok(Run {
        rate: plan.load.rate,
        ..Run::new(workers, replicas.count(), outcome, &measured)
    })
}

/// One run of the baseline.
async fn measure_baseline(
    plan: &Plan,
    music: &Arc<Music>,
    (system, workers, round): (System, usize, u32),
    interrupt: &mut Interrupt,
) -> Result<Run, Failure> {
    // Every section leaves a tombstone in the queue of its key, which later reads go through. With keys of its own no round
    // pays for those before it, nor must its first put have a higher timestamp than theirs.
    let prefix = format!("{}/{workers}/{round}", plan.load.key_prefix);
    let workload = Arc::new(Workload::new(plan, KeyChoice::Own, &prefix, workers));
    let measured = Arc::new(Mutex::new(Measured::new()?));
    let worker = |_| MusicWorker::new(system, music, &workload);
    let outcome = load::run(&workload, worker, workers, &measured, interrupt).await;
    let measured = measured.lock();
    Ok(Run::new(workers, 1, outcome, &measured))
}
