//! Faults, one after the other, while 24 clients count on 8 keys through three replicas and three nodes: each run
//! goes on after its fault, and in the end every counter is exact, fences only rose and no queue holds anybody.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tokio::time::sleep;

use super::counters::{Counters, TTL};
use super::support;
use super::world::World;

/// The longest that anybody may wait for a turn after a fault has ended: the longer of session TTL and replica TTL,
/// and what the clients before it in the queue take.
const WAIT_MAX: Duration = Duration::from_secs(TTL.as_secs() + 5);
/// How long a pause lasts: longer than the TTL of replicas.
const PAUSE: Duration = Duration::from_secs(8);
/// Sections that are finished after each fault, before the next.
const MORE: usize = 60;

/// How often each fault happens; more with `FERMATA_FAULT_ROUNDS`.
fn rounds() -> usize {
    let rounds = std::env::var("FERMATA_FAULT_ROUNDS");
    rounds.map_or(1, |rounds| {
        rounds.parse().expect("FERMATA_FAULT_ROUNDS is a number")
    })
}

/// What comes of a fault, and when it had ended. It may see how clients get on meanwhile.
pub async fn count_through<F>(
    world: &mut World,
    what: &str,
    fault: impl AsyncFn(&mut World, &Counters) -> F,
) {
    // The same world may see several faults.
    let counters = Counters::start_named(what, world.sprayed());
    counters.more(MORE).await;
    let mut healed = Instant::now();
    for _ in 0..rounds() {
        let begun = Instant::now();
        fault(world, &counters).await;
        healed = Instant::now();
        let took = healed.duration_since(begun);
        counters.more(MORE).await;
        eprintln!(
            "{what}: {took:.1?}, and {MORE} sections {:.1?} after it",
            healed.elapsed()
        );
    }
    let counted = counters.finish().await;
    let longest = counted.longest_wait_after(healed);
    eprintln!(
        "{what}: {} sections, {} repeats, {} lost, the longest wait after it {longest:.1?}",
        counted.sections(),
        counted.repeats,
        counted.lost.len()
    );
    for lost in &counted.lost {
        eprintln!("{what}: lost: {lost}");
    }
    assert!(longest < WAIT_MAX, "{what}: somebody waited {longest:?}");
}

pub fn signal_node(node: usize, signal: Signal) {
    tokio::task::block_in_place(|| support::signal(node, signal)).unwrap();
}

/// Starts nodes that were killed, and waits until all are up.
pub fn start_nodes(world: &World, nodes: &[usize]) {
    tokio::task::block_in_place(|| {
        for node in nodes {
            support::start_node(*node).unwrap();
        }
        world.wait_for_nodes();
    });
}

async fn kill(world: &mut World) {
    world.replicas[0].kill();
    sleep(Duration::from_secs(2)).await;
    world.replicas[0].start_again();
    tokio::task::block_in_place(|| world.replicas[0].serving());
}

async fn stop(world: &mut World) {
    let status = tokio::task::block_in_place(|| world.replicas[1].stop());
    assert!(status.success(), "{status}");
    sleep(Duration::from_secs(1)).await;
    world.replicas[1].start_again();
    tokio::task::block_in_place(|| world.replicas[1].serving());
}

/// One replica is killed, and another one is stopped.
async fn kill_and_stop(what: &str, world: Option<World>) {
    let Some(mut world) = world else {
        return;
    };
    count_through(&mut world, what, async |world: &mut World, _: &Counters| {
        kill(world).await;
        stop(world).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_stopped_replicas_cost_their_holders_a_pause_and_no_durable_lock() {
    kill_and_stop("replicas are killed and stopped", World::of(3).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_write_through_all_locks_are_durable_when_replicas_are_killed_and_stopped() {
    let world = World::of_write_through(3).await;
    kill_and_stop("the same with write-through", world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_paused_for_long_finds_out_before_it_answers() {
    let Some(mut world) = World::of(3).await else {
        return;
    };
    count_through(
        &mut world,
        "a replica is paused",
        async |world: &mut World, _: &Counters| {
            world.replicas[2].signal(Signal::SIGSTOP);
            sleep(PAUSE).await;
            world.replicas[2].signal(Signal::SIGCONT);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_paused_or_killed_is_worked_around_and_without_a_majority_nothing_is_done() {
    let Some(mut world) = World::with_nodes_of_its_own(3).await else {
        return;
    };
    let what = "a node is paused, and another one killed";
    count_through(
        &mut world,
        what,
        async |world: &mut World, counters: &Counters| {
            signal_node(1, Signal::SIGSTOP);
            sleep(PAUSE).await;
            counters.more(MORE).await;
            signal_node(1, Signal::SIGCONT);
            signal_node(2, Signal::SIGKILL);
            sleep(SILENCE).await;
            counters.more(MORE).await;
            start_nodes(world, &[2]);
        },
    )
    .await;
    let what = "two nodes are killed";
    count_through(
        &mut world,
        what,
        async |world: &mut World, counters: &Counters| {
            signal_node(2, Signal::SIGKILL);
            signal_node(3, Signal::SIGKILL);
            sleep(SILENCE).await;
            let before = counters.finished();
            sleep(Duration::from_secs(2)).await;
            assert_eq!(counters.finished(), before, "without a majority");
            start_nodes(world, &[2, 3]);
        },
    )
    .await;
}

/// Longer than a replica answers without its store (4.5 s).
const SILENCE: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cassandra_that_is_silent_for_6_s_costs_no_replica_its_life_and_nobody_a_lock() {
    let Some(world) = World::with_nodes_of_its_own(3).await else {
        return;
    };
    let counters = Counters::start(world.sprayed());
    counters.more(MORE).await;
    for node in 1..=3 {
        signal_node(node, Signal::SIGSTOP);
    }
    sleep(SILENCE).await;
    for node in 1..=3 {
        signal_node(node, Signal::SIGCONT);
    }
    counters.more(MORE).await;
    let counted = counters.finish().await;
    for replica in &world.replicas {
        let log = replica.log();
        assert!(
            log.contains("answers no calls until"),
            "it was not silent: {log}"
        );
        assert!(!log.contains("is fenced for good"), "{log}");
    }
    assert!(counted.lost.is_empty(), "{:?}", counted.lost);
}
