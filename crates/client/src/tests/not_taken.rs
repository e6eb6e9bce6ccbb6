//! Where a Pipeline is refused, or nothing comes of it, calls go by themselves.

use std::sync::Arc;

use tonic::{Code, Status};

use super::fake::{Act, refusal};
use super::{World, is_in_doubt, limited, secs};
use crate::transport::pipeline::is_refusal;
use crate::{ClientOptions, CreateError};

#[tokio::test(start_paused = true)]
async fn where_it_is_not_taken_any_more_calls_go_by_themselves() {
    let (world, guard) = World::locked().await;
    let unknown = Status::unimplemented("an older version");
    world.fake.always("pipeline", Act::Refuse(unknown));
    world.fake.break_pipelines();
    tokio::time::sleep(secs(1)).await;
    guard.put("a").await.unwrap();
    guard.put("b").await.unwrap();
    assert_eq!(world.fake.count("put"), 2);
    assert_eq!(world.fake.count("pipeline"), 2);
}

/// What a proxy says that takes calls, and no such stream.
fn refusals() -> [Status; 4] {
    [
        Status::permission_denied("grpc-status header missing, mapped from HTTP status code 403"),
        Status::unauthenticated("grpc-status header missing, mapped from HTTP status code 401"),
        Status::resource_exhausted("too many streams"),
        Status::unknown("grpc-status header missing, mapped from HTTP status code 405"),
    ]
}

#[tokio::test(start_paused = true)]
async fn where_a_proxy_refuses_the_stream_calls_go_by_themselves() {
    let unknown = Status::unimplemented("a proxy that does not know it");
    let of_this_path_alone =
        Status::unimplemented("grpc-status header missing, mapped from HTTP status code 404");
    for refused in refusals().into_iter().chain([unknown, of_this_path_alone]) {
        let world = World::new();
        world.fake.always("pipeline", Act::Refuse(refused.clone()));
        let guard = world.client.lock("k").await.unwrap();
        guard.put("a").await.unwrap();
        guard.release().await.unwrap();
        let counts = ["put", "pipeline"].map(|method| world.fake.count(method));
        assert_eq!(counts, [1, 1], "{refused:?}");
        assert_eq!(world.fake.state().in_frames, 0, "{refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_on_a_stream_that_is_refused_is_in_doubt() {
    let (world, guard) = World::locked().await;
    let refused = Act::Refuse(Status::permission_denied("403"));
    world.fake.always("pipeline", refused);
    world.fake.break_pipelines();
    tokio::time::sleep(secs(1)).await;
    // It may have been passed on before the stream was refused. Its repeat has the next number, and is refused.
    world.fake.next("put", limited());
    let put = guard.put("a").await;
    is_in_doubt(&put);
    assert_eq!(world.fake.calls("put").len(), 1);
    guard.put("b").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn once_a_minute_it_is_tried_whether_the_stream_is_taken_by_now() {
    let world = World::new();
    let refused = Act::Refuse(Status::permission_denied("403"));
    world.fake.always("pipeline", refused);
    let guard = world.client.lock("k").await.unwrap();
    for tried in 2..5 {
        tokio::time::sleep(secs(61)).await;
        guard.put("a").await.unwrap();
        guard.put("a").await.unwrap();
        tokio::time::sleep(secs(1)).await;
        assert_eq!(world.fake.count("pipeline"), tried);
    }
    // No call of anybody was lost on it.
    assert_eq!(world.fake.count("put"), 6);
    world.fake.state().always.clear();
    tokio::time::sleep(secs(61)).await;
    guard.put("a").await.unwrap();
    tokio::time::sleep(secs(1)).await;
    let in_frames = world.fake.state().in_frames;
    guard.put("b").await.unwrap();
    assert_eq!(world.fake.state().in_frames, in_frames + 1);
}

#[tokio::test(start_paused = true)]
async fn where_nothing_ever_comes_of_the_stream_calls_go_by_themselves() {
    for is_opened in [true, false] {
        let world = World::new();
        match is_opened {
            true => world.fake.state().swallows_frames = true,
            false => world.fake.always("pipeline", Act::Hang),
        }
        let guard = world.client.lock("k").await.unwrap();
        let start = tokio::time::Instant::now();
        guard.put("a").await.unwrap();
        assert!(start.elapsed() < secs(1), "{:?}", start.elapsed());
        // Whoever tries it hangs, and nobody else.
        tokio::time::sleep(secs(120)).await;
        let start = tokio::time::Instant::now();
        guard.put("b").await.unwrap();
        assert!(start.elapsed() < secs(1), "{:?}", start.elapsed());
        tokio::time::sleep(secs(20)).await;
        // Each minute.
        assert_eq!(world.fake.count("pipeline"), 3);
        world.fake.state().swallows_frames = false;
        world.fake.state().always.clear();
        tokio::time::sleep(secs(60)).await;
        guard.put("c").await.unwrap();
        tokio::time::sleep(secs(1)).await;
        let in_frames = world.fake.state().in_frames;
        guard.put("d").await.unwrap();
        assert_eq!(world.fake.state().in_frames, in_frames + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn where_nothing_comes_of_streams_any_more_calls_go_by_themselves() {
    let world = World::with(ClientOptions {
        timeout: secs(60),
        ..ClientOptions::default()
    });
    let guard = world.client.lock("k").await.unwrap();
    world.fake.state().swallows_frames = true;
    let start = tokio::time::Instant::now();
    guard.put("a").await.unwrap();
    // Until the first stream is found to be silent, and the next one as well.
    assert!(start.elapsed() < secs(25), "{:?}", start.elapsed());
    let start = tokio::time::Instant::now();
    guard.put("b").await.unwrap();
    assert!(start.elapsed() < secs(1), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_first_call_that_hangs_at_the_server_alone_is_no_silence_of_the_stream() {
    let world = World::with(ClientOptions {
        attempt_timeout: secs(1),
        ..ClientOptions::default()
    });
    world.fake.next("create", Act::Hang);
    let guard = world.client.lock("k").await.unwrap();
    guard.put("a").await.unwrap();
    assert_eq!(world.fake.state().in_frames, 3);
    assert_eq!(world.fake.count("pipeline"), 1);
}

#[test]
fn a_refusal_is_final_and_no_server_of_ours_said_it_and_nothing_was_answered_before() {
    for status in refusals() {
        assert!(is_refusal(&status, false), "{status:?}");
        assert!(!is_refusal(&status, true), "{status:?}");
    }
    let mut broken = Status::internal("broken");
    broken.set_source(Arc::new(std::io::Error::other("reset")));
    for status in [
        Status::unavailable("503"),
        broken,
        refusal(Code::Unavailable, "STOPPING", "the replica stops"),
        refusal(Code::InvalidArgument, "TOO_LARGE", "a frame of too many"),
    ] {
        assert!(!is_refusal(&status, false), "{status:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_not_known_is_final_at_once_also_over_a_pipeline() {
    let world = World::new();
    let refused = refusal(Code::Unauthenticated, "LOGIN_REFUSED", "not known");
    world.fake.always("pipeline", Act::Refuse(refused.clone()));
    world.fake.always("create", Act::Refuse(refused));
    let begun = tokio::time::Instant::now();
    let denied = world.client.enqueue("k").await.unwrap_err();
    assert!(matches!(denied, CreateError::Denied(_)), "{denied:?}");
    // It was not tried for the whole timeout.
    assert!(begun.elapsed() < secs(1));
    assert!(world.fake.count("pipeline") <= 2);
}
