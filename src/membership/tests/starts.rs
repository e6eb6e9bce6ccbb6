//! How replicas start.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::world::{Machine, options, wait};
use crate::lock::{Key, KeyId, ReplicaId, TableName};
use crate::membership::{
    InvalidReplicaTtl, Membership, NotSure, Presence, Ranked, StartError, Starter,
};
use crate::store::ReplicaState;

#[tokio::test(start_paused = true)]
async fn tries_to_start_share_an_id_and_leave_one_row() {
    let machine = Machine::new(&Arc::default(), 1);
    let mut starter = Starter::new(options(&machine, "a").0).unwrap();
    machine.fail(|faults| faults.swaps_unheard = true);
    for _ in 0..3 {
        assert!(starter.start().await.is_err());
        wait(1_000).await;
    }
    machine.heal();
    let started = starter.start().await.unwrap();
    {
        let tables = machine.tables();
        assert_eq!(tables.rows.len(), 1);
        assert_eq!(tables.rows[&started.id()].heartbeat, 4);
    }
    // It counts from the first try, which others may have seen.
    let left = started.sure_until().unwrap() - crate::clock::Clock::boot(&*machine);
    assert!(left <= Duration::from_millis(1_500), "{left:?}");
    wait(10_000).await;
    assert!(started.is_sure().is_ok());
}

#[tokio::test(start_paused = true)]
async fn tries_for_longer_than_the_ttl_end_the_first_id_and_take_another() {
    let machine = Machine::new(&Arc::default(), 1);
    let mut starter = Starter::new(options(&machine, "a").0).unwrap();
    machine.fail(|faults| faults.swaps_unheard = true);
    assert!(starter.start().await.is_err());
    let first = *machine.tables().rows.keys().next().unwrap();
    wait(4_600).await;
    machine.heal();
    let started = starter.start().await.unwrap();
    assert_ne!(started.id(), first);
    assert_eq!(machine.tables().rows[&first].state, ReplicaState::Stopped);
    assert!(started.is_sure().is_ok());
}

#[tokio::test(start_paused = true)]
async fn one_that_was_announced_too_late_does_not_serve() {
    let machine = Machine::new(&Arc::default(), 1);
    let (mut options, _) = options(&machine, "a");
    options.replica_ttl = Duration::from_secs(1);
    machine.fail(|faults| faults.delay_ms_max = 900);
    let mut starter = Starter::new(options).unwrap();
    let mut too_late = 0;
    for _ in 0..20 {
        match starter.start().await {
            Err(StartError::TooLate) => too_late += 1,
            Ok(started) => assert!(started.is_sure().is_ok()),
            Err(StartError::Store(error)) => panic!("{error}"),
        }
    }
    assert!(too_late > 0);
}

#[tokio::test(start_paused = true)]
async fn a_ttl_that_cannot_be_kept_is_refused() {
    let machine = Machine::new(&Arc::default(), 1);
    for (ttl, is_good) in [
        (999, false),
        (1_000, true),
        (600_000, true),
        (600_001, false),
    ] {
        let replica_ttl = Duration::from_millis(ttl);
        let mut options = options(&machine, "a").0;
        options.replica_ttl = replica_ttl;
        let refused = Starter::new(options).err();
        assert_eq!(
            refused,
            (!is_good).then_some(InvalidReplicaTtl(replica_ttl))
        );
    }
}

#[tokio::test]
async fn a_replica_that_has_its_store_alone_is_sure_until_it_stops() {
    let id = |n| ReplicaId(Uuid::from_u128(n));
    let alone = Membership::alone(id(1));
    let key = KeyId {
        table: TableName::default_table(),
        key: Key::parse("orders", 99).unwrap(),
    };
    assert_eq!(alone.sure_until(), Ok(Duration::MAX));
    assert_eq!(alone.ranked(key.name_hash(), "east"), Ranked::Local);
    assert_eq!(alone.presence(id(1)), Presence::Local);
    assert_eq!(alone.presence_after_read(id(2)).await, Presence::Down);
    assert!(alone.declare_down(id(2)).await.unwrap());
    assert!(!alone.declare_down(id(1)).await.unwrap());
    assert!(alone.peers().is_empty() && !alone.clock_off());
    alone.stop().await.unwrap();
    assert_eq!(alone.is_sure(), Err(NotSure::Stopped));
    assert!(!*alone.fenced().borrow());
}
