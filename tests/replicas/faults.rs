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
/// How long a pause lasts: longer than the TTL of replicas, and of sessions.
pub const PAUSE: Duration = Duration::from_secs(12);
/// Sections that are finished after each fault, before the next.
const MORE: usize = 60;

/// How often each fault happens; more with `FERMATA_FAULT_ROUNDS`.
fn rounds() -> usize {
    let rounds = std::env::var("FERMATA_FAULT_ROUNDS");
    rounds.map_or(1, |rounds| {
        rounds.parse().expect("FERMATA_FAULT_ROUNDS is a number")
    })
}

/// What comes of a fault of a replica, and when it had ended.
async fn count_through<F>(what: &str, fault: impl AsyncFn(&mut World) -> F) -> Option<()> {
    count_through_in(&mut World::of(3).await?, what, fault).await;
    Some(())
}

/// The same of a fault of nodes.
async fn count_through_nodes<F>(what: &str, fault: impl AsyncFn(&mut World) -> F) -> Option<()> {
    let mut world = World::with_nodes_of_its_own(3).await?;
    count_through_in(&mut world, what, fault).await;
    Some(())
}

/// The same, in a world that is there.
pub async fn count_through_in<F>(
    world: &mut World,
    what: &str,
    fault: impl AsyncFn(&mut World) -> F,
) {
    let counters = Counters::start(world.sprayed());
    counters.more(MORE).await;
    let mut healed = Instant::now();
    for _ in 0..rounds() {
        let begun = Instant::now();
        fault(world).await;
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

fn signal_node(node: usize, signal: Signal) {
    tokio::task::block_in_place(|| support::signal(node, signal)).unwrap();
}

/// Starts nodes that were killed, and waits until all are up.
fn start_nodes(world: &World, nodes: &[usize]) {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_killed_costs_its_holders_a_pause_and_not_their_durable_locks() {
    count_through("a replica is killed", kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_stopped_hands_over() {
    count_through("a replica is stopped", stop).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_write_through_all_locks_are_durable_when_replicas_are_killed_and_stopped() {
    let Some(mut world) = World::of_write_through(3).await else {
        return;
    };
    let what = "write-through: one replica is killed, and another one stopped";
    count_through_in(&mut world, what, async |world: &mut World| {
        kill(world).await;
        stop(world).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_paused_for_long_finds_out_before_it_answers() {
    count_through("a replica is paused", async |world: &mut World| {
        world.replicas[2].signal(Signal::SIGSTOP);
        sleep(PAUSE).await;
        world.replicas[2].signal(Signal::SIGCONT);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_killed_and_started_again_is_hardly_noticed() {
    count_through_nodes("a node is killed", async |world: &mut World| {
        signal_node(1, Signal::SIGKILL);
        sleep(Duration::from_secs(3)).await;
        start_nodes(world, &[1]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_paused_is_worked_around() {
    count_through_nodes("a node is paused", async |_: &mut World| {
        signal_node(2, Signal::SIGSTOP);
        sleep(PAUSE).await;
        signal_node(2, Signal::SIGCONT);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nothing_is_done_and_everything_goes_on_after_it() {
    count_through_nodes("two nodes are killed", async |world: &mut World| {
        signal_node(2, Signal::SIGKILL);
        signal_node(3, Signal::SIGKILL);
        sleep(Duration::from_secs(5)).await;
        start_nodes(world, &[2, 3]);
    })
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
            log.contains("answers nothing until"),
            "it was not silent: {log}"
        );
        assert!(!log.contains("is fenced for good"), "{log}");
    }
    assert!(counted.lost.is_empty(), "{:?}", counted.lost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_cannot_call_each_other_find_a_way_through_the_store() {
    let Some(world) = World::of_strangers(3).await else {
        return;
    };
    // Calls that go to another replica each time would take their lockRefs with them, each time.
    let counters = Counters::start(world.sprayed().staying());
    counters.more(MORE).await;
    let counted = counters.finish().await;
    eprintln!(
        "replicas that cannot call each other: {} sections, {} repeats, {} lost",
        counted.sections(),
        counted.repeats,
        counted.lost.len()
    );
}
