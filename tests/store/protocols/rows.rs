//! What lock columns promise, and the calls on rows.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fermata::engine::{EngineError, KeyFilter, LeaseId, LockStatus};
use fermata::lock::{EndReason, EndedAs, KeyId, LockRef};
use fermata::protocol::{AcquireRow, AcquiredRow, Backoff, ColumnPrefix};
use fermata::store::CellChange;
use tokio::time::{Instant, sleep, timeout};

use super::faulty::FaultyCells;
use super::world::{Replica, TTL, World, call, grant};

const SOON: Duration = Duration::from_secs(10);

fn ask(id: &KeyId, ttl: Duration) -> AcquireRow {
    AcquireRow {
        call: call(id, ttl),
        ttl_ms: u32::try_from(ttl.as_millis()).unwrap(),
        column_ttl_ms: 0,
        lock_id: None,
        fail_on_stale: false,
        reads_row: true,
        backoff: Backoff::default(),
    }
}

async fn acquire(rows: &ColumnPrefix, ask: &AcquireRow) -> Result<AcquiredRow, EngineError> {
    rows.acquire_row(ask, Instant::now() + SOON).await
}

fn put(column: &str, value: &'static str) -> CellChange {
    CellChange::Put {
        column: column.to_owned(),
        value: Bytes::from_static(value.as_bytes()),
        ttl: None,
    }
}

fn pair(name: &str, value: &'static str) -> (String, Bytes) {
    (name.to_owned(), Bytes::from_static(value.as_bytes()))
}

/// A lock column as Astyanax writes it: its end, and nothing else.
async fn write_foreign(world: &World, id: &KeyId, column: &str, ends_in: i64) {
    let now_us = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let now_us = i64::try_from(now_us.as_micros()).unwrap();
    let end = now_us + ends_in * 1_000_000;
    let change = CellChange::Put {
        column: column.to_owned(),
        value: Bytes::copy_from_slice(&end.to_be_bytes()),
        ttl: None,
    };
    let timestamp = u64::try_from(now_us).unwrap();
    let written = world.cells.write_cells(id, &[change], timestamp).await;
    assert!(matches!(written, fermata::store::Written::Done));
}

async fn columns(rows: &ColumnPrefix, id: &KeyId) -> Vec<String> {
    let columns = rows.read_lock_columns(id).await.unwrap();
    columns.into_iter().map(|(one, _)| one.column).collect()
}

pub async fn one_holds_and_others_wait_until_it_is_gone(world: World) {
    let (one, other) = (world.replica(), world.replica());
    let id = world.key("a");
    let first = one.create(&id, TTL).await;
    assert!(grant(&first.status).is_some(), "{:?}", first.status);
    let mut waiters = Vec::new();
    for _ in 0..3 {
        let created = other.create(&id, TTL).await;
        assert!(matches!(created.status, LockStatus::Waiting { .. }));
        waiters.push(created.lock_ref);
    }
    let waits = waiters.into_iter().map(|waiter| {
        let other = other.clone();
        tokio::spawn(async move {
            let held = other.0.acquire(&waiter, SOON, false).await.unwrap();
            assert!(grant(&held.status).is_some(), "{:?}", held.status);
            sleep(Duration::from_millis(50)).await;
            other.release(&held.lock_ref).await.unwrap();
        })
    });
    let waits: Vec<_> = waits.collect();
    sleep(Duration::from_millis(200)).await;
    assert!(waits.iter().all(|waits| !waits.is_finished()));
    assert!(one.is_held(&first.lock_ref).await);
    one.release(&first.lock_ref).await.unwrap();
    for waits in waits {
        timeout(2 * SOON, waits).await.unwrap().unwrap();
    }
    // Another row is another lock.
    let held = one.hold(&world.key("b"), TTL).await;
    one.release(&held).await.unwrap();
    assert_eq!(columns(&world.rows(), &id).await, [] as [String; 0]);
}

