//! Rules: what none allows is denied, whichever way it is asked for; and what of that is in the audit log.

use std::time::Duration;

use fermata::lock::{Key, KeyId, TableName};
use fermata_client::public_part;
use fermata_proto::*;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::access::{Files, acquire, by, create, denied, login, put, refused, token};
use crate::logs::Log;
use crate::pair::Pair;
use crate::world::World;

/// So many that some are at each of two replicas.
const KEYS: usize = 40;

const WITHIN: Duration = Duration::from_secs(10);

const RULES: &str = r#"
[[rule]]
who = ["billing"]
table = "default"
key_prefix = "orders/"
allow = ["lock", "read"]

[[rule]]
who = ["ops"]
table = "default"
key_prefix = "orders/"
allow = ["admin"]
"#;

/// Of an entry that one may not lock one learns nothing, nor has a server do anything for it.
#[tokio::test]
async fn a_release_needs_the_right_to_lock() {
    let (billing, other) = (token("billing"), token("other"));
    let files = Files::new(&[&billing, &other], RULES);
    let world = World::with_access(files.access.clone()).await;
    let mut client = world.client().await;
    let release = |lock_ref: &str| ReleaseLockRequest {
        lock_ref: lock_ref.to_owned(),
        ..Default::default()
    };
    let made = client.create_lock_ref(by(&billing, create("orders/1", "")));
    let ended = made.await.unwrap().into_inner().lock_ref;
    let released = client.release_lock(by(&billing, release(&ended))).await;
    assert!(!released.unwrap().into_inner().already_released);
    let made = client.create_lock_ref(by(&billing, create("orders/1", "")));
    let held = made.await.unwrap().into_inner().lock_ref;
    for number in 1..=3 {
        let guessed = format!("default/orders/1#{number}.8{}", "0".repeat(25));
        let answer = client.release_lock(by(&other, release(&guessed))).await;
        assert_eq!(refused(answer), denied(), "{number}");
    }
    // Nor does one whose rule was taken away; what it has expires.
    files.replace(&[&billing, &other], &RULES.replace("billing", "nobody"));
    let denied_now = client.release_lock(by(&billing, release(&held))).await;
    assert_eq!(refused(denied_now), denied());
}

