//! Clients that are known, and what each of them may do: what one has is of no use to another one, and what no rule allows is
//! denied, on open streams as well.

use std::time::Duration;

use fermata::access::{Access, AccessFiles, NewToken};
use fermata::engine::SessionCall;
use fermata::lock::Secret;
use fermata_proto::pipeline_call::Call;
use fermata_proto::*;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use uuid::Uuid;

use crate::each_call::{self, AnyCall, Caller, Came, Holdings};
use crate::pair::Pair;
use crate::world::{World, code_and_reason};

const WITHIN: Duration = Duration::from_secs(10);

/// Who has which token, and what they may do, in files.
pub struct Files {
    directory: TempDir,
    pub access: Access,
}

impl Files {
    pub fn new(tokens: &[&NewToken], rules: &str) -> Files {
        let files = Files {
            directory: TempDir::new().unwrap(),
            access: Access::open(),
        };
        files.replace(tokens, rules);
        files
    }

    /// As an operator does, and the server takes it.
    pub fn replace(&self, tokens: &[&NewToken], rules: &str) {
        let [tokens_file, rules_file] =
            ["tokens", "rules"].map(|name| self.directory.path().join(name));
        let lines: Vec<&str> = tokens.iter().map(|token| token.line.as_str()).collect();
        std::fs::write(&tokens_file, lines.join("\n")).unwrap();
        std::fs::write(&rules_file, rules).unwrap();
        let files = AccessFiles {
            tokens: Some(tokens_file),
            rules: (!rules.is_empty()).then_some(rules_file),
        };
        self.access.replace(files.read(false).unwrap());
    }
}

pub fn token(name: &str) -> NewToken {
    NewToken::new(name, rand()).unwrap()
}

fn rand() -> [u8; 32] {
    let halves = [Uuid::new_v4(), Uuid::new_v4()].map(Uuid::into_bytes);
    halves.concat().try_into().unwrap()
}

/// A call of whoever has this token.
pub fn by<T>(token: &NewToken, ask: T) -> Request<T> {
    let mut request = Request::new(ask);
    let header = format!("Bearer {}", token.token).parse().unwrap();
    request.metadata_mut().insert("authorization", header);
    request
}

pub fn create(key: &str, session: &str) -> CreateLockRefRequest {
    CreateLockRefRequest {
        key: key.to_owned(),
        session: session.to_owned(),
        request_id: Uuid::new_v4().to_string(),
        ..Default::default()
    }
}

pub fn acquire(lock_ref: &str) -> AcquireLockRequest {
    AcquireLockRequest {
        lock_ref: lock_ref.to_owned(),
        ..Default::default()
    }
}

pub fn put(lock_ref: &str) -> CriticalPutRequest {
    CriticalPutRequest {
        lock_ref: lock_ref.to_owned(),
        value: "v".into(),
        call_no: 0,
    }
}

pub fn refused<T: std::fmt::Debug>(answer: Result<T, Status>) -> (Code, String) {
    code_and_reason(answer)
}

pub fn login(reason: &str) -> (Code, String) {
    (Code::Unauthenticated, reason.to_owned())
}

fn login_ended() -> (Code, String) {
    (Code::Unavailable, "LOGIN_ENDED".to_owned())
}

pub fn denied() -> (Code, String) {
    (Code::PermissionDenied, "NOT_ALLOWED".to_owned())
}

