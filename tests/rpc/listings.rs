//! LockAdmin: pages, and what operators see.

use std::time::Duration;

use fermata::limits::Limits;
use fermata_client::public_part;
use fermata_proto::*;
use tokio::time::timeout;
use tonic::Code;
use tonic_types::StatusExt;

use crate::frames::{DATA, Frames, call, hello};
use crate::lever::Mode;
use crate::world::{World, create, fields, hold, in_ms};

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
        let page = admin.list_locks(ask.clone()).await.unwrap().into_inner();
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
    let status = admin.list_locks(ask.clone()).await.unwrap_err();
    assert_eq!(
        (status.code(), fields(&status)),
        (Code::InvalidArgument, vec!["page_token".into()])
    );

    ask.page_token.clear();
    ask.key_prefix.clear();
    ask.contended = true;
    let page = admin.list_locks(ask).await.unwrap().into_inner();
    assert_eq!(page.locks.len(), 1);
    assert_eq!(
        page.locks[0].holder.as_ref().unwrap().state(),
        LockState::Held
    );
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
        let page = admin.describe_lock(ask.clone()).await.unwrap().into_inner();
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
async fn an_end_by_force_is_remembered() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let mut admin = world.admin().await;
    let force = ForceReleaseRequest {
        name: public_part(&held.lock_ref).to_owned(),
        reason: "wedged".into(),
        forced_by: "ann".into(),
    };
    admin.force_release(force).await.unwrap();
    let ask = DescribeLockRequest {
        key: "a".into(),
        ..Default::default()
    };
    let described = admin.describe_lock(ask).await.unwrap().into_inner();
    assert!(described.unsynced && described.holders.is_empty());
    assert_eq!(described.last_fencing_token, held.fencing_token);
    let ended = &described.ended[0];
    assert_eq!(
        (ended.reason(), ended.ended_by.as_str()),
        (EndReason::Forced, "ann")
    );
    assert_eq!(ended.detail, "wedged");
}

#[tokio::test]
async fn tables_sessions_and_replicas_are_listed() {
    let world = World::new().await;
    let mut client = world.client().await;
    let mut admin = world.admin().await;
    let tables = admin
        .list_tables(ListTablesRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        tables.tables,
        [Table {
            name: "default".into()
        }]
    );

    let mut sessions = Vec::new();
    for _ in 0..3 {
        let ask = OpenSessionRequest {
            owner: "worker".into(),
            ..Default::default()
        };
        sessions.push(client.open_session(ask).await.unwrap().into_inner().session);
    }
    sessions.sort();
    let mut ask = ListSessionsRequest {
        page_size: 2,
        ..Default::default()
    };
    let mut listed = Vec::new();
    loop {
        let page = admin.list_sessions(ask.clone()).await.unwrap().into_inner();
        listed.extend(page.sessions);
        if page.next_page_token.is_empty() {
            break;
        }
        ask.page_token = page.next_page_token;
    }
    assert_eq!(
        listed
            .iter()
            .map(|s| s.session_id.as_str())
            .collect::<Vec<_>>(),
        sessions.iter().map(|s| public_part(s)).collect::<Vec<_>>()
    );
    assert!(
        listed
            .iter()
            .all(|s| s.owner == "worker" && s.lease_left.is_some())
    );

    let replicas = admin
        .list_replicas(ListReplicasRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(replicas.replicas.len(), 1);
    assert!(replicas.replicas[0].answering);
    assert_eq!(
        replicas.replicas[0].replica,
        world.engine.replica().to_string()
    );
    assert_eq!(replicas.replicas[0].address, world.addr.to_string());
}

#[tokio::test]
async fn what_a_replica_did_is_described() {
    let world = World::new().await;
    let mut client = world.client().await;
    let first = hold(&mut client, "busy").await;
    let second = create(&mut client, "busy").await;
    hold(&mut client, "idle").await;
    let release = ReleaseLockRequest {
        lock_ref: first.lock_ref,
        ..Default::default()
    };
    client.release_lock(release).await.unwrap();
    create(&mut client, "busy").await;
    let mut admin = world.admin().await;
    let mut ask = DescribeActivityRequest::default();
    let all = admin.describe_activity(ask).await.unwrap().into_inner();
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
    let one = admin.describe_activity(ask).await.unwrap().into_inner();
    assert_eq!(one.replicas[0].busiest_keys.len(), 1);
    ask.keys_max = -1;
    let status = admin.describe_activity(ask).await.unwrap_err();
    assert_eq!(
        (status.code(), fields(&status)),
        (Code::InvalidArgument, vec!["keys_max".into()])
    );
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
    let refused = async {
        loop {
            let refused = second.list_locks(in_ms(ask(), 200)).await.unwrap_err();
            // On a busy machine the timer of the client may be first.
            let info = refused.get_details_error_info();
            let limit = info.and_then(|info| info.metadata.get("limit").cloned());
            if limit.as_deref() == Some("limits.listings_max") {
                return refused;
            }
        }
    };
    let refused = timeout(Duration::from_secs(30), refused).await.unwrap();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    // The others that may go over much wait for the same turn.
    let describe = DescribeLockRequest {
        key: "a".to_owned(),
        ..Default::default()
    };
    let refused = second
        .describe_lock(in_ms(describe, 200))
        .await
        .unwrap_err();
    let details = refused.get_error_details();
    let limit = details.error_info().unwrap().metadata.get("limit").cloned();
    assert_eq!(limit.as_deref(), Some("limits.listings_max"), "{refused:?}");
    world.store.send_replace(Mode::Works);
    hangs.await.unwrap().unwrap();
    second
        .list_locks(ListLocksRequest::default())
        .await
        .unwrap();
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
    let mut hang = Vec::new();
    for _ in 0..2 {
        let mut admin = world.admin().await;
        let list = async move { admin.list_locks(ListLocksRequest::default()).await };
        hang.push(tokio::spawn(list));
    }
    let limit_of = |status: tonic::Status| {
        let details = status.get_error_details();
        let info = details.error_info().unwrap();
        info.metadata.get("limit").cloned().unwrap_or_default()
    };
    // The turn of the connection is its first: so it is the share of the address that is used up, or else that of all.
    let third = async {
        loop {
            let mut admin = world.admin().await;
            let ask = in_ms(ListLocksRequest::default(), 200);
            if limit_of(admin.list_locks(ask).await.unwrap_err()) == "limits.listings_max" {
                return;
            }
        }
    };
    timeout(Duration::from_secs(30), third).await.unwrap();
    // Somebody of whom no address is known waits for the store, and for no turn.
    let mut other = Frames::to(&world.engine);
    other.send(&hello()).await;
    other
        .send(&call(1, "ListLocks", &ListLocksRequest::default()))
        .await;
    other.ping().await;
    world.store.send_replace(Mode::Works);
    while other.next_of(DATA).await.payload.is_empty() {}
    for hangs in hang {
        hangs.await.unwrap().unwrap();
    }
}
