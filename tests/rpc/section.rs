//! A whole section, as a client sees it.

use std::time::Duration;

use fermata::limits::Limits;
use fermata_proto::*;
use tonic::Code;

use crate::world::{World, create, hold, in_ms};

#[tokio::test]
async fn a_section_reads_what_the_one_before_wrote() {
    let world = World::new().await;
    let mut client = world.client().await;
    let first = hold(&mut client, "orders-42").await;
    assert!(first.fencing_token > 0);
    assert!(
        first
            .lock_ref
            .ends_with(&format!("@{}", first.fencing_token))
    );
    assert_eq!(
        Some(first.session.as_str()),
        first.lock_ref.split('@').next()
    );
    assert_eq!(first.ttl.unwrap().seconds, 30);
    assert!(first.valid_for.unwrap().seconds <= 30);
    assert!(!first.exists && !first.already_existed);

    let put = CriticalPutRequest {
        lock_ref: first.lock_ref.clone(),
        value: "one".into(),
        call_no: 1,
    };
    let put = client.critical_put(put).await.unwrap().into_inner();
    assert!(put.valid_for.is_some());

    let second = create(&mut client, "orders-42").await;
    assert_eq!(second.state(), LockState::Waiting);
    assert_eq!((second.position, second.fencing_token), (1, 0));
    let release = ReleaseLockRequest {
        lock_ref: first.lock_ref.clone(),
        put: Some(Mutation {
            value: "two".into(),
            delete: false,
        }),
        call_no: 2,
    };
    let released = client.release_lock(release.clone()).await.unwrap();
    assert!(!released.into_inner().already_released);
    let again = client.release_lock(release).await.unwrap();
    assert!(again.into_inner().already_released);

    let acquire = AcquireLockRequest {
        lock_ref: second.lock_ref,
        wait: Some(prost_types::Duration {
            seconds: 5,
            nanos: 0,
        }),
        read_value: true,
        give_up: false,
    };
    let held = client.acquire_lock(acquire).await.unwrap().into_inner();
    assert_eq!(held.state(), LockState::Held);
    assert!(held.fencing_token > first.fencing_token);
    assert_eq!((&held.value[..], held.exists), (&b"two"[..], true));

    let delete = CriticalDeleteRequest {
        lock_ref: held.lock_ref.clone(),
        call_no: 1,
    };
    client.critical_delete(delete).await.unwrap();
    let get = CriticalGetRequest {
        lock_ref: held.lock_ref,
        call_no: 2,
    };
    let read = client.critical_get(get).await.unwrap().into_inner();
    assert_eq!((read.value.len(), read.exists), (0, false));
    let get = GetRequest {
        key: "orders-42".into(),
        table: "default".into(),
    };
    assert!(!client.get(get).await.unwrap().into_inner().exists);
}

#[tokio::test]
async fn the_largest_value_goes_in_and_comes_back() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "large").await;
    let value = bytes::Bytes::from(vec![7; 1024 * 1024]);
    let put = CriticalPutRequest {
        lock_ref: held.lock_ref.clone(),
        value: value.clone(),
        call_no: 0,
    };
    client.critical_put(put).await.unwrap();
    let get = CriticalGetRequest {
        lock_ref: held.lock_ref,
        call_no: 0,
    };
    assert!(client.critical_get(get).await.unwrap().into_inner().value == value);
}

#[tokio::test]
async fn a_create_that_was_repeated_finds_its_entry() {
    let world = World::new().await;
    let mut client = world.client().await;
    let ask = CreateLockRefRequest {
        key: "a".into(),
        request_id: "67e55044-10b1-426f-9247-bb680e5fe0c8".into(),
        ..Default::default()
    };
    let first = client
        .create_lock_ref(ask.clone())
        .await
        .unwrap()
        .into_inner();
    let second = client.create_lock_ref(ask).await.unwrap().into_inner();
    assert!(second.already_existed);
    assert_eq!(second.lock_ref, first.lock_ref);
}

#[tokio::test]
async fn a_call_that_was_dropped_leaves_the_queue_in_order() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let waiter = create(&mut client, "a").await;
    let acquire = AcquireLockRequest {
        lock_ref: waiter.lock_ref.clone(),
        wait: Some(prost_types::Duration {
            seconds: 60,
            nanos: 0,
        }),
        read_value: false,
        give_up: false,
    };
    for _ in 0..40 {
        let mut client = client.clone();
        let acquire = acquire.clone();
        let call = tokio::spawn(async move { client.acquire_lock(acquire).await });
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        call.abort();
    }
    let release = ReleaseLockRequest {
        lock_ref: held.lock_ref,
        ..Default::default()
    };
    client.release_lock(release).await.unwrap();
    let acquired = client.acquire_lock(in_ms(acquire, 5_000)).await.unwrap();
    assert_eq!(acquired.into_inner().state(), LockState::Held);
}

