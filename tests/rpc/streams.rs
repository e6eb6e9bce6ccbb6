//! KeepAlive and WatchLock.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use fermata::limits::Limits;
use fermata_client::public_part;
use fermata_proto::*;
use futures_util::stream;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

use crate::ask;
use crate::lever::Mode;
use crate::world::{Client, World, create, done, heard, hold, in_ms, refused, until_in_time};

fn quick() -> Limits {
    Limits {
        ttl_min_ms: 100,
        ..Limits::default()
    }
}

/// A session with a TTL of so many seconds.
async fn open(client: &mut Client, ttl: i64) -> String {
    let open = OpenSessionRequest {
        ttl: ask::seconds(ttl),
        ..Default::default()
    };
    done(client.open_session(open)).await.session
}

async fn watch(client: &mut Client, lock_ref: &str) -> Streaming<WatchLockResponse> {
    done(client.watch_lock(ask::watch(lock_ref))).await
}

async fn next<T>(stream: &mut Streaming<T>) -> T {
    stream.next().await.unwrap().unwrap()
}

#[tokio::test]
async fn renewals_are_answered_in_order_and_an_ended_session_ends_nothing() {
    let world = World::new().await;
    let mut client = world.client().await;
    let live = open(&mut client, 5).await;
    let ended = open(&mut client, 5).await;
    done(client.close_session(ask::close_session(&ended))).await;
    let held = hold(&mut client, "a").await;
    let released = hold(&mut client, "b").await;
    done(client.release_lock(ask::release(&released.lock_ref))).await;

    let sessions = [&live, &ended, &held.session, &released.session];
    let asked: Vec<&String> = sessions.into_iter().cycle().take(200).collect();
    let asks: Vec<_> = asked
        .iter()
        .map(|session| ask::keep_alive(session))
        .collect();
    let answers = done(client.keep_alive(stream::iter(asks))).await;
    let answers: Vec<_> = answers.map(Result::unwrap).collect().await;
    assert!(answers.iter().map(|answer| &answer.session).eq(asked));
    for answer in answers {
        let seconds = answer.valid_for.unwrap().seconds;
        if answer.session == ended {
            assert_eq!((seconds, answer.reason()), (0, EndReason::SessionClosed));
        } else if answer.session == released.session {
            assert_eq!((seconds, answer.reason()), (0, EndReason::Released));
        } else {
            assert_eq!(answer.reason(), EndReason::Unspecified);
            assert!(seconds > 0 && answer.ttl.is_some());
        }
    }
}

#[tokio::test]
async fn a_stream_keeps_a_session_and_what_lives_by_it_alive() {
    let world = World::with(quick()).await;
    let mut client = world.client().await;
    let session = open(&mut client, 1).await;
    let held = done(client.create_lock_ref(ask::create_in("a", &session))).await;
    assert_eq!(held.session, session);
    let (sender, asks) = mpsc::channel(1);
    let mut answers = done(client.keep_alive(ReceiverStream::new(asks))).await;
    for _ in 0..15 {
        sender.send(ask::keep_alive(&session)).await.unwrap();
        assert_eq!(next(&mut answers).await.reason(), EndReason::Unspecified);
        sleep(Duration::from_millis(100)).await;
    }
    done(client.critical_get(ask::critical_get(&held.lock_ref))).await;
}

#[tokio::test]
async fn a_lease_of_which_nothing_can_be_said_ends_no_stream() {
    let world = World::new().await;
    let mut client = world.client().await;
    let live = open(&mut client, 5).await;
    world.store.send_replace(Mode::Fails);
    // Of a key that the store would have to be asked about.
    let unknown = "default/unknown#1.00000000000000000000000000".to_owned();
    let asks = stream::iter([
        ask::keep_alive(&live),
        ask::keep_alive(&unknown),
        ask::keep_alive(&live),
    ]);
    let answers = done(client.keep_alive(asks)).await;
    let answers: Vec<_> = answers.map(Result::unwrap).collect().await;
    let answered = answers.iter().map(|one| (&one.session, one.ttl.is_some()));
    let answered: Vec<_> = answered.collect();
    assert_eq!(answered, [(&live, true), (&unknown, false), (&live, true)]);
    assert_eq!(answers[1].valid_for, Some(prost_types::Duration::default()));
    assert_eq!(answers[1].reason(), EndReason::Unspecified);
}

