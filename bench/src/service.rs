//! The replicas of a service, each called by itself, and what they say they did.

use std::time::Duration;

use fermata_client::{Client, ClientOptions};
use fermata_command::{Failure, exit};
use fermata_proto::lock_admin_client::LockAdminClient;
use fermata_proto::lock_service_client::LockServiceClient;
use fermata_proto::{
    AcquireLockRequest, AcquireLockResponse, CloseSessionRequest, CreateLockRefRequest,
    CreateLockRefResponse, DescribeActivityRequest, DescribeLockRequest, DescribeLockResponse,
    KeepAliveRequest, ListReplicasRequest, LockState, OpenSessionRequest, ReleaseLockRequest,
};
use prost_types::Duration as WireSpan;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};
use uuid::Uuid;

use super::connect::{ConnectError, Connection, connection};

/// How long a call may take that does not wait for a lock.
const CALL: Duration = Duration::from_secs(30);
/// How long closing a session may take: all that lives by it is ended.
const CLOSE: Duration = Duration::from_secs(300);
/// How many renewals may be on their way to a stream.
const KEPT_AHEAD: usize = 64;
/// How long one waits for a lock.
const WAIT: Duration = Duration::from_secs(3_600);
/// For how long an entry is asked for while the store cannot be reached …
const CREATE_WITHIN: Duration = Duration::from_secs(30);
/// … and how soon again.
const CREATE_AGAIN: Duration = Duration::from_secs(1);
/// How many keys are tried to find one that has its home at a certain replica.
const KEYS_TRIED: usize = 200;
/// The label of an entry in the queue.
const OWNER: &str = "fermata-bench";

/// Why nothing, or no more, was measured.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServiceError {
    /// Start the server, or name another endpoint.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The message says what.
    #[error("{what} failed at {endpoint}: {}", status.message())]
    Call {
        what: &'static str,
        endpoint: String,
        status: Box<Status>,
    },
    /// Look at that replica, or repeat it.
    #[error("replica {0} did not say what it did, so nothing can be counted; is it well?")]
    Silent(String),
    /// Look at who ended the lock of this benchmark.
    #[error("a waiter got its turn while the key was held: somebody ended that lock")]
    Overtaken,
    /// Give sessions a longer TTL, or the machine less to do.
    #[error(
        "only {open} of {opened} sessions are open in the end: the others expired, so the figures are of less"
    )]
    Expired { open: u64, opened: u64 },
    /// The message says why.
    #[error("the library cannot hold so many locks: {0}")]
    Library(String),
    /// Take fewer, or give the machine less to do.
    #[error("{0} guards lost their locks, so the figures are of less")]
    Lost(usize),
    /// Leave more time before counting, or take fewer.
    #[error("only {waiting} of {asked} waiters wait when it is time to count")]
    NotWaiting { waiting: u32, asked: u32 },
    /// Name an endpoint.
    #[error("no endpoint is named")]
    NoEndpoint,
    /// Name another endpoint first.
    #[error("of {KEYS_TRIED} keys none has its home at {0}; is that replica well?")]
    NoKey(String),
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Failure {
        let code = match error {
            ServiceError::Connect(ConnectError::Endpoint(_)) | ServiceError::NoEndpoint => {
                exit::USAGE
            }
            ServiceError::Connect(ConnectError::Unreachable { .. })
            | ServiceError::Call { .. }
            | ServiceError::Silent(_)
            | ServiceError::Overtaken
            | ServiceError::Expired { .. }
            | ServiceError::Library(_)
            | ServiceError::Lost(_)
            | ServiceError::NotWaiting { .. }
            | ServiceError::NoKey(_) => exit::UNAVAILABLE,
        };
        Failure::new(code, error.to_string())
    }
}

/// One replica, over one connection. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Replica {
    pub(super) endpoint: String,
    /// Its UUID.
    pub(super) id: String,
    connection: Connection,
    options: ClientOptions,
}

fn wire(span: Duration) -> Option<WireSpan> {
    WireSpan::try_from(span).ok()
}

fn in_time<T>(message: T, within: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(within);
    request
}

impl Replica {
    async fn connect(endpoint: &str, options: &ClientOptions) -> Result<Replica, ServiceError> {
        let mut replica = Replica {
            endpoint: endpoint.to_owned(),
            id: String::new(),
            connection: connection(endpoint, options).await?,
            options: options.clone(),
        };
        let ask = in_time(ListReplicasRequest::default(), CALL);
        let listed = replica.admin().list_replicas(ask).await;
        let listed = replica.done("ListReplicas", listed)?;
        let answering = listed.replicas.into_iter().find(|one| one.answering);
        replica.id = answering.map(|one| one.replica).unwrap_or_default();
        Ok(replica)
    }