async fn waiters(world: &World, key: &str) -> u32 {
    let ask = DescribeLockRequest {
        key: key.into(),
        ..Default::default()
    };
    let described = world.admin().await.describe_lock(ask).await;
    described.unwrap().into_inner().waiter_count
}

fn or_leave(lock_ref: &str, wait: Duration) -> AcquireLockRequest {
    AcquireLockRequest {
        lock_ref: lock_ref.to_owned(),
        wait: prost_types::Duration::try_from(wait).ok(),
        give_up: true,
        ..Default::default()
    }
}

#[tokio::test]
async fn a_wait_that_gives_up_leaves_the_queue_in_one_change() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let waiting = create(&mut client, "a").await;
    let changes = world.engine.counts().swaps;
    let ask = or_leave(&waiting.lock_ref, Duration::from_millis(50));
    let left = client.acquire_lock(ask.clone()).await.unwrap().into_inner();
    assert_eq!(left.state(), LockState::Released);
    assert_eq!(world.engine.counts().swaps, changes + 1);
    assert_eq!(waiters(&world, "a").await, 0);
    // It has ended; and of the holder's nothing is given back.
    let status = client.acquire_lock(ask).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let ask = or_leave(&held.lock_ref, Duration::ZERO);
    let again = client.acquire_lock(ask).await.unwrap().into_inner();
    assert_eq!(again.state(), LockState::Held);
    assert_eq!(world.engine.counts().swaps, changes + 1);
}

#[tokio::test]
async fn a_caller_that_hangs_up_gives_nothing_back() {
    let world = World::new().await;
    let mut client = world.client().await;
    hold(&mut client, "a").await;
    let waiting = create(&mut client, "a").await;
    let mut gone = world.client().await;
    let ask = or_leave(&waiting.lock_ref, Duration::from_secs(30));
    let wait = tokio::spawn(async move { gone.acquire_lock(ask).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!wait.is_finished());
    wait.abort();
    assert!(wait.await.unwrap_err().is_cancelled());
    // It may have been told of its turn by another call meanwhile.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(waiters(&world, "a").await, 1);
}

#[tokio::test]
async fn limits_that_are_as_large_as_can_be_set_are_served_with() {
    const MAX: usize = i64::MAX as usize;
    let world = World::with(Limits {
        remembered_value_bytes_max: MAX,
        message_bytes_max: MAX,
        owner_bytes_max: MAX,
        reason_bytes_max: MAX,
        entries_per_key_max: MAX,
        ended_per_key_max: MAX,
        lock_refs_per_session_max: MAX,
        lock_refs_per_renewal_max: MAX,
        sessions_max: MAX,
        active_keys_max: MAX,
        calls_per_key_max: MAX,
        critical_calls_per_lock_ref_max: MAX,
        waits_per_lock_ref_max: MAX,
        streams_per_connection_max: fermata::limits::STREAMS_PER_CONNECTION_MAX,
        connections_max: MAX,
        ttl_max_ms: u32::MAX,
        ttl_default_ms: u32::MAX,
        wait_max_ms: i64::MAX as u64,
        call_max_ms: i64::MAX as u64,
        connection_bytes_max: u64::MAX,
        bytes_in_flight_max: u64::MAX,
        answer_max_ms: i64::MAX as u64,
        listings_max: MAX,
        page_size_max: MAX,
        ..Limits::default()
    })
    .await;
    let mut client = world.client().await;
    hold(&mut client, "a").await;
    let waiting = create(&mut client, "a").await;
    let longest = prost_types::Duration {
        seconds: i64::MAX,
        nanos: 999_999_999,
    };
    let ask = AcquireLockRequest {
        lock_ref: waiting.lock_ref,
        wait: Some(longest),
        ..Default::default()
    };
    let wait = client.acquire_lock(in_ms(ask, 300)).await.unwrap();
    assert_eq!(wait.into_inner().state(), LockState::Waiting);
    assert_eq!(waiters(&world, "a").await, 1);
}
