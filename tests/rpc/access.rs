//! Clients that are known, and what each of them may do: what one has is of no use to another one, and what no rule allows is
//! denied, on open streams as well.

use std::fmt::Debug;
use std::time::Duration;

use fermata::access::{Access, AccessFiles, NewToken, Policy};
use fermata::engine::SessionCall;
use fermata::lock::Secret;
use fermata_proto::pipeline_call::Call;
use fermata_proto::*;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use uuid::Uuid;

use crate::ask;
use crate::each_call::{AnyCall, Caller, Came, Holdings, calls_on_lock_ref, calls_on_session};
use crate::pair::Pair;
use crate::world::{World, done, refused};

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

/// Denied by the rules.
#[track_caller]
pub fn denied<T: Debug>(
    call: impl Future<Output = Result<T, Status>>,
) -> impl Future<Output = Status> {
    refused(call, Code::PermissionDenied, "NOT_ALLOWED")
}

/// Not known by its login.
#[track_caller]
pub fn unknown<T: Debug>(
    call: impl Future<Output = Result<T, Status>>,
    reason: &str,
) -> impl Future<Output = Status> {
    refused(call, Code::Unauthenticated, reason)
}

/// Ended by the end of its login.
#[track_caller]
fn logged_out<T: Debug>(
    call: impl Future<Output = Result<T, Status>>,
) -> impl Future<Output = Status> {
    refused(call, Code::Unavailable, "LOGIN_ENDED")
}

/// What a stream goes on with, which it does soon.
async fn next<T>(stream: &mut Streaming<T>) -> Result<T, Status> {
    let next = timeout(WITHIN, stream.next()).await;
    next.expect("nothing comes").expect("the stream has ended")
}

#[tokio::test]
async fn who_is_not_known_is_refused_and_probes_are_not() {
    let known = token("billing");
    let files = Files::new(&[&known], "");
    let world = World::with_access(files.access.clone()).await;
    let (mut client, mut admin) = (world.client().await, world.admin().await);
    let create = || ask::create("k");
    unknown(client.create_lock_ref(create()), "LOGIN_MISSING").await;
    let stranger = by(&token("billing"), create());
    unknown(client.create_lock_ref(stranger), "LOGIN_REFUSED").await;
    let tables = admin.list_tables(ListTablesRequest::default());
    unknown(tables, "LOGIN_MISSING").await;
    let watched = client.watch_lock(WatchLockRequest::default());
    unknown(watched, "LOGIN_MISSING").await;

    let mut health = HealthClient::new(world.channel().await);
    health.check(HealthCheckRequest::default()).await.unwrap();
    let held = done(client.create_lock_ref(by(&known, create()))).await;
    assert_eq!(held.state(), LockState::Held);
}

/// Each call with what somebody else has, as it is, and what comes of it.
fn calls_of_another(has: &Holdings, sessions: &[&str]) -> Vec<(AnyCall, Came)> {
    let never = || Came::Refused(Code::NotFound, "NEVER_ISSUED".to_owned());
    let closed = || Came::Refused(Code::FailedPrecondition, "SESSION_CLOSED".to_owned());
    let mut calls = Vec::new();
    for lock_ref in [&has.held.lock_ref, &has.waiting.lock_ref] {
        let on_lock_ref = calls_on_lock_ref(lock_ref).into_iter();
        calls.extend(on_lock_ref.map(|call| (call, never())));
    }
    for lease in [&has.held.session, &has.waiting.session] {
        let [renew, keep_alive, ..] = calls_on_session(lease);
        let ended = Came::Ended(EndReason::NoLongerKept);
        calls.extend([(renew, never()), (keep_alive, ended)]);
    }
    for session in sessions {
        let ended = Came::Ended(EndReason::SessionClosed);
        // To close it does as much as to close one that nobody ever opened.
        let came = [closed(), ended, closed(), Came::AlreadyClosed];
        calls.extend(calls_on_session(session).into_iter().zip(came));
    }
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
        let renew = |session: &&str| Call::RenewSession(ask::renew_session(session));
        let calls = sessions.iter().map(renew).map(AnyCall::Carried);
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
    let shown = done(admin.describe_lock(by(&bob, ask::describe("k")))).await;
    assert_eq!(shown.holders[0].identity, "ann");

    let mut strangers = Caller::both(&client, &admin, &bob).await;
    tries(&mut strangers, &has, &[&has.session]).await;
    let get = ask::critical_get(&has.held.lock_ref);
    let got = done(client.critical_get(by(&ann, get))).await;
    assert_eq!(got.value, "the owner's");
    let mut owners = Caller::both(&client, &admin, &ann).await;
    goes_on(&mut owners, &has, &[&has.session]).await;

    // The same requests are others of Bob's, and find what they made where Ann repeats them.
    let created = done(client.create_lock_ref(by(&bob, has.created.clone()))).await;
    assert!(!created.already_existed && created.state() == LockState::Waiting);
    let opened = done(client.open_session(by(&bob, has.opened.clone()))).await;
    assert_ne!(opened.session, has.session);
    let created = done(client.create_lock_ref(by(&ann, has.created.clone()))).await;
    assert!(created.already_existed && created.lock_ref == has.held.lock_ref);
    let opened = done(client.open_session(by(&ann, has.opened.clone()))).await;
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
    let files = Files::new(&[], "");
    files.access.replace(Policy::default());
    let world = World::with_access(files.access.clone()).await;
    let mut client = world.client().await;
    let opened = done(client.open_session(OpenSessionRequest::default())).await;
    let create = ask::create_in("k", &opened.session);
    let held = done(client.create_lock_ref(create)).await;
    files.replace(&[&ann], "");
    let put = ask::critical_put(&held.lock_ref, "v");
    done(client.critical_put(by(&ann, put))).await;
    let renew = ask::renew_session(&opened.session);
    done(client.renew_session(by(&ann, renew))).await;
}

