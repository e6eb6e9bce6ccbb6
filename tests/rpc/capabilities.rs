//! What lets a client act for its entries and sessions is given to that client alone: whatever else the service shows, in
//! listings, answers to others, refusals and its log, is of no use to an intruder.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use fermata_client::public_part;
use fermata_proto::lock_admin_client::LockAdminClient;
use fermata_proto::*;
use tokio_stream::StreamExt as _;
use tonic::transport::Channel;
use tonic::{Code, Status};
use uuid::Uuid;

use crate::logs::Log;
use crate::world::{Client, World, create, hold};

/// One that was made by another client.
struct Victim {
    /// A session, and what holds a key by it.
    session: String,
    in_session: CreateLockRefResponse,
    /// What holds a key by itself, and what waits behind it.
    held: CreateLockRefResponse,
    waiting: CreateLockRefResponse,
    requests: Vec<String>,
}

impl Victim {
    async fn new(client: &mut Client) -> Victim {
        let requests: Vec<String> = (0..3).map(|_| Uuid::new_v4().to_string()).collect();
        let open = OpenSessionRequest {
            request_id: requests[0].clone(),
            owner: "victim".to_owned(),
            ..Default::default()
        };
        let session = client
            .open_session(open)
            .await
            .unwrap()
            .into_inner()
            .session;
        let create_in = |key: &str, session: &str, request_id: &str| CreateLockRefRequest {
            key: key.to_owned(),
            session: session.to_owned(),
            request_id: request_id.to_owned(),
            owner: "victim".to_owned(),
            ..Default::default()
        };
        let in_session = create_in("in session", &session, &requests[1]);
        let in_session = client.create_lock_ref(in_session).await.unwrap();
        let held = create_in("by itself", "", &requests[2]);
        let held = client.create_lock_ref(held).await.unwrap();
        Victim {
            session,
            in_session: in_session.into_inner(),
            held: held.into_inner(),
            waiting: create(client, "by itself").await,
            requests,
        }
    }

    fn lock_refs(&self) -> [&str; 3] {
        [&self.in_session, &self.held, &self.waiting].map(|made| made.lock_ref.as_str())
    }

    /// What nobody else may be shown.
    fn secrets(&self) -> Vec<&str> {
        let texts = self.lock_refs().into_iter().chain([self.session.as_str()]);
        let secrets = texts.map(|text| {
            let (_, secret) = text.rsplit_once('.').unwrap();
            secret.split('@').next().unwrap()
        });
        let requests = self.requests.iter().map(String::as_str);
        secrets.chain(requests).collect()
    }

    /// All that it has goes on.
    async fn is_unharmed(&self, client: &mut Client) {
        for held in [&self.in_session, &self.held] {
            let put = CriticalPutRequest {
                lock_ref: held.lock_ref.clone(),
                value: "the victim's".into(),
                call_no: 0,
            };
            client.critical_put(put).await.unwrap();
        }
        let waiting = AcquireLockRequest {
            lock_ref: self.waiting.lock_ref.clone(),
            ..Default::default()
        };
        let waiting = client.acquire_lock(waiting).await.unwrap().into_inner();
        assert_eq!(waiting.state(), LockState::Waiting);
        let renew = RenewSessionRequest {
            session: self.session.clone(),
        };
        client.renew_session(renew).await.unwrap();
    }
}

/// All that operators are shown, as text.
async fn all_shown(admin: &mut LockAdminClient<Channel>) -> String {
    let mut shown = String::new();
    for key in ["in session", "by itself"] {
        let ask = DescribeLockRequest {
            key: key.to_owned(),
            ..Default::default()
        };
        let described = admin.describe_lock(ask).await.unwrap().into_inner();
        shown += &format!("{described:?}\n");
    }
    let locks = admin.list_locks(ListLocksRequest::default()).await;
    let sessions = admin.list_sessions(ListSessionsRequest::default()).await;
    let replicas = admin.list_replicas(ListReplicasRequest::default()).await;
    let activity = admin.describe_activity(DescribeActivityRequest::default());
    shown += &format!("{:?}\n", locks.unwrap().into_inner());
    shown += &format!("{:?}\n", sessions.unwrap().into_inner());
    shown += &format!("{:?}\n", replicas.unwrap().into_inner());
    shown += &format!("{:?}\n", activity.await.unwrap().into_inner());
    shown
}

