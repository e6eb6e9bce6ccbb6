//! Two replicas on one store. Clients call the first one, which calls the second one as replicas do; that one can be told
//! to hang, and counts what it is asked.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fermata::access::Access;
use fermata::clock::{Clock, SystemClock, SystemIds};
use fermata::engine::{Engine, EngineOptions, Presence};
use fermata::lock::TableName;
use fermata::rpc::peer_proto::peer_server::{Peer, PeerServer};
use fermata::rpc::peer_proto::{
    DescribeActivityRequest, DescribeActivityResponse, DescribeKeyRequest, DescribeKeyResponse,
    EndSessionsRequest, EndSessionsResponse, ForwardRequest, ForwardResponse, ForwardWatchRequest,
    HintRequest, HintResponse, ListKeysRequest, ListKeysResponse, Method, RenewSessionRequest,
    RenewSessionResponse,
};
use fermata::rpc::peer_service::PeerRpc;
use fermata::rpc::stopping::{Stop, Stopping};
use fermata::server::{Server, bind};
use fermata_proto::lock_admin_client::LockAdminClient;
use futures_util::stream;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::link::{Shared, StoreLink};
use crate::peers::client as peer_client;
use crate::world::{Client, options, until};

/// What a lock of theirs that is not durable is promised at most is 90 % of it.
pub const REPLICA_TTL: Duration = Duration::from_secs(2);

/// The second replica, as the first one calls it.
pub struct Called {
    inner: PeerRpc,
    hangs: AtomicBool,
    renewals: AtomicUsize,
    acquires: AtomicUsize,
}

impl Called {
    /// Whether calls get no answer from here on.
    pub fn hang(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::Relaxed);
    }

    /// How many RenewLocks, and how many AcquireLocks were passed on to it.
    pub fn passed_on(&self) -> (usize, usize) {
        let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        (count(&self.renewals), count(&self.acquires))
    }
}

/// [`Called`], to be served.
struct Serves(Arc<Called>);

#[tonic::async_trait]
impl Peer for Serves {
    async fn forward(
        &self,
        request: Request<ForwardRequest>,
    ) -> Result<Response<ForwardResponse>, Status> {
        match request.get_ref().method() {
            Method::RenewLocks => self.0.renewals.fetch_add(1, Ordering::Relaxed),
            Method::AcquireLock => self.0.acquires.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        if self.0.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        self.0.inner.forward(request).await
    }

    type ForwardWatchStream = <PeerRpc as Peer>::ForwardWatchStream;

    async fn forward_watch(
        &self,
        request: Request<ForwardWatchRequest>,
    ) -> Result<Response<Self::ForwardWatchStream>, Status> {
        self.0.inner.forward_watch(request).await
    }

    async fn hint(&self, request: Request<HintRequest>) -> Result<Response<HintResponse>, Status> {
        self.0.inner.hint(request).await
    }

    async fn end_sessions(
        &self,
        request: Request<EndSessionsRequest>,
    ) -> Result<Response<EndSessionsResponse>, Status> {
        self.0.inner.end_sessions(request).await
    }

    async fn renew_session(
        &self,
        request: Request<RenewSessionRequest>,
    ) -> Result<Response<RenewSessionResponse>, Status> {
        self.0.inner.renew_session(request).await
    }

    async fn describe_activity(
        &self,
        request: Request<DescribeActivityRequest>,
    ) -> Result<Response<DescribeActivityResponse>, Status> {
        self.0.inner.describe_activity(request).await
    }

    async fn describe_key(
        &self,
        request: Request<DescribeKeyRequest>,
    ) -> Result<Response<DescribeKeyResponse>, Status> {
        self.0.inner.describe_key(request).await
    }

    async fn list_keys(
        &self,
        request: Request<ListKeysRequest>,
    ) -> Result<Response<ListKeysResponse>, Status> {
        self.0.inner.list_keys(request).await
    }
}

pub struct Pair {
    pub first: Engine,
    pub second: Engine,
    pub called: Arc<Called>,
    clients: String,
    _stop: (oneshot::Sender<()>, Stop),
}

impl Pair {
    pub async fn new() -> Pair {
        Pair::with_access(Access::open()).await
    }

    pub async fn with_access(access: Access) -> Pair {
        Pair::with(BTreeSet::new(), access).await
    }

    /// Two that answer from memory.
    pub async fn writing_back() -> Pair {
        let tables = BTreeSet::from([TableName::default_table()]);
        Pair::with(tables, Access::open()).await
    }

    async fn with(write_back: BTreeSet<TableName>, access: Access) -> Pair {
        let shared = Shared::new();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let start = async |name: &str, address: String, peer_address: String| {
            Engine::start(EngineOptions {
                peers: Arc::new(peer_client()),
                write_back: write_back.clone(),
                name: name.to_owned(),
                address,
                peer_address,
                replica_ttl: REPLICA_TTL,
                ..options(StoreLink::to(&shared, &clock).handles())
            })
            .await
            .unwrap()
        };

        let clients = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let peers = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let clients_at = clients.local_addr().unwrap().to_string();
        let peers_at = peers.local_addr().unwrap().to_string();
        let first = start("first", clients_at.clone(), peers_at).await;
        let (stop, stopped) = oneshot::channel::<()>();
        let server = Server::new(first.clone(), Arc::new(SystemIds))
            .with_peers(Arc::new(peer_client()), vec![peers])
            .with_access(access)
            .serve_tcp(vec![clients], async {
                let _ = stopped.await;
            });
        tokio::spawn(server);

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peers_at = listener.local_addr().unwrap().to_string();
        let second = start("second", String::new(), peers_at).await;
        let (end_streams, stopping) = Stopping::pair();
        let called = Arc::new(Called {
            inner: PeerRpc::new(second.clone(), stopping, Arc::new(SystemIds)),
            hangs: AtomicBool::new(false),
            renewals: AtomicUsize::new(0),
            acquires: AtomicUsize::new(0),
        });
        let incoming = stream::unfold(listener, |listener| async {
            Some((listener.accept().await.map(|(io, _)| io), listener))
        });
        let service = PeerServer::new(Serves(Arc::clone(&called)));
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(Box::pin(incoming)));

        let pair = Pair {
            first,
            second,
            called,
            clients: format!("http://{clients_at}"),
            _stop: (stop, end_streams),
        };
        let knows = |one: &Engine, other: &Engine| {
            matches!(one.presence(other.replica()), Presence::Live(_))
        };
        let (first, second) = (&pair.first, &pair.second);
        until(async || knows(first, second) && knows(second, first)).await;
        pair
    }

    /// An operator at the first one.
    pub async fn admin(&self) -> LockAdminClient<Channel> {
        LockAdminClient::connect(self.clients.clone())
            .await
            .unwrap()
    }

    /// A client of the first one.
    pub async fn client(&self) -> Client {
        Client::connect(self.clients.clone()).await.unwrap()
    }
}
