//! Connections to replicas, and single calls over them.

use std::time::Duration;

use fermata_client::{CallMetadata, ClientOptions, Dialer, Pipeline};
use fermata_command::{Failure, exit};
use fermata_proto::lock_service_client::LockServiceClient;
use fermata_proto::{
    AcquireLockRequest, AcquireLockResponse, CreateLockRefRequest, CreateLockRefResponse,
    CriticalGetRequest, CriticalGetResponse, CriticalPutRequest, CriticalPutResponse, LockState,
    ReleaseLockRequest, ReleaseLockResponse,
};
use tokio::time::timeout;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Response, Status};

/// Requests that are in flight at the same time where they are not measured.
pub(super) const AT_ONCE: usize = 64;
/// The wait of one AcquireLock, which is repeated until the lock is held.
const WAIT: Duration = Duration::from_secs(30);
/// The time for a server to answer a ping: one with too much to do is late, and not gone.
const PONG_WITHIN: Duration = Duration::from_secs(60);
/// The HTTP/2 window: a value of any configured size in one go.
const WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// The generated client.
pub(super) type Unary = LockServiceClient<InterceptedService<Channel, SendsMetadata>>;

/// Puts the client's token on each call.
#[derive(Debug, Clone)]
pub(super) struct SendsMetadata(CallMetadata);

impl Interceptor for SendsMetadata {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, Status> {
        self.0.put_on(&mut request);
        Ok(request)
    }
}

/// Calls over one connection. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    /// `HOST:PORT`.
    pub(super) address: String,
    /// The time for a call, a wait aside.
    within: Duration,
    /// Where it is absent each call has a stream of its own.
    pipeline: Option<Pipeline>,
    /// With a Pipeline over a connection of its own, for waits alone, as in the Rust library.
    pub(super) unary: Unary,
}

/// Makes one call.
macro_rules! call {
    ($($method:ident: $request:ident -> $answer:ident;)*) => {$(
        pub(super) async fn $method(&mut self, request: $request) -> Result<Response<$answer>, Status> {
            let within = self.within;
            match &self.pipeline {
                Some(pipeline) => {
                    let late = |_| Status::deadline_exceeded(format!("no answer within {within:?}"));
                    timeout(within, pipeline.call(request, within)).await.map_err(late)?
                }
                None => self.unary.$method(timed(request, within)).await,
            }
        }
    )*};
}

impl Connection {
    call! {
        create_lock_ref: CreateLockRefRequest -> CreateLockRefResponse;
        critical_get: CriticalGetRequest -> CriticalGetResponse;
        critical_put: CriticalPutRequest -> CriticalPutResponse;
        release_lock: ReleaseLockRequest -> ReleaseLockResponse;
    }

    /// Waits until the lock is held.
    pub(super) async fn acquire_lock(
        &mut self,
        lock_ref: &str,
        read_value: bool,
    ) -> Result<AcquireLockResponse, Status> {
        loop {
            let request = AcquireLockRequest {
                lock_ref: lock_ref.to_owned(),
                wait: WAIT.try_into().ok(),
                read_value,
                give_up: false,
            };
            let request = timed(request, WAIT + self.within);
            let acquired = self.unary.acquire_lock(request).await?.into_inner();
            if acquired.state() == LockState::Held {
                return Ok(acquired);
            }
        }
    }

    /// Opens a connection.
    pub(super) async fn open(
        endpoint: &str,
        options: &ClientOptions,
        pipeline: bool,
    ) -> Result<Connection, Failure> {
        let metadata = CallMetadata {
            token: options.token.clone(),
            ..CallMetadata::default()
        };
        Ok(Connection {
            address: address_of(endpoint).to_owned(),
            within: options.timeout,
            pipeline: match pipeline {
                true => Some(Pipeline::new(
                    channel(endpoint, options).await?,
                    metadata.clone(),
                )),
                false => None,
            },
            unary: LockServiceClient::with_interceptor(
                channel(endpoint, options).await?,
                SendsMetadata(metadata),
            )
            .max_decoding_message_size(usize::MAX),
        })
    }
}

/// `HOST:PORT`, as replicas name the home of a key.
pub(super) fn address_of(endpoint: &str) -> &str {
    let (_, address) = endpoint.rsplit_once("://").unwrap_or(("", endpoint));
    address.trim_end_matches('/')
}

/// A request with a deadline.
pub(super) fn timed<T>(message: T, within: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(within);
    request
}

async fn channel(endpoint: &str, options: &ClientOptions) -> Result<Channel, Failure> {
    let dialer = Dialer::new(endpoint, options)?.set(|endpoint| {
        endpoint
            .keep_alive_timeout(PONG_WITHIN)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
    });
    dialer.connect().await.map_err(|error| {
        let reason = innermost(&error);
        let message =
            format!("cannot connect to {endpoint}: {reason}. Is `fermata serve` running there?");
        Failure::new(exit::UNAVAILABLE, message)
    })
}

/// The cause of an error. The transport's own words say nothing of it.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