#[tokio::test]
async fn streams_end_cleanly_a_little_before_their_deadline() {
    let world = World::new().await;
    let mut client = world.client().await;
    hold(&mut client, "a").await;
    let waiter = create(&mut client, "a").await;
    let within = Duration::from_millis(1_000);
    until_in_time(async || {
        let started = Instant::now();
        let watch = client
            .watch_lock(in_ms(ask::watch(&waiter.lock_ref), 1_000))
            .await;
        let watch = heard(watch)?.unwrap().into_inner();
        let answered: Vec<_> = watch.map(Result::unwrap).collect().await;
        assert_eq!(answered.len(), 1);
        (started.elapsed() < within).then_some(())
    })
    .await;
    until_in_time(async || {
        let started = Instant::now();
        let asks = stream::pending::<KeepAliveRequest>();
        let answers = heard(client.keep_alive(in_ms(asks, 1_000)).await)?.unwrap();
        let answered: Vec<_> = answers.into_inner().map(Result::unwrap).collect().await;
        assert_eq!(answered.len(), 0);
        (started.elapsed() < within).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_watch_tells_position_held_and_lost() {
    let world = World::new().await;
    let mut client = world.client().await;
    let first = hold(&mut client, "a").await;
    let second = create(&mut client, "a").await;
    let third = create(&mut client, "a").await;
    let mut watch = watch(&mut client, &third.lock_ref).await;
    let answered = next(&mut watch).await;
    assert_eq!(
        (answered.state(), answered.position),
        (LockState::Waiting, 2)
    );
    for gone in [second, first] {
        done(client.release_lock(ask::release(&gone.lock_ref))).await;
    }
    let mut answered = next(&mut watch).await;
    while answered.state() == LockState::Waiting {
        answered = next(&mut watch).await;
    }
    assert_eq!(answered.state(), LockState::Held);
    assert!(answered.fencing_token > 0);
    assert!(answered.valid_for.unwrap().seconds > 0);
    done(client.critical_get(ask::critical_get(&answered.lock_ref))).await;

    let force = ask::force(public_part(&answered.lock_ref), "wedged");
    done(world.admin().await.force_release(force)).await;
    let lost = next(&mut watch).await;
    let ended = (lost.state(), lost.reason());
    assert_eq!(ended, (LockState::Lost, EndReason::Forced));
    assert!(lost.detail.contains("wedged"));
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn an_open_watch_renews_nothing_and_tells_of_the_end() {
    let world = World::with(quick()).await;
    let mut client = world.client().await;
    let create = CreateLockRefRequest {
        ttl: Duration::from_millis(300).try_into().ok(),
        ..ask::create("a")
    };
    let held = done(client.create_lock_ref(create)).await.lock_ref;
    let mut watch = watch(&mut client, &held).await;
    assert_eq!(next(&mut watch).await.state(), LockState::Held);
    // Its client may be frozen behind a proxy that answers for it.
    let lost = next(&mut watch).await;
    let ended = (lost.state(), lost.reason());
    assert_eq!(ended, (LockState::Lost, EndReason::Expired));
    let (code, reason) = (Code::FailedPrecondition, "EXPIRED");
    refused(client.critical_get(ask::critical_get(&held)), code, reason).await;
    refused(client.release_lock(ask::release(&held)), code, reason).await;
}

#[tokio::test]
async fn a_slow_store_holds_the_client_back_and_queues_nothing() {
    let world = World::new().await;
    let mut client = world.client().await;
    // Nothing is known of this key yet, so its home reads the row. (It is a long one because of the
    // library's limit on small frames that nobody reads.)
    let slow = ask::keep_alive(&format!(
        "default/{}#1.00000000000000000000000000",
        "x".repeat(1000)
    ));
    world.store.send_replace(Mode::Hangs);
    let (sender, asks) = mpsc::channel(1);
    let asks = ReceiverStream::new(asks);
    let mut answers = done(client.keep_alive(asks)).await;
    let sent = Arc::new(AtomicU32::new(0));
    tokio::spawn({
        let sent = Arc::clone(&sent);
        async move {
            while sender.send(slow.clone()).await.is_ok() {
                sent.fetch_add(1, Relaxed);
            }
        }
    });
    let mut before = 0;
    while before == 0 || sent.load(Relaxed) != before {
        before = sent.load(Relaxed);
        sleep(Duration::from_millis(300)).await;
    }
    // What fills the windows and buffers of one HTTP/2 stream.
    assert!(before < 20_000, "{before}");
    world.store.send_replace(Mode::Works);
    let answer = next(&mut answers).await;
    assert_eq!(answer.reason(), EndReason::NoLongerKept);
    for _ in 0..before {
        next(&mut answers).await;
    }
    assert!(sent.load(Relaxed) > before, "it goes on");
}

#[tokio::test]
async fn a_keep_alive_that_the_store_holds_up_ends_before_its_deadline() {
    let world = World::new().await;
    let mut client = world.client().await;
    world.store.send_replace(Mode::Hangs);
    until_in_time(async || {
        let started = Instant::now();
        let slow = ask::keep_alive("default/slow#1.00000000000000000000000000");
        let answers = client.keep_alive(in_ms(stream::iter([slow]), 1_000)).await;
        let answer = heard(answers)?.unwrap().into_inner().next().await.unwrap();
        assert_eq!(answer.unwrap_err().code(), Code::Unavailable);
        (started.elapsed() < Duration::from_millis(1_000)).then_some(())
    })
    .await;
}
