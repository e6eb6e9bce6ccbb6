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

use crate::access::by;
use crate::ask;
use crate::pipeline::Pipe;
use crate::world::{Client, code_and_reason, done};

/// Longer than any test takes.
pub const HOUR: Option<prost_types::Duration> = ask::seconds(3_600);

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
    SetLogFilter(SetLogFilterRequest),
}

impl AnyCall {
    /// The name of its method in the contract, which the variants have as well.
    pub fn method(&self) -> String {
        let shown = format!("{self:?}");
        let shown = shown.strip_prefix("Carried(").unwrap_or(&shown);
        shown.split('(').next().unwrap().to_owned()
    }
}

/// What a call was answered with; of a stream its first message.
pub enum Answer {
    Carried(Outcome),
    /// As its fields show.
    Other(String),
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Answer::Carried(outcome) => write!(f, "{outcome:?}"),
            Answer::Other(shown) => f.write_str(shown),
        }
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
    pub fn of(made: &Result<Answer, Status>) -> Came {
        match made {
            Ok(Answer::Carried(Outcome::KeepAlive(answer))) => {
                match (answer.reason(), answer.ttl) {
                    (EndReason::Unspecified, Some(_)) => Came::Done,
                    (EndReason::Unspecified, None) => Came::NothingSaid,
                    (reason, _) => Came::Ended(reason),
                }
            }
            Ok(Answer::Carried(Outcome::CloseSession(answer))) if answer.already_closed => {
                Came::AlreadyClosed
            }
            Ok(_) => Came::Done,
            Err(status) => {
                let (code, reason) = code_and_reason(Err::<(), _>(status.clone()));
                Came::Refused(code, reason)
            }
        }
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

    pub async fn made(&mut self, call: AnyCall) -> Came {
        Came::of(&self.asked(call).await)
    }

    pub async fn asked(&mut self, call: AnyCall) -> Result<Answer, Status> {
        let (client, admin, token) = (&mut self.client, &mut self.admin, self.token);
        let other = match call {
            AnyCall::Carried(call) => return self.carried(call).await.map(Answer::Carried),
            AnyCall::WatchLock(ask) => first(client.watch_lock(by(token, ask)).await).await,
            AnyCall::Pipeline => {
                let frames = tokio_stream::empty::<PipelineRequest>();
                client.pipeline(by(token, frames)).await.map(shown)
            }
            AnyCall::ListTables(ask) => admin.list_tables(by(token, ask)).await.map(shown),
            AnyCall::ListLocks(ask) => admin.list_locks(by(token, ask)).await.map(shown),
            AnyCall::DescribeLock(ask) => admin.describe_lock(by(token, ask)).await.map(shown),
            AnyCall::ForceRelease(ask) => admin.force_release(by(token, ask)).await.map(shown),
            AnyCall::ListSessions(ask) => admin.list_sessions(by(token, ask)).await.map(shown),
            AnyCall::EndSession(ask) => admin.end_session(by(token, ask)).await.map(shown),
            AnyCall::ListReplicas(ask) => admin.list_replicas(by(token, ask)).await.map(shown),
            AnyCall::DescribeActivity(ask) => {
                admin.describe_activity(by(token, ask)).await.map(shown)
            }
            AnyCall::SetLogFilter(ask) => admin.set_log_filter(by(token, ask)).await.map(shown),
            AnyCall::Backup(ask) => first(admin.backup(by(token, ask)).await).await,
        };
        other.map(Answer::Other)
    }

    /// Makes a call that a Pipeline carries as well. The first lockRef that was not renewed is what comes of RenewLocks.
    pub async fn carried(&mut self, call: Call) -> Result<Outcome, Status> {
        let outcome = self.carried_as_it_is(call).await?;
        if let Outcome::RenewLocks(answer) = &outcome {
            for renewal in &answer.renewals {
                if let Some(lock_renewal::Outcome::Error(error)) = &renewal.outcome {
                    return Err(status_of(error));
                }
            }
        }
        Ok(outcome)
    }

    pub async fn carried_as_it_is(&mut self, call: Call) -> Result<Outcome, Status> {
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

fn shown<T: std::fmt::Debug>(answer: Response<T>) -> String {
    format!("{:?}", answer.into_inner())
}

/// What a stream begins with.
async fn first<T: std::fmt::Debug>(
    stream: Result<Response<Streaming<T>>, Status>,
) -> Result<String, Status> {
    let first = stream?.into_inner().next().await.unwrap()?;
    Ok(format!("{first:?}"))
}

/// The status that this lock of many would have had by itself.
pub fn status_of(error: &LockError) -> Status {
    let code = Code::from_i32(error.code);
    Status::with_details(code, error.message.clone(), error.details.clone())
}

/// Each call that takes a lockRef, with this text.
pub fn calls_on_lock_ref(text: &str) -> Vec<AnyCall> {
    let wait = AcquireLockRequest {
        wait: Some(prost_types::Duration {
            seconds: 0,
            nanos: 1_000_000,
        }),
        read_value: true,
        ..ask::acquire(text)
    };
    let calls = [
        Call::AcquireLock(ask::acquire(text)),
        Call::AcquireLock(wait),
        Call::AcquireLock(ask::give_up(text)),
        Call::RenewLocks(ask::renew_locks(&[text])),
        Call::CriticalGet(ask::critical_get(text)),
        Call::CriticalPut(ask::critical_put(text, "an intruder's")),
        Call::CriticalDelete(ask::critical_delete(text)),
        Call::ReleaseLock(ask::release_with_put(text, "an intruder's")),
        Call::ReleaseLock(ask::release(text)),
    ];
    let mut calls: Vec<AnyCall> = calls.into_iter().map(AnyCall::Carried).collect();
    calls.push(AnyCall::WatchLock(ask::watch(text)));
    calls
}

/// Each call that takes a session, with this text: the first two take a lockRef as well.
pub fn calls_on_session(text: &str) -> [AnyCall; 4] {
    [
        Call::RenewSession(ask::renew_session(text)),
        Call::KeepAlive(ask::keep_alive(text)),
        Call::CreateLockRef(ask::create_in("another", text)),
        Call::CloseSession(ask::close_session(text)),
    ]
    .map(AnyCall::Carried)
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
        let session = done(client.open_session(by(who, opened.clone())))
            .await
            .session;
        let in_session = ask::create_in(&Holdings::key_in_session(key), &session);
        done(client.create_lock_ref(by(who, in_session))).await;
        let entry = || CreateLockRefRequest {
            request_id: Uuid::new_v4().to_string(),
            ttl: HOUR,
            ..ask::create(key)
        };
        let created = entry();
        let held = client
            .create_lock_ref(by(who, created.clone()))
            .await
            .unwrap();
        let home = held
            .metadata()
            .get(HOME_ID)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let held = held.into_inner();
        assert_eq!(held.state(), LockState::Held);
        let put = ask::critical_put(&held.lock_ref, "the owner's");
        done(client.critical_put(by(who, put))).await;
        let waiting = done(client.create_lock_ref(by(who, entry()))).await;
        Holdings {
            key: key.to_owned(),
            opened,
            session,
            created,
            held,
            waiting,
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
        let mut calls = vec![
            Call::AcquireLock(ask::acquire(held)),
            Call::AcquireLock(ask::acquire(waiting)),
            Call::RenewLocks(ask::renew_locks(&[held, waiting])),
            Call::CriticalGet(ask::critical_get(held)),
            Call::CriticalPut(ask::critical_put(held, "the owner's")),
        ];
        for session in [&self.session, &self.held.session, &self.waiting.session] {
            calls.push(Call::RenewSession(ask::renew_session(session)));
            calls.push(Call::KeepAlive(ask::keep_alive(session)));
        }
        let mut calls: Vec<AnyCall> = calls.into_iter().map(AnyCall::Carried).collect();
        calls.push(AnyCall::WatchLock(ask::watch(held)));
        calls
    }
}