#[tokio::test]
async fn who_is_not_known_is_refused_and_probes_are_not() {
    let known = token("billing");
    let files = Files::new(&[&known], "");
    let world = World::with_access(files.access.clone()).await;
    let mut client = world.client().await;
    let nobody = client.create_lock_ref(create("k", "")).await;
    assert_eq!(refused(nobody), login("LOGIN_MISSING"));
    let stranger = client
        .create_lock_ref(by(&token("billing"), create("k", "")))
        .await;
    assert_eq!(refused(stranger), login("LOGIN_REFUSED"));
    let mut basic = Request::new(create("k", ""));
    basic
        .metadata_mut()
        .insert("authorization", "Basic YTpi".parse().unwrap());
    assert_eq!(
        refused(client.create_lock_ref(basic).await),
        login("LOGIN_REFUSED")
    );
    let mut admin = world.admin().await;
    let listed = admin.list_locks(ListLocksRequest::default()).await;
    assert_eq!(refused(listed), login("LOGIN_MISSING"));
    let tables = admin.list_tables(ListTablesRequest::default()).await;
    assert_eq!(refused(tables), login("LOGIN_MISSING"));
    let watched = client.watch_lock(WatchLockRequest::default()).await;
    assert_eq!(refused(watched.map(drop)), login("LOGIN_MISSING"));

    let mut health = HealthClient::new(world.channel().await);
    health.check(HealthCheckRequest::default()).await.unwrap();
    let held = client
        .create_lock_ref(by(&known, create("k", "")))
        .await
        .unwrap();
    assert_eq!(held.into_inner().state(), LockState::Held);
}

/// Each call with what somebody else has, as it is, and what comes of it.
fn calls_of_another(has: &Holdings, sessions: &[&str]) -> Vec<(AnyCall, Came)> {
    let never = || Came::Refused(Code::NotFound, "NEVER_ISSUED".to_owned());
    let closed = || Came::Refused(Code::FailedPrecondition, "SESSION_CLOSED".to_owned());
    let value = || Mutation {
        value: "an intruder's".into(),
        delete: false,
    };
    let mut calls = Vec::new();
    for lock_ref in [&has.held.lock_ref, &has.waiting.lock_ref] {
        let wait = AcquireLockRequest {
            wait: Some(prost_types::Duration {
                seconds: 0,
                nanos: 1_000_000,
            }),
            read_value: true,
            ..acquire(lock_ref)
        };
        let give_up = AcquireLockRequest {
            give_up: true,
            ..acquire(lock_ref)
        };
        let get = CriticalGetRequest {
            lock_ref: lock_ref.clone(),
            call_no: 0,
        };
        let put = CriticalPutRequest {
            value: value().value,
            ..put(lock_ref)
        };
        let delete = CriticalDeleteRequest {
            lock_ref: lock_ref.clone(),
            call_no: 0,
        };
        let renew = RenewLocksRequest {
            lock_refs: vec![lock_ref.clone()],
        };
        let on_lock_ref = [
            Call::AcquireLock(acquire(lock_ref)),
            Call::AcquireLock(wait),
            Call::AcquireLock(give_up),
            Call::RenewLocks(renew),
            Call::CriticalGet(get),
            Call::CriticalPut(put),
            Call::CriticalDelete(delete),
            each_call::release(lock_ref, Some(value())),
            each_call::release(lock_ref, None),
        ];
        calls.extend(on_lock_ref.map(|call| (AnyCall::Carried(call), never())));
        calls.push((each_call::watch(lock_ref), never()));
    }
    let mut carried = Vec::new();
    for lease in [&has.held.session, &has.waiting.session] {
        carried.push((each_call::renew_session(lease), never()));
        let ended = Came::Ended(EndReason::NoLongerKept);
        carried.push((each_call::keep_alive(lease), ended));
    }
    for session in sessions {
        carried.push((each_call::renew_session(session), closed()));
        let ended = Came::Ended(EndReason::SessionClosed);
        carried.push((each_call::keep_alive(session), ended));
        let fill = create("another", session);
        carried.push((Call::CreateLockRef(fill), closed()));
        // As of one that nobody ever opened.
        carried.push((each_call::close(session), Came::AlreadyClosed));
    }
    let carried = carried.into_iter();
    calls.extend(carried.map(|(call, came)| (AnyCall::Carried(call), came)));
    calls
}

