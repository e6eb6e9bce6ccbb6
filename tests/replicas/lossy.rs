//! Answers of Cassandra that never arrive: whoever asked cannot tell whether it was done.

use std::time::Duration;

use tokio::task::block_in_place;

use super::counters::Counters;
use super::proxy::{CqlProxy, Faults};
use super::replica::{Replica, Setup};
use super::world::World;

/// How long a call is repeated.
const PATIENCE: Duration = Duration::from_secs(300);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_are_exact_though_a_third_of_the_answers_of_cassandra_is_lost() {
    let Some(mut world) = World::of(0).await else {
        return;
    };
    let proxy = CqlProxy::before(&world.contact_points(), 64);
    for _ in 0..2 {
        let setup = Setup {
            contact_points: proxy.contact_points(),
            ..world.setup()
        };
        world.replicas.push(Replica::start(setup));
    }
    block_in_place(|| {
        for replica in &world.replicas {
            replica.serving();
        }
    });
    let counters = Counters::start(world.sprayed().patient(PATIENCE));
    counters.more(20).await;
    let lost = Faults {
        lose_responses: 0.33,
        ..Faults::default()
    };
    proxy.set(lost);
    counters.more(20).await;
    proxy.set(Faults::default());
    counters.finish().await;
    assert!(proxy.counts().lost_responses > 0);
}