    /// Over a connection of its own.
    pub(super) async fn again(&self) -> Result<Replica, ServiceError> {
        Replica::connect(&self.endpoint, &self.options).await
    }

    /// The library's client of this replica.
    pub(super) fn client(&self) -> Result<Client, fermata_client::ConnectError> {
        Client::connect_with([&self.endpoint], self.options.clone())
    }

    pub(super) fn locks(&self) -> LockServiceClient<Connection> {
        LockServiceClient::new(self.connection.clone())
    }

    fn admin(&self) -> LockAdminClient<Connection> {
        LockAdminClient::new(self.connection.clone())
    }

    pub(super) fn done<T>(
        &self,
        what: &'static str,
        answer: Result<tonic::Response<T>, Status>,
    ) -> Result<T, ServiceError> {
        let failed = |status: Status| ServiceError::Call {
            what,
            endpoint: self.endpoint.clone(),
            status: Box::new(status),
        };
        answer.map(tonic::Response::into_inner).map_err(failed)
    }

    /// Takes an entry; of a session where there is one, else it lives for this TTL.
    pub(super) async fn create(
        &self,
        table: &str,
        key: &str,
        session: &str,
        ttl: Duration,
    ) -> Result<CreateLockRefResponse, ServiceError> {
        let ask = CreateLockRefRequest {
            key: key.to_owned(),
            table: table.to_owned(),
            request_id: Uuid::new_v4().to_string(),
            ttl: wire(ttl).filter(|_| session.is_empty()),
            session: session.to_owned(),
            owner: OWNER.to_owned(),
            ..CreateLockRefRequest::default()
        };
        let until = Instant::now() + CREATE_WITHIN;
        loop {
            let created = self
                .locks()
                .create_lock_ref(in_time(ask.clone(), CALL))
                .await;
            match created {
                // One request is one entry, however often it is made.
                Err(status) if status.code() == Code::Unavailable && Instant::now() < until => {
                    sleep(CREATE_AGAIN).await;
                }
                created => return self.done("CreateLockRef", created),
            }
        }
    }

    /// Waits for the lock. Where this is dropped, or it takes an hour, the queue is left.
    pub(super) async fn acquire(
        &self,
        lock_ref: &str,
    ) -> Result<AcquireLockResponse, ServiceError> {
        let ask = AcquireLockRequest {
            lock_ref: lock_ref.to_owned(),
            wait: wire(WAIT),
            give_up: true,
            ..AcquireLockRequest::default()
        };
        loop {
            let acquired = self.locks().acquire_lock(Request::new(ask.clone())).await;
            let acquired = self.done("AcquireLock", acquired)?;
            match acquired.state() {
                LockState::Held => return Ok(acquired),
                // Asked again it is renewed.
                LockState::Waiting => {}
                _ => return self.done("AcquireLock", Err(Status::aborted("an hour has passed"))),
            }
        }
    }

    pub(super) async fn release(&self, lock_ref: &str) -> Result<(), ServiceError> {
        let ask = ReleaseLockRequest {
            lock_ref: lock_ref.to_owned(),
            ..ReleaseLockRequest::default()
        };
        let released = self.locks().release_lock(in_time(ask, CALL)).await;
        self.done("ReleaseLock", released).map(drop)
    }

    /// Opens a session.
    pub(super) async fn open_session(&self, ttl: Duration) -> Result<String, ServiceError> {
        let ask = OpenSessionRequest {
            ttl: wire(ttl),
            owner: OWNER.to_owned(),
            ..OpenSessionRequest::default()
        };
        let opened = self.locks().open_session(in_time(ask, CALL)).await;
        Ok(self.done("OpenSession", opened)?.session)
    }

    /// Closes a session, and so ends what lives by it.
    pub(super) async fn close_session(&self, session: String) -> Result<(), ServiceError> {
        let ask = CloseSessionRequest { session };
        let closed = self.locks().close_session(in_time(ask, CLOSE)).await;
        self.done("CloseSession", closed).map(drop)
    }

    /// Keeps sessions, or lockRefs without one, alive over a stream until what this gives is dropped.
    pub(super) fn keep(&self, sessions: Vec<String>, every: Duration) -> Kept {
        let replica = self.clone();
        Kept(tokio::spawn(async move {
            let (asks, stream) = mpsc::channel(KEPT_AHEAD);
            let mut locks = replica.locks();
            let answers = locks.keep_alive(ReceiverStream::new(stream));
            let pings = async {
                loop {
                    for session in &sessions {
                        let session = session.clone();
                        if asks.send(KeepAliveRequest { session }).await.is_err() {
                            return;
                        }
                    }
                    sleep(every).await;
                }
            };
            let hear = async {
                let Ok(answers) = answers.await else { return };
                let mut answers = answers.into_inner();
                while let Ok(Some(_)) = answers.message().await {}
            };
            // Where it ends the locks are lost, which whoever measures looks for.
            tokio::select! {
                () = pings => {}
                () = hear => {}
            }
        }))
    }

