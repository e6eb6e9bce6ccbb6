//! What each protocol promises.

use std::time::Duration;

use fermata::engine::{EngineError, KeyFilter, LeaseId, LiveBy, LockStatus, Mutation, WatchEvent};
use fermata::lock::{EndReason, EndedAs, EntryName, SessionId};
use futures_util::StreamExt as _;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::world::{TTL, World, call, grant};

const SOON: Duration = Duration::from_secs(10);

fn ended(how: EndedAs) -> EngineError {
    EngineError::Ended(how)
}

pub async fn the_first_holds_the_key_and_the_others_follow_in_order(world: World) {
    let (one, other) = (world.replica(), world.replica());
    let id = world.key("a");
    let first = one.create(&id, TTL).await;
    assert!(grant(&first.status).is_some(), "{:?}", first.status);
    let mut waiting = Vec::new();
    for place in 1..4 {
        let created = other.create(&id, TTL).await;
        assert_eq!(created.status, LockStatus::Waiting { position: place });
        waiting.push(created.lock_ref);
    }
    // One that leaves the queue is no obstacle.
    assert!(!one.release(&waiting[1]).await.unwrap());
    assert_eq!(
        one.ask(&waiting[2]).await.unwrap().status,
        LockStatus::Waiting { position: 2 }
    );
    let (waiter, next) = (other.clone(), waiting[0].clone());
    let waits = tokio::spawn(async move { waiter.0.acquire(&next, SOON, false).await.unwrap() });
    sleep(Duration::from_millis(200)).await;
    assert!(!waits.is_finished());
    one.release(&first.lock_ref).await.unwrap();
    let second = timeout(SOON, waits).await.unwrap().unwrap();
    assert!(grant(&second.status) >= grant(&first.status));
    assert!(!one.is_held(&waiting[2]).await);
    one.release(&second.lock_ref).await.unwrap();
    assert!(one.is_held(&waiting[2]).await);
    // Another key is another queue.
    assert!(grant(&one.create(&world.key("b"), TTL).await.status).is_some());
}

pub async fn a_repeated_create_finds_its_entry(world: World) {
    let (one, other) = (world.replica(), world.replica());
    let create = call(&world.key("a"), TTL);
    let made = one.0.create(create.clone()).await.unwrap();
    let found = other.0.create(create.clone()).await.unwrap();
    assert_eq!((made.existed, found.existed), (false, true));
    assert_eq!(made.lock_ref, found.lock_ref);
    let mut changed = create.clone();
    changed.live_by = LiveBy::Ttl(7_000);
    let refused = other.0.create(changed).await.unwrap_err();
    assert_eq!(refused, EngineError::RequestMismatch { field: "ttl" });
    one.release(&made.lock_ref).await.unwrap();
    let refused = other.0.create(create).await.unwrap_err();
    assert_eq!(refused, ended(EndedAs::Released));
    // The secret of another entry opens nothing.
    let mut stranger = one.create(&world.key("a"), TTL).await.lock_ref;
    stranger.tag = made.lock_ref.tag;
    assert_eq!(
        one.ask(&stranger).await.unwrap_err(),
        EngineError::NeverIssued
    );
}

pub async fn an_entry_without_renewal_ends_after_its_ttl(world: World) {
    let replica = world.replica();
    let id = world.key("a");
    let ttl = Duration::from_secs(2);
    let begun = Instant::now();
    let dead = replica.create(&id, ttl).await;
    let next = replica.create(&id, TTL).await.lock_ref;
    let held = timeout(SOON, async {
        while !replica.is_held(&next).await {
            sleep(Duration::from_millis(50)).await;
        }
    });
    held.await.unwrap();
    assert!(begun.elapsed() >= dead.valid_for, "{:?}", begun.elapsed());
    let expired = ended(EndedAs::Lost(EndReason::Expired));
    assert_eq!(replica.ask(&dead.lock_ref).await.unwrap_err(), expired);
    let lease = LeaseId::LockRef(dead.lock_ref.without_grant());
    assert_eq!(replica.0.renew(&lease).await.unwrap_err(), expired);
    assert_eq!(replica.release(&dead.lock_ref).await.unwrap_err(), expired);
}

pub async fn a_renewed_entry_stays(world: World) {
    let replica = world.replica();
    let id = world.key("a");
    // Cassandra counts whole seconds: of three it may promise two.
    let held = replica.create(&id, Duration::from_secs(3)).await.lock_ref;
    let lease = LeaseId::LockRef(held.without_grant());
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) {
        let renewed = replica.0.renew(&lease).await.unwrap();
        assert!(renewed.valid_for > Duration::from_secs(1), "{renewed:?}");
        sleep(Duration::from_millis(400)).await;
    }
    assert!(replica.is_held(&held).await);
}

