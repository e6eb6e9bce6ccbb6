//! Without any fault nobody loses a lock, and hardly anything needs to be repeated.

use std::time::Instant;

use super::certificates::Authority;
use super::counters::{Counters, TTL};
use super::world::World;

/// Every call goes to another of three replicas, which encrypt what they tell each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_are_exact_and_nobody_loses_a_lock_though_every_call_goes_to_another_replica() {
    let authority = Authority::named("replicas");
    let Some(world) = World::of_encrypted(3, &authority).await else {
        return;
    };
    let begun = Instant::now();
    let counters = Counters::start(world.sprayed());
    counters.more(150).await;
    let counted = counters.finish().await;
    let longest = counted.longest_wait_after(begun);
    eprintln!(
        "{} sections in {:?}, {} repeats, the longest wait {longest:?}",
        counted.sections(),
        begun.elapsed(),
        counted.repeats,
    );
    assert!(counted.lost.is_empty(), "{:?}", counted.lost);
    // On a machine that is busy enough somebody may not answer in time, and is asked again: hardly ever.
    assert!(
        counted.repeats * 50 <= counted.sections(),
        "{}",
        counted.repeats
    );
    assert!(longest < TTL);
    for replica in &world.replicas {
        let log = replica.log();
        // Else they would find a way through the store, and say so.
        let failed = |line: &str| {
            line.contains("could not connect to another replica") || line.contains("refuse")
        };
        let failed: Vec<&str> = log.lines().filter(|line| failed(line)).collect();
        assert!(failed.is_empty(), "{failed:#?}");
    }
}
