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

use crate::lever::Mode;
use crate::world::{Client, World, create, heard, hold, in_ms, until_in_time};

fn alive(session: &str) -> KeepAliveRequest {
    KeepAliveRequest {
        session: session.to_owned(),
    }
}

fn quick() -> Limits {
    Limits {
        ttl_min_ms: 100,
        ..Limits::default()
    }
}

async fn open(client: &mut Client, ttl_ms: i32) -> String {
    let ask = OpenSessionRequest {
        ttl: Some(prost_types::Duration {
            seconds: i64::from(ttl_ms / 1000),
            nanos: ttl_ms % 1000 * 1_000_000,
        }),
        ..Default::default()
    };
    client.open_session(ask).await.unwrap().into_inner().session
}

async fn watch(client: &mut Client, lock_ref: &str) -> Streaming<WatchLockResponse> {
    let ask = WatchLockRequest {
        lock_ref: lock_ref.to_owned(),
    };
    client.watch_lock(ask).await.unwrap().into_inner()
}

#[tokio::test]
async fn renewals_are_answered_in_order_and_an_ended_session_ends_nothing() {
    let world = World::new().await;
    let mut client = world.client().await;
    let live = open(&mut client, 5_000).await;
    let ended = open(&mut client, 5_000).await;
    let close = CloseSessionRequest {
        session: ended.clone(),
    };
    client.close_session(close).await.unwrap();
    let held = hold(&mut client, "a").await;
    let released = hold(&mut client, "b").await;
    let release = ReleaseLockRequest {
        lock_ref: released.lock_ref,
        ..Default::default()
    };
    client.release_lock(release).await.unwrap();

    let asked: Vec<String> = [&live, &ended, &held.session, &released.session]
        .into_iter()
        .cycle()
        .take(200)
        .cloned()
        .collect();
    let asks = stream::iter(asked.clone().into_iter().map(|session| alive(&session)));
    let answers = client.keep_alive(asks).await.unwrap().into_inner();
    let answers: Vec<_> = answers.map(Result::unwrap).collect().await;
    assert_eq!(
        answers.iter().map(|a| &a.session).collect::<Vec<_>>(),
        asked.iter().collect::<Vec<_>>()
    );
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
    let session = open(&mut client, 1_000).await;
    let ask = CreateLockRefRequest {
        key: "a".into(),
        session: session.clone(),
        ..Default::default()
    };
    let held = client.create_lock_ref(ask).await.unwrap().into_inner();
    assert_eq!(held.session, session);
    let (sender, asks) = mpsc::channel(1);
    let mut answers = client
        .keep_alive(ReceiverStream::new(asks))
        .await
        .unwrap()
        .into_inner();
    for _ in 0..15 {
        sender.send(alive(&session)).await.unwrap();
        assert_eq!(
            answers.next().await.unwrap().unwrap().reason(),
            EndReason::Unspecified
        );
        sleep(Duration::from_millis(100)).await;
    }
    let get = CriticalGetRequest {
        lock_ref: held.lock_ref,
        call_no: 0,
    };
    client.critical_get(get).await.unwrap();
}

#[tokio::test]
async fn a_keep_alive_that_makes_no_sense_ends_its_stream() {
    let world = World::new().await;
    let mut client = world.client().await;
    let asks = stream::iter([alive("nonsense")]);
    let mut answers = client.keep_alive(asks).await.unwrap().into_inner();
    let status = answers.next().await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(crate::world::fields(&status), ["session"]);
}

