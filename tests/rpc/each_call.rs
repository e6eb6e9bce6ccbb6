//! Each call of the contract as a value, made by itself or in a frame of a Pipeline, and what came of it.

use fermata::access::NewToken;
use fermata_proto::lock_admin_client::LockAdminClient;
use fermata_proto::pipeline_answer::Outcome;
use fermata_proto::pipeline_call::Call;
use fermata_proto::*;
use tokio_stream::StreamExt as _;
use tonic::transport::Channel;
use tonic::{Code, Response, Status, Streaming};
use uuid::Uuid;

use crate::access::{acquire, by, create, put};
use crate::pipeline::Pipe;
use crate::world::{Client, code_and_reason};

/// Longer than any test takes.
pub const HOUR: Option<prost_types::Duration> = Some(prost_types::Duration {
    seconds: 3_600,
    nanos: 0,
});

/// A call of LockService or LockAdmin.
#[derive(Clone, Debug)]
pub enum AnyCall {
    /// One that a Pipeline carries as well.
    Carried(Call),
    WatchLock(WatchLockRequest),
    /// The stream, without a call on it.
    Pipeline,
    ListTables(ListTablesRequest),
    ListLocks(ListLocksRequest),
    DescribeLock(DescribeLockRequest),
    ForceRelease(ForceReleaseRequest),
    ListSessions(ListSessionsRequest),
    EndSession(EndSessionRequest),
    ListReplicas(ListReplicasRequest),
    DescribeActivity(DescribeActivityRequest),
    Backup(BackupRequest),
}

impl AnyCall {
    /// The name of its method in the contract, which the variants have as well.
    pub fn method(&self) -> String {
        let shown = format!("{self:?}");
        let shown = shown.strip_prefix("Carried(").unwrap_or(&shown);
        shown.split('(').next().unwrap().to_owned()
    }
}

/// What came of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Came {
    Done,
    /// CloseSession: there was nothing to close.
    AlreadyClosed,
    Refused(Code, String),
    /// A renewal on a stream: what it is for has ended.
    Ended(EndReason),
    /// A renewal on a stream: nothing can be said of what it is for.
    NothingSaid,
}

impl Came {
    fn of(made: Result<Outcome, Status>) -> Came {
        match made {
            Ok(Outcome::RenewLocks(answer)) => {
                let mut outcomes = answer.renewals.into_iter().map(|one| one.outcome.unwrap());
                let failed = outcomes.find_map(|outcome| match outcome {
                    lock_renewal::Outcome::Renewed(_) => None,
                    lock_renewal::Outcome::Error(error) => Some(error),
                });
                failed.map_or(Came::Done, |error| {
                    Came::Refused(Code::from_i32(error.code), error.reason)
                })
            }
            Ok(Outcome::KeepAlive(answer)) => match (answer.reason(), answer.ttl) {
                (EndReason::Unspecified, Some(_)) => Came::Done,
                (EndReason::Unspecified, None) => Came::NothingSaid,
                (reason, _) => Came::Ended(reason),
            },
            Ok(Outcome::CloseSession(answer)) if answer.already_closed => Came::AlreadyClosed,
            Ok(_) => Came::Done,
            Err(status) => Came::refused(status),
        }
    }

    fn refused(status: Status) -> Came {
        let (code, reason) = code_and_reason(Err::<(), _>(status));
        Came::Refused(code, reason)
    }
}

/// Whoever has this token, who makes calls by themselves, or in frames.
pub struct Caller<'a> {
    token: &'a NewToken,
    client: Client,
    admin: LockAdminClient<Channel>,
    /// What carries the frames.
    pipe: Option<Pipe>,
}

macro_rules! alone {
    ($made:expr, $name:ident) => {
        $made.await.map(|made| Outcome::$name(made.into_inner()))
    };
}

