//! The running server: the services of one engine on any stream of connections, until its stop. The service between replicas has
//! its own listeners.
//!
//! The steps of a stop: health says NOT_SERVING; keys in use and sessions are handed over; no connection is accepted, and streams
//! end; the engine ends its waits; open calls are answered; after the grace period all others are cut off. cli/serve.rs has the
//! rest: the other keys are handed over, the row says `stopped` unless a lock is in memory only (H7), and the store is closed.

mod client_tls;
mod connection;
mod handshake;
mod health;
mod listen;
mod local;
mod wire;

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fermata_proto as proto;
use fermata_proto::lock_admin_server::LockAdminServer;
use fermata_proto::lock_service_server::LockServiceServer;
use fermata_proto::row_lock_service_server::RowLockServiceServer;
use futures_util::{Stream, StreamExt, stream};
use http::{Request, Response};
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::server::Connected;
use tower::Service;

pub use client_tls::{ClientTls, ClientTlsFiles};
pub use fermata_tls::FileError as TlsFileError;
pub use listen::{
    ListenError, Protection, SOCKET_MODE, ServerListener, SocketListener, bind, bind_socket,
    check_listen,
};
pub use local::{LOCAL_ANSWER_BYTES_MAX, LocalDialer, local};

use crate::access::Access;
use crate::clock::Ids;
use crate::engine::Engine;
use crate::limits::{HEADERS_BYTES_MAX, Limits, PEER_CONNECTIONS_MAX};
use crate::protocol::LeaderlessTables;
use crate::rpc::AccessCheck;
pub use crate::rpc::budget::ConnectionInfo;
use crate::rpc::budget::{AccountLimits, Accounts};
use crate::rpc::call_layer::CallLayer;
use crate::rpc::lock_admin::LockAdminRpc;
pub use crate::rpc::lock_admin::LogFilterSetter;
use crate::rpc::lock_service::LockServiceRpc;
use crate::rpc::metrics::RequestMetrics;
use crate::rpc::peer::PING_EVERY as PEER_PING_EVERY;
pub use crate::rpc::peer::{PeerClient, PeerSecret, PeerTls, PeerTlsFiles, SecretError};
use crate::rpc::peer_service::{PeerRpc, STREAMS_MAX};
use crate::rpc::route::Router;
use crate::rpc::row_lock_service::RowLockServiceRpc;
use crate::rpc::stopping::Stopping;
use connection::Admitted;
use handshake::Side;
use health::Health;
pub use health::Readiness;
pub use wire::{ByteStream, NOBODY};

/// The default time for calls in flight after SIGTERM.
pub const GRACE: Duration = Duration::from_secs(10);

/// The interval between pings, which find clients that vanished.
const PING_EVERY: Duration = Duration::from_secs(10);
/// The time for the answer to a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// The largest window of a stream, in bytes. A smaller message fits whole, without further round trips.
const STREAM_WINDOW_MAX: u32 = 16 * 1024 * 1024;
/// The window of a connection, in messages: messages that wait for room hold two of them at most.
const WINDOWS_PER_CONNECTION: u32 = 4;
/// The least window of a connection for each of its calls, in bytes. h2 closes a connection (ENHANCE_YOUR_CALM) with too many
/// small unread frames: each counts as 256 bytes, and half the window is the limit. A burst of all allowed calls stays below.
const WINDOW_PER_CALL: u32 = 1024;

/// The size limit of a message of health or reflection.
const SMALL_MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// The interval between two looks at the readiness of the engine, and for unread answers.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Why a server did not start, or failed.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The descriptors for reflection are damaged: a fault of the build.
    #[error("reflection cannot be served: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The HTTP/2 server failed.
    #[error("the server ended: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// How a server stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// Everything in flight was answered.
    Clean,
    /// Calls or connections that outlived the grace period were cut off.
    CutOff,
}

/// The services of one engine.
pub struct Server {
    engine: Engine,
    ids: Arc<dyn Ids>,
    grace: Duration,
    check: AccessCheck,
    leaderless: LeaderlessTables,
    /// For clients over TCP.
    tls: Option<ClientTls>,
    peers: Option<Arc<PeerClient>>,
    /// For other replicas.
    peer_listeners: Vec<TcpListener>,
    accounts: Accounts,
    metrics: RequestMetrics,
    readiness: Readiness,
    log_filter: Option<LogFilterSetter>,
}

