//! Every row of the table of statuses, over a socket.

use fermata::limits::Limits;
use fermata_client::public_part;
use fermata_proto::*;
use tonic::Code;

use crate::lever::Mode;
use crate::world::{World, code_and_reason, create, fields, has_retry_info, hold, in_ms};

fn refused(code: Code, reason: &str) -> (Code, String) {
    (code, reason.to_owned())
}

fn get(lock_ref: &str) -> CriticalGetRequest {
    CriticalGetRequest {
        lock_ref: lock_ref.to_owned(),
        call_no: 0,
    }
}

fn release(lock_ref: &str) -> ReleaseLockRequest {
    ReleaseLockRequest {
        lock_ref: lock_ref.to_owned(),
        ..Default::default()
    }
}

#[tokio::test]
async fn malformed_fields_are_invalid_and_named() {
    let world = World::new().await;
    let mut client = world.client().await;
    let good = CreateLockRefRequest {
        key: "a".into(),
        ..Default::default()
    };
    let cases: [(&str, CreateLockRefRequest); 8] = [
        (
            "key",
            CreateLockRefRequest {
                key: String::new(),
                ..good.clone()
            },
        ),
        (
            "key",
            CreateLockRefRequest {
                key: "x".repeat(1025),
                ..good.clone()
            },
        ),
        (
            "table",
            CreateLockRefRequest {
                table: "no-table".into(),
                ..good.clone()
            },
        ),
        (
            "request_id",
            CreateLockRefRequest {
                request_id: "x".into(),
                ..good.clone()
            },
        ),
        (
            "session",
            CreateLockRefRequest {
                session: "x".into(),
                ..good.clone()
            },
        ),
        (
            "ttl",
            CreateLockRefRequest {
                ttl: Some(prost_types::Duration::default()),
                ..good.clone()
            },
        ),
        (
            "owner",
            CreateLockRefRequest {
                owner: "x".repeat(129),
                ..good.clone()
            },
        ),
        (
            "mode",
            CreateLockRefRequest {
                mode: 99,
                ..good.clone()
            },
        ),
    ];
    for (field, ask) in cases {
        let status = client.create_lock_ref(ask).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{field}");
        assert_eq!(fields(&status), [field]);
    }
    let status = client.critical_get(get("nonsense")).await.unwrap_err();
    assert_eq!(fields(&status), ["lock_ref"]);
    let put = CriticalPutRequest {
        lock_ref: "default/a#1.00000000000000000000000000@1".into(),
        value: vec![0; 1024 * 1024 + 1].into(),
        call_no: 0,
    };
    let status = client.critical_put(put).await.unwrap_err();
    assert_eq!(fields(&status), ["value"]);
    let describe = DescribeLockRequest {
        key: "a".into(),
        ..Default::default()
    };
    let described = world
        .admin()
        .await
        .describe_lock(describe)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (described.holders.len(), described.last_fencing_token),
        (0, 0),
        "nothing changed"
    );
}

#[tokio::test]
async fn a_request_id_with_another_argument_is_invalid() {
    let world = World::new().await;
    let mut client = world.client().await;
    let mut ask = CreateLockRefRequest {
        key: "a".into(),
        request_id: "67e55044-10b1-426f-9247-bb680e5fe0c8".into(),
        ..Default::default()
    };
    client.create_lock_ref(ask.clone()).await.unwrap();
    ask.ttl = Some(prost_types::Duration {
        seconds: 7,
        nanos: 0,
    });
    let answer = client.create_lock_ref(ask).await;
    assert_eq!(
        code_and_reason(answer),
        refused(Code::InvalidArgument, "REQUEST_MISMATCH")
    );
}

