//! Rules: what none allows is denied, whichever way it is asked for; and what of that is in the audit log.

use std::time::Duration;

use fermata::lock::{Key, KeyId, TableName};
use fermata_client::public_part;
use fermata_proto::*;
use tokio::time::timeout;

use crate::access::{Files, by, denied, token, unknown};
use crate::ask;
use crate::logs::Log;
use crate::pair::Pair;
use crate::world::{World, done};

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
        let create = by(&billing, ask::create(&key));
        let held = client.create_lock_ref(create).await.unwrap();
        let home = held.metadata().get("fermata-home-id").unwrap();
        denied_at_second += usize::from(n % 2 == 1 && home.to_str().unwrap() == second);
        lock_refs.push(held.into_inner().lock_ref);
    }
    assert!(denied_at_second > 0);
    files.replace(&[&billing], RULES);
    let before = pair.called.passed_on();
    let renew = by(&billing, RenewLocksRequest { lock_refs });
    let outcomes = done(client.renew_locks(renew)).await.renewals;
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
    let held = done(client.create_lock_ref(by(&other, ask::create(key)))).await;
    assert_eq!(held.state(), LockState::Held);
    let mut waits = Vec::new();
    for give_up in [false, true] {
        let entry = done(client.create_lock_ref(by(&billing, ask::create(key)))).await;
        let wait = AcquireLockRequest {
            give_up,
            ..ask::wait(&entry.lock_ref, 60)
        };
        let (mut client, wait) = (client.clone(), by(&billing, wait));
        waits.push(tokio::spawn(async move { client.acquire_lock(wait).await }));
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    files.replace(&[&billing, &other], &RULES.replace("billing", "other"));
    for wait in waits {
        let ended = timeout(WITHIN, wait).await.unwrap().unwrap();
        denied(async { ended }).await;
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
    let create = || ask::create("orders/audited");
    let held = done(client.create_lock_ref(by(&billing, create()))).await;
    let stranger = token("x");
    let refused_login = client.create_lock_ref(by(&stranger, create()));
    unknown(refused_login, "LOGIN_REFUSED").await;
    denied(client.create_lock_ref(by(&billing, ask::create("audited")))).await;
    let force = ForceReleaseRequest {
        forced_by: "ann".to_owned(),
        ..ask::force(public_part(&held.lock_ref), "audited")
    };
    let mut admin = world.admin().await;
    done(admin.force_release(by(&ops, force))).await;
    let text = log.text();
    let line = |words: &[&str]| {
        let mut lines = text.lines().filter(|line| line.contains("fermata::audit"));
        let found = lines.find(|line| words.iter().all(|word| line.contains(word)));
        found.unwrap_or_else(|| panic!("no line with {words:?}"))
    };
    let why = "the token is unknown";
    line(&["a login was refused", "127.0.0.1:", "CreateLockRef", why]);
    line(&[
        "a call was denied",
        "billing-of-audit",
        "127.0.0.1:",
        "to lock on the key",
    ]);
    let entry = "default/orders/audited#1";
    line(&["an end by force", "ops-of-audit", entry, "ann", "ended"]);
    for token in [&billing, &ops, &stranger] {
        assert!(!text.contains(&token.token), "{}", token.token);
    }
}