impl Server {
    /// `ids` makes missing request_ids.
    pub fn new(engine: Engine, ids: Arc<dyn Ids>) -> Self {
        Server {
            accounts: Accounts::new(account_limits(engine.limits())),
            engine,
            ids,
            grace: GRACE,
            check: AccessCheck::open(),
            leaderless: LeaderlessTables::default(),
            tls: None,
            peers: None,
            peer_listeners: Vec::new(),
            metrics: RequestMetrics::default(),
            readiness: Readiness::default(),
            log_filter: None,
        }
    }

    /// Adds the metrics of its calls, its connections and its engine to a registry.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
        self.accounts.register(registry);
        self.engine.register(registry);
    }

    /// With a log whose filter operators can set.
    #[must_use]
    pub fn with_log_filter(self, setter: LogFilterSetter) -> Self {
        let log_filter = Some(setter);
        Server { log_filter, ..self }
    }

    /// Says by this whether it serves calls.
    #[must_use]
    pub fn with_readiness(self, readiness: Readiness) -> Self {
        Server { readiness, ..self }
    }

    /// As one of several replicas, which call each other by clients and listeners.
    #[must_use]
    pub fn with_peers(self, client: Arc<PeerClient>, listeners: Vec<TcpListener>) -> Self {
        Server {
            peers: Some(client),
            peer_listeners: listeners,
            ..self
        }
    }

    /// With rules for clients.
    #[must_use]
    pub fn with_access(self, access: Access) -> Self {
        let check = AccessCheck::new(access);
        Server { check, ..self }
    }

    /// With tables without homes.
    #[must_use]
    pub fn with_leaderless(self, leaderless: LeaderlessTables) -> Self {
        Server { leaderless, ..self }
    }

    /// With TLS for clients over TCP.
    #[must_use]
    pub fn with_tls(self, tls: ClientTls) -> Self {
        let tls = Some(tls);
        Server { tls, ..self }
    }

    /// The time for calls in flight after the begin of a stop.
    #[must_use]
    pub fn with_grace(self, grace: Duration) -> Self {
        Server { grace, ..self }
    }

    /// Serves TCP connections until `shutdown`. See [`bind`] for the listeners.
    pub async fn serve_tcp(
        self,
        listeners: Vec<TcpListener>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Stopped, ServerError> {
        let listeners = listeners.into_iter().map(ServerListener::Tcp);
        self.serve_listeners(listeners.collect(), shutdown).await
    }

    /// Serves the connections of these listeners until `shutdown`. See [`bind`] and [`bind_socket`].
    pub async fn serve_listeners(
        self,
        listeners: Vec<ServerListener>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Stopped, ServerError> {
        let accounts = self.accounts.clone();
        let counted = connection::counted(listen::connections(listeners), accounts);
        match self.tls.clone() {
            None => {
                let plain = counted.map(|admitted| admitted.map(wire::plain));
                self.serve_admitted(plain, shutdown).await
            }
            Some(tls) => {
                let side = Side::Client(self.check.clone());
                let secured = handshake::secured(counted, side, move || tls.acceptor());
                self.serve_admitted(secured, shutdown).await
            }
        }
    }

    /// The accounts of the connections of clients.
    pub fn accounts(&self) -> Accounts {
        self.accounts.clone()
    }

    /// Serves any connections until `shutdown`, also after the last one came. A drop of the future cuts all off.
    pub async fn serve<I, IO, E>(
        self,
        incoming: I,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Stopped, ServerError>
    where
        I: Stream<Item = Result<IO, E>>,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let counted = connection::counted(incoming.chain(stream::pending()), self.accounts());
        self.serve_admitted(counted, shutdown).await
    }

    async fn serve_admitted<IO, E>(
        mut self,
        admitted: impl Stream<Item = Result<Admitted<IO>, E>>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Stopped, ServerError>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let limits = self.engine.limits().clone();
        let (end_streams, stopping) = Stopping::pair();
        let (cut_off, cut) = Stopping::pair();
        let health = Health::new(self.readiness.clone()).await;
        let routes = self.routes(&limits, stopping.clone(), &health)?;
        let connections = connection::guarded(admitted, stopping.clone(), cut.clone());
        let mut accepting = stopping.clone();
        let listeners = std::mem::take(&mut self.peer_listeners);
        let peers = self.serve_peers(listeners, &limits, stopping.clone(), cut);
        let clients = http2(&limits, limits.streams_per_connection_max)
            .layer(
                CallLayer::new(&limits, stopping.clone())
                    .with_access(self.check.clone())
                    .with_engine(self.engine.clone())
                    .with_metrics(self.metrics.clone()),
            )
            .serve_with_incoming_shutdown(routes.prepare(), connections, async move {
                accepting.stopped().await;
            });
        let accounts = self.accounts.clone();
        let mut serving = pin!(async {
            tokio::select! {
                (clients, peers) = async { tokio::join!(clients, peers) } => clients.and(peers),
                never = accounts.keep_within_limits() => match never {},
            }
        });

        tokio::select! {
            biased;
            () = shutdown => {}
            ended = &mut serving => {
                ended?;
                return Ok(Stopped::Clean);
            }
            never = health.follow(&self.engine, LOOK_EVERY) => match never {},
        }

        tracing::info!(grace = ?self.grace, "stopping");
        health.stopping().await;
        tokio::select! {
            biased;
            ended = &mut serving => {
                ended?;
                return Ok(Stopped::Clean);
            }
            () = self.engine.hand_over_in_use(self.grace / 2) => {}
        }
        end_streams.now();
        let settled = async {
            let (ended, ()) = tokio::join!(&mut serving, async {
                self.engine.stop();
                health.end_watches().await;
            });
            ended
        };
        match timeout(self.grace, settled).await {
            Ok(ended) => {
                ended?;
                Ok(Stopped::Clean)
            }
            Err(_elapsed) => {
                tracing::warn!("cutting off calls that outlived the grace period");
                cut_off.now();
                // The drop of this future ends the others.
                let _ = timeout(connection::GO_AWAY_WITHIN, serving).await;
                Ok(Stopped::CutOff)
            }
        }
    }

    /// Serves other replicas, in the same orderly way.
    async fn serve_peers(
        &self,
        listeners: Vec<TcpListener>,
        limits: &Limits,
        mut stopping: Stopping,
        cut: Stopping,
    ) -> Result<(), tonic::transport::Error> {
        let Some(client) = self.peers.as_ref().filter(|_| !listeners.is_empty()) else {
            stopping.stopped().await;
            return Ok(());
        };
        let ids = Arc::clone(&self.ids);
        let service = PeerRpc::new(self.engine.clone(), stopping.clone(), ids).guarded(client);
        let layer = CallLayer::new(limits, stopping.clone()).with_metrics(self.metrics.clone());
        let listeners = listeners.into_iter().map(ServerListener::Tcp).collect();
        let accounts = Accounts::new(connection::unbounded(PEER_CONNECTIONS_MAX));
        let counted = connection::counted(listen::connections(listeners), accounts);
        let routes = Routes::new(service).prepare();
        let stops = stopping.clone();
        let stopped = async move { stopping.stopped().await };
        let server = http2_of_peers(limits).layer(layer);
        match client.tls() {
            None => {
                let plain = counted.map(|admitted| admitted.map(wire::plain));
                let plain = connection::guarded(plain, stops, cut);
                server
                    .serve_with_incoming_shutdown(routes, plain, stopped)
                    .await
            }
            Some(tls) => {
                let tls = tls.clone();
                let secured =
                    handshake::secured(counted, Side::Replica(Arc::default()), move || {
                        tls.acceptor()
                    });
                let secured = connection::guarded(secured, stops, cut);
                server
                    .serve_with_incoming_shutdown(routes, secured, stopped)
                    .await
            }
        }
    }

    fn routes(
        &self,
        limits: &Limits,
        stopping: Stopping,
        health: &Health,
    ) -> Result<Routes, ServerError> {
        let engine = self.engine.clone();
        let router = Router::new(engine, Arc::clone(&self.ids), self.peers.clone());
        let router = router.with_access(self.check.clone());
        let router = router.with_leaderless(self.leaderless.clone());
        let router = router.with_metrics(self.metrics.clone());
        let lock_admin = LockAdminRpc::new(router.clone(), stopping.clone())
            .with_log_filter(self.log_filter.clone());
        let row_lock_service = RowLockServiceServer::new(RowLockServiceRpc::new(router.clone()));
        let lock_service = LockServiceServer::new(LockServiceRpc::new(router, stopping));
        let bytes_max = limits.message_bytes_max;
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
                // For clients that show error details as text.
                .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        Ok(
            Routes::new(lock_service.max_decoding_message_size(bytes_max))
                .add_service(LockAdminServer::new(lock_admin).max_decoding_message_size(bytes_max))
                .add_service(row_lock_service.max_decoding_message_size(bytes_max))
                .add_service(
                    health
                        .service()
                        .max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX),
                )
                .add_service(
                    reflection()
                        .build_v1()?
                        .max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX),
                )
                .add_service(
                    reflection()
                        .build_v1alpha()?
                        .max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX),
                ),
        )
    }
}