#[tokio::test]
async fn a_released_lock_ref_is_stale() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    client.release_lock(release(&held.lock_ref)).await.unwrap();
    let answer = client.critical_get(get(&held.lock_ref)).await;
    assert_eq!(
        code_and_reason(answer),
        refused(Code::FailedPrecondition, "RELEASED")
    );
    let acquire = AcquireLockRequest {
        lock_ref: held.lock_ref,
        ..Default::default()
    };
    let answer = client.acquire_lock(acquire).await;
    assert_eq!(
        code_and_reason(answer),
        refused(Code::FailedPrecondition, "RELEASED")
    );
}

#[tokio::test]
async fn a_lock_ref_whose_client_was_silent_is_expired() {
    let limits = Limits {
        ttl_min_ms: 100,
        ..Limits::default()
    };
    let world = World::with(limits).await;
    let mut client = world.client().await;
    let ask = CreateLockRefRequest {
        key: "a".into(),
        ttl: Some(prost_types::Duration {
            seconds: 0,
            nanos: 200_000_000,
        }),
        ..Default::default()
    };
    let held = client.create_lock_ref(ask).await.unwrap().into_inner();
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let answer = client.critical_get(get(&held.lock_ref)).await;
    assert_eq!(
        code_and_reason(answer),
        refused(Code::FailedPrecondition, "EXPIRED")
    );
    let answer = client.release_lock(release(&held.lock_ref)).await;
    assert_eq!(
        code_and_reason(answer),
        refused(Code::FailedPrecondition, "EXPIRED")
    );
}

#[tokio::test]
async fn a_forced_end_says_by_whom_and_why() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let force = ForceReleaseRequest {
        name: public_part(&held.lock_ref).to_owned(),
        reason: "wedged since Monday".into(),
        forced_by: "ann".into(),
    };
    let mut admin = world.admin().await;
    let mut nameless = force.clone();
    nameless.reason.clear();
    assert_eq!(
        fields(&admin.force_release(nameless).await.unwrap_err()),
        ["reason"]
    );
    let forced = admin
        .force_release(force.clone())
        .await
        .unwrap()
        .into_inner();
    assert!(forced.was_holder && !forced.already_released);
    let forced = admin.force_release(force).await.unwrap().into_inner();
    assert!(forced.already_released);
    let status = client.critical_get(get(&held.lock_ref)).await.unwrap_err();
    let details = tonic_types::StatusExt::get_error_details(&status);
    let info = details.error_info().unwrap();
    assert_eq!(
        (status.code(), info.reason.as_str()),
        (Code::FailedPrecondition, "FORCED")
    );
    assert_eq!(info.metadata["by"], "ann");
    assert_eq!(info.metadata["why"], "wedged since Monday");
}

#[tokio::test]
async fn an_older_grant_is_superseded_and_none_is_not_enough() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let entry = held.lock_ref.split('@').next().unwrap();
    let older = format!("{entry}@{}", held.fencing_token - 1);
    let answer = client.critical_get(get(&older)).await;
    assert_eq!(
        code_and_reason(answer),
        refused(Code::FailedPrecondition, "GRANT_SUPERSEDED")
    );
    let answer = client.critical_get(get(entry)).await;
    assert_eq!(
        code_and_reason(answer),
        refused(Code::FailedPrecondition, "NO_GRANT")
    );
}

#[tokio::test]
async fn a_call_no_must_grow() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let numbered = |call_no| CriticalGetRequest {
        call_no,
        ..get(&held.lock_ref)
    };
    client.critical_get(numbered(5)).await.unwrap();
    let answer = client.critical_get(numbered(5)).await;
    assert_eq!(
        code_and_reason(answer),
        refused(Code::FailedPrecondition, "CALL_NO_NOT_ABOVE")
    );
}

#[tokio::test]
async fn a_try_that_is_not_the_head_is_no_error() {
    let world = World::new().await;
    let mut client = world.client().await;
    hold(&mut client, "a").await;
    let waiter = create(&mut client, "a").await;
    let acquire = AcquireLockRequest {
        lock_ref: waiter.lock_ref.clone(),
        ..Default::default()
    };
    let answer = client.acquire_lock(acquire).await.unwrap().into_inner();
    assert_eq!((answer.state(), answer.position), (LockState::Waiting, 1));
    assert_eq!(answer.lock_ref, waiter.lock_ref);
}

