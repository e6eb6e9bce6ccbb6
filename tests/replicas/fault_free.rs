//! Without any fault nobody loses a lock, and hardly anything needs to be repeated.

use std::time::Instant;

use super::certificates::Authority;
use super::counters::{Counters, TTL};
use super::world::World;

/// Counts in a world, if there is one, which it gives back.
async fn count_in(world: Option<World>, sections: usize) -> Option<World> {
    let world = world?;
    let replicas = world.replicas.len();
    let begun = Instant::now();
    let counters = Counters::start(world.sprayed());
    counters.more(sections).await;
    let counted = counters.finish().await;
    eprintln!(
        "{replicas} replicas: {} sections in {:?}, {} repeats, the longest wait {:?}",
        counted.sections(),
        begun.elapsed(),
        counted.repeats,
        counted.longest_wait_after(begun)
    );
    assert!(counted.lost.is_empty(), "{:?}", counted.lost);
    // On a machine that is busy enough somebody may not answer in time, and is asked again: hardly ever.
    assert!(
        counted.repeats * 50 <= counted.sections(),
        "{}",
        counted.repeats
    );
    assert!(counted.longest_wait_after(begun) < TTL);
    Some(world)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_are_exact_on_one_replica() {
    count_in(World::of(1).await, 150).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_are_exact_though_every_call_goes_to_another_of_three_replicas() {
    count_in(World::of(3).await, 150).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_encrypt_what_they_tell_each_other_call_each_other_as_well() {
    let authority = Authority::named("replicas");
    let world = World::of_encrypted(3, &authority).await;
    let Some(world) = count_in(world, 150).await else {
        return;
    };
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