pub async fn a_repeated_create_finds_its_lock(world: World) {
    let (one, other) = (world.replica(), world.replica());
    let create = call(&world.key("a"), TTL);
    let made = one.0.create(create.clone()).await.unwrap();
    let found = other.0.create(create.clone()).await.unwrap();
    assert_eq!((made.existed, found.existed), (false, true));
    assert_eq!(made.lock_ref, found.lock_ref);
    let mut changed = create.clone();
    changed.owner = "another".to_owned();
    let refused = other.0.create(changed).await.unwrap_err();
    assert_eq!(refused, EngineError::RequestMismatch { field: "owner" });
    let mut stranger = made.lock_ref.clone();
    stranger.tag = call(&world.key("a"), TTL).tag;
    let refused = one.ask(&stranger).await.unwrap_err();
    assert_eq!(refused, EngineError::NeverIssued);
    one.release(&made.lock_ref).await.unwrap();
    let refused = other.0.create(create).await.unwrap_err();
    assert_eq!(refused, EngineError::Ended(EndedAs::Released));
}

pub async fn a_holder_without_renewal_loses_its_row_after_its_ttl(world: World) {
    let replica = world.replica();
    let id = world.key("a");
    let begun = Instant::now();
    let dead = replica.create(&id, Duration::from_secs(2)).await;
    assert!(grant(&dead.status).is_some());
    let next = replica.create(&id, TTL).await.lock_ref;
    let held = replica.0.acquire(&next, SOON, false).await.unwrap();
    assert!(grant(&held.status).is_some(), "{:?}", held.status);
    assert!(begun.elapsed() >= dead.valid_for, "{:?}", begun.elapsed());
    let over = EngineError::Ended(EndedAs::Lost(EndReason::Expired));
    assert_eq!(replica.ask(&dead.lock_ref).await.unwrap_err(), over);
    assert_eq!(replica.release(&dead.lock_ref).await.unwrap_err(), over);
    assert!(replica.is_held(&next).await);
}

pub async fn a_holder_that_an_operator_ended_is_told_so(world: World) {
    let replica = world.replica();
    let held = replica.hold(&world.key("a"), TTL).await;
    let waiting = replica.create(&world.key("a"), TTL).await.lock_ref;
    let force = async |over: &LockRef| {
        let forced = replica.0.force_release(&over.name(), "op", "test").await;
        forced.unwrap()
    };
    assert!(!force(&waiting).await.was_holder);
    assert!(force(&held).await.was_holder);
    let forced = EndReason::Forced {
        by: "op".into(),
        why: "test".into(),
    };
    for over in [&held, &waiting] {
        let told = replica.ask(over).await.unwrap_err();
        assert_eq!(told, EngineError::Ended(EndedAs::Lost(forced.clone())));
        assert!(force(over).await.already_released);
    }
}

pub async fn locked_rows_are_listed_and_described(world: World) {
    let replica = world.replica();
    let ids = ["a", "b", "c"].map(|name| world.key(name));
    let mut held = Vec::new();
    for id in &ids {
        held.push(replica.hold(id, TTL).await);
    }
    let gone = replica.hold(&world.key("gone"), TTL).await;
    replica.release(&gone).await.unwrap();
    let filter = KeyFilter {
        table: ids[0].table.clone(),
        after: None,
        prefix: ids[0].key.as_str().trim_end_matches('a').to_owned(),
        contended: false,
    };
    let listed = replica.0.list(&filter, 10).await.unwrap().items;
    let listed: Vec<_> = listed.into_iter().map(|item| item.id).collect();
    assert_eq!(listed, ids);
    let waiter = replica.create(&ids[1], TTL).await.lock_ref;
    let described = replica.0.describe(&ids[1]).await.unwrap();
    let seqs: Vec<_> = described
        .state
        .entries
        .iter()
        .map(|entry| entry.seq)
        .collect();
    assert_eq!(seqs, [held[1].seq, waiter.seq]);
    assert_eq!(&*described.state.entries[0].owner, "test");
    assert!(described.entries[0].lease.unwrap().left > TTL / 2);
}

pub async fn a_waiter_that_was_released_never_holds(world: World) {
    let replica = world.replica();
    let id = world.key("a");
    for round in 0..8 {
        let first = replica.hold(&id, TTL).await;
        let waiter = replica.create(&id, TTL).await.lock_ref;
        let waits = {
            let (replica, waiter) = (replica.clone(), waiter.clone());
            tokio::spawn(async move { replica.0.acquire(&waiter, SOON, false).await })
        };
        sleep(Duration::from_millis(20)).await;
        replica.release(&first).await.unwrap();
        // Before, while or after it tries.
        sleep(Duration::from_millis(5 * round)).await;
        replica.release(&waiter).await.unwrap();
        let released = EngineError::Ended(EndedAs::Released);
        if let Err(error) = timeout(2 * SOON, waits).await.unwrap().unwrap() {
            assert_eq!(error, released);
        }
        assert_eq!(replica.ask(&waiter).await.unwrap_err(), released);
        assert_eq!(columns(&world.rows(), &id).await, [] as [String; 0]);
    }
}

