//! What every store promises that several replicas share: heartbeats, hand-over requests, a clock. One that a single
//! process has for itself promises none of it.

use std::sync::Arc;

use fermata::lock::{Fence, Seq};
use fermata::store::{HandOverRequest, HandOverTarget, ReplicaRow, Store};
use futures_util::StreamExt;
use uuid::Uuid;

use crate::world::{id, id_in, replica, replica_row, session};

pub async fn heartbeats_never_go_back(store: Arc<dyn Store>) {
    if store.is_exclusive() {
        return;
    }
    let announced = replica_row(3);
    let seen = async |heartbeat, stopped| {
        let listed = store.list_replicas().await.unwrap();
        let expected = ReplicaRow {
            heartbeat,
            stopped,
            ..announced.clone()
        };
        assert_eq!(listed, [expected]);
    };
    store.announce_replica(&announced).await.unwrap();
    seen(0, false).await;
    for (heartbeat, latest) in [(1, 1), (2, 2), (1, 2), (700, 700), (5, 700)] {
        store
            .heartbeat(announced.id, heartbeat, false)
            .await
            .unwrap();
        seen(latest, false).await;
    }
    store.heartbeat(announced.id, 701, true).await.unwrap();
    seen(701, true).await;
    // What was sent before, and the announcement, come late.
    store.heartbeat(announced.id, 699, false).await.unwrap();
    store.announce_replica(&announced).await.unwrap();
    seen(701, true).await;
}

pub async fn a_forgotten_replica_does_not_come_back(store: Arc<dyn Store>) {
    if store.is_exclusive() {
        return;
    }
    let (gone, other) = (replica_row(3), replica_row(5));
    for row in [&gone, &other] {
        store.announce_replica(row).await.unwrap();
        store.heartbeat(row.id, 1 << 40, false).await.unwrap();
    }
    store.forget_replica(gone.id).await.unwrap();
    store
        .heartbeat(gone.id, (1 << 40) + 1, false)
        .await
        .unwrap();
    store.announce_replica(&gone).await.unwrap();
    // Nor is there one that was never announced.
    store.heartbeat(replica(4), 1, false).await.unwrap();
    let listed = store.list_replicas().await.unwrap();
    let left: Vec<_> = listed.iter().map(|row| row.id).collect();
    assert_eq!(left, [other.id]);
}

fn of_entry(request: u128, home: u128) -> HandOverRequest {
    HandOverRequest {
        id: Uuid::from_u128(request),
        home: replica(home),
        target: HandOverTarget::Entry {
            key: id_in("orders", "日本/7"),
            seq: Seq(request as u64),
            fence: Fence(Fence::MAX),
            epoch: u32::MAX,
        },
    }
}

/// The hand-over requests sent to a home, in the order of their ids.
async fn hand_over_requests(store: &dyn Store, home: u128) -> Vec<HandOverRequest> {
    let mut hand_over_requests = store.hand_over_requests(replica(home)).await.unwrap();
    hand_over_requests.sort_by_key(|request| request.id);
    hand_over_requests
}

pub async fn who_is_asked_sees_a_hand_over_request_until_they_answer(store: Arc<dyn Store>) {
    if store.is_exclusive() {
        return;
    }
    let holder = of_entry(1, 7);
    let waiter = HandOverRequest {
        target: HandOverTarget::Entry {
            key: id("k"),
            seq: Seq(9),
            fence: Fence::NONE,
            epoch: 0,
        },
        ..of_entry(2, 7)
    };
    let session = HandOverRequest {
        target: HandOverTarget::Session {
            session: session(1, 1, true).id,
            epoch: 3,
        },
        ..of_entry(3, 7)
    };
    let key = HandOverRequest {
        target: HandOverTarget::Key {
            key: id_in("orders", "日本/7"),
            version: u64::from(u32::MAX),
        },
        ..of_entry(5, 7)
    };
    let declined = of_entry(6, 7);
    let others = of_entry(4, 8);
    assert_eq!(hand_over_requests(&*store, 7).await, []);
    for request in [&session, &waiter, &others, &key, &declined, &holder] {
        assert_eq!(store.hand_over_agreed(request).await.unwrap(), None);
        store.request_hand_over(request).await.unwrap();
        assert_eq!(store.hand_over_agreed(request).await.unwrap(), None);
    }
    let asked = [holder, waiter.clone(), session, key, declined.clone()];
    assert_eq!(hand_over_requests(&*store, 7).await, asked);
    assert_eq!(
        hand_over_requests(&*store, 8).await,
        std::slice::from_ref(&others)
    );
    assert_eq!(hand_over_requests(&*store, 9).await, []);
    store.agree_to_hand_over(&waiter).await.unwrap();
    store.decline_hand_over(&declined).await.unwrap();
    // What is repeated, by a retry, does not ask again.
    for request in [&waiter, &declined] {
        store.request_hand_over(request).await.unwrap();
    }
    store.agree_to_hand_over(&waiter).await.unwrap();
    store.decline_hand_over(&declined).await.unwrap();
    for request in asked.iter().chain([&others]) {
        let answered = [&waiter, &declined].contains(&request);
        let expected = answered.then_some(*request == waiter);
        let agreed = store.hand_over_agreed(request).await.unwrap();
        assert_eq!(agreed, expected, "{request:?}");
    }
    let [holder, _, session, key, _] = asked;
    assert_eq!(hand_over_requests(&*store, 7).await, [holder, session, key]);
    assert_eq!(hand_over_requests(&*store, 8).await, [others]);
}

pub async fn some_hundreds_of_hand_over_requests_are_seen_at_once_and_the_others_after_them(
    store: Arc<dyn Store>,
) {
    if store.is_exclusive() {
        return;
    }
    const ASKED: u128 = 1_100;
    // Many at once: they are not kept for long.
    let at_once = 50;
    futures_util::stream::iter(0..ASKED)
        .for_each_concurrent(at_once, |request| {
            let store = Arc::clone(&store);
            async move {
                store
                    .request_hand_over(&of_entry(request, 7))
                    .await
                    .unwrap()
            }
        })
        .await;
    let mut answered = 0;
    loop {
        let some = store.hand_over_requests(replica(7)).await.unwrap();
        assert!(some.len() <= 500, "{}", some.len());
        if some.is_empty() {
            break;
        }
        answered += some.len() as u128;
        futures_util::stream::iter(some)
            .for_each_concurrent(at_once, |request| {
                let store = Arc::clone(&store);
                async move { store.agree_to_hand_over(&request).await.unwrap() }
            })
            .await;
    }
    assert_eq!(answered, ASKED);
}

pub async fn a_shared_store_has_a_clock(store: Arc<dyn Store>) {
    if store.is_exclusive() {
        return;
    }
    let now_us = || {
        let now = std::time::SystemTime::now();
        let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_micros() as u64
    };
    for _ in 0..10 {
        let before = now_us();
        let clock = store.clock_us().await.unwrap().unwrap();
        let after = now_us();
        // The nodes are on this machine; a clock may be read in whole milliseconds.
        let target = before - 2_000..=after + 2_000;
        assert!(target.contains(&clock), "{clock} is not in {target:?}");
    }
}