#[tokio::test]
async fn what_no_rule_allows_is_denied() {
    let (billing, ops) = (token("billing"), token("ops"));
    let files = Files::new(&[&billing, &ops], RULES);
    let world = World::with_access(files.access.clone()).await;
    let mut client = world.client().await;
    let held = client
        .create_lock_ref(by(&billing, create("orders/1", "")))
        .await;
    let held = held.unwrap().into_inner();
    assert_eq!(
        refused(
            client
                .create_lock_ref(by(&billing, create("other", "")))
                .await
        ),
        denied()
    );
    assert_eq!(
        refused(
            client
                .create_lock_ref(by(&ops, create("orders/1", "")))
                .await
        ),
        denied()
    );
    // To lock is not to write.
    assert_eq!(
        refused(client.critical_put(by(&billing, put(&held.lock_ref))).await),
        denied()
    );
    let delete = CriticalDeleteRequest {
        lock_ref: held.lock_ref.clone(),
        call_no: 0,
    };
    assert_eq!(
        refused(client.critical_delete(by(&billing, delete)).await),
        denied()
    );
    let with_put = ReleaseLockRequest {
        lock_ref: held.lock_ref.clone(),
        put: Some(Mutation {
            value: "v".into(),
            delete: false,
        }),
        call_no: 0,
    };
    assert_eq!(
        refused(client.release_lock(by(&billing, with_put)).await),
        denied()
    );
    client
        .acquire_lock(by(&billing, acquire(&held.lock_ref)))
        .await
        .unwrap();
    let get = |key: &str| GetRequest {
        key: key.to_owned(),
        ..Default::default()
    };
    client.get(by(&billing, get("orders/1"))).await.unwrap();
    assert_eq!(
        refused(client.get(by(&billing, get("other"))).await),
        denied()
    );
    assert_eq!(
        refused(client.get(by(&ops, get("orders/1"))).await),
        denied()
    );

    let mut admin = world.admin().await;
    let list = |prefix: &str| ListLocksRequest {
        key_prefix: prefix.to_owned(),
        ..Default::default()
    };
    let listed = admin
        .list_locks(by(&ops, list("orders/")))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(listed.locks.len(), 1);
    assert_eq!(
        refused(admin.list_locks(by(&ops, list(""))).await),
        denied()
    );
    assert_eq!(
        refused(admin.list_locks(by(&billing, list("orders/"))).await),
        denied()
    );
    let sessions = admin
        .list_sessions(by(&ops, ListSessionsRequest::default()))
        .await;
    assert_eq!(refused(sessions), denied());
    let describe = |key: &str| DescribeLockRequest {
        key: key.to_owned(),
        ..Default::default()
    };
    // Whoever may lock a key may see for whom it waits.
    for who in [&billing, &ops] {
        let own = admin.describe_lock(by(who, describe("orders/1"))).await;
        own.unwrap();
        let other = admin.describe_lock(by(who, describe("other"))).await;
        assert_eq!(refused(other), denied());
    }
    let force = ForceReleaseRequest {
        name: public_part(&held.lock_ref).to_owned(),
        reason: "stuck".to_owned(),
        ..Default::default()
    };
    assert_eq!(
        refused(admin.force_release(by(&billing, force.clone())).await),
        denied()
    );
    admin.force_release(by(&ops, force)).await.unwrap();
    admin
        .list_tables(by(&billing, ListTablesRequest::default()))
        .await
        .unwrap();

    // Calls of a Pipeline, and each of many renewals, are calls like others.
    let call = |call_id, call| PipelineCall {
        call_id,
        call: Some(call),
        ..Default::default()
    };
    let frame = PipelineRequest {
        calls: vec![
            call(
                1,
                pipeline_call::Call::CreateLockRef(create("orders/2", "")),
            ),
            call(2, pipeline_call::Call::CreateLockRef(create("other", ""))),
            call(3, pipeline_call::Call::Get(get("other"))),
        ],
        ..Default::default()
    };
    let (asks, stream) = mpsc::channel(1);
    asks.send(frame).await.unwrap();
    let answers = client
        .pipeline(by(&billing, ReceiverStream::new(stream)))
        .await;
    let mut answers = answers.unwrap().into_inner();
    let mut came = Vec::new();
    while came.len() < 3 {
        let frame = tokio::time::timeout(WITHIN, answers.next()).await.unwrap();
        came.extend(frame.unwrap().unwrap().answers);
    }
    came.sort_by_key(|answer| answer.call_id);
    let reason = |answer: &PipelineAnswer| match answer.outcome.as_ref().unwrap() {
        pipeline_answer::Outcome::Error(error) => error.reason.clone(),
        other => format!("{other:?}").split('(').next().unwrap().to_owned(),
    };
    let reasons: Vec<String> = came.iter().map(reason).collect();
    assert_eq!(reasons, ["CreateLockRef", "NOT_ALLOWED", "NOT_ALLOWED"]);
}

#[tokio::test]
async fn a_renewal_among_many_is_checked_as_one_by_itself() {
    let billing = token("billing");
    let all = RULES.replace("orders/", "");
    let files = Files::new(&[&billing], &all);
    // Only the replica that a client calls checks what is for another one.
    let pair = Pair::with_access(files.access.clone()).await;
    let mut client = pair.client().await;
    let second = pair.second.replica().to_string();
    let (mut lock_refs, mut denied_at_second) = (Vec::new(), 0);
    let keys = (0..KEYS).map(|n| format!("{}{n}", if n % 2 == 0 { "orders/" } else { "other" }));
    for (n, key) in keys.enumerate() {
        let held = client
            .create_lock_ref(by(&billing, create(&key, "")))
            .await
            .unwrap();
        let home = held.metadata().get("fermata-home-id").unwrap();
        denied_at_second += usize::from(n % 2 == 1 && home.to_str().unwrap() == second);
        lock_refs.push(held.into_inner().lock_ref);
    }
    assert!(denied_at_second > 0);
    files.replace(&[&billing], RULES);
    let before = pair.called.passed_on();
    let renewed = client
        .renew_locks(by(&billing, RenewLocksRequest { lock_refs }))
        .await;
    let outcomes = renewed.unwrap().into_inner().renewals;
    assert_eq!(outcomes.len(), KEYS);
    let mut renewed = 0;
    for (n, one) in outcomes.into_iter().enumerate() {
        match one.outcome.unwrap() {
            lock_renewal::Outcome::Renewed(_) if n % 2 == 0 => renewed += 1,
            lock_renewal::Outcome::Error(error) if n % 2 == 1 => {
                assert_eq!(error.reason, "NOT_ALLOWED");
            }
            // A slow machine's answer may be too late, but never a denial.
            lock_renewal::Outcome::Error(error) => assert_ne!(error.reason, "NOT_ALLOWED"),
            renewed => panic!("{n}: {renewed:?}"),
        }
    }
    assert!(renewed > 0);
    assert_eq!(pair.called.passed_on().0, before.0 + 1);
}

