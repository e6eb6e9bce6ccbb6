//! Calls over a Pipeline: that share it, that hang on it, and that it breaks under.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tonic::{Code, Status};
use tonic_types::StatusExt;
use uuid::Uuid;

use super::fake::{Act, refusal};
use super::{World, secs};
use crate::transport::pipeline::of_calls;
use crate::{ClientOptions, LockRequest, Mutation, SessionRequest};

#[tokio::test(start_paused = true)]
async fn a_section_with_a_value_takes_two_calls() {
    let world = World::new();
    for written in [None, Some("1"), Some("2")] {
        let guard = world.client.lock(LockRequest::new("k").read_value());
        let guard = guard.await.unwrap();
        let found = guard.granted_value().unwrap().clone();
        assert_eq!(found.as_deref(), written.map(str::as_bytes));
        assert!(!format!("{guard:?}").contains("bytes"));
        let next = if found.is_none() { "1" } else { "2" };
        let put = Mutation::Put(next.into());
        guard.release_with(put).await.unwrap();
    }
    for method in ["get", "put", "acquire"] {
        assert_eq!(world.fake.count(method), 0, "{method}");
    }
    // One that waits is told with the grant.
    let before = world.fake.occupy();
    let client = world.client.clone();
    let waits = tokio::spawn(async move {
        let guard = client.lock(LockRequest::new("k").read_value());
        guard.await.unwrap().granted_value().unwrap().clone()
    });
    tokio::time::sleep(secs(1)).await;
    world.fake.state().value = Some("3".into());
    world.fake.end(&before, "RELEASED", "released");
    assert_eq!(waits.await.unwrap().as_deref(), Some(&b"3"[..]));
    assert_eq!(world.fake.count("get"), 0);
    let guard = world.client.lock("k").await.unwrap();
    assert!(guard.granted_value().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_stream_breaks_is_made_again_on_the_next_one() {
    let world = World::new();
    let guard = Arc::new(world.client.lock("k").await.unwrap());
    world.fake.next("put", Act::Hang);
    let putting = tokio::spawn({
        let guard = Arc::clone(&guard);
        async move { guard.put("a").await }
    });
    while world.fake.count("put") == 0 {
        tokio::time::sleep(secs(1) / 100).await;
    }
    world.fake.break_pipelines();
    putting.await.unwrap().unwrap();
    assert_eq!(world.fake.count("put"), 2);
    assert_eq!(world.fake.count("pipeline"), 2);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_not_used_is_ended_and_opened_again() {
    let world = World::new();
    world.client.renew_session("session-s").await.unwrap();
    assert_eq!(world.fake.state().pipelines_open, 1);
    tokio::time::sleep(secs(62)).await;
    assert_eq!(world.fake.state().pipelines_open, 0);
    world.client.renew_session("session-s").await.unwrap();
    assert_eq!(world.fake.count("pipeline"), 2);
}

#[tokio::test(start_paused = true)]
async fn one_that_answers_nothing_any_more_is_given_up() {
    let world = World::new();
    world.client.renew_session("session-s").await.unwrap();
    world.fake.state().ignores_given_up = true;
    world.fake.next("renew", Act::Hang);
    world.fake.next("renew", Act::Hang);
    world.fake.next("renew", Act::Hang);
    world.client.renew_session("session-s").await.unwrap_err();
    world.client.renew_session("session-s").await.unwrap();
    assert_eq!(world.fake.count("pipeline"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_nobody_waits_for_is_ended_at_the_server_and_is_no_other_ones_end() {
    let world = patient();
    world.fake.always("renew", Act::Hang);
    let client = world.client.clone();
    let slow = tokio::spawn(async move { client.renew_session("session-s").await });
    let dropped = world.client.renew_session("session-d");
    tokio::time::timeout(secs(1), dropped).await.unwrap_err();
    tokio::time::sleep(secs(30)).await;
    assert_eq!(world.fake.count("given_up"), 1);
    assert_eq!(world.fake.count("pipeline"), 1);
    assert!(!slow.is_finished());
}

#[tokio::test(start_paused = true)]
async fn without_the_option_no_pipeline_is_opened() {
    let world = World::with(ClientOptions {
        pipeline: false,
        ..ClientOptions::default()
    });
    let guard = world.client.lock("k").await.unwrap();
    guard.put("a").await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(world.fake.count("put"), 1);
    assert_eq!(world.fake.count("pipeline"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_large_goes_by_itself() {
    let (world, guard) = World::locked().await;
    world.fake.always(
        "pipeline",
        Act::Refuse(Status::unavailable("no more of them")),
    );
    world.fake.break_pipelines();
    guard.put(vec![7; 100_000]).await.unwrap();
    assert_eq!(world.fake.count("put"), 1);
}

/// As many calls that hang at the server as `number`.
fn hang(world: &World, number: usize) -> JoinSet<()> {
    world.fake.always("read", Act::Hang);
    let mut calls = JoinSet::new();
    for _ in 0..number {
        let client = world.client.clone();
        calls.spawn(async move {
            let read = client.get("", "k").await;
            panic!("{read:?}");
        });
    }
    calls
}

fn patient() -> World {
    World::with(ClientOptions {
        attempt_timeout: secs(60),
        timeout: secs(60),
        ..ClientOptions::default()
    })
}

#[tokio::test(start_paused = true)]
async fn many_calls_at_once_each_get_their_own_answer() {
    let world = World::new();
    // So that as many as may be are there at the same time.
    world.fake.always("create", Act::Late(secs(1) / 100));
    let mut calls = JoinSet::new();
    for _ in 0..3_000 {
        let client = world.client.clone();
        calls.spawn(async move {
            let request_id = Uuid::new_v4();
            let request = LockRequest::new("k");
            let created = client.create_lock_ref(&request, "session-s", request_id);
            (created.await.unwrap().lock_ref, request_id)
        });
    }
    let mut answered = BTreeMap::new();
    while let Some(done) = calls.join_next().await {
        let (lock_ref, request_id) = done.unwrap();
        let lock_ref = lock_ref.split('@').next().unwrap().to_owned();
        answered.insert(lock_ref, request_id.to_string());
    }
    let state = world.fake.state();
    assert_eq!(answered, state.queue.iter().cloned().collect());
    assert_eq!(answered.len(), 3_000);
    assert_eq!(state.in_frames, 3_000);
    // With more than 1,024 it would read nothing that is given up.
    let most = state.in_pipeline_max;
    assert!((900..=1_024).contains(&most), "{most}");
    drop(state);
    assert_eq!(world.fake.count("pipeline"), 1);
}

#[tokio::test(start_paused = true)]
async fn calls_that_hang_are_given_up_however_many_there_are() {
    let world = patient();
    let mut calls = hang(&world, 2_000);
    tokio::time::sleep(secs(1)).await;
    let sent = world.fake.count("read");
    assert!((900..=1_024).contains(&sent), "{sent}");
    calls.abort_all();
    let opening = world.client.open_session(SessionRequest::new());
    let opened = tokio::time::timeout(secs(1), opening).await;
    let _session = opened.expect("there is room again").unwrap();
    assert_eq!(world.fake.count("given_up"), sent);
    assert_eq!(world.fake.count("pipeline"), 1);
    while calls.join_next().await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn a_holder_waits_behind_no_calls_that_hang() {
    let world = patient();
    let guard = world.client.lock("k").await.unwrap();
    let _calls = hang(&world, 2_000);
    tokio::time::sleep(secs(1)).await;
    let done = async {
        guard.put("a").await.unwrap();
        guard.get().await.unwrap();
        guard.delete().await.unwrap();
        guard.release().await.unwrap();
    };
    let done = tokio::time::timeout(secs(1), done).await;
    done.expect("no wait for the calls that hang");
}

#[tokio::test(start_paused = true)]
async fn renewals_wait_behind_no_calls_that_hang() {
    let world = patient();
    let guard = world.client.lock("k").await.unwrap();
    let _calls = hang(&world, 2_000);
    tokio::time::sleep(secs(1)).await;
    let lock_ref = guard.lock_ref();
    for _ in 0..200 {
        let renewed = async {
            let client = &world.client;
            client.renew_session("session-s").await.unwrap();
            client.acquire_lock(&lock_ref).await.unwrap();
        };
        let renewed = tokio::time::timeout(secs(1), renewed).await;
        renewed.expect("it waits behind what hangs");
    }
    // Nor behind renewals that do.
    world.fake.always("renew", Act::Hang);
    let mut renewals = JoinSet::new();
    for number in 0..200 {
        let client = world.client.clone();
        let session = format!("session-{number}");
        renewals.spawn(async move { client.renew_session(&session).await });
    }
    tokio::time::sleep(secs(1)).await;
    assert_eq!(world.fake.count("renew"), 400);
    let most = world.fake.state().in_pipeline_max;
    assert!(most <= 1_024, "{most}");
}

#[tokio::test(start_paused = true)]
async fn what_is_given_up_makes_no_frame_too_large() {
    let world = patient();
    let guard = world.client.lock("k").await.unwrap();
    world.fake.always("read", Act::Hang);
    let calls = (0..900).map(|_| world.client.get("", "k"));
    let hang = tokio::time::timeout(secs(1), join_all(calls)).await;
    assert!(hang.is_err());
    // What is to be told with the next frame, which this would fill.
    guard.put(vec![7; 16_000]).await.unwrap();
    tokio::time::sleep(secs(1)).await;
    assert_eq!(world.fake.count("given_up"), 900);
    assert_eq!(world.fake.count("put"), 1);
    assert_eq!(world.fake.count("pipeline"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_is_given_up_at_the_server_before_its_repeat_comes() {
    let world = World::with(ClientOptions {
        attempt_timeout: secs(11) / 10,
        ..ClientOptions::default()
    });
    world.fake.next("renew", Act::Hang);
    world.client.renew_session("session-s").await.unwrap();
    let came = [
        "pipeline ",
        "renew session-s",
        "given_up",
        "renew session-s",
    ];
    assert_eq!(world.fake.state().calls, came);
}

#[test]
fn only_of_a_server_that_stops_it_is_known_that_the_rest_was_not_read() {
    let stopping = refusal(Code::Unavailable, "STOPPING", "the replica stops");
    let stopping = of_calls(stopping);
    assert_eq!(
        stopping.get_details_error_info().unwrap().reason,
        "STOPPING"
    );
    let too_large = refusal(
        Code::InvalidArgument,
        "TOO_LARGE",
        "a frame that is too large",
    );
    let mut calm = Status::resource_exhausted("h2 protocol error: ENHANCE_YOUR_CALM");
    calm.set_source(Arc::new(std::io::Error::other("calm")));
    let by_proxy = Status::permission_denied("403");
    for status in [too_large, by_proxy, calm] {
        let has_source = status.source().is_some();
        let known = of_calls(status);
        assert_eq!(known.code(), Code::Unavailable);
        assert!(known.get_details_error_info().is_none());
        assert_eq!(known.source().is_some(), has_source);
    }
    let mut broken = Status::internal("broken");
    broken.set_source(Arc::new(std::io::Error::other("reset")));
    assert_eq!(of_calls(broken).code(), Code::Internal);
}

/// What users await is to be awaited in tasks of their own, too.
#[tokio::test(start_paused = true)]
async fn every_call_can_be_spawned() {
    async fn spawned<T: Send + 'static>(call: impl Future<Output = T> + Send + 'static) -> T {
        tokio::spawn(call).await.unwrap()
    }
    let world = World::new();
    let client = world.client.clone();
    let made = spawned(async move {
        let session = client.open_session(SessionRequest::new()).await.unwrap();
        client.get("", "k").await.unwrap();
        let guard = session.lock("k").await.unwrap();
        client.acquire_lock(&guard.lock_ref()).await.unwrap();
        (session, guard)
    })
    .await;
    let (session, guard) = made;
    spawned(async move {
        guard.put("a").await.unwrap();
        guard.get().await.unwrap();
        guard.delete().await.unwrap();
        guard.release_with(Mutation::Delete).await.unwrap();
        session.close().await.unwrap();
    })
    .await;
}
