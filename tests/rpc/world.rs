//! One server on a port of its own, its clients, and what they are told.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata::access::Access;
use fermata::clock::{SystemClock, SystemIds};
use fermata::engine::{Engine, EngineOptions, NoPeers, Packing, REPLICA_TTL};
use fermata::limits::Limits;
use fermata::lock::TableName;
use fermata::server::{Server, ServerError, Stopped, bind};
use fermata::store::Store;
use fermata::store::embedded::{EmbeddedOptions, EmbeddedStore};
use fermata_proto::lock_admin_client::LockAdminClient;
use fermata_proto::lock_service_client::LockServiceClient;
use fermata_proto::{CreateLockRefResponse, LockState};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};
use tonic_types::StatusExt;
use tower::util::BoxCloneService;

use crate::ask;
use crate::lever::{Levered, Mode};

pub type Client = LockServiceClient<Channel>;
pub type PatientChannel =
    BoxCloneService<http::Request<Body>, http::Response<Incoming>, hyper::Error>;

/// A replica on this store that calls no other one.
pub fn options(store: Store) -> EngineOptions {
    EngineOptions {
        store,
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        peers: Arc::new(NoPeers),
        tables: Vec::new(),
        write_back: BTreeSet::new(),
        limits: Limits::default(),
        name: String::new(),
        zone: String::new(),
        address: String::new(),
        peer_address: String::new(),
        packing: Packing::default(),
        replica_ttl: REPLICA_TTL,
    }
}

pub struct World {
    pub addr: SocketAddr,
    pub engine: Engine,
    pub store: Arc<watch::Sender<Mode>>,
    stop: Option<oneshot::Sender<()>>,
    server: Option<JoinHandle<Result<Stopped, ServerError>>>,
    _directory: TempDir,
}

impl World {
    pub async fn new() -> World {
        World::with(Limits::default()).await
    }

    pub async fn with(limits: Limits) -> World {
        World::with_grace(limits, Duration::from_secs(10)).await
    }

    pub async fn with_grace(limits: Limits, grace: Duration) -> World {
        World::start(limits, grace, (Vec::new(), Access::open())).await
    }

    /// For clients who may do what this allows only.
    pub async fn with_access(access: Access) -> World {
        World::start(
            Limits::default(),
            Duration::from_secs(10),
            (Vec::new(), access),
        )
        .await
    }

    /// With a table besides `default`.
    pub async fn with_table(name: &str) -> World {
        let tables = vec![TableName::parse(name).unwrap()];
        World::start(
            Limits::default(),
            Duration::from_secs(10),
            (tables, Access::open()),
        )
        .await
    }

    async fn start(
        limits: Limits,
        grace: Duration,
        (tables, access): (Vec<TableName>, Access),
    ) -> World {
        limits.check().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(EmbeddedOptions::new(directory.path())).unwrap();
        let (lever, store) = Levered::pair(Arc::new(store).store());
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let engine = Engine::start(EngineOptions {
            tables,
            limits,
            address: addr.to_string(),
            ..options(store)
        })
        .await
        .unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let server = Server::new(engine.clone(), Arc::new(SystemIds))
            .with_grace(grace)
            .with_log_filter(Arc::new(|_| Ok("info".to_owned())))
            .with_access(access);
        let server = tokio::spawn(server.serve_tcp(vec![listener], async {
            let _ = stopped.await;
        }));
        World {
            addr,
            engine,
            store: lever,
            stop: Some(stop),
            server: Some(server),
            _directory: directory,
        }
    }

    pub async fn channel(&self) -> Channel {
        self.try_channel().await.unwrap()
    }

    pub async fn try_channel(&self) -> Result<Channel, tonic::transport::Error> {
        Endpoint::from_shared(format!("http://{}", self.addr))?
            .connect()
            .await
    }

    pub async fn client(&self) -> Client {
        LockServiceClient::new(self.channel().await)
    }

