//! The soak itself: rounds in which clients count while faults happen, each judged at its end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::{interval, sleep, timeout};

use super::faults::{Faults, PATIENCE};
use super::report::{Death, Report, Round, Waited};
use super::shared::cassandra::{Cluster, ClusterError};
use super::shared::counters::Counters;
use super::shared::history::Recorder;
use super::shared::rng::Rng;
use super::timeline::{Timeline, clock};
use super::world::World;
use super::{Commit, Failure, machine};

/// How long a round lasts: what a history has room for, several times over.
const ROUND: Duration = Duration::from_secs(300);
/// How often the replicas are looked at.
const SAMPLE: Duration = Duration::from_secs(2);
/// How often it is said how far it is, in samples.
const REPORT_EVERY: u32 = 15;
/// How many faults the seed is good for at once: those of replicas, of nodes, of clients.
const SORTS: usize = 3;

/// What is asked for.
pub struct SoakOptions {
    pub span: Duration,
    pub seed: u64,
    pub replicas: usize,
    /// When the row of a key says what its home decided.
    pub commit: Commit,
    /// Where the replicas' logs are kept.
    pub logs: Option<PathBuf>,
    /// Whether there is a network of its own, in which something may be cut off.
    pub may_cut: bool,
}

pub async fn run(asked: &SoakOptions, cluster: Cluster) -> Result<Report, Failure> {
    let began = machine::date();
    let world = World::with(cluster, asked).await?;
    let timeline = Timeline::new();
    let mut rngs = Rng::new(asked.seed);
    let mut report = Report::new(asked, began, world.replicas());
    for number in 1.. {
        let until = (ROUND * number).min(asked.span);
        let rngs = [(); SORTS].map(|()| rngs.fork());
        let faults = Faults {
            world: Arc::clone(&world),
            timeline: timeline.clone(),
            may_cut: asked.may_cut,
            until: timeline.elapsed().max(until),
        };
        round(number, faults, rngs, asked.span, &mut report).await?;
        if until == asked.span || !report.violations.is_empty() || report.ended_early.is_some() {
            break;
        }
    }
    report.took = timeline.elapsed();
    (report.faults, report.samples) = timeline.finish();
    report.waited.sort_by_key(|waited| waited.held);
    Ok(report)
}

async fn round(
    number: u32,
    faults: Faults,
    rngs: [Rng; SORTS],
    span: Duration,
    report: &mut Report,
) -> Result<(), Failure> {
    let (world, timeline) = (Arc::clone(&faults.world), faults.timeline.clone());
    let history = Recorder::new();
    let name = format!("round-{number}");
    let clients = world.clients(&history).patient(PATIENCE);
    // By turns: each call at the next replica, and each client at one for as long as that serves it.
    let by_turns = !number.is_multiple_of(2);
    let clients = match by_turns {
        true => clients,
        false => clients.staying(),
    };
    let begun = timeline.elapsed();
    let counters = Counters::start_named(&name, clients.clone());
    let [replicas, nodes, gone] = rngs;
    let mut active: Vec<JoinHandle<Result<(), Failure>>> = vec![
        tokio::spawn(faults.clone().of_replicas(replicas)),
        tokio::spawn(faults.clone().of_nodes(nodes)),
    ];
    let gone = tokio::spawn(faults.clone().of_clients(gone, clients, name));
    active.push(tokio::spawn(async move { Ok(gone.await?) }));
    let mut ticks = interval(SAMPLE);
    let mut reports = 0_u32;
    while active.iter().any(|task| !task.is_finished()) {
        ticks.tick().await;
        timeline.sample(world.memory());
        for misdeed in world.misdeeds() {
            report.broken(format!("round {number}: {misdeed}"));
        }
        note_deaths(&world, &timeline, report);
        reports += 1;
        if reports.is_multiple_of(REPORT_EVERY) {
            let so_far = report.waited.len() + counters.finished();
            timeline.tell(&format!(
                "of {}: {so_far} sections; {}",
                clock(span),
                timeline.active()
            ));
        }
    }
    for task in active {
        match task.await.map_err(Failure::from).flatten() {
            Ok(()) => {}
            // The nodes are not what is tried here.
            Err(error) if error.is::<ClusterError>() => {
                report.ended_early = Some(error.to_string())
            }
            Err(error) => report.broken(format!("round {number}: {error}")),
        }
    }
    let healed = Instant::now();
    // Everything it asserts is a promise: what panics there is a violation.
    let finished = tokio::spawn(async move { timeout(PATIENCE, counters.finish()).await });
    match finished.await {
        Ok(Ok(counted)) => {
            let waits = counted.waits().map(|(held, wait)| Waited {
                held: timeline.at(held),
                wait,
            });
            report.waited.extend(waits);
            report.rounds.push(Round {
                begun,
                healed: timeline.at(healed),
                by_turns,
            });
            report.repeats += counted.repeats;
            let longest = counted.longest_wait_after(healed);
            report.longest_after = report.longest_after.max(longest);
            report.lost.extend(counted.lost);
        }
        Ok(Err(_)) => report.broken(format!(
            "round {number}: nobody came to an end within {PATIENCE:?} after the last fault"
        )),
        Err(error) => report.broken(format!("round {number}: {error}")),
    }
    if let Some(judged) = history.judged() {
        timeline.tell(&format!("round {number}: {}", judged.checked));
        report.operations += judged.checked.operations;
        report.sections += judged.checked.sections;
        report.unknown += judged.checked.unknown;
        if let Some(wrong) = judged.wrong {
            report.broken(format!("round {number}: {wrong}"));
        }
    }
    for line in world.panics() {
        report.broken(format!("round {number}: a replica says: {line}"));
    }
    // Calls that a client gave up are answered by now, or never.
    sleep(SAMPLE).await;
    note_deaths(&world, &timeline, report);
    Ok(())
}

/// Notes which replicas were fenced since this was called last.
fn note_deaths(world: &World, timeline: &Timeline, report: &mut Report) {
    for (replica, times) in (1..).zip(world.fenced()) {
        let known = report
            .deaths
            .iter()
            .filter(|death| death.replica == replica);
        let new = times.unwrap_or(0).saturating_sub(known.count());
        for _ in 0..new {
            timeline.tell(&format!("replica {replica} was fenced"));
            report.deaths.push(Death {
                at: timeline.elapsed(),
                replica,
            });
        }
    }
}