/// What is left of the leases of all entries and sessions, by their names.
async fn leases(admin: &mut LockAdminClient<Channel>) -> BTreeMap<String, Duration> {
    let mut leases = BTreeMap::new();
    let mut note = |name: String, left: Option<prost_types::Duration>| {
        let left = Duration::try_from(left.unwrap()).unwrap();
        assert!(leases.insert(name, left).is_none());
    };
    for key in ["in session", "by itself"] {
        let ask = DescribeLockRequest {
            key: key.to_owned(),
            ..Default::default()
        };
        let described = admin.describe_lock(ask).await.unwrap().into_inner();
        for entry in described.holders.into_iter().chain(described.waiters) {
            note(entry.name, entry.lease_left);
        }
    }
    let sessions = admin.list_sessions(ListSessionsRequest::default()).await;
    for session in sessions.unwrap().into_inner().sessions {
        note(session.session_id, session.lease_left);
    }
    leases
}

/// What an intruder makes of what it was shown of an entry, or a session: every text of it, with a guess where the secret is.
fn guesses(public: &str, token: u64) -> Vec<String> {
    let none = "0".repeat(26);
    let mut guesses = vec![
        public.to_owned(),
        format!("{public}@{token}"),
        format!("{public}.@{token}"),
        format!("{public}.{none}"),
        format!("{public}.{none}@{token}"),
    ];
    // Of somebody with an identity.
    guesses.push(format!("{public}.{}", "8".repeat(26)));
    guesses
}

/// Tries everything with this text as a lockRef; what was answered where something was.
async fn tried_as_lock_ref(client: &mut Client, text: &str) -> Vec<(&'static str, Status)> {
    let lock_ref = || text.to_owned();
    let mut came = Vec::new();
    let mut refused = |call: &'static str, answer: Result<String, Status>| match answer {
        Ok(answer) => panic!("{call} with {text:?} was answered: {answer}"),
        Err(status) => came.push((call, status)),
    };
    let acquire = AcquireLockRequest {
        lock_ref: lock_ref(),
        read_value: true,
        ..Default::default()
    };
    let acquired = client.acquire_lock(acquire.clone()).await;
    refused("AcquireLock", acquired.map(|answer| format!("{answer:?}")));
    let wait = AcquireLockRequest {
        wait: Some(prost_types::Duration {
            seconds: 0,
            nanos: 1_000_000,
        }),
        ..acquire.clone()
    };
    let acquired = client.acquire_lock(wait).await;
    refused(
        "AcquireLock, wait",
        acquired.map(|answer| format!("{answer:?}")),
    );
    let give_up = AcquireLockRequest {
        give_up: true,
        ..acquire
    };
    let given_up = client.acquire_lock(give_up).await;
    refused(
        "AcquireLock, give_up",
        given_up.map(|answer| format!("{answer:?}")),
    );
    let release = ReleaseLockRequest {
        lock_ref: lock_ref(),
        put: Some(Mutation {
            value: "an intruder's".into(),
            delete: false,
        }),
        call_no: 0,
    };
    let released = client.release_lock(release).await;
    refused("ReleaseLock", released.map(|answer| format!("{answer:?}")));
    let (lock_ref, call_no) = (lock_ref(), 0);
    let get = CriticalGetRequest {
        lock_ref: lock_ref.clone(),
        call_no,
    };
    let got = client.critical_get(get).await;
    refused("CriticalGet", got.map(|answer| format!("{answer:?}")));
    let put = CriticalPutRequest {
        lock_ref: lock_ref.clone(),
        value: "an intruder's".into(),
        call_no,
    };
    let written = client.critical_put(put).await;
    refused("CriticalPut", written.map(|answer| format!("{answer:?}")));
    let delete = CriticalDeleteRequest {
        lock_ref: lock_ref.clone(),
        call_no,
    };
    let deleted = client.critical_delete(delete).await;
    refused(
        "CriticalDelete",
        deleted.map(|answer| format!("{answer:?}")),
    );
    let watch = WatchLockRequest {
        lock_ref: lock_ref.clone(),
    };
    let watched = client.watch_lock(watch).await;
    refused("WatchLock", watched.map(|answer| format!("{answer:?}")));
    let renew = RenewLocksRequest {
        lock_refs: vec![lock_ref],
    };
    let renewed = client.renew_locks(renew).await.unwrap().into_inner();
    let Some(lock_renewal::Outcome::Error(error)) = &renewed.renewals[0].outcome else {
        panic!("RenewLocks with {text:?} was answered: {renewed:?}");
    };
    came.push((
        "RenewLocks",
        Status::new(Code::from_i32(error.code), error.message.clone()),
    ));
    came
}

