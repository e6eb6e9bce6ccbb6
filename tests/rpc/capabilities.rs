//! What lets a client act for its entries and sessions is given to that client alone: whatever else the service shows, in
//! listings, answers to others, refusals and its log, is of no use to an intruder.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fermata_client::public_part;
use fermata_proto::lock_admin_client::LockAdminClient;
use fermata_proto::*;
use tonic::Code;
use tonic::transport::Channel;
use uuid::Uuid;

use crate::access::token;
use crate::ask;
use crate::each_call::{Caller, Came, calls_on_lock_ref, calls_on_session};
use crate::logs::Log;
use crate::world::{Client, World, create, done, until};

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
        let session = done(client.open_session(open)).await.session;
        let create_in = |key: &str, session: &str, request_id: &str| CreateLockRefRequest {
            request_id: request_id.to_owned(),
            owner: "victim".to_owned(),
            ..ask::create_in(key, session)
        };
        let in_session = create_in("in session", &session, &requests[1]);
        let held = create_in("by itself", "", &requests[2]);
        Victim {
            session,
            in_session: done(client.create_lock_ref(in_session)).await,
            held: done(client.create_lock_ref(held)).await,
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
            let put = ask::critical_put(&held.lock_ref, "the victim's");
            done(client.critical_put(put)).await;
        }
        let waiting = ask::acquire(&self.waiting.lock_ref);
        let waiting = done(client.acquire_lock(waiting)).await;
        assert_eq!(waiting.state(), LockState::Waiting);
        done(client.renew_session(ask::renew_session(&self.session))).await;
    }
}

/// All that operators are shown, as text.
async fn all_shown(admin: &mut LockAdminClient<Channel>) -> String {
    let mut shown = String::new();
    for key in ["in session", "by itself"] {
        shown += &format!(
            "{:?}\n",
            done(admin.describe_lock(ask::describe(key))).await
        );
    }
    let locks = done(admin.list_locks(ListLocksRequest::default())).await;
    let sessions = done(admin.list_sessions(ListSessionsRequest::default())).await;
    let replicas = done(admin.list_replicas(ListReplicasRequest::default())).await;
    let activity = done(admin.describe_activity(DescribeActivityRequest::default())).await;
    shown + &format!("{locks:?}\n{sessions:?}\n{replicas:?}\n{activity:?}\n")
}

/// What is left of the leases of all entries and sessions, by their names.
async fn leases(admin: &mut LockAdminClient<Channel>) -> BTreeMap<String, Duration> {
    let mut leases = BTreeMap::new();
    let mut note = |name: String, left: Option<prost_types::Duration>| {
        let left = Duration::try_from(left.unwrap()).unwrap();
        assert!(leases.insert(name, left).is_none());
    };
    for key in ["in session", "by itself"] {
        let described = done(admin.describe_lock(ask::describe(key))).await;
        for entry in described.holders.into_iter().chain(described.waiters) {
            note(entry.name, entry.lease_left);
        }
    }
    let sessions = done(admin.list_sessions(ListSessionsRequest::default())).await;
    for session in sessions.sessions {
        note(session.session_id, session.lease_left);
    }
    leases
}

/// What an intruder makes of what it was shown of an entry, or a session: every text of it, with a guess where the secret is.
fn guesses(public: &str, token: u64) -> [String; 6] {
    let none = "0".repeat(26);
    [
        public.to_owned(),
        format!("{public}@{token}"),
        format!("{public}.@{token}"),
        format!("{public}.{none}"),
        format!("{public}.{none}@{token}"),
        // Of somebody with an identity.
        format!("{public}.{}", "8".repeat(26)),
    ]
}

/// What it is answered, as anybody is, of entries of its own behind those of others.
async fn answered_behind(client: &mut Client) -> String {
    let mut heard = String::new();
    for key in ["in session", "by itself"] {
        let mine = create(client, key).await;
        let acquire = AcquireLockRequest {
            read_value: true,
            ..ask::acquire(&mine.lock_ref)
        };
        let waiting = done(client.acquire_lock(acquire)).await;
        assert_eq!(waiting.state(), LockState::Waiting);
        let mut watch = done(client.watch_lock(ask::watch(&mine.lock_ref))).await;
        let seen = watch.message().await.unwrap().unwrap();
        let got = done(client.get(ask::get(key))).await;
        heard += &format!("{mine:?}\n{waiting:?}\n{seen:?}\n{got:?}\n");
        done(client.release_lock(ask::release(&mine.lock_ref))).await;
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

    // Until so much is gone that a renewal would show.
    let begun = leases(&mut admin).await;
    assert_eq!(begun.len(), 4, "{begun:?}");
    let mut before = begun.clone();
    until(async || {
        before = leases(&mut admin).await;
        let mut both = before.values().zip(begun.values());
        both.all(|(left, begun)| *left + Duration::from_secs(1) <= *begun)
    })
    .await;

    let mut intruder = world.client().await;
    let anybody = token("anybody");
    let [mut caller, _] = Caller::both(&intruder, &admin, &anybody).await;
    let mut calls = Vec::new();
    for made in [&victim.in_session, &victim.held, &victim.waiting] {
        for guess in guesses(public_part(&made.lock_ref), victim.held.fencing_token) {
            calls.extend(calls_on_lock_ref(&guess));
            calls.extend(calls_on_session(&guess));
        }
    }
    for guess in guesses(id, 1) {
        calls.extend(calls_on_session(&guess));
    }
    // The secret of one entry is of no use for another one.
    let (_, secret) = victim.waiting.lock_ref.rsplit_once('.').unwrap();
    let mixed = format!("{}.{secret}", public_part(&victim.held.lock_ref));
    calls.extend(calls_on_lock_ref(&mixed));
    let (mut codes, mut heard) = (BTreeSet::new(), String::new());
    for call in calls {
        let answer = caller.asked(call.clone()).await;
        match Came::of(&answer) {
            Came::Refused(code, _) => drop(codes.insert(i32::from(code))),
            // As of something that nobody ever had.
            Came::AlreadyClosed | Came::Ended(_) => {}
            came => panic!("{call:?}: {came:?}"),
        }
        heard += &format!("{answer:?}\n");
    }
    let refusals = [
        Code::InvalidArgument,
        Code::NotFound,
        Code::FailedPrecondition,
    ];
    assert_eq!(codes, refusals.map(i32::from).into());
    let after = leases(&mut admin).await;
    for (name, left) in &after {
        let before = before[name];
        assert!(*left <= before, "{name} was renewed: {before:?}, {left:?}");
    }
    victim.is_unharmed(&mut client).await;

    // Nowhere was a secret shown: not to operators, not to the intruder, not in the log of everything.
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