pub async fn a_row_is_read_with_its_lock_and_changed_with_its_release(world: World) {
    let rows = world.rows();
    let id = world.key("a");
    let first = acquire(&rows, &ask(&id, TTL)).await.unwrap();
    assert_eq!((first.columns, first.retries), (vec![], 0));
    let changes = vec![put("name", "one"), put("size", "1"), put("zone", "x")];
    assert!(!rows.release_row(&first.lock_ref, changes).await.unwrap());
    let again = vec![put("name", "one")];
    assert!(rows.release_row(&first.lock_ref, again).await.unwrap());
    let second = acquire(&rows, &ask(&id, TTL)).await.unwrap();
    let expected = [pair("name", "one"), pair("size", "1"), pair("zone", "x")];
    assert_eq!(second.columns, expected);
    let left = rows.verify_row(&second.lock_ref, true).await.unwrap();
    assert!(left > TTL / 2 && left <= TTL, "{left:?}");
    // A repeat of the call has the row as well.
    let repeat = ask(&id, TTL);
    let busy = acquire(&rows, &repeat).await.unwrap_err();
    assert_eq!(busy, EngineError::RowBusy { retries: 0 });
    let delete = CellChange::Delete {
        column: "size".to_owned(),
    };
    let changes = vec![put("name", "two"), delete];
    rows.release_row(&second.lock_ref, changes).await.unwrap();
    let third = acquire(&rows, &repeat).await.unwrap();
    let again = acquire(&rows, &repeat).await.unwrap();
    assert_eq!(third.lock_ref, again.lock_ref);
    let expected = [pair("name", "two"), pair("zone", "x")];
    assert_eq!(
        (&third.columns[..], &again.columns[..]),
        (&expected[..], &expected[..])
    );
    rows.release_row(&third.lock_ref, vec![]).await.unwrap();
    let late = rows
        .release_row(&third.lock_ref, vec![put("name", "three")])
        .await;
    assert_eq!(late.unwrap_err(), EngineError::Ended(EndedAs::Released));
    // Without the leave for values there are locks, and no changes.
    let rows = world.fenced_only().rows();
    let held = acquire(&rows, &ask(&id, TTL)).await.unwrap();
    let refused = rows
        .release_row(&held.lock_ref, vec![put("name", "four")])
        .await;
    assert!(refused.unwrap_err().to_string().contains("allow_unfenced"));
    rows.release_row(&held.lock_ref, vec![]).await.unwrap();
}

pub async fn of_two_locks_with_one_id_the_second_is_refused(world: World) {
    let rows = world.rows();
    let id = world.key("a");
    let named = |ttl| AcquireRow {
        lock_id: Some("order-7".to_owned()),
        ..ask(&id, ttl)
    };
    let first = acquire(&rows, &named(TTL)).await.unwrap();
    assert_eq!(columns(&rows, &id).await, ["_LOCK_order-7"]);
    let busy = acquire(&rows, &named(TTL)).await.unwrap_err();
    assert_eq!(busy, EngineError::RowBusy { retries: 0 });
    // The fifth retry comes after the release.
    let patient = AcquireRow {
        backoff: Backoff {
            retries: 1_000,
            pause: Duration::from_millis(10),
            pause_max: Some(Duration::from_millis(50)),
        },
        ..named(TTL)
    };
    let waits = {
        let rows = rows.clone();
        tokio::spawn(async move { acquire(&rows, &patient).await })
    };
    sleep(Duration::from_millis(300)).await;
    assert!(!waits.is_finished());
    rows.release_row(&first.lock_ref, vec![]).await.unwrap();
    let second: AcquiredRow = waits.await.unwrap().unwrap();
    assert!(second.retries > 3, "{}", second.retries);
    rows.verify_row(&second.lock_ref, true).await.unwrap();
    let over = rows.verify_row(&first.lock_ref, false).await.unwrap_err();
    assert_eq!(over, EngineError::Ended(EndedAs::Released));
    // Many at once: one of them holds.
    rows.release_row(&second.lock_ref, vec![]).await.unwrap();
    for _ in 0..10 {
        let tries = (0..4).map(|_| {
            let (rows, ask) = (world.rows(), named(TTL));
            tokio::spawn(async move { acquire(&rows, &ask).await })
        });
        let mut held: Vec<LockRef> = Vec::new();
        for tried in tries.collect::<Vec<_>>() {
            match tried.await.unwrap() {
                Ok(acquired) => held.push(acquired.lock_ref),
                Err(error) => assert_eq!(error, EngineError::RowBusy { retries: 0 }),
            }
        }
        assert!(held.len() <= 1, "{held:?}");
        for lock_ref in held {
            rows.release_row(&lock_ref, vec![]).await.unwrap();
        }
    }
}

