//! RenewLocks: one call, many lockRefs, and a result for each of them.

use std::time::{Duration, Instant};

use fermata::engine::{CreateCall, LiveBy};
use fermata::lock::{Key, KeyId, Mode, Secret, TableName};
use fermata_proto::lock_renewal::Outcome;
use fermata_proto::*;
use tokio_stream::StreamExt as _;
use tonic::Code;
use uuid::Uuid;

use crate::ask;
use crate::each_call::status_of;
use crate::pair::{Pair, REPLICA_TTL};
use crate::world::{Client, World, create, done, fields, hold, refused, until_in_time};

/// So many that each of two replicas is the home of some.
const KEYS: usize = 24;

fn ask(lock_refs: Vec<String>) -> RenewLocksRequest {
    RenewLocksRequest { lock_refs }
}

/// What the holder, or waiter, is told of each.
async fn renewed(client: &mut Client, lock_refs: Vec<String>) -> Vec<Outcome> {
    let answer = done(client.renew_locks(ask(lock_refs))).await;
    let renewals = answer.renewals.into_iter();
    renewals.map(|one| one.outcome.unwrap()).collect()
}

/// Whether a result is missing: on a busy machine a home may not answer within the second.
fn is_late(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Error(error) => Code::from_i32(error.code) == Code::Unavailable,
        Outcome::Renewed(_) => false,
    }
}

/// The same, once none of the results is late.
async fn renewed_in_time(client: &Client, lock_refs: &[String]) -> Vec<Outcome> {
    let mut client = client.clone();
    until_in_time(async || {
        let outcomes = renewed(&mut client, lock_refs.to_vec()).await;
        (!outcomes.iter().any(is_late)).then_some(outcomes)
    })
    .await
}

fn lives(outcome: &Outcome) -> &AcquireLockResponse {
    match outcome {
        Outcome::Renewed(lock) => lock,
        Outcome::Error(error) => panic!("{error:?}"),
    }
}

fn failed(outcome: &Outcome) -> &LockError {
    match outcome {
        Outcome::Error(error) => error,
        Outcome::Renewed(lock) => panic!("{lock:?}"),
    }
}

/// With the secret of its entry.
pub fn create_call(key: &str) -> (CreateCall, Secret) {
    let id = KeyId {
        table: TableName::default_table(),
        key: Key::parse(key, Key::BYTES_MAX).unwrap(),
    };
    let secret = Secret::of_entry("", &id, Uuid::new_v4());
    let call = CreateCall {
        waited: Duration::ZERO,
        id,
        tag: secret.tag(""),
        live_by: LiveBy::Ttl(30_000),
        mode: Mode::Exclusive,
        owner: String::new(),
        identity: String::new(),
        share_of: "".into(),
        read_value: false,
    };
    (call, secret)
}

/// Holds a key; also whether the second replica is its home.
async fn hold_at(
    pair: &Pair,
    client: &mut Client,
    key: &str,
    ttl: Option<Duration>,
) -> (String, bool) {
    let create = CreateLockRefRequest {
        ttl: ttl.and_then(|ttl| ttl.try_into().ok()),
        ..ask::create(key)
    };
    let created = client.create_lock_ref(create).await.unwrap();
    let home = created.metadata().get("fermata-home-id").unwrap();
    let is_second = home.to_str().unwrap() == pair.second.replica().to_string();
    let held = created.into_inner();
    assert_eq!(held.state(), LockState::Held);
    (held.lock_ref, is_second)
}

/// LockRefs that hold a key each, some at each replica.
async fn hold_many(pair: &Pair, client: &mut Client) -> (Vec<String>, Vec<bool>) {
    let (mut lock_refs, mut at_second) = (Vec::new(), Vec::new());
    for number in 0..KEYS {
        let (lock_ref, is_second) = hold_at(pair, client, &format!("k{number}"), None).await;
        lock_refs.push(lock_ref);
        at_second.push(is_second);
    }
    assert!(at_second.contains(&true) && at_second.contains(&false));
    (lock_refs, at_second)
}

