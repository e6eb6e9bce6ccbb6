//! Clients that are known, and what each of them may do: what one has is of no use to another one, and what no rule allows is
//! denied, on open streams as well.

use std::time::Duration;

use fermata::access::{Access, AccessFiles, NewToken};
use fermata_proto::*;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use uuid::Uuid;

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

#[tokio::test]
async fn what_one_identity_has_is_of_no_use_to_another_one() {
    let (ann, bob) = (token("ann"), token("bob"));
    let files = Files::new(&[&ann, &bob], "");
    let world = World::with_access(files.access.clone()).await;
    let mut client = world.client().await;
    let opened = client
        .open_session(by(&ann, OpenSessionRequest::default()))
        .await;
    let session = opened.unwrap().into_inner().session;
    let asked = create("k", &session);
    let held = client.create_lock_ref(by(&ann, asked.clone())).await;
    let held = held.unwrap().into_inner();
    let mut admin = world.admin().await;
    let describe = || DescribeLockRequest {
        key: "k".to_owned(),
        ..Default::default()
    };
    let shown = admin
        .describe_lock(by(&bob, describe()))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(shown.holders[0].identity, "ann");

    // Bob has all of it, as it is.
    let never = (Code::NotFound, "NEVER_ISSUED".to_owned());
    assert_eq!(
        refused(client.acquire_lock(by(&bob, acquire(&held.lock_ref))).await),
        never
    );
    assert_eq!(
        refused(client.critical_put(by(&bob, put(&held.lock_ref))).await),
        never
    );
    let get = CriticalGetRequest {
        lock_ref: held.lock_ref.clone(),
        call_no: 0,
    };
    assert_eq!(refused(client.critical_get(by(&bob, get)).await), never);
    let release = ReleaseLockRequest {
        lock_ref: held.lock_ref.clone(),
        ..Default::default()
    };
    assert_eq!(refused(client.release_lock(by(&bob, release)).await), never);
    let watch = WatchLockRequest {
        lock_ref: held.lock_ref.clone(),
    };
    assert_eq!(
        refused(client.watch_lock(by(&bob, watch)).await.map(drop)),
        never
    );
    let renew = RenewLocksRequest {
        lock_refs: vec![held.lock_ref.clone()],
    };
    let renewed = client
        .renew_locks(by(&bob, renew))
        .await
        .unwrap()
        .into_inner();
    let Some(lock_renewal::Outcome::Error(error)) = &renewed.renewals[0].outcome else {
        panic!("{renewed:?}");
    };
    assert_eq!(error.reason, "NEVER_ISSUED");
    let closed = (Code::FailedPrecondition, "SESSION_CLOSED".to_owned());
    let renew = RenewSessionRequest {
        session: session.clone(),
    };
    assert_eq!(refused(client.renew_session(by(&bob, renew)).await), closed);
    let fill = client
        .create_lock_ref(by(&bob, create("other", &session)))
        .await;
    assert_eq!(refused(fill), closed);
    let close = CloseSessionRequest {
        session: session.clone(),
    };
    let already = client
        .close_session(by(&bob, close))
        .await
        .unwrap()
        .into_inner();
    assert!(already.already_closed);
    // The same request is another one of Bob's.
    let mut again = asked.clone();
    again.session.clear();
    let own = client
        .create_lock_ref(by(&bob, again))
        .await
        .unwrap()
        .into_inner();
    assert!(!own.already_existed && own.state() == LockState::Waiting);

    client
        .critical_put(by(&ann, put(&held.lock_ref)))
        .await
        .unwrap();
    let found = client
        .create_lock_ref(by(&ann, asked))
        .await
        .unwrap()
        .into_inner();
    assert!(found.already_existed && found.lock_ref == held.lock_ref);
    let renew = RenewSessionRequest { session };
    client.renew_session(by(&ann, renew)).await.unwrap();
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
