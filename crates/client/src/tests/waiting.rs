//! Waits: in slices, over broken connections, with news on the way.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use tonic::Status;

use super::fake::Act;
use super::{World, away, secs};
use crate::{ClientOptions, LockError, LockRequest, LostReason, WaitError};

#[tokio::test(start_paused = true)]
async fn a_wait_is_resumed_at_the_same_entry() {
    let world = World::new();
    let holder = world.fake.occupy();
    world.fake.next("acquire", away());
    world.fake.next("acquire", Act::Hang);
    let (guard, ()) = tokio::join!(world.client.lock("k"), async {
        tokio::time::sleep(secs(100)).await;
        world.fake.end(&holder, "RELEASED", "");
    });
    assert!(guard.unwrap().lock_ref().starts_with("default/k#2."));
    assert_eq!(world.fake.count("create"), 1);
    // A third of the TTL at most: neither a server that counts no wait, nor a broken connection, must cost the entry.
    assert!(
        world
            .fake
            .calls("acquire")
            .contains(&"acquire 10s".to_owned())
    );
}

/// A wait is no renewal by itself: the call is that begins it.
#[tokio::test(start_paused = true)]
async fn a_waiter_asks_again_each_third_of_its_ttl() {
    let world = World::new();
    world.fake.occupy();
    let client = world.client.clone();
    let waiting = tokio::spawn(async move { client.lock("k").await });
    for asked in [1, 2, 3, 4] {
        tokio::time::sleep(secs(1)).await;
        assert_eq!(world.fake.count("acquire"), asked);
        tokio::time::sleep(secs(9)).await;
    }
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_times_out_releases_the_entry() {
    let world = World::new();
    world.fake.occupy();
    let start = tokio::time::Instant::now();
    let error = world
        .client
        .lock(LockRequest::new("k").wait(secs(40)))
        .await
        .unwrap_err();
    assert_eq!(error, LockError::Wait(WaitError::TimedOut { position: 1 }));
    assert!((secs(40)..secs(41)).contains(&start.elapsed()));
    while world.fake.state().queue.len() > 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_says_no_and_leaves_nothing_behind() {
    let world = World::new();
    world.fake.occupy();
    assert!(world.client.try_lock("k").await.unwrap().is_none());
    assert_eq!(world.fake.state().queue.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_told_how_the_queue_moves_and_how_long_that_may_take() {
    let world = World::new();
    world.fake.state().turn = Some(secs(5));
    let (first, second) = (world.fake.occupy(), world.fake.occupy());
    let mut entry = world.client.enqueue("k").await.unwrap();
    let reported = Mutex::new(Vec::new());
    let (guard, ()) = tokio::join!(
        entry.wait_with(None, |progress| reported
            .lock()
            .unwrap()
            .push((progress.position, progress.estimate))),
        async {
            tokio::time::sleep(secs(3)).await;
            world.fake.end(&first, "RELEASED", "");
            tokio::time::sleep(secs(3)).await;
            world.fake.end(&second, "RELEASED", "");
        }
    );
    guard.unwrap().release().await.unwrap();
    let expected = [(2, None), (2, Some(secs(10))), (1, Some(secs(5)))];
    assert_eq!(*reported.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_ended_is_told_why() {
    let world = World::new();
    world.fake.occupy();
    let mut entry = world.client.enqueue("k").await.unwrap();
    let lock_ref = entry.lock_ref().to_owned();
    let (error, ()) = tokio::join!(entry.wait(None), async {
        tokio::time::sleep(secs(1)).await;
        world.fake.end(&lock_ref, "FORCED", "it was ended by ops");
    });
    let Err(WaitError::Lost(lost)) = error else {
        panic!("it must be lost");
    };
    assert_eq!(lost.reason, LostReason::Forced);
    assert_eq!(lost.to_string(), "it was ended by ops (FORCED)");
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_when_no_server_answers_for_a_ttl_or_for_as_long_as_any_call() {
    for (ttl, longest) in [(30, 30..35), (2, 15..16)] {
        let world = World::new();
        world.fake.occupy();
        world.fake.state().ttl = secs(ttl);
        world.fake.always("acquire", away());
        let start = tokio::time::Instant::now();
        let error = world.client.lock("k").await.unwrap_err();
        let is_it = matches!(error, LockError::Wait(WaitError::Unavailable(_)));
        assert!(is_it, "{error:?}");
        let waited = start.elapsed();
        let is_it = longest.contains(&waited.as_secs());
        assert!(is_it, "TTL {ttl} s: {waited:?}");
        // Whoever takes the entry over must learn of it before its TTL has passed.
        assert!(ttl > 2 || world.fake.count("acquire") > 20);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_entry_leaves_the_queue() {
    let world = World::new();
    world.fake.occupy();
    drop(world.client.enqueue("k").await.unwrap());
    while world.fake.state().queue.len() > 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn waits_take_no_stream_from_the_holder() {
    let world = World::with_streams(ClientOptions::default(), Some(8));
    let guard = world.client.lock("k").await.unwrap();
    for _ in 0..20 {
        let client = world.client.clone();
        tokio::spawn(async move { client.lock("k").await });
    }
    tokio::time::sleep(secs(60)).await;
    assert!(guard.is_valid(), "{:?}", guard.state());
    guard.put("still there").await.unwrap();
    guard.release().await.unwrap();
}

fn room_for(waits_per_connection: usize, wait_connections_max: usize) -> ClientOptions {
    ClientOptions {
        waits_per_connection,
        wait_connections_max,
        ..ClientOptions::default()
    }
}

#[tokio::test(start_paused = true)]
async fn as_many_connections_are_made_as_the_waits_need() {
    let world = World::with_streams(room_for(8, 64), Some(8));
    let holder = world.fake.occupy();
    let mut waits = Vec::new();
    for _ in 0..20 {
        let client = world.client.clone();
        waits.push(tokio::spawn(async move {
            client.lock("k").await.unwrap().release().await
        }));
    }
    tokio::time::sleep(secs(1)).await;
    // All wait at once: three connections of eight streams, and the one for calls.
    assert_eq!(world.fake.calls("acquire"), vec!["acquire 10s"; 20]);
    assert_eq!(world.opened.load(Ordering::Relaxed), 4);
    world.fake.end(&holder, "RELEASED", "");
    for wait in waits {
        wait.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_finds_no_stream_asks_now_and_then_until_its_turn_comes() {
    let world = World::with(room_for(1, 1));
    let holder = world.fake.occupy();
    world.fake.next("acquire", Act::Hang);
    let first = world.client.enqueue("k").await.unwrap();
    let first_ref = first.lock_ref().to_owned();
    let client = world.client.clone();
    let hanging = tokio::spawn(async move {
        let mut first = first;
        first.wait(None).await.map(drop)
    });
    tokio::time::sleep(secs(1)).await;
    let waiting = tokio::spawn(async move { client.lock("k").await });
    tokio::time::sleep(secs(12)).await;
    // A third of its TTL after it was created; and not with a wait.
    assert_eq!(world.fake.calls("acquire"), ["acquire 10s", "acquire 0ns"]);
    world.fake.end(&holder, "RELEASED", "");
    world.fake.end(&first_ref, "RELEASED", "");
    let guard = waiting.await.unwrap().unwrap();
    guard.put("its turn").await.unwrap();
    assert!(hanging.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_wait_without_a_stream_ends_when_its_time_is_up() {
    let world = World::with(room_for(1, 1));
    world.fake.occupy();
    let client = world.client.clone();
    let waiting = tokio::spawn(async move { client.lock("k").await });
    tokio::time::sleep(secs(1)).await;
    let start = tokio::time::Instant::now();
    let request = LockRequest::new("k").wait(secs(5));
    let error = world.client.lock(request).await.unwrap_err();
    assert_eq!(error, LockError::Wait(WaitError::TimedOut { position: 2 }));
    assert!((secs(5)..secs(6)).contains(&start.elapsed()));
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn an_entry_lives_where_calls_come_through_and_waits_do_not() {
    let world = World::new();
    let holder = world.fake.occupy();
    // As a server that takes no further connection.
    world.fake.always(
        "long acquire",
        Act::Refuse(Status::unavailable("no connection")),
    );
    let waiting = tokio::spawn({
        let client = world.client.clone();
        async move { client.lock("k").await }
    });
    tokio::time::sleep(secs(120)).await;
    assert!(!waiting.is_finished());
    // Not in a busy loop, either.
    assert!(
        world.fake.count("acquire") < 400,
        "{}",
        world.fake.count("acquire")
    );
    world.fake.end(&holder, "RELEASED", "");
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.is_valid());
}