#[tokio::test]
async fn what_never_was_is_not_found() {
    let world = World::new().await;
    let mut client = world.client().await;
    let ask = CreateLockRefRequest {
        key: "a".into(),
        table: "nowhere".into(),
        ..Default::default()
    };
    let answer = client.create_lock_ref(ask).await;
    assert_eq!(
        code_and_reason(answer),
        refused(Code::NotFound, "UNKNOWN_TABLE")
    );
    let answer = client
        .critical_get(get("default/a#1.00000000000000000000000000@1"))
        .await;
    assert_eq!(
        code_and_reason(answer),
        refused(Code::NotFound, "NEVER_ISSUED")
    );
    let answer = client
        .release_lock(release("default/a#1.00000000000000000000000000"))
        .await;
    assert_eq!(
        code_and_reason(answer),
        refused(Code::NotFound, "NEVER_ISSUED")
    );
}

#[tokio::test]
async fn a_session_that_has_ended_is_a_precondition() {
    let world = World::new().await;
    let mut client = world.client().await;
    let opened = client
        .open_session(OpenSessionRequest::default())
        .await
        .unwrap()
        .into_inner();
    let close = CloseSessionRequest {
        session: opened.session.clone(),
    };
    let closed = client
        .close_session(close.clone())
        .await
        .unwrap()
        .into_inner();
    assert!(!closed.already_closed);
    assert!(
        client
            .close_session(close)
            .await
            .unwrap()
            .into_inner()
            .already_closed
    );
    let renew = RenewSessionRequest {
        session: opened.session.clone(),
    };
    let answer = client.renew_session(renew).await;
    assert_eq!(
        code_and_reason(answer),
        refused(Code::FailedPrecondition, "SESSION_CLOSED")
    );
    let ask = CreateLockRefRequest {
        key: "a".into(),
        session: opened.session,
        ..Default::default()
    };
    let answer = client.create_lock_ref(ask).await;
    assert_eq!(
        code_and_reason(answer),
        refused(Code::FailedPrecondition, "SESSION_CLOSED")
    );
}

#[tokio::test]
async fn a_full_queue_names_its_limit_and_when_to_come_back() {
    let limits = Limits {
        entries_per_key_max: 2,
        ..Limits::default()
    };
    let world = World::with(limits).await;
    let mut client = world.client().await;
    create(&mut client, "a").await;
    create(&mut client, "a").await;
    let ask = CreateLockRefRequest {
        key: "a".into(),
        ..Default::default()
    };
    let status = client.create_lock_ref(ask).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(has_retry_info(&status));
    assert!(
        status.message().contains("entries_per_key_max"),
        "{}",
        status.message()
    );
    assert!(status.message().contains('2'), "{}", status.message());
}

#[tokio::test]
async fn too_many_sessions_are_refused() {
    let limits = Limits {
        sessions_max: 1,
        ..Limits::default()
    };
    let world = World::with(limits).await;
    let mut client = world.client().await;
    client
        .open_session(OpenSessionRequest::default())
        .await
        .unwrap();
    let status = client
        .open_session(OpenSessionRequest::default())
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(has_retry_info(&status));
}

#[tokio::test]
async fn a_store_that_fails_is_unavailable_and_may_be_asked_again() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    world.store.send_replace(Mode::Fails);
    let status = client
        .critical_get(in_ms(get(&held.lock_ref), 2_000))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(has_retry_info(&status));
    let ask = GetRequest {
        key: "a".into(),
        ..Default::default()
    };
    let status = client.get(ask).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(has_retry_info(&status));
    world.store.send_replace(Mode::Works);
    client.critical_get(get(&held.lock_ref)).await.unwrap();
}