/// The limits of clients.
fn account_limits(limits: &Limits) -> AccountLimits {
    AccountLimits {
        connections_max: limits.connections_max,
        connection_bytes_max: limits.connection_bytes_max,
        bytes_max: limits.bytes_in_flight_max,
        answer_max: limits.answer_max(),
        listings_of_share: (limits.listings_max / 2).max(1),
    }
}

/// An HTTP/2 server for other replicas. It notices a replica that hangs as soon as that replica would notice this one.
pub fn http2_of_peers(limits: &Limits) -> tonic::transport::Server {
    http2(limits, STREAMS_MAX)
        .http2_keepalive_interval(Some(PEER_PING_EVERY))
        .http2_keepalive_timeout(Some(PEER_PING_EVERY))
}

/// Serves the programs beside an agent until `shutdown`, with a service that answers their calls as they come. The extensions of a
/// call have the [`ConnectionInfo`] of its program.
pub async fn serve_programs<S>(
    listeners: Vec<ServerListener>,
    service: S,
    grace: Duration,
    shutdown: impl Future<Output = ()>,
) -> Result<Stopped, ServerError>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let limits = Limits::default();
    // A program has its connection until the end.
    let (_ends, unended) = Stopping::pair();
    let accounts = Accounts::new(connection::unbounded(limits.connections_max));
    let counted = connection::counted(listen::connections(listeners), accounts);
    let plain = counted.map(|admitted| admitted.map(wire::plain));
    let connections = connection::guarded(plain, unended.clone(), unended);
    let (stop, mut stopping) = Stopping::pair();
    let server = http2(&limits, limits.streams_per_connection_max);
    let mut serving = pin!(
        server.serve_with_incoming_shutdown(service, connections, async move {
            stopping.stopped().await;
        })
    );
    tokio::select! {
        biased;
        () = shutdown => stop.now(),
        ended = &mut serving => return ended.map(|()| Stopped::Clean).map_err(Into::into),
    }
    match timeout(grace, serving).await {
        Ok(ended) => ended.map(|()| Stopped::Clean).map_err(Into::into),
        Err(_elapsed) => Ok(Stopped::CutOff),
    }
}

/// The windows of a stream, and of a connection with as many calls, in bytes.
fn windows(limits: &Limits, streams_max: u32) -> (u32, u32) {
    let stream_window = u32::try_from(limits.message_bytes_max)
        .unwrap_or(STREAM_WINDOW_MAX)
        .min(STREAM_WINDOW_MAX);
    let connection_window =
        (stream_window * WINDOWS_PER_CONNECTION).max(streams_max.saturating_mul(WINDOW_PER_CALL));
    (stream_window, connection_window)
}

/// The settings of HTTP/2 for this number of calls on a connection.
fn http2(limits: &Limits, streams_max: u32) -> tonic::transport::Server {
    let (stream_window, connection_window) = windows(limits, streams_max);
    let calls = usize::try_from(streams_max).unwrap_or(usize::MAX);
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .max_concurrent_streams(streams_max)
        // All calls of a connection may be cancelled while this process is paused or busy. With its default of 20, h2 would then
        // close the connection.
        .http2_max_pending_accept_reset_streams(Some(calls))
        .http2_max_header_list_size(HEADERS_BYTES_MAX)
        .initial_stream_window_size(stream_window)
        .initial_connection_window_size(connection_window)
}