pub async fn a_release_is_told_to_whoever_asks_later(world: World) {
    let replica = world.replica();
    let held = replica.hold(&world.key("a"), TTL).await;
    assert!(!replica.release(&held).await.unwrap());
    assert!(replica.release(&held).await.unwrap());
    assert_eq!(
        replica.ask(&held).await.unwrap_err(),
        ended(EndedAs::Released)
    );
    assert_eq!(
        replica.get(&held, 0).await.unwrap_err(),
        ended(EndedAs::Released)
    );
    assert_eq!(
        replica.put(&held, 1, 0).await.unwrap_err(),
        ended(EndedAs::Released)
    );
}

pub async fn an_entry_that_an_operator_ended_is_told_so(world: World) {
    let replica = world.replica();
    let id = world.key("a");
    let held = replica.hold(&id, TTL).await;
    let waiting = replica.create(&id, TTL).await.lock_ref;
    let next = replica.create(&id, TTL).await.lock_ref;
    let force = async |name: EntryName| replica.0.force_release(&name, "op", "test").await;
    let done = force(waiting.name()).await.unwrap();
    assert_eq!((done.already_released, done.was_holder), (false, false));
    let done = force(held.name()).await.unwrap();
    assert_eq!((done.already_released, done.was_holder), (false, true));
    let forced = EndReason::Forced {
        by: "op".into(),
        why: "test".into(),
    };
    for over in [&held, &waiting] {
        let told = replica.ask(over).await.unwrap_err();
        assert_eq!(told, ended(EndedAs::Lost(forced.clone())));
    }
    assert!(replica.is_held(&next).await);
    let done = force(held.name()).await.unwrap();
    assert_eq!((done.already_released, done.was_holder), (true, false));
}

pub async fn a_watch_shows_each_change(world: World) {
    let replica = world.replica();
    let id = world.key("a");
    let first = replica.create(&id, TTL).await.lock_ref;
    let watched = replica.create(&id, TTL).await.lock_ref;
    let mut watch = replica.0.watch(&watched).await.unwrap().events;
    let mut next = async || {
        timeout(SOON, watch.next())
            .await
            .unwrap()
            .map(|(event, _)| event)
    };
    let event = next().await.unwrap();
    assert!(
        matches!(event, WatchEvent::Waiting { position: 1, .. }),
        "{event:?}"
    );
    replica.release(&first).await.unwrap();
    assert!(matches!(next().await.unwrap(), WatchEvent::Held { .. }));
    replica.release(&watched).await.unwrap();
    assert_eq!(next().await.unwrap(), WatchEvent::Lost(EndedAs::Released));
    assert_eq!(next().await, None);
}

pub async fn keys_with_entries_are_listed_and_described(world: World) {
    let replica = world.replica();
    let ids = ["a", "b", "c", "d"].map(|name| world.key(name));
    for id in &ids {
        replica.create(id, TTL).await;
    }
    let waiter = replica.create(&ids[1], TTL).await.lock_ref;
    let gone = replica.hold(&world.key("gone"), TTL).await;
    replica.release(&gone).await.unwrap();
    let filter = |contended| KeyFilter {
        table: ids[0].table.clone(),
        after: None,
        prefix: ids[0].key.as_str().trim_end_matches('a').to_owned(),
        contended,
    };
    let mut listed = Vec::new();
    let mut page = filter(false);
    loop {
        let found = replica.0.list(&page, 3).await.unwrap();
        listed.extend(found.items.into_iter().map(|item| item.id));
        match found.next {
            Some(next) => page.after = Some(next),
            None => break,
        }
    }
    assert_eq!(listed, ids);
    let contended = replica.0.list(&filter(true), 3).await.unwrap().items;
    assert_eq!(contended.len(), 1);
    let described = replica.0.describe(&ids[1]).await.unwrap();
    let seqs: Vec<_> = described
        .state
        .entries
        .iter()
        .map(|entry| entry.seq)
        .collect();
    assert_eq!(seqs.len(), 2);
    assert_eq!(seqs[1], waiter.seq);
    assert!(described.entries[0].lease.unwrap().left > TTL / 2);
}

pub async fn a_session_is_refused(world: World) {
    let mut create = call(&world.key("a"), TTL);
    create.live_by = LiveBy::Session(SessionId(Uuid::from_u128(1)));
    let refused = world.replica().0.create(create).await.unwrap_err();
    assert!(refused.to_string().contains("has no sessions"), "{refused}");
}

pub async fn the_next_holder_reads_the_last_write_and_an_earlier_holder_writes_no_more(
    world: World,
) {
    let (one, other) = (world.replica(), world.replica());
    let id = world.key("a");
    let first = one.hold(&id, TTL).await;
    assert_eq!(one.get(&first, 0).await.unwrap(), None);
    one.put(&first, 1, 0).await.unwrap();
    one.put(&first, 2, 0).await.unwrap();
    let second = other.create(&id, TTL).await.lock_ref;
    // Not the holder, whatever it says.
    let mut forged = second.clone();
    forged.grant = Some(fermata::lock::Fence(second.seq.0));
    assert_eq!(
        other.put(&second, 9, 0).await.unwrap_err(),
        EngineError::NoGrant
    );
    assert_eq!(
        other.put(&forged, 9, 0).await.unwrap_err(),
        EngineError::GrantSuperseded
    );
    let put = Mutation::Put("3".into());
    one.0.release(&first, Some(put), 0).await.unwrap();
    let second = other.ask(&second).await.unwrap().lock_ref;
    assert_eq!(other.get(&second, 0).await.unwrap(), Some(3));
    other
        .0
        .critical_write(&second, Mutation::Delete, 0)
        .await
        .unwrap();
    assert_eq!(other.get(&second, 0).await.unwrap(), None);
    assert_eq!(one.0.read(&id).await.unwrap().bytes, None);
}

