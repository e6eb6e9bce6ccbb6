//! Many clients and few keys, packed a few milliseconds after each call: while the store fails and the replica restarts, and
//! while keys go from one replica to the other. One holder at a time, and every section reads what the last one left.

use std::sync::atomic::Ordering;

use fermata::limits::Limits;

use super::clients::{Crowd, name_of};
use super::recorded::Engine;
use super::rng::{Rng, seed};
use super::shared::Service;
use super::world::{World, key, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_holder_at_a_time_reads_what_the_last_one_left_whatever_fails() {
    const KEYS: u64 = 4;
    let seed = seed(20_261_121);
    let mut rng = Rng::new(seed);
    let mut limits = Limits::default();
    if rng.below(2) == 0 {
        // Every read reaches the store.
        limits.remembered_value_bytes_max = 0;
    }
    let mut world = World::packing(limits).await;
    world.history.seed(seed);
    let crowd = Crowd::new(vec![world.engine.clone()], KEYS, 15);
    let clients = crowd.start(8, &mut rng);
    while crowd.is_on() {
        let percent = rng.below(15);
        world.store.fail_randomly(rng.next(), percent);
        tokio::time::sleep(rng.ms(300, 1_200)).await;
        if rng.below(2) == 0 {
            world = world.restart().await;
            *crowd.engines.lock().unwrap() = vec![world.engine.clone()];
        }
        let has_failed = clients.iter().any(|client| client.is_finished());
        assert!(!has_failed || !crowd.is_on(), "a client failed");
    }
    for client in clients {
        client.await.unwrap();
    }
    assert!(crowd.done.load(Ordering::Relaxed) > 20);
    world.store.fail_randomly(0, 0);
    for at in 0..KEYS {
        let name = name_of(at);
        world.until_free(&name).await;
        let last = world.acquire(&world.create(&name).await.lock_ref).await;
        world.get(&last).await.unwrap();
        world.release(&last).await.unwrap();
    }
    until("no session is left", || async {
        world.engine.counts().sessions == 0
    })
    .await;
}

/// So many that a holder is mostly alone, and the one before it gone for a while: else a key is not packed.
const KEYS_PACKED: u64 = 40;

/// Asks for keys through the store, each for the replica that is not its home.
async fn move_keys(engines: [Engine; 2], mut rng: Rng) {
    let mut asked = tokio::task::JoinSet::new();
    loop {
        let id = key(&name_of(rng.below(KEYS_PACKED)));
        let to = rng.below(2) as usize;
        let (to, from) = (engines[to].clone(), engines[1 - to].replica());
        // One that is not there, or is in use for long, stays where it is.
        asked.spawn(async move { to.take_over(&id, from).await.is_ok() });
        while asked.try_join_next().is_some() {}
        tokio::time::sleep(rng.ms(10, 50)).await;
    }
}

async fn packed_between_calls(write_back: bool) {
    let seed = seed(20_261_124);
    let mut rng = Rng::new(seed);
    let service = Service::packing(write_back).await;
    service.history.seed(seed);
    let engines = [service.engine(0).clone(), service.engine(1).clone()];
    let crowd = Crowd::new(engines.to_vec(), KEYS_PACKED, 0);
    let moving = tokio::spawn(move_keys(engines.clone(), rng.fork()));
    for client in crowd.start(12, &mut rng) {
        client.await.unwrap();
    }
    moving.abort();
    assert!(moving.await.unwrap_err().is_cancelled());
    let counts = engines.map(|engine| engine.counts());
    let sum = |count: fn(&fermata::engine::Counts) -> u64| counts.iter().map(count).sum::<u64>();
    let (packed, handed) = (sum(|c| c.packed_keys), sum(|c| c.hand_overs));
    let done = crowd.done.load(Ordering::Relaxed);
    let regranted = crowd.asked_again.load(Ordering::Relaxed);
    eprintln!(
        "{done} sections, {packed} times packed, {handed} hand-overs, {regranted} of what was held"
    );
    assert!(done > 20 && packed > 20, "{counts:?}");
    assert!(handed > 0 && regranted > 0, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_packed_between_calls_goes_on_as_it_was() {
    packed_between_calls(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_packed_between_calls_goes_on_as_it_was_with_write_back() {
    packed_between_calls(true).await;
}