#[tokio::test]
async fn a_rule_that_is_taken_away_ends_waits_and_takes_no_entry() {
    let (billing, other) = (token("billing"), token("other"));
    let rules = RULES.replace("[\"billing\"]", "[\"*\"]");
    let files = Files::new(&[&billing, &other], &rules);
    let world = World::with_access(files.access.clone()).await;
    let mut client = world.client().await;
    let key = "orders/1";
    let held = client
        .create_lock_ref(by(&other, create(key, "")))
        .await
        .unwrap();
    assert_eq!(held.into_inner().state(), LockState::Held);
    let mut waits = Vec::new();
    for give_up in [false, true] {
        let entry = client
            .create_lock_ref(by(&billing, create(key, "")))
            .await
            .unwrap();
        let wait = AcquireLockRequest {
            wait: Some(prost_types::Duration {
                seconds: 60,
                nanos: 0,
            }),
            give_up,
            ..acquire(&entry.into_inner().lock_ref)
        };
        let (mut client, wait) = (client.clone(), by(&billing, wait));
        waits.push(tokio::spawn(async move { client.acquire_lock(wait).await }));
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    files.replace(&[&billing, &other], &RULES.replace("billing", "other"));
    for wait in waits {
        let ended = tokio::time::timeout(WITHIN, wait).await.unwrap();
        assert_eq!(refused(ended.unwrap()), denied());
    }
    // Their entries stay until their TTL: what another connection was answered meanwhile is not known here.
    let described = world.engine.describe_here(&id(key)).unwrap().unwrap();
    assert_eq!(described.state.entries.len(), 3);
}

fn id(key: &str) -> KeyId {
    KeyId {
        table: TableName::default_table(),
        key: Key::parse(key, Key::BYTES_MAX).unwrap(),
    }
}

#[tokio::test]
async fn refusals_and_ends_by_force_are_in_the_audit_log() {
    let log = Log::shared();
    let (billing, ops) = (token("billing-of-audit"), token("ops-of-audit"));
    let rules = RULES
        .replace("billing", "billing-of-audit")
        .replace("\"ops\"", "\"ops-of-audit\"");
    let files = Files::new(&[&billing, &ops], &rules);
    let world = World::with_access(files.access.clone()).await;
    let mut client = world.client().await;
    let held = client
        .create_lock_ref(by(&billing, create("orders/audited", "")))
        .await
        .unwrap()
        .into_inner();
    let unknown = token("x");
    let stranger = client
        .create_lock_ref(by(&unknown, create("orders/audited", "")))
        .await;
    assert_eq!(refused(stranger), login("LOGIN_REFUSED"));
    assert_eq!(
        refused(
            client
                .create_lock_ref(by(&billing, create("audited", "")))
                .await
        ),
        denied()
    );
    // One that it was never given, whoever has it.
    let name = public_part(&held.lock_ref);
    let lock_ref = format!("{name}.8{}", "0".repeat(25));
    let never = (Code::NotFound, "NEVER_ISSUED".to_owned());
    let acquired = client.acquire_lock(by(&billing, acquire(&lock_ref))).await;
    assert_eq!(refused(acquired), never);
    let watch = WatchLockRequest { lock_ref };
    let watched = client.watch_lock(by(&billing, watch)).await;
    assert_eq!(refused(watched), never);
    let force = ForceReleaseRequest {
        name: public_part(&held.lock_ref).to_owned(),
        reason: "audited".to_owned(),
        forced_by: "ann".to_owned(),
    };
    world
        .admin()
        .await
        .force_release(by(&ops, force))
        .await
        .unwrap();
    let text = log.text();
    let line = |words: &[&str]| {
        let mut lines = text.lines().filter(|line| line.contains("fermata::audit"));
        let found = lines.find(|line| words.iter().all(|word| line.contains(word)));
        found.unwrap_or_else(|| panic!("no line with {words:?}"))
    };
    line(&[
        "a login was refused",
        "127.0.0.1:",
        "CreateLockRef",
        "does not know the token",
    ]);
    line(&[
        "a call was denied",
        "billing-of-audit",
        "127.0.0.1:",
        "to lock on the key",
    ]);
    line(&[
        "an end by force",
        "ops-of-audit",
        "default/orders/audited#1",
        "audited",
        "ann",
        "ended",
    ]);
    for token in [&billing, &ops, &unknown] {
        assert!(!text.contains(&token.token), "{}", token.token);
    }
}