pub async fn a_number_is_used_once(world: World) {
    let replica = world.replica();
    let held = replica.hold(&world.key("a"), TTL).await;
    // As large as those of the client, which begin with the time of day.
    let from = 1_800_000_000_000_000_000;
    let not_above = |given: u64, last: u64| EngineError::CallNoNotAbove {
        given: from + given,
        last: from + last,
    };
    replica.put(&held, 5, from + 5).await.unwrap();
    let refused = replica.put(&held, 4, from + 4).await.unwrap_err();
    assert_eq!(refused, not_above(4, 5));
    assert_eq!(
        replica.put(&held, 6, from + 5).await.unwrap_err(),
        not_above(5, 5)
    );
    assert_eq!(
        replica.get(&held, from + 5).await.unwrap_err(),
        not_above(5, 5)
    );
    replica.put(&held, 7, from + 7).await.unwrap();
    // A put that its client gave up does not come after a read with a higher number.
    assert_eq!(replica.get(&held, from + 9).await.unwrap(), Some(7));
    assert_eq!(
        replica.put(&held, 8, from + 8).await.unwrap_err(),
        not_above(8, 9)
    );
    assert_eq!(replica.get(&held, from + 10).await.unwrap(), Some(7));
    replica.put(&held, 0, 0).await.unwrap();
    replica.put(&held, 11, from + 11).await.unwrap();
    assert_eq!(replica.get(&held, 0).await.unwrap(), Some(11));
}

pub async fn a_release_with_a_put_may_be_repeated(world: World) {
    let replica = world.replica();
    let id = world.key("a");
    let held = replica.hold(&id, TTL).await;
    replica.put(&held, 1, 1).await.unwrap();
    let put = |text: &'static str| Some(Mutation::Put(text.into()));
    assert!(!replica.0.release(&held, put("2"), 2).await.unwrap());
    assert!(replica.0.release(&held, put("2"), 2).await.unwrap());
    assert_eq!(replica.0.read(&id).await.unwrap().bytes, Some("2".into()));
    // One that was released without it says so.
    let held = replica.hold(&id, TTL).await;
    replica.release(&held).await.unwrap();
    let refused = replica.0.release(&held, put("3"), 3).await.unwrap_err();
    assert_eq!(refused, ended(EndedAs::Released));
    assert_eq!(replica.0.read(&id).await.unwrap().bytes, Some("2".into()));
}

pub async fn an_entry_that_ended_stays_so_whatever_its_client_had_in_flight(world: World) {
    let (one, other) = (world.replica(), world.replica());
    let id = world.key("a");
    for _ in 0..20 {
        let held = one.hold(&id, Duration::from_secs(1)).await;
        let lease = LeaseId::LockRef(held.without_grant());
        let renewing = {
            let (other, lease) = (other.clone(), lease.clone());
            tokio::spawn(async move { while other.0.renew(&lease).await.is_ok() {} })
        };
        sleep(Duration::from_millis(20)).await;
        one.release(&held).await.unwrap();
        timeout(SOON, renewing).await.unwrap().unwrap();
        let next = one.create(&id, TTL).await;
        assert!(
            matches!(next.status, LockStatus::Held { .. }),
            "{:?}",
            next.status
        );
        assert_eq!(
            other.ask(&held).await.unwrap_err(),
            ended(EndedAs::Released)
        );
        one.release(&next.lock_ref).await.unwrap();
    }
}

pub async fn a_value_without_a_fence_needs_leave(world: World) {
    let id = world.key("a");
    let replica = world.fenced_only().replica();
    let held = replica.hold(&id, TTL).await;
    for refused in [
        replica.get(&held, 0).await.map(drop).unwrap_err(),
        replica.put(&held, 1, 0).await.unwrap_err(),
    ] {
        assert!(refused.to_string().contains("allow_unfenced"), "{refused}");
    }
    replica.release(&held).await.unwrap();
}

pub async fn a_holder_reads_what_the_one_before_it_wrote(world: World) {
    let replica = world.replica();
    let id = world.key("a");
    for round in 1..4 {
        let held = replica.hold(&id, TTL).await;
        let read = replica.get(&held, 0).await.unwrap().unwrap_or(0);
        assert_eq!(read, round - 1);
        replica.put(&held, round, 0).await.unwrap();
        let waiting = replica.create(&id, TTL).await.lock_ref;
        assert_eq!(
            replica.get(&waiting, 0).await.unwrap_err(),
            EngineError::NoGrant
        );
        replica.release(&waiting).await.unwrap();
        replica.release(&held).await.unwrap();
    }
}