impl<'a> Caller<'a> {
    /// One who makes calls by themselves, and one who makes them in frames.
    pub async fn both(
        client: &Client,
        admin: &LockAdminClient<Channel>,
        token: &'a NewToken,
    ) -> [Caller<'a>; 2] {
        let pipe = Pipe::open_by(&mut client.clone(), token).await;
        [None, Some(pipe)].map(|pipe| Caller {
            token,
            client: client.clone(),
            admin: admin.clone(),
            pipe,
        })
    }

    /// Whether there is such a call in the way in which it makes calls.
    pub fn makes(&self, call: &AnyCall) -> bool {
        self.pipe.is_none() || matches!(call, AnyCall::Carried(_))
    }

    /// Makes a call. Of a stream the beginning is enough.
    pub async fn made(&mut self, call: AnyCall) -> Came {
        let (client, admin, token) = (&mut self.client, &mut self.admin, self.token);
        let done = match call {
            AnyCall::Carried(call) => return Came::of(self.carried(call).await),
            AnyCall::WatchLock(ask) => begun(client.watch_lock(by(token, ask)).await).await,
            AnyCall::Pipeline => {
                let frames = tokio_stream::empty::<PipelineRequest>();
                client.pipeline(by(token, frames)).await.map(drop)
            }
            AnyCall::ListTables(ask) => admin.list_tables(by(token, ask)).await.map(drop),
            AnyCall::ListLocks(ask) => admin.list_locks(by(token, ask)).await.map(drop),
            AnyCall::DescribeLock(ask) => admin.describe_lock(by(token, ask)).await.map(drop),
            AnyCall::ForceRelease(ask) => admin.force_release(by(token, ask)).await.map(drop),
            AnyCall::ListSessions(ask) => admin.list_sessions(by(token, ask)).await.map(drop),
            AnyCall::EndSession(ask) => admin.end_session(by(token, ask)).await.map(drop),
            AnyCall::ListReplicas(ask) => admin.list_replicas(by(token, ask)).await.map(drop),
            AnyCall::DescribeActivity(ask) => {
                admin.describe_activity(by(token, ask)).await.map(drop)
            }
            AnyCall::Backup(ask) => begun(admin.backup(by(token, ask)).await).await,
        };
        done.map_or_else(Came::refused, |()| Came::Done)
    }

    /// Makes a call that a Pipeline carries as well.
    pub async fn carried(&mut self, call: Call) -> Result<Outcome, Status> {
        if let Some(pipe) = &mut self.pipe {
            return pipe.made(call).await;
        }
        let (client, token) = (&mut self.client, self.token);
        match call {
            Call::CreateLockRef(ask) => {
                alone!(client.create_lock_ref(by(token, ask)), CreateLockRef)
            }
            Call::AcquireLock(ask) => alone!(client.acquire_lock(by(token, ask)), AcquireLock),
            Call::RenewLocks(ask) => alone!(client.renew_locks(by(token, ask)), RenewLocks),
            Call::ReleaseLock(ask) => alone!(client.release_lock(by(token, ask)), ReleaseLock),
            Call::CriticalGet(ask) => alone!(client.critical_get(by(token, ask)), CriticalGet),
            Call::CriticalPut(ask) => alone!(client.critical_put(by(token, ask)), CriticalPut),
            Call::CriticalDelete(ask) => {
                alone!(client.critical_delete(by(token, ask)), CriticalDelete)
            }
            Call::OpenSession(ask) => alone!(client.open_session(by(token, ask)), OpenSession),
            Call::RenewSession(ask) => alone!(client.renew_session(by(token, ask)), RenewSession),
            Call::KeepAlive(ask) => {
                let renewals = by(token, tokio_stream::iter([ask]));
                let mut answers = client.keep_alive(renewals).await?.into_inner();
                answers.next().await.unwrap().map(Outcome::KeepAlive)
            }
            Call::CloseSession(ask) => alone!(client.close_session(by(token, ask)), CloseSession),
            Call::Get(ask) => alone!(client.get(by(token, ask)), Get),
        }
    }
}

