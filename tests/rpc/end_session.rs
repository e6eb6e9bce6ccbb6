//! The end of a session by force, whoever keeps it.

use std::time::Duration;

use fermata::engine::{LeaseId, SessionCall};
use fermata::lock::SessionId;
use fermata_proto::{
    CriticalGetRequest, DescribeActivityRequest, EndSessionRequest, ListSessionsRequest, LockState,
    OpenSessionRequest, RenewSessionRequest,
};
use tonic::Code;
use uuid::Uuid;

use crate::access::{Files, by, create, denied, refused, token};
use crate::pair::Pair;
use crate::world::{World, code_and_reason, fields};

const RULES: &str = r#"
[[rule]]
who = ["billing"]
table = "*"
allow = ["lock", "read"]

[[rule]]
who = ["orders"]
table = "*"
key_prefix = "orders/"
allow = ["admin"]

[[rule]]
who = ["ops"]
table = "*"
allow = ["admin"]
"#;

fn end(session_id: &str) -> EndSessionRequest {
    EndSessionRequest {
        session_id: session_id.to_owned(),
        reason: "its host is lost".to_owned(),
        forced_by: "ann".to_owned(),
    }
}

#[tokio::test]
async fn who_may_do_so_for_all_keys_ends_a_session_of_somebody_else_with_all_that_lives_by_it() {
    let (billing, orders, ops) = (token("billing"), token("orders"), token("ops"));
    let files = Files::new(&[&billing, &orders, &ops], RULES);
    let world = World::with_access(files.access.clone()).await;
    let (mut client, mut admin) = (world.client().await, world.admin().await);
    let opened = client.open_session(by(&billing, OpenSessionRequest::default()));
    let session = opened.await.unwrap().into_inner().session;
    let held = client.create_lock_ref(by(&billing, create("orders/1", &session)));
    let held = held.await.unwrap().into_inner().lock_ref;
    let behind = client.create_lock_ref(by(&billing, create("orders/1", "")));
    let behind = behind.await.unwrap().into_inner();
    assert_eq!(behind.state(), LockState::Waiting);
    let listed = admin.list_sessions(by(&ops, ListSessionsRequest::default()));
    let listed = listed.await.unwrap().into_inner().sessions.remove(0);
    assert_eq!(listed.identity, "billing");
    let id = listed.session_id;

    // Neither its own client, by what is shown, nor who may end locks of some keys only.
    for who in [&billing, &orders] {
        assert_eq!(
            refused(admin.end_session(by(who, end(&id))).await),
            denied()
        );
    }
    let get = CriticalGetRequest {
        lock_ref: held.clone(),
        ..Default::default()
    };
    client
        .critical_get(by(&billing, get.clone()))
        .await
        .unwrap();

    let ended = admin.end_session(by(&ops, end(&id))).await.unwrap();
    assert!(!ended.into_inner().already_ended);
    let closed = (Code::FailedPrecondition, "SESSION_CLOSED".to_owned());
    let renew = RenewSessionRequest { session };
    assert_eq!(
        code_and_reason(client.renew_session(by(&billing, renew)).await),
        closed
    );
    assert_eq!(
        code_and_reason(client.critical_get(by(&billing, get)).await),
        closed
    );
    let next = crate::access::acquire(&behind.lock_ref);
    let next = client.acquire_lock(by(&billing, next)).await.unwrap();
    assert_eq!(next.into_inner().state(), LockState::Held);
    let again = admin.end_session(by(&ops, end(&id))).await.unwrap();
    assert!(again.into_inner().already_ended);
}

#[tokio::test]
async fn operators_see_who_opened_a_session_and_who_holds_a_key_by_whatever_label() {
    let (billing, ops) = (token("billing"), token("ops"));
    let files = Files::new(&[&billing, &ops], RULES);
    let world = World::with_access(files.access.clone()).await;
    let (mut client, mut admin) = (world.client().await, world.admin().await);
    let open = OpenSessionRequest {
        owner: "orders".to_owned(),
        ..Default::default()
    };
    let opened = client.open_session(by(&billing, open)).await.unwrap();
    let session = opened.into_inner().session;
    let held = client.create_lock_ref(by(&billing, create("k", &session)));
    held.await.unwrap();
    let listed = admin.list_sessions(by(&ops, ListSessionsRequest::default()));
    let listed = listed.await.unwrap().into_inner().sessions.remove(0);
    assert_eq!(
        (listed.owner.as_str(), listed.identity.as_str()),
        ("orders", "billing")
    );
    let did = admin.describe_activity(by(&ops, DescribeActivityRequest::default()));
    let did = did.await.unwrap().into_inner();
    let busiest = &did.replicas[0].busiest_keys[0];
    assert_eq!(
        (busiest.key.as_str(), busiest.identity.as_str()),
        ("k", "billing")
    );
}

#[tokio::test]
async fn a_session_that_another_replica_keeps_is_ended_there() {
    let pair = Pair::new().await;
    let id = SessionId(Uuid::new_v4());
    let call = SessionCall {
        id,
        ttl_ms: 60_000,
        disconnect_grace_ms: 0,
        owner: String::new(),
        identity: String::new(),
        share_of: "".into(),
        waited: Duration::ZERO,
    };
    pair.second.open_session(call).await.unwrap();
    let mut admin = pair.admin().await;
    let ended = admin.end_session(end(&id.to_string())).await.unwrap();
    assert!(!ended.into_inner().already_ended);
    let renewed = pair.second.renew(&LeaseId::Session(id)).await;
    assert_eq!(
        renewed.unwrap_err(),
        fermata::engine::EngineError::SessionEnded
    );
    let unknown = end(&Uuid::new_v4().to_string());
    let unknown = admin.end_session(unknown).await.unwrap();
    assert!(unknown.into_inner().already_ended);
}

#[tokio::test]
async fn what_is_not_the_id_of_a_session_or_has_no_reason_is_refused() {
    let world = World::new().await;
    let (mut client, mut admin) = (world.client().await, world.admin().await);
    let opened = client.open_session(OpenSessionRequest::default()).await;
    let session = opened.unwrap().into_inner().session;
    let (id, _secret) = session.split_once('.').unwrap();
    for (ask, field, reason) in [
        (end(""), "session_id", "MISSING"),
        (end("s1"), "session_id", "MALFORMED"),
        (end(&session), "session_id", "MALFORMED"),
        (
            EndSessionRequest {
                reason: String::new(),
                ..end(id)
            },
            "reason",
            "MISSING",
        ),
    ] {
        let status = admin.end_session(ask).await.unwrap_err();
        assert_eq!(fields(&status), [field], "{status:?}");
        assert!(!status.message().contains(&session), "{status:?}");
        let refused = code_and_reason(Err::<(), _>(status));
        assert_eq!(refused, (Code::InvalidArgument, reason.to_owned()));
    }
    let renew = RenewSessionRequest { session };
    client.renew_session(renew).await.unwrap();
}