pub async fn stale_columns_are_an_error_or_are_removed(world: World) {
    let rows = world.rows();
    let id = world.key("a");
    let crashed = AcquireRow {
        lock_id: Some("crashed".to_owned()),
        column_ttl_ms: 60_000,
        ..ask(&id, Duration::from_secs(1))
    };
    let crashed = acquire(&rows, &crashed).await.unwrap();
    let strict = AcquireRow {
        fail_on_stale: true,
        ..ask(&id, TTL)
    };
    let stale = EngineError::StaleLock {
        column: "_LOCK_crashed".to_owned(),
    };
    let until = Instant::now() + SOON;
    let refused = loop {
        match acquire(&rows, &strict).await.unwrap_err() {
            EngineError::RowBusy { .. } if Instant::now() < until => {
                sleep(Duration::from_millis(100)).await;
            }
            refused => break refused,
        }
    };
    assert_eq!(refused, stale);
    let over = rows.verify_row(&crashed.lock_ref, false).await.unwrap_err();
    assert_eq!(over, EngineError::Ended(EndedAs::Lost(EndReason::Expired)));
    let removed = rows.release_expired(&id).await.unwrap();
    assert_eq!(removed.len(), 1);
    assert_eq!(columns(&rows, &id).await, [] as [String; 0]);
    // A holder removes stale ones itself. Those with one id may follow each other.
    write_foreign(&world, &id, "_LOCK_crashed", -5).await;
    let again = AcquireRow {
        lock_id: Some("crashed".to_owned()),
        ..ask(&id, TTL)
    };
    let held = acquire(&rows, &again).await.unwrap();
    assert_eq!(columns(&rows, &id).await, ["_LOCK_crashed"]);
    rows.verify_row(&held.lock_ref, true).await.unwrap();
    rows.release_row(&held.lock_ref, vec![]).await.unwrap();
}

pub async fn columns_of_other_programs_count(world: World) {
    let (rows, replica) = (world.rows(), world.replica());
    let id = world.key("a");
    write_foreign(&world, &id, "_LOCK_astyanax", 3).await;
    let busy = acquire(&rows, &ask(&id, TTL)).await.unwrap_err();
    assert_eq!(busy, EngineError::RowBusy { retries: 0 });
    let described = replica.0.describe(&id).await.unwrap();
    assert_eq!(&*described.state.entries[0].owner, "_LOCK_astyanax");
    // Data beside it is no lock.
    write_foreign(&world, &id, "LOCK_", 60).await;
    let held = replica.hold(&id, TTL).await;
    assert_eq!(columns(&rows, &id).await.len(), 1);
    // One that came while the row is held makes no second holder of its client, and no loser of this one.
    write_foreign(&world, &id, "_LOCK_late", 60).await;
    assert!(replica.is_held(&held).await);
    let other = rows.verify_row(&held, false).await.unwrap_err();
    assert_eq!(other, EngineError::RowBusy { retries: 0 });
}

