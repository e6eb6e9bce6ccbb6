//! What a replica learns of others, and what it does now and then.

use std::sync::Arc;

use super::world::{Machine, ms, options, start, start_on, wait, within};
use crate::lock::{Key, KeyId, ReplicaId, TableName};
use crate::membership::{Presence, Ranked, Starter};
use crate::store::{HandOverRequest, HandOverSubject, ReplicaState};

fn key(n: u64) -> KeyId {
    KeyId {
        table: TableName::default_table(),
        key: Key::parse(&format!("orders-{n}"), 99).unwrap(),
    }
}

#[tokio::test(start_paused = true)]
async fn the_youngest_replica_is_known_after_a_read_that_is_made_at_once() {
    let all = start(1).await;
    let machine = Machine::new(&all[0].machine.tables, 9);
    // Between two rounds.
    wait(130).await;
    let youngest = start_on(&machine, "youngest").await;
    assert_eq!(all[0].membership.presence(youngest.id()), Presence::Unsure);
    let known = all[0].membership.presence_after_read(youngest.id());
    let known = tokio::time::timeout(ms(100), known).await.unwrap();
    let Presence::Live(peer) = known else {
        panic!("{known:?}")
    };
    assert_eq!(
        (peer.name.as_str(), peer.peer_address.as_str()),
        ("youngest", "youngest:2")
    );
}

#[tokio::test(start_paused = true)]
async fn many_that_ask_for_unknown_replicas_share_the_reads() {
    let all = start(1).await;
    let unknown = |n: u64| ReplicaId(uuid::Uuid::from_u128(n.into()));
    wait(130).await;
    let asked = (0..1_000).map(|n| all[0].membership.presence_after_read(unknown(n)));
    let asked = futures_util::future::join_all(asked);
    let before = all[0].machine.tables().lists;
    let asked = tokio::time::timeout(ms(200), asked).await.unwrap();
    assert!(asked.iter().all(|known| *known == Presence::Down));
    let reads = all[0].machine.tables().lists - before;
    assert!(reads <= 3, "{reads}");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_replica_stays_unsure_where_the_store_does_not_answer() {
    let all = start(1).await;
    all[0].machine.fail(|faults| faults.hangs = true);
    let unknown = ReplicaId(uuid::Uuid::from_u128(7));
    let asked = all[0].membership.presence_after_read(unknown);
    let asked = tokio::time::timeout(ms(2_100), asked).await.unwrap();
    assert_eq!(asked, Presence::Unsure);
    assert!(all[0].membership.declare_down(unknown).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn all_replicas_choose_the_same_homes() {
    let all = start(3).await;
    for n in 0..200 {
        let chosen = all
            .iter()
            .map(|one| match one.membership.ranked(key(n).name_hash(), "") {
                Ranked::Local => one.id(),
                Ranked::Remote(peer) => peer.id,
            });
        let chosen: Vec<ReplicaId> = chosen.collect();
        assert!(chosen.iter().all(|id| *id == chosen[0]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_is_down_is_forgotten_after_ten_minutes() {
    let mut all = start(2).await;
    let gone = all.remove(0).id();
    let is_there = || all[0].machine.tables().rows.contains_key(&gone);
    wait(595_000).await;
    assert!(is_there());
    wait(60_000).await;
    assert!(!is_there());
    assert_eq!(all[0].membership.presence(gone), Presence::Down);
    assert!(all[0].membership.declare_down(gone).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_start_that_was_never_finished_is_declared_down_by_others() {
    let all = start(1).await;
    let machine = Machine::new(&all[0].machine.tables, 9);
    machine.fail(|faults| faults.swaps_unheard = true);
    let mut starter = Starter::new(options(&machine, "b").0).unwrap();
    assert!(starter.start().await.is_err());
    within(7_000, "it is down", || {
        let tables = machine.tables();
        tables
            .rows
            .values()
            .any(|row| row.state == ReplicaState::Down)
    })
    .await;
    assert!(all[0].is_sure());
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_request_is_given_out_once_while_it_is_worked_at() {
    let mut all = start(1).await;
    let one = &mut all[0];
    let request = |n: u64| HandOverRequest {
        home: one.membership.id(),
        subject: HandOverSubject::Key {
            key: key(n),
            term: 4,
        },
        to: ReplicaId(uuid::Uuid::from_u128(2)),
    };
    one.machine.tables().request_rows = vec![request(1)];
    let first = one.hand_overs.recv().await.unwrap();
    assert_eq!(first.request, request(1));
    wait(3_000).await;
    assert!(one.hand_overs.try_recv().is_err());
    drop(first);
    let again = one.hand_overs.recv().await.unwrap();
    again.forget().await.unwrap();
    wait(3_000).await;
    assert!(one.hand_overs.try_recv().is_err());
    // More than find room come with later rounds.
    one.machine.tables().request_rows = (0..5).map(request).collect();
    for _ in 0..5 {
        let next = tokio::time::timeout(ms(2_000), one.hand_overs.recv());
        next.await.unwrap().unwrap().forget().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_tasks_of_a_replica_end_with_it() {
    let mut all = start(1).await;
    let one = all.remove(0);
    let machine = Arc::clone(&one.machine);
    drop(one);
    wait(3_000).await;
    // The machine is held by this test alone: no task has it, or the store, any more.
    assert_eq!(Arc::strong_count(&machine), 1);
}