    /// A connection whose calls go on listening when their deadline has passed, as tonic's do not: what they
    /// are told is the server's word on any machine, however busy.
    pub async fn patient_channel(&self) -> PatientChannel {
        let socket = TcpStream::connect(self.addr).await.unwrap();
        let (calls, connection) = handshake(TokioExecutor::new(), TokioIo::new(socket))
            .await
            .unwrap();
        tokio::spawn(connection);
        BoxCloneService::new(tower::service_fn(move |request| {
            let mut calls: SendRequest<Body> = calls.clone();
            async move { calls.send_request(request).await }
        }))
    }

    /// A client on a [`World::patient_channel`].
    pub async fn patient_client(&self) -> LockServiceClient<PatientChannel> {
        let origin = format!("http://{}", self.addr).parse().unwrap();
        LockServiceClient::with_origin(self.patient_channel().await, origin)
    }

    pub async fn admin(&self) -> LockAdminClient<Channel> {
        LockAdminClient::new(self.channel().await)
    }

    /// The server begins to stop; how it ended is for who awaits it.
    pub fn stop(&mut self) -> JoinHandle<Result<Stopped, ServerError>> {
        self.stop.take().unwrap().send(()).unwrap();
        self.server.take().unwrap()
    }
}

/// A lockRef that holds this key, in a queue that was empty.
pub async fn hold(client: &mut Client, key: &str) -> CreateLockRefResponse {
    let held = create(client, key).await;
    assert_eq!(held.state(), LockState::Held);
    held
}

/// An entry in the queue of this key.
pub async fn create(client: &mut Client, key: &str) -> CreateLockRefResponse {
    done(client.create_lock_ref(ask::create(key))).await
}

/// What a call is answered with that is not refused.
#[track_caller]
pub fn done<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> impl Future<Output = T> {
    let at = Location::caller();
    async move {
        let answer = call
            .await
            .unwrap_or_else(|status| panic!("{at}: {status:?}"));
        answer.into_inner()
    }
}

/// The status of a call that is refused with this code and reason.
#[track_caller]
pub fn refused<T: Debug>(
    call: impl Future<Output = Result<T, Status>>,
    code: Code,
    reason: &str,
) -> impl Future<Output = Status> {
    let at = Location::caller();
    async move {
        let status = call.await.expect_err(&at.to_string());
        let refusal = code_and_reason(Err::<(), _>(status.clone()));
        assert_eq!(refusal, (code, reason.to_owned()), "{at}: {status:?}");
        status
    }
}

/// Waits until this is so.
#[track_caller]
pub fn until(mut is_so: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let at = Location::caller();
    let waited = async move {
        while !is_so().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    async move {
        let waited = timeout(Duration::from_secs(60), waited).await;
        waited.unwrap_or_else(|_| panic!("{at}: not within a minute"));
    }
}

/// A request with a deadline.
pub fn in_ms<T>(ask: T, ms: u64) -> Request<T> {
    let mut request = Request::new(ask);
    request.set_timeout(Duration::from_millis(ms));
    request
}

/// The code and the reason of a refusal.
pub fn code_and_reason<T: std::fmt::Debug>(answer: Result<T, Status>) -> (Code, String) {
    let status = answer.unwrap_err();
    let details = status.check_error_details().unwrap();
    let reason = details.error_info().map(|info| {
        assert_eq!(info.domain, "fermata.dev");
        info.reason.clone()
    });
    (status.code(), reason.unwrap_or_default())
}

/// The fields that a refusal names.
pub fn fields(status: &Status) -> Vec<String> {
    let details = status.get_error_details();
    let violations = details.bad_request().map(|bad| &bad.field_violations);
    violations
        .into_iter()
        .flatten()
        .map(|violation| violation.field.clone())
        .collect()
}

pub fn has_retry_info(status: &Status) -> bool {
    status.get_error_details().retry_info().is_some()
}

/// What a call was answered with; `None` where its client's timer was faster than the answer.
pub fn heard<T>(answer: Result<T, Status>) -> Option<Result<T, Status>> {
    let given_up = |status: &Status| status.code() == Code::Cancelled;
    (!answer.as_ref().is_err_and(given_up)).then_some(answer)
}

/// Tries a call with a short deadline until its answer came in time: on a busy machine a client may learn of it too late.
pub async fn until_in_time<T>(mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(60) {
        if let Some(answer) = attempt().await {
            return answer;
        }
    }
    panic!("no answer came in time");
}