pub async fn an_operator_removes_all_lock_columns(world: World) {
    let (rows, replica) = (world.rows(), world.replica());
    let id = world.key("a");
    let held = replica.hold(&id, TTL).await;
    write_foreign(&world, &id, "_LOCK_x", 60).await;
    let removed = rows.release_all(&id, "op", "test").await.unwrap();
    assert_eq!(removed.len(), 2);
    let forced = EndReason::Forced {
        by: "op".into(),
        why: "test".into(),
    };
    let told = replica.ask(&held).await.unwrap_err();
    assert_eq!(told, EngineError::Ended(EndedAs::Lost(forced)));
    let next = acquire(&rows, &ask(&id, TTL)).await.unwrap();
    rows.release_row(&next.lock_ref, vec![]).await.unwrap();
}

fn slow(world: &World, number: u64, takes: Duration) -> Replica {
    world.replica_on(FaultyCells::slow(Arc::clone(&world.cells), number, takes))
}

/// Its lock column comes after its attempt has ended: another one may hold the row by then.
pub async fn a_lock_column_that_came_late_is_none(world: World) {
    let id = world.key("a");
    let create = call(&id, Duration::from_secs(1));
    let making = {
        let (slow, create) = (
            slow(&world, 1, Duration::from_millis(4_500)),
            create.clone(),
        );
        tokio::spawn(async move { slow.0.create(create).await })
    };
    let other = world.replica();
    sleep(Duration::from_millis(200)).await;
    let next = other.create(&id, TTL).await.lock_ref;
    let held = other.0.acquire(&next, SOON, false).await.unwrap();
    assert!(grant(&held.status).is_some(), "{:?}", held.status);
    assert!(matches!(
        making.await.unwrap(),
        Err(EngineError::Unavailable(_))
    ));
    let again = other.0.create(create).await;
    let held = again
        .as_ref()
        .is_ok_and(|again| grant(&again.status).is_some());
    assert!(!held, "two holders: {again:?}");
    assert!(other.is_held(&next).await);
}

/// A renewal comes after the promised end, whether another one holds the row by then or not.
pub async fn a_renewal_that_came_late_is_none(world: World) {
    let replica = world.replica();
    for (name, ttl, pause, takes) in [
        ("free", 2_000, 1_500, 1_000),
        ("taken", 6_000, 5_400, 3_600),
    ] {
        let [ttl, pause, takes] = [ttl, pause, takes].map(Duration::from_millis);
        let id = world.key(name);
        let held = replica.create(&id, ttl).await.lock_ref;
        let slow = slow(&world, 0, takes);
        sleep(pause).await;
        let lease = LeaseId::LockRef(held.clone());
        let renewing = tokio::spawn(async move { slow.0.renew(&lease).await });
        if name == "taken" {
            let next = replica.create(&id, TTL).await.lock_ref;
            let taken = replica.0.acquire(&next, SOON, false).await.unwrap();
            assert!(grant(&taken.status).is_some(), "{:?}", taken.status);
        }
        let late = renewing.await.unwrap();
        assert!(late.is_err(), "{late:?}");
        let told = loop {
            match replica.ask(&held).await.unwrap_err() {
                EngineError::Unavailable(_) => sleep(Duration::from_millis(100)).await,
                told => break told,
            }
        };
        assert_eq!(told, EngineError::Ended(EndedAs::Lost(EndReason::Expired)));
    }
}

/// Of two renewals the one that promised more stays, in whatever order their writes land.
pub async fn a_renewal_that_overtakes_an_earlier_one_keeps_its_promise(world: World) {
    let replica = world.replica();
    let id = world.key("a");
    let ttl = Duration::from_secs(4);
    let held = replica.create(&id, ttl).await.lock_ref;
    sleep(Duration::from_millis(1_200)).await;
    // The first one writes its lock column a second after the second one did.
    let slow = slow(&world, 0, Duration::from_millis(2_000));
    let lease = LeaseId::LockRef(held.clone());
    let first = tokio::spawn(async move { slow.0.renew(&lease).await });
    sleep(Duration::from_millis(1_000)).await;
    let lease = LeaseId::LockRef(held.clone());
    let second = replica.0.renew(&lease).await.unwrap();
    let until = Instant::now() + second.valid_for;
    first.await.unwrap().unwrap();
    while Instant::now() + Duration::from_millis(200) < until {
        assert!(replica.is_held(&held).await);
        let waiting = replica.create(&id, ttl).await;
        assert_eq!(grant(&waiting.status), None);
        replica.release(&waiting.lock_ref).await.unwrap();
        sleep(Duration::from_millis(300)).await;
    }
}