#[tokio::test]
async fn lock_refs_of_two_homes_are_answered_in_order_each_for_itself() {
    let pair = Pair::new().await;
    let mut client = pair.client().await;
    let (held, _) = hold_many(&pair, &mut client).await;
    let waiting = create(&mut client, "k0").await.lock_ref;
    let ended = hold(&mut client, "ended").await.lock_ref;
    done(client.release_lock(ask::release(&ended))).await;
    let unissued = "default/k1#9.00000000000000000000000000".to_owned();
    let mut lock_refs = held.clone();
    for (at, odd) in [
        (3, &waiting),
        (5, &ended),
        (8, &unissued),
        (13, &"nonsense".to_owned()),
        (21, &String::new()),
        (22, &held[0]),
    ] {
        lock_refs.insert(at, odd.clone());
    }
    let outcomes = loop {
        let before = pair.called.passed_on();
        let outcomes = renewed(&mut client, lock_refs.clone()).await;
        let (renewals, acquires) = pair.called.passed_on();
        if !outcomes.iter().any(is_late) {
            let passed_on = (renewals - before.0, acquires - before.1);
            assert_eq!(passed_on, (1, 0), "one call a home");
            break outcomes;
        }
    };
    assert_eq!(outcomes.len(), lock_refs.len());
    for (lock_ref, outcome) in lock_refs.iter().zip(&outcomes) {
        // What a call about it alone says.
        let alone = ask::acquire(lock_ref);
        match (client.acquire_lock(alone).await, outcome) {
            (Ok(alone), Outcome::Renewed(lock)) => {
                let alone = alone.into_inner();
                assert!(lock.valid_for.unwrap().seconds >= 25, "{lock:?}");
                let without_times = |lock: &AcquireLockResponse| AcquireLockResponse {
                    valid_for: None,
                    ..lock.clone()
                };
                assert_eq!(without_times(lock), without_times(&alone), "{lock_ref}");
            }
            (Err(alone), Outcome::Error(error)) => {
                let error = status_of(error);
                assert_eq!(error.code(), alone.code(), "{lock_ref}");
                assert_eq!(error.message(), alone.message(), "{lock_ref}");
                assert_eq!(error.details(), alone.details(), "{lock_ref}");
            }
            (alone, outcome) => panic!("{lock_ref}: {alone:?}, {outcome:?}"),
        }
    }
    assert_eq!(lives(&outcomes[3]).state(), LockState::Waiting);
    assert_eq!(lives(&outcomes[3]).position, 1);
    assert_eq!(lives(&outcomes[22]), lives(&outcomes[0]), "answered twice");
    let reasons = [5, 8, 13, 21].map(|at| failed(&outcomes[at]).reason.as_str());
    assert_eq!(
        reasons,
        ["RELEASED", "NEVER_ISSUED", "MALFORMED", "MISSING"]
    );
}