#[tokio::test]
async fn a_lease_of_which_nothing_can_be_said_ends_no_stream() {
    let world = World::new().await;
    let mut client = world.client().await;
    let live = open(&mut client, 5_000).await;
    world.store.send_replace(Mode::Fails);
    // Of a key that the store would have to be asked about.
    let unknown = "default/unknown#1.00000000000000000000000000".to_owned();
    let asks = stream::iter([alive(&live), alive(&unknown), alive(&live)]);
    let answers = client.keep_alive(asks).await.unwrap().into_inner();
    let answers: Vec<_> = answers.map(Result::unwrap).collect().await;
    let answered: Vec<_> = answers
        .iter()
        .map(|a| (&a.session, a.ttl.is_some()))
        .collect();
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
    until_in_time(|| {
        let (mut client, lock_ref) = (client.clone(), waiter.lock_ref.clone());
        async move {
            let started = Instant::now();
            let ask = WatchLockRequest { lock_ref };
            let watch = heard(client.watch_lock(in_ms(ask, 1_000)).await)?.unwrap();
            let answered: Vec<_> = watch.into_inner().map(Result::unwrap).collect().await;
            assert_eq!(answered.len(), 1);
            (started.elapsed() < Duration::from_millis(1_000)).then_some(())
        }
    })
    .await;
    until_in_time(|| {
        let mut client = client.clone();
        async move {
            let started = Instant::now();
            let asks = stream::pending::<KeepAliveRequest>();
            let answers = heard(client.keep_alive(in_ms(asks, 1_000)).await)?.unwrap();
            let answered: Vec<_> = answers.into_inner().map(Result::unwrap).collect().await;
            assert_eq!(answered.len(), 0);
            (started.elapsed() < Duration::from_millis(1_000)).then_some(())
        }
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
    let answered = watch.next().await.unwrap().unwrap();
    assert_eq!(
        (answered.state(), answered.position),
        (LockState::Waiting, 2)
    );
    for gone in [second, first] {
        let release = ReleaseLockRequest {
            lock_ref: gone.lock_ref,
            ..Default::default()
        };
        client.release_lock(release).await.unwrap();
    }
    let mut answered = watch.next().await.unwrap().unwrap();
    while answered.state() == LockState::Waiting {
        answered = watch.next().await.unwrap().unwrap();
    }
    assert_eq!(answered.state(), LockState::Held);
    assert!(answered.fencing_token > 0);
    assert!(answered.valid_for.unwrap().seconds > 0);
    let get = CriticalGetRequest {
        lock_ref: answered.lock_ref.clone(),
        call_no: 0,
    };
    client.critical_get(get).await.unwrap();

    let force = ForceReleaseRequest {
        name: public_part(&answered.lock_ref).to_owned(),
        reason: "wedged".into(),
        forced_by: "ann".into(),
    };
    world.admin().await.force_release(force).await.unwrap();
    let lost = watch.next().await.unwrap().unwrap();
    assert_eq!(
        (lost.state(), lost.reason()),
        (LockState::Lost, EndReason::Forced)
    );
    assert!(lost.detail.contains("wedged"));
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn an_open_watch_renews_nothing_and_tells_of_the_end() {
    let world = World::with(quick()).await;
    let mut client = world.client().await;
    let ask = CreateLockRefRequest {
        key: "a".into(),
        ttl: Some(prost_types::Duration {
            seconds: 0,
            nanos: 300_000_000,
        }),
        ..Default::default()
    };
    let held = client.create_lock_ref(ask).await.unwrap().into_inner();
    let mut watch = watch(&mut client, &held.lock_ref).await;
    assert_eq!(
        watch.next().await.unwrap().unwrap().state(),
        LockState::Held
    );
    // Its client may be frozen behind a proxy that answers for it.
    let lost = watch.next().await.unwrap().unwrap();
    assert_eq!(
        (lost.state(), lost.reason()),
        (LockState::Lost, EndReason::Expired)
    );
    let get = CriticalGetRequest {
        lock_ref: held.lock_ref,
        call_no: 0,
    };
    let status = client.critical_get(get).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn a_slow_store_holds_the_client_back_and_queues_nothing() {
    let world = World::new().await;
    let mut client = world.client().await;
    // Nothing is known of this key yet, so its home reads the row. (It is a long one because of the
    // library's limit on small frames that nobody reads.)
    let slow = alive(&format!(
        "default/{}#1.00000000000000000000000000",
        "x".repeat(1000)
    ));
    world.store.send_replace(Mode::Hangs);
    let (sender, asks) = mpsc::channel(1);
    let asks = ReceiverStream::new(asks);
    let mut answers = client.keep_alive(asks).await.unwrap().into_inner();
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
    let answer = answers.next().await.unwrap().unwrap();
    assert_eq!(answer.reason(), EndReason::NoLongerKept);
    for _ in 0..before {
        answers.next().await.unwrap().unwrap();
    }
    assert!(sent.load(Relaxed) > before, "it goes on");
}

#[tokio::test]
async fn a_keep_alive_that_the_store_holds_up_ends_before_its_deadline() {
    let world = World::new().await;
    let client = world.client().await;
    world.store.send_replace(Mode::Hangs);
    until_in_time(|| {
        let mut client = client.clone();
        async move {
            let started = Instant::now();
            let asks = stream::iter([alive("default/slow#1.00000000000000000000000000")]);
            let answers = heard(client.keep_alive(in_ms(asks, 1_000)).await)?.unwrap();
            let status = answers.into_inner().next().await.unwrap().unwrap_err();
            assert_eq!(status.code(), Code::Unavailable);
            (started.elapsed() < Duration::from_millis(1_000)).then_some(())
        }
    })
    .await;
}