/// Makes the call until it was answered: of several replicas one may be busy.
async fn answered(caller: &mut Caller<'_>, call: &AnyCall) -> Came {
    let until_answered = async {
        loop {
            match caller.made(call.clone()).await {
                Came::Refused(Code::Unavailable, _) | Came::NothingSaid => {
                    sleep(Duration::from_millis(20)).await;
                }
                came => return came,
            }
        }
    };
    let came = timeout(Duration::from_secs(60), until_answered).await;
    came.unwrap_or_else(|_| panic!("not answered: {call:?}"))
}

/// Tries everything with what another one has, by calls by themselves and in frames.
async fn tries(callers: &mut [Caller<'_>; 2], has: &Holdings, sessions: &[&str]) {
    for caller in callers {
        for (call, came) in calls_of_another(has, sessions) {
            if caller.makes(&call) {
                assert_eq!(answered(caller, &call).await, came, "{call:?}");
            }
        }
    }
}

/// All that it has goes on, by calls by themselves and in frames.
async fn goes_on(callers: &mut [Caller<'_>; 2], has: &Holdings, sessions: &[&str]) {
    for caller in callers {
        let sessions = sessions.iter().copied().map(each_call::renew_session);
        let calls = sessions.map(AnyCall::Carried);
        for call in has.calls_that_keep().into_iter().chain(calls) {
            if caller.makes(&call) {
                assert_eq!(answered(caller, &call).await, Came::Done, "{call:?}");
            }
        }
    }
}

#[tokio::test]
async fn what_one_identity_has_is_of_no_use_to_another_one() {
    let (ann, bob) = (token("ann"), token("bob"));
    let files = Files::new(&[&ann, &bob], "");
    let world = World::with_access(files.access.clone()).await;
    let (mut client, mut admin) = (world.client().await, world.admin().await);
    let has = Holdings::of(&mut client, &ann, "k").await;
    let describe = DescribeLockRequest {
        key: "k".to_owned(),
        ..Default::default()
    };
    let shown = admin.describe_lock(by(&bob, describe)).await.unwrap();
    assert_eq!(shown.into_inner().holders[0].identity, "ann");

    let mut strangers = Caller::both(&client, &admin, &bob).await;
    tries(&mut strangers, &has, &[&has.session]).await;
    let get = CriticalGetRequest {
        lock_ref: has.held.lock_ref.clone(),
        call_no: 0,
    };
    let got = client.critical_get(by(&ann, get)).await.unwrap();
    assert_eq!(got.into_inner().value, put("").value);
    let mut owners = Caller::both(&client, &admin, &ann).await;
    goes_on(&mut owners, &has, &[&has.session]).await;

    // The same requests are others of Bob's, and find what they made where Ann repeats them.
    let created = by(&bob, has.created.clone());
    let created = client.create_lock_ref(created).await.unwrap().into_inner();
    assert!(!created.already_existed && created.state() == LockState::Waiting);
    let opened = by(&bob, has.opened.clone());
    let opened = client.open_session(opened).await.unwrap().into_inner();
    assert_ne!(opened.session, has.session);
    let created = by(&ann, has.created.clone());
    let created = client.create_lock_ref(created).await.unwrap().into_inner();
    assert!(created.already_existed && created.lock_ref == has.held.lock_ref);
    let opened = by(&ann, has.opened.clone());
    let opened = client.open_session(opened).await.unwrap().into_inner();
    assert_eq!(opened.session, has.session);
}

#[tokio::test]
async fn what_one_identity_has_at_another_replica_is_of_no_use_to_another_one() {
    let (ann, bob) = (token("ann"), token("bob"));
    let files = Files::new(&[&ann, &bob], "");
    // Both call the first replica.
    let pair = Pair::with_access(files.access.clone()).await;
    let (mut client, admin) = (pair.client().await, pair.admin().await);
    let second = pair.second.replica().to_string();
    let mut number = 0;
    let has = loop {
        let has = Holdings::of(&mut client, &ann, &format!("k{number}")).await;
        if has.home == second {
            break has;
        }
        number += 1;
        assert!(number < 100, "the second replica is the home of no key");
    };
    let secret = Secret::of_session("ann", Uuid::new_v4());
    let kept_by_second = SessionCall {
        id: secret.session("ann"),
        ttl_ms: 3_600_000,
        disconnect_grace_ms: 0,
        owner: String::new(),
        identity: "ann".to_owned(),
        share_of: "".into(),
        waited: Duration::ZERO,
    };
    pair.second.open_session(kept_by_second).await.unwrap();
    let kept_by_second = secret.session_text("ann");
    let sessions = [has.session.as_str(), kept_by_second.as_str()];

    let before = pair.called.passed_on();
    let mut strangers = Caller::both(&client, &admin, &bob).await;
    tries(&mut strangers, &has, &sessions).await;
    // It was the home that refused.
    let passed_on = pair.called.passed_on();
    assert!(passed_on.0 > before.0 && passed_on.1 > before.1);
    let mut owners = Caller::both(&client, &admin, &ann).await;
    goes_on(&mut owners, &has, &sessions).await;
}

#[tokio::test]
async fn what_was_made_without_an_identity_lives_on_when_identities_are_switched_on() {
    let ann = token("ann");
    let access = Access::open();
    let world = World::with_access(access.clone()).await;
    let mut client = world.client().await;
    let opened = client.open_session(OpenSessionRequest::default()).await;
    let session = opened.unwrap().into_inner().session;
    let held = client
        .create_lock_ref(create("k", &session))
        .await
        .unwrap()
        .into_inner();
    let files = Files::new(&[&ann], "");
    access.replace(
        AccessFiles {
            tokens: Some(files.directory.path().join("tokens")),
            rules: None,
        }
        .read(false)
        .unwrap(),
    );
    client
        .critical_put(by(&ann, put(&held.lock_ref)))
        .await
        .unwrap();
    let renew = RenewSessionRequest { session };
    client.renew_session(by(&ann, renew)).await.unwrap();
}

#[tokio::test]
async fn a_token_that_is_taken_away_ends_what_goes_on_by_it_and_nothing_else() {
    let (old, new, other) = (token("billing"), token("billing"), token("other"));
    let files = Files::new(&[&old, &other], "");
    let world = World::with_access(files.access.clone()).await;
    let mut client = world.client().await;
    let held = client
        .create_lock_ref(by(&old, create("k", "")))
        .await
        .unwrap()
        .into_inner();
    let others = client
        .create_lock_ref(by(&other, create("o", "")))
        .await
        .unwrap()
        .into_inner();
    let watch = |lock_ref: &str| WatchLockRequest {
        lock_ref: lock_ref.to_owned(),
    };
    let mut watched = client
        .watch_lock(by(&old, watch(&held.lock_ref)))
        .await
        .unwrap()
        .into_inner();
    let mut others_watch = client
        .watch_lock(by(&other, watch(&others.lock_ref)))
        .await
        .unwrap()
        .into_inner();
    watched.next().await.unwrap().unwrap();
    others_watch.next().await.unwrap().unwrap();
    let (alive, stream) = mpsc::channel(1);
    let answers = client
        .keep_alive(by(&old, ReceiverStream::new(stream)))
        .await;
    let mut answers = answers.unwrap().into_inner();
    let ask = || KeepAliveRequest {
        session: held.session.clone(),
    };
    alive.send(ask()).await.unwrap();
    answers.next().await.unwrap().unwrap();
    let waiting = client
        .create_lock_ref(by(&old, create("o", "")))
        .await
        .unwrap()
        .into_inner();
    let mut waits = client.clone();
    let wait = AcquireLockRequest {
        wait: Some(prost_types::Duration {
            seconds: 20,
            nanos: 0,
        }),
        ..acquire(&waiting.lock_ref)
    };
    let wait = by(&old, wait);
    let wait = tokio::spawn(async move { waits.acquire_lock(wait).await });

    // Both at once, for as long as clients go from one to the other; then the new one alone.
    files.replace(&[&old, &new, &other], "");
    alive.send(ask()).await.unwrap();
    answers.next().await.unwrap().unwrap();
    client
        .critical_put(by(&new, put(&held.lock_ref)))
        .await
        .unwrap();
    files.replace(&[&new, &other], "");
    let ended = tokio::time::timeout(WITHIN, watched.next()).await.unwrap();
    assert_eq!(refused(ended.unwrap()), login_ended());
    let ended = tokio::time::timeout(WITHIN, answers.next()).await.unwrap();
    assert_eq!(refused(ended.unwrap()), login_ended());
    assert_eq!(
        refused(client.critical_put(by(&old, put(&held.lock_ref))).await),
        login("LOGIN_REFUSED")
    );
    // A wait that began before ends at once.
    let waited = tokio::time::timeout(WITHIN, wait).await.unwrap();
    assert_eq!(refused(waited.unwrap()), login_ended());
    let release = ReleaseLockRequest {
        lock_ref: others.lock_ref.clone(),
        ..Default::default()
    };
    client.release_lock(by(&other, release)).await.unwrap();

    // The lock is the identity's, whatever its token.
    client
        .critical_put(by(&new, put(&held.lock_ref)))
        .await
        .unwrap();
    let lost = others_watch.next().await.unwrap().unwrap();
    assert_eq!(lost.state(), LockState::Lost);
}

/// It has every value: who may not read everything any more gets no more of it.
#[tokio::test]
async fn a_backup_needs_both_and_ends_with_the_rule_that_allowed_it() {
    let (ann, bob, both) = (token("ann"), token("bob"), token("both"));
    let tokens = [&ann, &bob, &both];
    let rule = |who: &str, table: &str, verbs: &str| {
        format!("[[rule]]\nwho = [\"{who}\"]\ntable = \"{table}\"\nallow = [{verbs}]\n")
    };
    let some = [
        rule("ann", "*", "\"admin\", \"lock\""),
        rule("bob", "*", "\"read\""),
    ]
    .concat();
    let all = some.clone() + &rule("both", "*", "\"admin\", \"read\", \"lock\", \"write\"");
    let files = Files::new(&tokens, &all);
    let world = World::with_access(files.access.clone()).await;
    let mut client = world.client().await;
    for key in ["a", "b", "c", "d"] {
        let held = client.create_lock_ref(by(&both, create(key, ""))).await;
        let put = CriticalPutRequest {
            value: vec![7; 1_000_000].into(),
            ..put(&held.unwrap().into_inner().lock_ref)
        };
        client.critical_put(by(&both, put)).await.unwrap();
    }
    let mut admin = world.admin().await;
    for who in [&ann, &bob] {
        let begun = admin.backup(by(who, BackupRequest::default())).await;
        assert_eq!(refused(begun.map(drop)), denied());
    }
    let backup = admin.backup(by(&both, BackupRequest::default())).await;
    let mut backup = backup.unwrap().into_inner();
    backup.next().await.unwrap().unwrap();
    // The rest waits to be taken.
    files.replace(&tokens, &some);
    let ended = async {
        loop {
            if let Err(status) = backup.next().await.unwrap() {
                return status;
            }
        }
    };
    let ended = tokio::time::timeout(WITHIN, ended).await.unwrap();
    assert_eq!(refused(Err::<(), _>(ended)), denied());
    // And the next one has its turn.
    files.replace(&tokens, &all);
    let backup = admin.backup(by(&both, BackupRequest::default())).await;
    let mut backup = backup.unwrap().into_inner();
    while let Some(part) = backup.next().await {
        part.unwrap();
    }
}
