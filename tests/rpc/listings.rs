//! LockAdmin: pages, and what operators see.

use fermata::limits::Limits;
use fermata_client::public_part;
use fermata_proto::*;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::ask;
use crate::frames::{DATA, Frames, call, hello};
use crate::lever::Mode;
use crate::world::{World, create, done, fields, hold, in_ms, refused, until};

#[tokio::test]
async fn pages_of_keys_follow_each_other_and_keep_their_filter() {
    let world = World::new().await;
    let mut client = world.client().await;
    for key in ["b/1", "a/1", "a/2", "a/3"] {
        hold(&mut client, key).await;
    }
    create(&mut client, "a/2").await;
    let mut admin = world.admin().await;
    let mut ask = ListLocksRequest {
        page_size: 2,
        key_prefix: "a/".into(),
        ..Default::default()
    };
    let mut keys = Vec::new();
    loop {
        let page = done(admin.list_locks(ask.clone())).await;
        keys.extend(page.locks.into_iter().map(|lock| (lock.key, lock.waiters)));
        if page.next_page_token.is_empty() {
            break;
        }
        ask.page_token = page.next_page_token;
    }
    let expected = [("a/1", 0), ("a/2", 1), ("a/3", 0)].map(|(k, n)| (k.to_owned(), n));
    assert_eq!(keys, expected);
    assert!(!ask.page_token.is_empty());
    ask.key_prefix = "b/".into();
    let listed = admin.list_locks(ask.clone());
    let status = refused(listed, Code::InvalidArgument, "MALFORMED").await;
    assert_eq!(fields(&status), ["page_token"]);

    ask.page_token.clear();
    ask.key_prefix.clear();
    ask.contended = true;
    let page = done(admin.list_locks(ask)).await;
    assert_eq!(page.locks.len(), 1);
    let holder = page.locks[0].holder.as_ref().unwrap();
    assert_eq!(holder.state(), LockState::Held);
}

#[tokio::test]
async fn a_queue_is_described_in_pages() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let mut entries = Vec::new();
    for _ in 0..5 {
        entries.push(create(&mut client, "a").await.lock_ref);
    }
    let mut admin = world.admin().await;
    let mut ask = DescribeLockRequest {
        key: "a".into(),
        page_size: 2,
        ..Default::default()
    };
    let mut waiters = Vec::new();
    loop {
        let page = done(admin.describe_lock(ask.clone())).await;
        assert_eq!((page.holders.len(), page.waiter_count), (1, 5));
        assert_eq!(page.last_fencing_token, held.fencing_token);
        let holder = &page.holders[0];
        assert_eq!(holder.fencing_token, held.fencing_token);
        assert_eq!(holder.name, public_part(&held.lock_ref));
        assert_eq!(holder.ttl.unwrap().seconds, 30);
        assert!(holder.lease_left.is_some() && holder.create_time.unwrap().seconds > 0);
        waiters.extend(page.waiters.into_iter().map(|entry| entry.name));
        if page.next_page_token.is_empty() {
            break;
        }
        ask.page_token = page.next_page_token;
    }
    let entries = entries.iter().map(|entry| public_part(entry));
    assert_eq!(waiters, entries.collect::<Vec<_>>());
}

#[tokio::test]
async fn tables_sessions_and_replicas_are_listed() {
    let world = World::new().await;
    let mut client = world.client().await;
    let mut admin = world.admin().await;
    let tables = done(admin.list_tables(ListTablesRequest::default())).await;
    assert_eq!(tables.tables.len(), 1);
    assert_eq!(tables.tables[0].name, "default");

    let mut sessions = Vec::new();
    for _ in 0..3 {
        let ask = OpenSessionRequest {
            owner: "worker".into(),
            ..Default::default()
        };
        sessions.push(done(client.open_session(ask)).await.session);
    }
    sessions.sort();
    let mut ask = ListSessionsRequest {
        page_size: 2,
        ..Default::default()
    };
    let mut listed = Vec::new();
    loop {
        let page = done(admin.list_sessions(ask.clone())).await;
        listed.extend(page.sessions);
        if page.next_page_token.is_empty() {
            break;
        }
        ask.page_token = page.next_page_token;
    }
    let ids: Vec<&str> = listed.iter().map(|one| one.session_id.as_str()).collect();
    let opened: Vec<&str> = sessions.iter().map(|one| public_part(one)).collect();
    assert_eq!(ids, opened);
    let mut listed = listed.iter();
    assert!(listed.all(|one| one.owner == "worker" && one.lease_left.is_some()));

    let replicas = done(admin.list_replicas(ListReplicasRequest::default())).await;
    let [only] = replicas.replicas.as_slice() else {
        panic!("{replicas:?}");
    };
    assert!(only.answering);
    assert_eq!(only.replica, world.engine.replica().to_string());
    assert_eq!(only.address, world.addr.to_string());
}