#[tokio::test]
async fn a_token_that_is_taken_away_ends_what_goes_on_by_it_and_nothing_else() {
    let (old, new, other) = (token("billing"), token("billing"), token("other"));
    let files = Files::new(&[&old, &other], "");
    let world = World::with_access(files.access.clone()).await;
    let mut client = world.client().await;
    let held = done(client.create_lock_ref(by(&old, ask::create("k")))).await;
    let others = done(client.create_lock_ref(by(&other, ask::create("o")))).await;
    let watch = by(&old, ask::watch(&held.lock_ref));
    let mut watched = done(client.watch_lock(watch)).await;
    let watch = by(&other, ask::watch(&others.lock_ref));
    let mut others_watch = done(client.watch_lock(watch)).await;
    next(&mut watched).await.unwrap();
    next(&mut others_watch).await.unwrap();
    let (alive, stream) = mpsc::channel(1);
    let renewals = by(&old, ReceiverStream::new(stream));
    let mut answers = done(client.keep_alive(renewals)).await;
    alive.send(ask::keep_alive(&held.session)).await.unwrap();
    next(&mut answers).await.unwrap();
    let waiting = done(client.create_lock_ref(by(&old, ask::create("o")))).await;
    let wait = by(&old, ask::wait(&waiting.lock_ref, 20));
    let mut waits = client.clone();
    let wait = tokio::spawn(async move { waits.acquire_lock(wait).await });

    // Both at once, for as long as clients go from one to the other; then the new one alone.
    files.replace(&[&old, &new, &other], "");
    alive.send(ask::keep_alive(&held.session)).await.unwrap();
    next(&mut answers).await.unwrap();
    let put = || ask::critical_put(&held.lock_ref, "v");
    done(client.critical_put(by(&new, put()))).await;
    files.replace(&[&new, &other], "");
    logged_out(next(&mut watched)).await;
    logged_out(next(&mut answers)).await;
    unknown(client.critical_put(by(&old, put())), "LOGIN_REFUSED").await;
    // A wait that began before ends at once.
    let waited = timeout(WITHIN, wait).await.unwrap().unwrap();
    logged_out(async { waited }).await;
    let release = by(&other, ask::release(&others.lock_ref));
    done(client.release_lock(release)).await;

    // The lock is the identity's, whatever its token.
    done(client.critical_put(by(&new, put()))).await;
    let lost = next(&mut others_watch).await.unwrap();
    assert_eq!(lost.state(), LockState::Lost);
}

/// It has every value: who may not read everything any more gets no more of it.
#[tokio::test]
async fn a_backup_needs_both_and_ends_with_the_rule_that_allowed_it() {
    let (ann, bob, both) = (token("ann"), token("bob"), token("both"));
    let tokens = [&ann, &bob, &both];
    let rule = |who: &str, verbs: &str| {
        format!("[[rule]]\nwho = [\"{who}\"]\ntable = \"*\"\nallow = [{verbs}]\n")
    };
    let some = rule("ann", "\"admin\", \"lock\"") + &rule("bob", "\"read\"");
    let all = some.clone() + &rule("both", "\"admin\", \"read\", \"lock\", \"write\"");
    let files = Files::new(&tokens, &all);
    let world = World::with_access(files.access.clone()).await;
    let (mut client, mut admin) = (world.client().await, world.admin().await);
    for key in ["a", "b", "c", "d"] {
        let held = done(client.create_lock_ref(by(&both, ask::create(key)))).await;
        let put = ask::critical_put(&held.lock_ref, vec![7; 1_000_000]);
        done(client.critical_put(by(&both, put))).await;
    }
    let backup = |who| by(who, BackupRequest::default());
    for who in [&ann, &bob] {
        denied(admin.backup(backup(who))).await;
    }
    let mut begun = done(admin.backup(backup(&both))).await;
    next(&mut begun).await.unwrap();
    // The rest waits to be taken.
    files.replace(&tokens, &some);
    let ended = async {
        loop {
            next(&mut begun).await?;
        }
    };
    denied::<()>(ended).await;
    // And the next one has its turn.
    files.replace(&tokens, &all);
    let mut again = done(admin.backup(backup(&both))).await;
    while let Some(part) = again.next().await {
        part.unwrap();
    }
}