/// Tries everything with this text as a session.
async fn tried_as_session(client: &mut Client, text: &str) -> Vec<(&'static str, Status)> {
    let session = || text.to_owned();
    let mut came = Vec::new();
    let renew = RenewSessionRequest { session: session() };
    came.push((
        "RenewSession",
        client.renew_session(renew).await.unwrap_err(),
    ));
    let fill = CreateLockRefRequest {
        key: "filled".to_owned(),
        session: session(),
        ..Default::default()
    };
    came.push((
        "CreateLockRef",
        client.create_lock_ref(fill).await.unwrap_err(),
    ));
    let close = CloseSessionRequest { session: session() };
    match client.close_session(close).await {
        // As of one that nobody ever opened.
        Ok(closed) => assert!(closed.into_inner().already_closed, "{text:?} was closed"),
        Err(status) => came.push(("CloseSession", status)),
    }
    let alive = KeepAliveRequest { session: session() };
    let stream = client.keep_alive(tokio_stream::iter([alive])).await;
    match stream.unwrap().into_inner().next().await.unwrap() {
        Ok(answer) => assert_ne!(
            answer.reason(),
            EndReason::Unspecified,
            "{text:?} was renewed"
        ),
        Err(status) => came.push(("KeepAlive", status)),
    }
    came
}

/// What it is answered, as anybody is, of entries of its own behind those of others.
async fn answered_behind(client: &mut Client) -> String {
    let mut heard = String::new();
    for key in ["in session", "by itself"] {
        let mine = create(client, key).await;
        let ask = AcquireLockRequest {
            lock_ref: mine.lock_ref.clone(),
            read_value: true,
            ..Default::default()
        };
        let waiting = client.acquire_lock(ask).await.unwrap().into_inner();
        assert_eq!(waiting.state(), LockState::Waiting);
        let watch = WatchLockRequest {
            lock_ref: mine.lock_ref.clone(),
        };
        let mut watch = client.watch_lock(watch).await.unwrap().into_inner();
        let seen = watch.message().await.unwrap().unwrap();
        let got = GetRequest {
            key: key.to_owned(),
            ..Default::default()
        };
        let got = client.get(got).await.unwrap();
        heard += &format!("{mine:?}\n{waiting:?}\n{seen:?}\n{got:?}\n");
        let release = ReleaseLockRequest {
            lock_ref: mine.lock_ref,
            ..Default::default()
        };
        client.release_lock(release).await.unwrap();
    }
    heard
}