/// What a stream begins with.
async fn begun<T>(stream: Result<Response<Streaming<T>>, Status>) -> Result<(), Status> {
    let first = stream?.into_inner().next().await;
    first.unwrap().map(drop)
}

/// What one client has: a lock with a value, an entry that waits for it, and a session with a lock of its own.
#[derive(Default)]
pub struct Holdings {
    pub key: String,
    /// What it opened the session with.
    pub opened: OpenSessionRequest,
    pub session: String,
    /// What it created the lock with.
    pub created: CreateLockRefRequest,
    pub held: CreateLockRefResponse,
    pub waiting: CreateLockRefResponse,
    /// The id of the replica that serves the key.
    pub home: String,
}

impl Holdings {
    pub async fn of(client: &mut Client, who: &NewToken, key: &str) -> Holdings {
        let opened = OpenSessionRequest {
            request_id: Uuid::new_v4().to_string(),
            ttl: HOUR,
            ..Default::default()
        };
        let session = client.open_session(by(who, opened.clone())).await;
        let session = session.unwrap().into_inner().session;
        let in_session = create(&Holdings::key_in_session(key), &session);
        client.create_lock_ref(by(who, in_session)).await.unwrap();
        let entry = || CreateLockRefRequest {
            ttl: HOUR,
            ..create(key, "")
        };
        let created = entry();
        let held = client.create_lock_ref(by(who, created.clone())).await;
        let held = held.unwrap();
        let home = held.metadata().get(HOME_ID).unwrap().to_str().unwrap();
        let home = home.to_owned();
        let held = held.into_inner();
        assert_eq!(held.state(), LockState::Held);
        let value = put(&held.lock_ref);
        client.critical_put(by(who, value)).await.unwrap();
        let waiting = client.create_lock_ref(by(who, entry())).await.unwrap();
        Holdings {
            key: key.to_owned(),
            opened,
            session,
            created,
            held,
            waiting: waiting.into_inner(),
            home,
        }
    }

    /// The key that the session has locked.
    pub fn key_in_session(key: &str) -> String {
        format!("{key}/in session")
    }

    /// Each call on it that ends nothing of it.
    pub fn calls_that_keep(&self) -> Vec<AnyCall> {
        let (held, waiting) = (&self.held.lock_ref, &self.waiting.lock_ref);
        let get = CriticalGetRequest {
            lock_ref: held.clone(),
            call_no: 0,
        };
        let renew = RenewLocksRequest {
            lock_refs: vec![held.clone(), waiting.clone()],
        };
        let mut calls = vec![
            Call::AcquireLock(acquire(held)),
            Call::AcquireLock(acquire(waiting)),
            Call::RenewLocks(renew),
            Call::CriticalGet(get),
            Call::CriticalPut(put(held)),
        ];
        for session in [&self.session, &self.held.session, &self.waiting.session] {
            calls.push(renew_session(session));
            calls.push(keep_alive(session));
        }
        let mut calls: Vec<AnyCall> = calls.into_iter().map(AnyCall::Carried).collect();
        calls.push(watch(held));
        calls
    }
}

pub fn renew_session(session: &str) -> Call {
    Call::RenewSession(RenewSessionRequest {
        session: session.to_owned(),
    })
}

pub fn keep_alive(session: &str) -> Call {
    Call::KeepAlive(KeepAliveRequest {
        session: session.to_owned(),
    })
}

pub fn close(session: &str) -> Call {
    Call::CloseSession(CloseSessionRequest {
        session: session.to_owned(),
    })
}

pub fn release(lock_ref: &str, put: Option<Mutation>) -> Call {
    Call::ReleaseLock(ReleaseLockRequest {
        lock_ref: lock_ref.to_owned(),
        put,
        call_no: 0,
    })
}

pub fn watch(lock_ref: &str) -> AnyCall {
    AnyCall::WatchLock(WatchLockRequest {
        lock_ref: lock_ref.to_owned(),
    })
}
