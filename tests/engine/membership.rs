//! Rows of replicas: how many there are, what a list that is too long means, and which ids begin (H2).

use std::time::{Duration, Instant};

use fermata::engine::{Engine, Presence};
use fermata::limits::Limits;
use fermata::store::{ClusterStore as _, ReplicaRow, ReplicaState};

use super::replicas::LONG;
use super::shared::{Service, TTL};
use super::world::until;

async fn rows(service: &Service) -> Vec<ReplicaRow> {
    let link = &service.replicas[0].link;
    link.list_replicas().await.unwrap()
}

fn waiting() -> Engine {
    Engine::waiting(Vec::new(), Limits::default(), "a test")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tries_to_start_that_fail_add_one_row_and_the_replica_starts_under_that_id() {
    let service = Service::of(1).await;
    let link = service.replicas[0].link.beside();
    let engine = waiting();
    link.mute(true);
    for _ in 0..5 {
        let begun = engine.begin(service.options(&link, "one-more")).await;
        assert!(begun.is_err());
        assert_eq!(rows(&service).await.len(), 2);
    }
    let tried = rows(&service).await;
    link.mute(false);
    engine
        .begin(service.options(&link, "one-more"))
        .await
        .unwrap();
    let id = engine.replica();
    assert!(tried.iter().any(|row| row.id == id));
    assert_eq!(rows(&service).await.len(), 2);
    engine.stop();
    engine.leave(LONG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_others_may_take_for_down_is_given_up_and_another_one_starts() {
    let service = Service::of(1).await;
    let link = service.replicas[0].link.beside();
    let engine = waiting();
    link.mute(true);
    let begun = engine.begin(service.options(&link, "one-more")).await;
    assert!(begun.is_err());
    let observer = service.engine(0);
    let is_new = |row: &&ReplicaRow| row.id != observer.replica();
    let tried = rows(&service).await.iter().find(is_new).unwrap().id;
    until("it counts as down", || async {
        observer.presence(tried) == Presence::Down
    })
    .await;
    link.mute(false);
    engine
        .begin(service.options(&link, "one-more"))
        .await
        .unwrap();
    let id = engine.replica();
    assert_ne!(id, tried);
    // The other one never comes back.
    assert_eq!(link.replica_state(tried), Some(ReplicaState::Down));
    assert_eq!(link.replica_state(id), Some(ReplicaState::Up(1)));
    engine.stop();
    engine.leave(LONG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_taken_for_down_where_the_list_of_replicas_is_too_long() {
    let (service, a, b) = &Service::two().await;
    until("they know each other", || async {
        matches!(b.presence(a.replica()), Presence::Live(_))
    })
    .await;
    service.replicas[0].link.list_too_many();
    let since = Instant::now();
    while since.elapsed() < TTL * 2 {
        assert_ne!(b.presence(a.replica()), Presence::Down);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_heartbeat_without_an_answer_does_not_hold_up_the_next_ones() {
    let service = Service::of(1).await;
    let engine = service.engine(0);
    let id = engine.replica();
    let heartbeat = || async { rows(&service).await[0].heartbeat };
    service.replicas[0].link.hang_one_heartbeat();
    let since = Instant::now();
    while since.elapsed() < TTL * 2 {
        assert!(engine.ready().is_ok(), "after {:?}", since.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(engine.replica(), id);
    assert!(heartbeat().await > 2);
}
