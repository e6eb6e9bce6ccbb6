//! The end of a session by force, whoever keeps it.

use std::time::Duration;

use fermata::engine::{EngineError, LeaseId, SessionCall};
use fermata::lock::SessionId;
use fermata_proto::{DescribeActivityRequest, ListSessionsRequest, LockState, OpenSessionRequest};
use tonic::Code;
use uuid::Uuid;

use crate::access::{Files, by, denied, token};
use crate::ask;
use crate::pair::Pair;
use crate::world::{World, done, refused};

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

#[tokio::test]
async fn who_may_do_so_for_all_keys_ends_a_session_of_somebody_else_with_all_that_lives_by_it() {
    let (billing, orders, ops) = (token("billing"), token("orders"), token("ops"));
    let files = Files::new(&[&billing, &orders, &ops], RULES);
    let world = World::with_access(files.access.clone()).await;
    let (mut client, mut admin) = (world.client().await, world.admin().await);
    let open = OpenSessionRequest {
        owner: "orders".to_owned(),
        ..Default::default()
    };
    let session = done(client.open_session(by(&billing, open))).await.session;
    let create = by(&billing, ask::create_in("orders/1", &session));
    let held = done(client.create_lock_ref(create)).await.lock_ref;
    let create = by(&billing, ask::create("orders/1"));
    let behind = done(client.create_lock_ref(create)).await;
    assert_eq!(behind.state(), LockState::Waiting);
    let list = by(&ops, ListSessionsRequest::default());
    let listed = done(admin.list_sessions(list)).await.sessions.remove(0);
    // Whatever label it has.
    assert_eq!((&*listed.owner, &*listed.identity), ("orders", "billing"));
    let describe = by(&ops, DescribeActivityRequest::default());
    let did = done(admin.describe_activity(describe)).await;
    let busiest = &did.replicas[0].busiest_keys[0];
    assert_eq!((&*busiest.key, &*busiest.identity), ("orders/1", "billing"));

    // Neither its own client, by what is shown, nor who may end locks of some keys only.
    let end = |who| by(who, ask::end_session(&listed.session_id));
    for who in [&billing, &orders] {
        denied(admin.end_session(end(who))).await;
    }
    let get = || by(&billing, ask::critical_get(&held));
    done(client.critical_get(get())).await;

    assert!(!done(admin.end_session(end(&ops))).await.already_ended);
    let (code, reason) = (Code::FailedPrecondition, "SESSION_CLOSED");
    let renew = by(&billing, ask::renew_session(&session));
    refused(client.renew_session(renew), code, reason).await;
    refused(client.critical_get(get()), code, reason).await;
    let acquire = by(&billing, ask::acquire(&behind.lock_ref));
    let next = done(client.acquire_lock(acquire)).await;
    assert_eq!(next.state(), LockState::Held);
    assert!(done(admin.end_session(end(&ops))).await.already_ended);
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
    let end = ask::end_session(&id.to_string());
    assert!(!done(admin.end_session(end)).await.already_ended);
    let renewed = pair.second.renew(&LeaseId::Session(id)).await;
    assert_eq!(renewed.unwrap_err(), EngineError::SessionEnded);
    let unknown = ask::end_session(&Uuid::new_v4().to_string());
    assert!(done(admin.end_session(unknown)).await.already_ended);
}