    /// How many wait for a key, behind its holder.
    pub(super) async fn waiters_of(&self, table: &str, key: &str) -> Result<u32, ServiceError> {
        Ok(self.describe(table, key).await?.waiter_count)
    }

    /// The UUID of the replica that serves the holder of a key.
    pub(super) async fn home_of(&self, table: &str, key: &str) -> Result<String, ServiceError> {
        let holder = self.describe(table, key).await?.holders.into_iter().next();
        Ok(holder.map(|entry| entry.home).unwrap_or_default())
    }

    async fn describe(&self, table: &str, key: &str) -> Result<DescribeLockResponse, ServiceError> {
        let ask = DescribeLockRequest {
            key: key.to_owned(),
            table: table.to_owned(),
            page_size: 1,
            ..DescribeLockRequest::default()
        };
        let described = self.admin().describe_lock(in_time(ask, CALL)).await;
        self.done("DescribeLock", described)
    }
}

/// Keeps something alive until it is dropped.
#[derive(Debug)]
pub(super) struct Kept(JoinHandle<()>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What replicas did since their processes started, in sum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct Did {
    /// Turns that came after a change of the queue.
    pub(super) turns_after_change: u64,
    pub(super) store_reads: u64,
    pub(super) store_writes: u64,
    pub(super) store_transactions: u64,
    /// At the moment.
    #[serde(skip)]
    pub(super) resident_bytes: u64,
    /// Open at the moment.
    #[serde(skip)]
    pub(super) sessions: u64,
}

impl Did {
    /// What was done since then.
    pub(super) fn since(self, then: Did) -> Did {
        let more = |now: u64, then: u64| now.saturating_sub(then);
        Did {
            turns_after_change: more(self.turns_after_change, then.turns_after_change),
            store_reads: more(self.store_reads, then.store_reads),
            store_writes: more(self.store_writes, then.store_writes),
            store_transactions: more(self.store_transactions, then.store_transactions),
            resident_bytes: self.resident_bytes,
            sessions: self.sessions,
        }
    }
}

/// The replicas of a service.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) replicas: Vec<Replica>,
    pub(super) first: Replica,
}

impl Service {
    /// Connects to each, once.
    pub(super) async fn connect(
        endpoints: &[String],
        options: &ClientOptions,
    ) -> Result<Service, ServiceError> {
        let mut replicas: Vec<Replica> = Vec::new();
        for endpoint in endpoints {
            let replica = Replica::connect(endpoint, options).await?;
            replicas.push(replica);
        }
        let Some(first) = replicas.first().cloned() else {
            return Err(ServiceError::NoEndpoint);
        };
        Ok(Service { replicas, first })
    }

    /// What all replicas of the service did so far, also those that no endpoint names.
    pub(super) async fn did(&self) -> Result<Did, ServiceError> {
        let ask = in_time(DescribeActivityRequest { keys_max: 1 }, CALL);
        let answered = self.first.admin().describe_activity(ask).await;
        let answered = self.first.done("DescribeActivity", answered)?;
        let mut did = Did::default();
        for one in answered.replicas {
            if !one.answered {
                let id = one.replica.unwrap_or_default().replica;
                return Err(ServiceError::Silent(id));
            }
            let grants = one.grants.unwrap_or_default();
            did.turns_after_change += grants.after_change;
            let store = one.store.unwrap_or_default();
            did.store_reads += store.reads;
            did.store_writes += store.writes;
            did.store_transactions += store.transactions;
            did.resident_bytes += one.resident_bytes;
            did.sessions += one.sessions;
        }
        Ok(did)
    }

    /// A key that nobody uses, whose entries have their home at the first replica.
    pub(super) async fn key_at_first(
        &self,
        table: &str,
        prefix: &str,
        ttl: Duration,
    ) -> Result<String, ServiceError> {
        for _ in 0..KEYS_TRIED {
            let key = format!("{prefix}/{}", Uuid::simple(Uuid::new_v4()));
            let held = self.first.create(table, &key, "", ttl).await?;
            let home = self.first.home_of(table, &key).await?;
            self.first.release(&held.lock_ref).await?;
            // Homes are spread over the replicas by the key.
            if home == self.first.id {
                return Ok(key);
            }
        }
        Err(ServiceError::NoKey(self.first.endpoint.clone()))
    }
}