#[tokio::test]
async fn whatever_is_shown_of_a_lock_or_a_session_lets_nobody_act_for_it() {
    Log::shared();
    let world = World::new().await;
    let mut client = world.client().await;
    let victim = Victim::new(&mut client).await;
    let mut admin = world.admin().await;

    let shown = all_shown(&mut admin).await;
    for lock_ref in victim.lock_refs() {
        let name = public_part(lock_ref);
        assert!(shown.contains(name), "{name} is shown: {shown}");
    }
    let id = public_part(&victim.session);
    assert!(shown.contains(&format!("session_id: {id:?}")), "{shown}");

    // So much that a renewal would show.
    let shrunk = Duration::from_secs(1);
    let begun = leases(&mut admin).await;
    assert_eq!(begun.len(), 4, "{begun:?}");
    let started = Instant::now();
    let mut before = begun.clone();
    while before
        .iter()
        .any(|(name, left)| *left + shrunk > begun[name])
    {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(started.elapsed() < shrunk * 20, "{begun:?}, {before:?}");
        before = leases(&mut admin).await;
    }

    let mut intruder = world.client().await;
    let mut said = Vec::new();
    for made in [&victim.in_session, &victim.held, &victim.waiting] {
        for guess in guesses(public_part(&made.lock_ref), victim.held.fencing_token) {
            said.extend(tried_as_lock_ref(&mut intruder, &guess).await);
            said.extend(tried_as_session(&mut intruder, &guess).await);
        }
    }
    for guess in guesses(id, 1) {
        said.extend(tried_as_session(&mut intruder, &guess).await);
    }
    // The secret of one entry is of no use for another one.
    let (_, secret) = victim.waiting.lock_ref.rsplit_once('.').unwrap();
    let mixed = format!("{}.{secret}", public_part(&victim.held.lock_ref));
    said.extend(tried_as_lock_ref(&mut intruder, &mixed).await);
    let codes: BTreeSet<i32> = said
        .iter()
        .map(|(_, status)| status.code().into())
        .collect();
    let refusals = [
        Code::InvalidArgument,
        Code::NotFound,
        Code::FailedPrecondition,
    ];
    assert_eq!(codes, refusals.map(i32::from).into());
    let after = leases(&mut admin).await;
    for (name, left) in &after {
        assert!(
            *left <= before[name],
            "{name} was renewed: {before:?}, {after:?}"
        );
    }
    victim.is_unharmed(&mut client).await;

    // Nowhere was a secret shown: not to operators, not to the intruder, not in the log of everything.
    let heard: String = said
        .iter()
        .map(|(_, status)| format!("{status:?}\n"))
        .collect();
    let shown = [
        ("a listing", all_shown(&mut admin).await),
        ("a refusal", heard),
        ("an answer", answered_behind(&mut intruder).await),
        ("the log", Log::shared().text()),
    ];
    for secret in victim.secrets() {
        for (whence, text) in &shown {
            assert!(
                !text.contains(secret),
                "{secret} stands in {whence}: {text}"
            );
        }
    }
    let log = &shown[3].1;
    assert!(log.contains(public_part(&victim.held.lock_ref)), "{log}");
}

#[tokio::test]
async fn what_ends_by_force_is_named_and_its_former_client_alone_learns_of_it() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let force = ForceReleaseRequest {
        name: public_part(&held.lock_ref).to_owned(),
        reason: "stuck".to_owned(),
        ..Default::default()
    };
    let mut admin = world.admin().await;
    admin.force_release(force).await.unwrap();
    let name = public_part(&held.lock_ref);
    for (text, code) in [
        (held.lock_ref.clone(), Code::FailedPrecondition),
        (format!("{name}.{}", "0".repeat(26)), Code::NotFound),
    ] {
        let acquire = AcquireLockRequest {
            lock_ref: text,
            ..Default::default()
        };
        let refused = client.acquire_lock(acquire).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
    }
}

#[tokio::test]
async fn a_request_finds_its_session_and_its_lock_ref_again_with_their_secrets() {
    let world = World::new().await;
    let mut client = world.client().await;
    let open = OpenSessionRequest {
        request_id: Uuid::new_v4().to_string(),
        ..Default::default()
    };
    let session = client
        .open_session(open.clone())
        .await
        .unwrap()
        .into_inner();
    let again = client.open_session(open).await.unwrap().into_inner();
    assert_eq!(session.session, again.session);
    let create = CreateLockRefRequest {
        key: "k".to_owned(),
        session: session.session.clone(),
        request_id: Uuid::new_v4().to_string(),
        ..Default::default()
    };
    let made = client
        .create_lock_ref(create.clone())
        .await
        .unwrap()
        .into_inner();
    let found = client.create_lock_ref(create).await.unwrap().into_inner();
    assert!(found.already_existed && !made.already_existed);
    assert_eq!(found.lock_ref, made.lock_ref);
    assert_eq!(
        (found.session, made.session),
        (session.session.clone(), session.session)
    );
}
