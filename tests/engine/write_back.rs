//! Homes that answer from memory: what their clients are told (H5, H7), and what is left of it after a crash.

use std::time::{Duration, Instant};

use fermata::engine::{CreatedLockRef, EngineError, KeyFilter, ServedKeys};
use fermata::key::KeyState;
use fermata::limits::Limits;
use fermata::lock::{EndedAs, TableName};
use fermata::store::ReplicaState;

use super::replicas::{LONG, NO_WAIT, acquire, create, get, until_durable, until_free, write};
use super::shared::{Service, TTL};
use super::world::{World, assert_unavailable, call, key, until};

/// Nobody is promised more than this by memory alone.
const BY_MEMORY_MAX: Duration = Duration::from_millis(1_800);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_promised_no_longer_than_its_home_is_sure_until_it_is_durable() {
    assert_eq!(BY_MEMORY_MAX, TTL / 10 * 9);
    let service = Service::writing_back(2).await;
    let a = service.engine(0);
    let made = create(a, call("k", 20_000)).await;
    assert!(!made.durable && made.valid_for <= BY_MEMORY_MAX, "{made:?}");
    until("the lock is durable", || async {
        let again = a.acquire(&made.lock_ref, NO_WAIT, false).await.unwrap();
        assert!(again.durable || again.valid_for <= BY_MEMORY_MAX);
        again.durable && again.valid_for > BY_MEMORY_MAX
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_shows_what_its_row_does_not_say_and_another_replica_only_the_row() {
    let service = Service::writing_back(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let id = key("k");
    let first = create(a, call("k", 20_000)).await.lock_ref;
    a.release(&first, None, 0).await.unwrap();
    until_free(b, "k").await;
    service.replicas[0].link.stick(id.clone());
    let held = create(a, call("k", 20_000)).await.lock_ref;
    let waiting = create(a, call("k", 20_000)).await.lock_ref;
    let shown = a.describe_here(&id).unwrap().unwrap();
    let seqs: Vec<_> = shown.state.entries.iter().map(|entry| entry.seq).collect();
    assert_eq!(seqs, [held.seq, waiting.seq]);
    assert_eq!(
        shown.state.holder().map(|holder| holder.seq),
        Some(held.seq)
    );
    assert!(!shown.from_row && shown.home.unwrap().id == a.replica());
    for entry in shown.entries {
        assert!(!entry.durable && entry.lease.is_some(), "{entry:?}");
    }
    // Another one knows no more than the row, and does not take the key over to know it.
    assert!(b.describe_here(&id).unwrap().is_none());
    let row = b.describe_row(&id).await.unwrap();
    assert!(row.from_row && row.state.entries.is_empty());
    let home = row.home.unwrap();
    assert_eq!((home.id, home.term), (a.replica(), 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_lists_the_first_of_its_keys_and_says_which_rows_are_behind() {
    let service = Service::writing_back(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    for name in ["d", "b", "a", "c"] {
        create(a, call(name, 20_000)).await;
    }
    let gone = create(a, call("gone", 20_000)).await.lock_ref;
    a.release(&gone, None, 0).await.unwrap();
    create(b, call("of b", 20_000)).await;
    let filter = |after: Option<&str>, contended| KeyFilter {
        table: TableName::default_table(),
        after: after.map(|after| key(after).key),
        prefix: String::new(),
        contended,
    };
    let rows = ["a", "gone", "of b", "never"].map(|name| key(name).key);
    let listed = a.list_here(&filter(None, false), 2, &rows).await.unwrap();
    let names = |listed: &ServedKeys| -> Vec<String> {
        let keys = listed.page.items.iter();
        keys.map(|one| one.id.key.to_string()).collect()
    };
    assert_eq!(names(&listed), ["a", "b"]);
    assert_eq!(listed.page.next, Some(key("b").key));
    assert_eq!(listed.left_out, [1]);
    let listed = a
        .list_here(&filter(Some("b"), false), 2, &[])
        .await
        .unwrap();
    assert_eq!(
        (names(&listed), listed.page.next),
        (vec!["c".into(), "d".into()], None)
    );
    // Nobody waits for any of them.
    let listed = a.list_here(&filter(None, true), 9, &rows).await.unwrap();
    assert_eq!(names(&listed), [] as [&str; 0]);
    assert_eq!(listed.left_out, [0, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_ends_what_only_memory_knew_and_keeps_what_was_written_under_it() {
    let service = Service::writing_back(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let durable = create(a, call("durable", 20_000)).await.lock_ref;
    until_durable(a, &durable).await;
    let volatile = create(a, call("volatile", 20_000)).await;
    assert!(!volatile.durable);
    write(a, &volatile.lock_ref, "written").await.unwrap();
    let home = a.replica();
    service.kill(0);
    for id in [key("durable"), key("volatile")] {
        // Nobody has it before the other one is down.
        until("the next home has the key", || async {
            b.take_over(&id, home).await.is_ok()
        })
        .await;
    }
    let lost = b.acquire(&volatile.lock_ref, NO_WAIT, false).await;
    assert_eq!(lost.unwrap_err(), EngineError::Ended(EndedAs::NoLongerKept));
    let next = create(b, call("volatile", 20_000)).await.lock_ref;
    let next = acquire(b, &next).await;
    assert!(next.grant > volatile.lock_ref.grant);
    assert_eq!(get(b, &next).await, Ok(Some("written".to_owned())));
    let still = acquire(b, &durable).await;
    assert!(still.grant > durable.grant);
}

/// The next one is taken in once what was promised to this one is past, and not before.
async fn is_refused_until_its_promise_is_past(
    service: &Service,
    id: &str,
    made: &CreatedLockRef,
    sent: Instant,
) {
    until("the next one is taken in", || async {
        let next = service.engine(0).create(call(id, 20_000)).await;
        let passed = sent.elapsed();
        let is_early = next.is_ok() && passed < made.valid_for;
        assert!(!is_early, "{passed:?} of {:?}", made.valid_for);
        next.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_that_lost_its_memory_serves_nobody_until_what_it_promised_is_past() {
    let service = Service::writing_back(2).await;
    let (a, link) = (service.engine(0), &service.replicas[0].link);
    let sent = Instant::now();
    let made = create(a, call("k", 20_000)).await;
    assert!(!made.durable);
    link.set(|faults| faults.panics = true);
    let read = a.critical_get(&made.lock_ref, 0).await;
    assert_unavailable(&read);
    is_refused_until_its_promise_is_past(&service, "k", &made, sent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_whose_row_was_replaced_serves_nobody_until_what_it_promised_is_past() {
    let service = Service::writing_back(2).await;
    let (a, link) = (service.engine(0), &service.replicas[0].link);
    let mut keys = (0..100).map(|n| format!("k{n}"));
    // On a busy machine a lock may be durable before its row is replaced.
    let (name, sent, made) = loop {
        let name = keys.next().unwrap();
        let sent = Instant::now();
        let made = create(a, call(&name, 20_000)).await;
        assert!(!made.durable);
        let row = link.state(&key(&name)).await;
        // As a table that was restored shows it. The next commit, which makes the lock durable, meets it.
        let other = KeyState {
            version: row.version + 1,
            ..row.clone()
        };
        if row.kept.is_none() && link.try_put_state(&key(&name), &row, &other).await {
            break (name, sent, made);
        }
    };
    until("it noticed", || async {
        a.acquire(&made.lock_ref, NO_WAIT, false).await.is_err()
    })
    .await;
    is_refused_until_its_promise_is_past(&service, &name, &made, sent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lost_a_memory_and_stops_leaves_the_others_to_wait() {
    let service = Service::writing_back(2).await;
    let (a, link) = (service.engine(0), &service.replicas[0].link);
    let home = a.replica();
    let made = create(a, call("k", 20_000)).await;
    link.set(|faults| faults.panics = true);
    assert!(a.critical_get(&made.lock_ref, 0).await.is_err());
    a.stop();
    a.leave(Duration::from_secs(2)).await;
    assert_eq!(
        link.replica_state(home),
        Some(ReplicaState::Up(1)),
        "others may take its keys at once"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_replica_that_stops_leaves_nothing_to_memory_alone() {
    let service = Service::writing_back(1).await;
    let (a, link) = (service.engine(0), &service.replicas[0].link);
    let home = a.replica();
    let held = create(a, call("k", 20_000)).await.lock_ref;
    let waiting = create(a, call("k", 20_000)).await.lock_ref;
    a.stop();
    a.leave(LONG).await;
    let row = link.state(&key("k")).await;
    let seqs: Vec<_> = row.entries.iter().map(|entry| entry.seq).collect();
    assert_eq!(
        (seqs, row.kept),
        (vec![held.seq, waiting.seq], Some(held.seq))
    );
    assert_eq!(
        link.replica_state(home),
        Some(ReplicaState::Stopped),
        "the next one waits"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_given_back_does_not_come_to_life_after_the_last_replica_stopped() {
    let service = Service::writing_back(1).await;
    let (a, link) = (service.engine(0), &service.replicas[0].link);
    let held = create(a, call("k", 20_000)).await.lock_ref;
    let waiting = create(a, call("k", 20_000)).await.lock_ref;
    until_durable(a, &waiting).await;
    assert_eq!(a.release(&waiting, None, 0).await, Ok(false));
    a.stop();
    a.leave(LONG).await;
    let row = link.state(&key("k")).await;
    let seqs: Vec<_> = row.entries.iter().map(|entry| entry.seq).collect();
    assert_eq!(seqs, [held.seq]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_has_the_store_alone_and_stops_leaves_nothing_to_memory_alone() {
    let world = World::writing_back(Limits::default()).await;
    let (held, waiting) = world.create_two("k").await;
    world.engine.stop();
    world.engine.leave(LONG).await;
    let world = world.restart().await;
    let again = world.acquire(&held).await;
    assert!(again.grant > held.grant);
    world.release(&held).await.unwrap();
    assert!(world.acquire(&waiting).await.grant > again.grant);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_has_the_store_alone_waits_for_what_the_one_before_it_promised() {
    let world = World::writing_back(Limits::default()).await;
    let sent = Instant::now();
    let volatile = world.create("k").await;
    assert!(!volatile.durable && volatile.valid_for <= Duration::from_secs(1));
    world.put(&volatile.lock_ref, "written").await.unwrap();
    let world = world.restart().await;
    let next = world.create("k").await.lock_ref;
    assert!(sent.elapsed() >= volatile.valid_for, "{:?}", sent.elapsed());
    assert_eq!(world.get(&next).await, Ok(Some("written".to_owned())));
    let lost = world.put(&volatile.lock_ref, "late").await;
    assert_eq!(lost, Err(EngineError::Ended(EndedAs::NoLongerKept)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_durable_lock_survives_the_process_that_has_the_store_alone() {
    let world = World::writing_back(Limits::default()).await;
    let held = world.create("k").await.lock_ref;
    until_durable(&world.engine, &held).await;
    let waiting = world.create("k").await.lock_ref;
    let world = world.restart().await;
    let again = world.acquire(&held).await;
    assert!(again.grant > held.grant);
    // Who came a moment ago was known to memory alone.
    let _ = world.release(&waiting).await;
}