#[tokio::test]
async fn what_a_replica_did_is_described() {
    let world = World::new().await;
    let mut client = world.client().await;
    let first = hold(&mut client, "busy").await;
    let second = create(&mut client, "busy").await;
    hold(&mut client, "idle").await;
    done(client.release_lock(ask::release(&first.lock_ref))).await;
    create(&mut client, "busy").await;
    let mut admin = world.admin().await;
    let mut ask = DescribeActivityRequest::default();
    let all = done(admin.describe_activity(ask)).await;
    let [did] = all.replicas.as_slice() else {
        panic!("{} replicas", all.replicas.len());
    };
    assert!(did.answered && did.replica.as_ref().unwrap().answering);
    let granted = GrantCounts {
        at_once: 2,
        after_change: 1,
    };
    assert_eq!((did.grants, did.keys), (Some(granted), 2));
    let store = did.store.unwrap();
    assert_eq!((store.changes, store.conflicts), (5, 0));
    let lately = did.last_minute.unwrap();
    assert_eq!(lately.count, 3);
    assert!(lately.longest_wait.is_some() && lately.mean_wait.is_some());
    let keys = did.busiest_keys.iter();
    let keys: Vec<_> = keys.map(|k| (k.key.as_str(), k.waiters)).collect();
    assert_eq!(keys, [("busy", 1), ("idle", 0)]);
    assert_eq!(did.busiest_keys[0].last_minute.unwrap().count, 2);
    assert_eq!(second.state(), LockState::Waiting);

    ask.keys_max = 1;
    let one = done(admin.describe_activity(ask)).await;
    assert_eq!(one.replicas[0].busiest_keys.len(), 1);
    ask.keys_max = -1;
    let described = admin.describe_activity(ask);
    let status = refused(described, Code::InvalidArgument, "OUT_OF_RANGE").await;
    assert_eq!(fields(&status), ["keys_max"]);
}

/// Makes this call until it is refused for want of a turn: on a busy machine the timer of the client may be first.
async fn has_no_turn<T: std::fmt::Debug>(mut call: impl AsyncFnMut() -> Result<T, Status>) {
    until(async || {
        let status = call().await.unwrap_err();
        let info = status.get_details_error_info();
        let limit = info.and_then(|info| info.metadata.get("limit").cloned());
        let is_it = limit.as_deref() == Some("limits.listings_max");
        assert!(!is_it || status.code() == Code::ResourceExhausted);
        is_it
    })
    .await;
}

#[tokio::test]
async fn listings_take_turns() {
    let world = World::with(Limits {
        listings_max: 1,
        ..Limits::default()
    })
    .await;
    hold(&mut world.client().await, "a").await;
    let (mut first, mut second) = (world.admin().await, world.admin().await);
    let ask = ListLocksRequest::default;
    world.store.send_replace(Mode::Hangs);
    let hangs = tokio::spawn(async move { first.list_locks(ask()).await });
    // It has its turn once another one has none.
    has_no_turn(async || second.list_locks(in_ms(ask(), 200)).await).await;
    // The others that may go over much wait for the same turn.
    has_no_turn(async || second.describe_lock(in_ms(ask::describe("a"), 200)).await).await;
    world.store.send_replace(Mode::Works);
    hangs.await.unwrap().unwrap();
    done(second.list_locks(ask())).await;
}

/// One address leaves half of the turns to others, however many connections it has.
#[tokio::test]
async fn one_address_has_half_of_the_turns() {
    let world = World::with(Limits {
        listings_max: 4,
        ..Limits::default()
    })
    .await;
    hold(&mut world.client().await, "a").await;
    world.store.send_replace(Mode::Hangs);
    let ask = ListLocksRequest::default;
    let mut hang = Vec::new();
    for _ in 0..2 {
        let mut admin = world.admin().await;
        hang.push(tokio::spawn(async move { admin.list_locks(ask()).await }));
    }
    // The turn of the connection is its first: so it is the share of the address that is used up, or else that of all.
    has_no_turn(async || world.admin().await.list_locks(in_ms(ask(), 200)).await).await;
    // Somebody of whom no address is known waits for the store, and for no turn.
    let mut other = Frames::to(&world.engine);
    other.send(&hello()).await;
    other.send(&call(1, "ListLocks", &ask())).await;
    other.ping().await;
    world.store.send_replace(Mode::Works);
    while other.next_of(DATA).await.payload.is_empty() {}
    for hangs in hang {
        hangs.await.unwrap().unwrap();
    }
}
