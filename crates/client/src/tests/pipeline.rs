//! Calls over a Pipeline that breaks, or is not taken.

use std::sync::Arc;

use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::fake::{Act, refusal};
use super::{World, secs};
use crate::{ClientOptions, LockRequest, Mutation, SessionRequest};

#[tokio::test(start_paused = true)]
async fn calls_go_over_one_stream() {
    let world = World::new();
    let guard = world.client.lock("k").await.unwrap();
    guard.put("a").await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(world.fake.count("pipeline"), 1);
    assert_eq!(world.fake.count("put"), 1);
}

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
async fn where_no_pipeline_is_taken_calls_go_by_themselves() {
    let world = World::new();
    let unknown = Status::unimplemented("a proxy that does not know it");
    world.fake.always("pipeline", Act::Refuse(unknown));
    let guard = world.client.lock("k").await.unwrap();
    guard.put("a").await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(world.fake.count("put"), 1);
    // It is not asked for again and again.
    assert_eq!(world.fake.count("pipeline"), 1);
}

#[tokio::test(start_paused = true)]
async fn where_it_is_not_taken_any_more_calls_go_by_themselves() {
    let world = World::new();
    let guard = world.client.lock("k").await.unwrap();
    let unknown = Status::unimplemented("an older version");
    world.fake.always("pipeline", Act::Refuse(unknown));
    world.fake.break_pipelines();
    tokio::time::sleep(secs(1)).await;
    guard.put("a").await.unwrap();
    guard.put("b").await.unwrap();
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
async fn one_that_answers_nothing_is_given_up() {
    let world = World::new();
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
    let world = World::with(ClientOptions {
        attempt_timeout: secs(60),
        timeout: secs(60),
        ..ClientOptions::default()
    });
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
async fn after_a_large_value_was_read_reads_go_by_themselves_until_one_is_small() {
    let world = World::new();
    let guard = world.client.lock("k").await.unwrap();
    let refused = Act::Refuse(Status::unavailable("no more of them"));
    for (size, in_frame) in [(100_000, true), (100_000, false), (10, false), (10, true)] {
        guard.put(vec![7; size]).await.unwrap();
        let opened = world.fake.count("pipeline");
        world.fake.break_pipelines();
        tokio::time::sleep(secs(1)).await;
        world.fake.next("pipeline", refused.clone());
        assert_eq!(guard.get().await.unwrap().unwrap().len(), size);
        // One is refused, and another one opened.
        let asked = world.fake.count("pipeline") - opened;
        assert_eq!(asked, if in_frame { 2 } else { 0 }, "{size}");
        if !in_frame {
            world.fake.state().acts.clear();
        }
    }
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
    let world = World::new();
    let guard = world.client.lock("k").await.unwrap();
    world.fake.always(
        "pipeline",
        Act::Refuse(Status::unavailable("no more of them")),
    );
    world.fake.break_pipelines();
    guard.put(vec![7; 100_000]).await.unwrap();
    assert_eq!(world.fake.count("put"), 1);
}

#[tokio::test(start_paused = true)]
async fn many_calls_at_once_each_get_their_own_answer() {
    let world = World::new();
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..3_000_u32 {
        let client = world.client.clone();
        calls.spawn(async move {
            let session = format!("session-{number}");
            let renewed = client.renew_session(&session).await.unwrap();
            assert_eq!(renewed.session, session);
        });
    }
    while let Some(done) = calls.join_next().await {
        done.unwrap();
    }
    assert_eq!(world.fake.count("renew"), 3_000);
    assert_eq!(world.fake.count("pipeline"), 1);
}

#[test]
fn only_of_a_server_that_stops_it_is_known_that_the_rest_was_not_read() {
    let stopping = refusal(Code::Unavailable, "STOPPING", "the replica stops");
    let stopping = crate::pipeline::of_calls(stopping, true);
    assert_eq!(
        stopping.get_details_error_info().unwrap().reason,
        "STOPPING"
    );
    let refused = refusal(
        Code::InvalidArgument,
        "TOO_LARGE",
        "a frame that is too large",
    );
    let refused = crate::pipeline::of_calls(refused, true);
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.get_details_error_info().is_none());
    for (is_answered, code) in [(false, Code::Unimplemented), (true, Code::Unavailable)] {
        let unknown = Status::unimplemented("not known");
        assert_eq!(crate::pipeline::of_calls(unknown, is_answered).code(), code);
    }
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