#[tokio::test]
async fn entries_live_for_as_long_as_they_are_renewed() {
    let pair = Pair::new().await;
    let mut client = pair.client().await;
    let ttl = Some(Duration::from_secs(2));
    let (mut lock_refs, mut at_second) = (Vec::new(), 0);
    for number in 0..KEYS {
        let (lock_ref, is_second) = hold_at(&pair, &mut client, &format!("k{number}"), ttl).await;
        at_second += usize::from(is_second);
        lock_refs.push(lock_ref);
    }
    assert!((1..KEYS).contains(&at_second));
    let (alone, _) = hold_at(&pair, &mut client, "alone", ttl).await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        for outcome in renewed_in_time(&client, &lock_refs).await {
            assert_eq!(lives(&outcome).state(), LockState::Held);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let outcomes = renewed_in_time(&client, &[alone]).await;
    assert_eq!(failed(&outcomes[0]).reason, "EXPIRED", "nobody renewed it");
}

#[tokio::test]
async fn a_home_that_hangs_keeps_nobody_from_the_results_of_another() {
    let pair = Pair::new().await;
    let mut client = pair.client().await;
    let (lock_refs, at_second) = hold_many(&pair, &mut client).await;
    pair.called.hang(true);
    let outcomes = until_in_time(async || {
        let began = Instant::now();
        let outcomes = renewed(&mut client, lock_refs.clone()).await;
        let took = began.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
        // The contract says a second. A machine that is busy may be late for once, so it is asked again then; who waited for
        // the home that hangs would be late each time.
        let is_in_time = took < Duration::from_millis(1_500);
        let late = outcomes.iter().map(is_late);
        (is_in_time && late.eq(at_second.iter().copied())).then_some(outcomes)
    })
    .await;
    for (outcome, is_second) in outcomes.iter().zip(at_second) {
        match is_second {
            false => assert_eq!(lives(outcome).state(), LockState::Held),
            true => {
                let error = failed(outcome);
                assert_eq!(Code::from_i32(error.code), Code::Unavailable);
                assert_eq!(error.reason, "OUTCOME_UNKNOWN");
            }
        }
    }
}

#[tokio::test]
async fn a_key_whose_home_is_not_where_it_is_looked_for_is_renewed_there() {
    let pair = Pair::new().await;
    let client = pair.client().await;
    let mut lock_refs = Vec::new();
    for number in 0..KEYS {
        // Of some of them the second replica should be the home.
        let (call, secret) = create_call(&format!("k{number}"));
        let created = pair.first.create(call).await.unwrap();
        lock_refs.push(created.lock_ref.text(&secret));
    }
    let outcomes = renewed_in_time(&client, &lock_refs).await;
    for outcome in &outcomes {
        assert_eq!(lives(outcome).state(), LockState::Held);
    }
    let (renewals, acquires) = pair.called.passed_on();
    assert!(renewals > 0 && acquires > 0, "{renewals}, {acquires}");
}

#[tokio::test]
async fn the_number_of_lock_refs_is_bounded() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await.lock_ref;
    let none = client.renew_locks(ask(Vec::new()));
    let status = refused(none, Code::InvalidArgument, "MISSING").await;
    assert_eq!(fields(&status), ["lock_refs"]);
    let most = vec![held.clone(); 1_000];
    let outcomes = renewed_in_time(&client, &most).await;
    assert_eq!(outcomes.len(), 1_000);
    let mut outcomes = outcomes.iter();
    assert!(outcomes.all(|one| lives(one).state() == LockState::Held));
    let more = client.renew_locks(ask(vec![held; 1_001]));
    let status = refused(more, Code::InvalidArgument, "TOO_LARGE").await;
    assert_eq!(fields(&status), ["lock_refs"]);
    assert!(status.message().contains("lock_refs_per_renewal_max"));
}

#[tokio::test]
async fn renewals_say_whether_a_lock_is_durable() {
    let pair = Pair::writing_back().await;
    let mut client = pair.client().await;
    let created = hold(&mut client, "k").await;
    let most = REPLICA_TTL / 10 * 9;
    let is_durable = |durable: bool, valid_for: Option<prost_types::Duration>| {
        let valid_for = Duration::try_from(valid_for.unwrap()).unwrap();
        assert!(durable || valid_for <= most, "{valid_for:?}");
        durable && valid_for > most
    };
    let began = Instant::now();
    loop {
        let called = done(client.renew_session(ask::renew_session(&created.session))).await;
        let pings = tokio_stream::iter([ask::keep_alive(&created.session)]);
        let asks = pings.chain(tokio_stream::pending());
        let mut answers = done(client.keep_alive(asks)).await;
        let streamed = answers.message().await.unwrap().unwrap();
        let lock_refs = [created.lock_ref.clone()];
        let together = renewed_in_time(&client, &lock_refs).await;
        let together = lives(&together[0]);
        let durable = [
            is_durable(called.durable, called.valid_for),
            is_durable(streamed.durable, streamed.valid_for),
            is_durable(together.durable, together.valid_for),
        ];
        if durable == [true; 3] {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{durable:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let open = OpenSessionRequest::default();
    let session = done(client.open_session(open)).await.session;
    let session = done(client.renew_session(ask::renew_session(&session))).await;
    assert!(!session.durable, "of a session it says nothing");
}
