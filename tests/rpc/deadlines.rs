//! Calls are answered a little before their deadline, whatever the store does.

use std::time::{Duration, Instant};

use fermata::limits::Limits;
use fermata_proto::*;
use tonic::body::Body;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt as _;

use crate::ask;
use crate::lever::Mode;
use crate::malformed;
use crate::world::{
    World, create, done, has_retry_info, heard, hold, in_ms, refused, until_in_time,
};

#[tokio::test]
async fn a_wait_is_answered_with_waiting_before_the_deadline() {
    let world = World::new().await;
    let mut client = world.client().await;
    hold(&mut client, "a").await;
    let waiter = create(&mut client, "a").await;
    for ms in [5, 50, 400, 1_500] {
        // The longest that can be said: no clock overflows by it.
        let acquire = AcquireLockRequest {
            wait: ask::seconds(i64::MAX),
            ..ask::acquire(&waiter.lock_ref)
        };
        let (answer, took) = until_in_time(async || {
            let started = Instant::now();
            let answer = heard(client.acquire_lock(in_ms(acquire.clone(), ms)).await)?;
            // On a busy machine the end of the wait may come so late that the server gives up first.
            let gave_up = |status: &Status| status.code() == Code::Unavailable;
            let in_time = !answer.as_ref().is_err_and(gave_up);
            in_time.then(|| (answer.unwrap().into_inner(), started.elapsed()))
        })
        .await;
        assert_eq!((answer.state(), answer.position), (LockState::Waiting, 1));
        assert!(
            took * 3 > Duration::from_millis(ms) || ms < 50,
            "{took:?} of {ms} ms"
        );
    }
}

#[tokio::test]
async fn a_call_that_the_store_does_not_answer_is_unavailable_before_the_deadline() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    world.store.send_replace(Mode::Hangs);
    for ms in [20, 100, 600] {
        let read = until_in_time(async || heard(client.get(in_ms(ask::get("a"), ms)).await));
        let status = read.await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{ms} ms: {status:?}");
        assert!(has_retry_info(&status), "{ms} ms: {status:?}");
    }
    let put = ask::critical_put(&held.lock_ref, "v");
    let mut patient = world.patient_client().await;
    let put = patient.critical_put(in_ms(put, 1_000));
    let status = refused(put, Code::Unavailable, "OUTCOME_UNKNOWN").await;
    let info = status.get_details_error_info().unwrap();
    assert_eq!(info.metadata["write"], "unknown");
}

#[tokio::test]
async fn a_create_of_unknown_outcome_is_found_again_by_its_request_id() {
    let world = World::new().await;
    let mut client = world.client().await;
    let ask = CreateLockRefRequest {
        request_id: "67e55044-10b1-426f-9247-bb680e5fe0c8".into(),
        ..ask::create("a")
    };
    world.store.send_replace(Mode::Hangs);
    let mut patient = world.patient_client().await;
    let status = patient
        .create_lock_ref(in_ms(ask.clone(), 500))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    world.store.send_replace(Mode::Works);
    let created = done(client.create_lock_ref(ask)).await;
    assert_eq!(created.state(), LockState::Held);
    let other = create(&mut client, "a").await;
    assert_eq!(other.position, 1);
}

/// The longest that gRPC can say, eleven thousand years.
const AGES: &str = "99999999H";

fn for_ages<T>(ask: T) -> Request<T> {
    let mut request = Request::new(ask);
    let metadata = request.metadata_mut();
    metadata.insert("grpc-timeout", AGES.parse().unwrap());
    request
}

#[tokio::test]
async fn a_deadline_of_ages_does_not_take_over_from_the_limit_of_the_server() {
    let limits = Limits {
        call_max_ms: 300,
        ..Limits::default()
    };
    let world = World::with(limits).await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    world.store.send_replace(Mode::Hangs);
    let begun = Instant::now();
    let get = ask::get("b");
    let put = ask::critical_put(&held.lock_ref, "v");
    let listed = world
        .admin()
        .await
        .list_locks(for_ages(ListLocksRequest::default()))
        .await;
    let codes = [
        client.get(for_ages(get.clone())).await.unwrap_err().code(),
        client.critical_put(for_ages(put)).await.unwrap_err().code(),
        listed.unwrap_err().code(),
    ];
    assert_eq!(codes, [Code::Unavailable; 3]);

    // The same of a call in a frame, and of one whose message never comes.
    let call = PipelineCall {
        call_id: 1,
        traceparent: String::new(),
        timeout: ask::seconds(315_576_000_000),
        call: Some(pipeline_call::Call::Get(get)),
    };
    let frame = PipelineRequest {
        calls: vec![call],
        ..Default::default()
    };
    let asks = futures_util::stream::iter([frame]);
    let mut answers = done(client.pipeline(for_ages(asks))).await;
    let answer = answers.message().await.unwrap().unwrap().answers.remove(0);
    let Some(pipeline_answer::Outcome::Error(error)) = answer.outcome else {
        panic!("{answer:?}");
    };
    assert_eq!(Code::from_i32(error.code), Code::Unavailable);
    let never =
        futures_util::stream::pending::<Result<http_body::Frame<bytes::Bytes>, tonic::Status>>();
    let status = malformed::call(
        &world,
        "/fermata.v1.LockService/Get",
        Body::new(http_body_util::StreamBody::new(never)),
        &[("grpc-timeout", AGES)],
    )
    .await;
    assert_eq!(status.code(), Code::Unavailable);
    // Any of them would have taken for ever.
    assert!(begun.elapsed() < Duration::from_secs(60));
}
