//! The calls that rows make.

use bytes::Bytes;
use fermata_proto::*;
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tonic::body::Body;
use tonic::{Code, Status};

use super::stage::Stage;
use crate::malformed::{call, framed};
use crate::pipeline::Pipe;
use crate::world::World;

/// What is sent.
#[derive(Clone, Debug)]
pub enum Call {
    Create(CreateLockRefRequest),
    Acquire(AcquireLockRequest),
    Release(ReleaseLockRequest),
    CriticalGet(CriticalGetRequest),
    CriticalPut(CriticalPutRequest),
    CriticalDelete(CriticalDeleteRequest),
    Watch(WatchLockRequest),
    Open(OpenSessionRequest),
    RenewLocks(RenewLocksRequest),
    Renew(RenewSessionRequest),
    KeepAlive(KeepAliveRequest),
    Close(CloseSessionRequest),
    Get(GetRequest),
    ListLocks(ListLocksRequest),
    Describe(DescribeLockRequest),
    Force(ForceReleaseRequest),
    /// This message to a method of LockService, whatever it means there.
    Bytes(&'static str, Vec<u8>),
    /// The headers of a call with a deadline, and no message.
    NoMessage,
    /// A connection, and nothing on it.
    Silence,
}

impl Call {
    /// Makes the call; the answer as its fields show.
    pub async fn made(self, stage: &Stage) -> Result<String, Status> {
        fn shown<T: std::fmt::Debug>(answer: tonic::Response<T>) -> String {
            format!("{:?}", answer.into_inner())
        }
        let world = &stage.world;
        let (mut client, mut admin) = (stage.client.clone(), stage.admin.clone());
        match self {
            Call::Create(ask) => client.create_lock_ref(ask).await.map(shown),
            Call::Acquire(ask) => client.acquire_lock(ask).await.map(shown),
            Call::Release(ask) => client.release_lock(ask).await.map(shown),
            Call::CriticalGet(ask) => client.critical_get(ask).await.map(shown),
            Call::CriticalPut(ask) => client.critical_put(ask).await.map(shown),
            Call::CriticalDelete(ask) => client.critical_delete(ask).await.map(shown),
            Call::Watch(ask) => {
                let mut stream = client.watch_lock(ask).await?.into_inner();
                Ok(format!("{:?}", stream.message().await?))
            }
            Call::Open(ask) => client.open_session(ask).await.map(shown),
            Call::RenewLocks(ask) => first_renewed(client.renew_locks(ask).await?.into_inner()),
            Call::Renew(ask) => client.renew_session(ask).await.map(shown),
            Call::KeepAlive(ask) => {
                let asks = tokio_stream::iter([ask]);
                let mut stream = client.keep_alive(asks).await?.into_inner();
                Ok(format!("{:?}", stream.message().await?))
            }
            Call::Close(ask) => client.close_session(ask).await.map(shown),
            Call::Get(ask) => client.get(ask).await.map(shown),
            Call::ListLocks(ask) => admin.list_locks(ask).await.map(shown),
            Call::Describe(ask) => admin.describe_lock(ask).await.map(shown),
            Call::Force(ask) => admin.force_release(ask).await.map(shown),
            Call::Bytes(method, message) => {
                let body = Body::new(Full::new(framed(0, message.len(), &message)));
                let path = format!("/fermata.v1.LockService/{method}");
                Err(call(world, &path, body, &[]).await)
            }
            Call::NoMessage => {
                let nothing = tokio_stream::pending::<Result<Frame<Bytes>, Status>>();
                let path = "/fermata.v1.LockService/CreateLockRef";
                let body = Body::new(StreamBody::new(nothing));
                let deadline = [("grpc-timeout", "300m")];
                Err(call(world, path, body, &deadline).await)
            }
            Call::Silence => Ok(silence(world).await),
        }
    }
}

impl Call {
    /// Makes the call in a frame of a Pipeline of its own; `None` of what is no call on one.
    pub async fn made_in_a_frame(self, stage: &Stage) -> Option<Result<String, Status>> {
        use pipeline_call::Call as Framed;
        let call = match self {
            Call::Create(ask) => Framed::CreateLockRef(ask),
            Call::Acquire(ask) => Framed::AcquireLock(ask),
            Call::Release(ask) => Framed::ReleaseLock(ask),
            Call::CriticalGet(ask) => Framed::CriticalGet(ask),
            Call::CriticalPut(ask) => Framed::CriticalPut(ask),
            Call::CriticalDelete(ask) => Framed::CriticalDelete(ask),
            Call::Open(ask) => Framed::OpenSession(ask),
            Call::RenewLocks(ask) => Framed::RenewLocks(ask),
            Call::Renew(ask) => Framed::RenewSession(ask),
            Call::KeepAlive(ask) => Framed::KeepAlive(ask),
            Call::Close(ask) => Framed::CloseSession(ask),
            Call::Get(ask) => Framed::Get(ask),
            Call::Watch(_)
            | Call::ListLocks(_)
            | Call::Describe(_)
            | Call::Force(_)
            | Call::Bytes(..)
            | Call::NoMessage
            | Call::Silence => return None,
        };
        let mut pipe = Pipe::open(&mut stage.client.clone()).await;
        Some(match pipe.made(call).await {
            Ok(pipeline_answer::Outcome::RenewLocks(answer)) => first_renewed(answer),
            Ok(outcome) => Ok(format!("{outcome:?}")),
            Err(status) => Err(status),
        })
    }
}

/// What came of the first renewal.
fn first_renewed(answer: RenewLocksResponse) -> Result<String, Status> {
    match answer.renewals.into_iter().next().unwrap().outcome.unwrap() {
        lock_renewal::Outcome::Renewed(lock) => Ok(format!("{lock:?}")),
        lock_renewal::Outcome::Error(error) => Err(Status::with_details(
            Code::from_i32(error.code),
            error.message,
            error.details,
        )),
    }
}

/// What a client sees that connects and says nothing, on a clock that does not make it wait.
async fn silence(world: &World) -> String {
    let mut socket = TcpStream::connect(world.addr).await.unwrap();
    tokio::time::pause();
    let started = tokio::time::Instant::now();
    let mut received = Vec::new();
    // An abrupt end is an end.
    let _ = socket.read_to_end(&mut received).await;
    let closed = started.elapsed();
    tokio::time::resume();
    format!("closed after {} s", closed.as_secs())
}

/// The calls that only a holder may make, with this lockRef. None of their numbers is ever taken.
pub fn critical_calls(lock_ref: &str) -> Vec<(&'static str, Call)> {
    let lock_ref = lock_ref.to_owned();
    let value = Bytes::from_static(b"stolen");
    let call_no = 7;
    let put = CriticalPutRequest {
        lock_ref: lock_ref.clone(),
        value: value.clone(),
        call_no,
    };
    let last = ReleaseLockRequest {
        lock_ref: lock_ref.clone(),
        put: Some(Mutation {
            value,
            delete: false,
        }),
        call_no,
    };
    let get = CriticalGetRequest {
        lock_ref: lock_ref.clone(),
        call_no,
    };
    let delete = CriticalDeleteRequest { lock_ref, call_no };
    vec![
        ("CriticalPut", Call::CriticalPut(put)),
        ("CriticalGet", Call::CriticalGet(get)),
        ("CriticalDelete", Call::CriticalDelete(delete)),
        ("ReleaseLock with a put", Call::Release(last)),
    ]
}

/// All calls that take a lockRef, with this one, and the field it is in.
pub fn lock_ref_calls(lock_ref: &str) -> Vec<(&'static str, &'static str, Call)> {
    let text = || lock_ref.to_owned();
    let critical = critical_calls(lock_ref);
    let mut calls: Vec<_> = critical
        .into_iter()
        .map(|(name, call)| (name, "lock_ref", call))
        .collect();
    let acquire = AcquireLockRequest {
        lock_ref: text(),
        ..Default::default()
    };
    let release = ReleaseLockRequest {
        lock_ref: text(),
        ..Default::default()
    };
    let watch = WatchLockRequest { lock_ref: text() };
    let together = RenewLocksRequest {
        lock_refs: vec![text()],
    };
    let renew = RenewSessionRequest { session: text() };
    let keep_alive = KeepAliveRequest { session: text() };
    calls.extend([
        ("AcquireLock", "lock_ref", Call::Acquire(acquire)),
        ("ReleaseLock", "lock_ref", Call::Release(release)),
        ("WatchLock", "lock_ref", Call::Watch(watch)),
        ("RenewLocks", "lock_ref", Call::RenewLocks(together)),
        ("RenewSession", "session", Call::Renew(renew)),
        ("KeepAlive", "session", Call::KeepAlive(keep_alive)),
    ]);
    calls
}

/// The end by force of the entry of this name.
pub fn force(name: &str) -> Call {
    Call::Force(ForceReleaseRequest {
        name: name.to_owned(),
        reason: "wedged".to_owned(),
        ..Default::default()
    })
}

/// The calls that take a key and a table.
pub fn key_calls(key: &str, table: &str) -> Vec<(&'static str, Call)> {
    let (key, table) = (key.to_owned(), table.to_owned());
    let get = GetRequest {
        key: key.clone(),
        table: table.clone(),
    };
    let describe = DescribeLockRequest {
        key: key.clone(),
        table: table.clone(),
        ..Default::default()
    };
    let create = CreateLockRefRequest {
        key,
        table,
        ..Default::default()
    };
    vec![
        ("CreateLockRef", Call::Create(create)),
        ("Get", Call::Get(get)),
        ("DescribeLock", Call::Describe(describe)),
    ]
}
