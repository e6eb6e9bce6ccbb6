//! The clients that the workers share, each of them on a connection.

use std::time::Duration;

use bytes::Bytes;
use fermata_client::{CallMetadata, ClientOptions, Dialer, Pipeline};
use fermata_proto::lock_service_client::LockServiceClient;
use fermata_proto::{
    AcquireLockRequest, AcquireLockResponse, CreateLockRefRequest, CreateLockRefResponse,
    CriticalGetRequest, CriticalGetResponse, CriticalPutRequest, CriticalPutResponse,
    ReleaseLockRequest, ReleaseLockResponse,
};
use http::{Request, Response};
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Body as HttpBody;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt as _};

/// How long a server may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long a server may take to answer a ping.
const PONG_WITHIN: Duration = Duration::from_secs(60);
/// How much a server may send unasked for one call: a value of any configured size in one go.
const WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// How many workers share a connection, unless asked otherwise.
const WORKERS_PER_CONNECTION: usize = 16;

/// What calls are made with where each goes by itself.
pub(super) type UnaryClient = LockServiceClient<CallService>;

/// See there.
type CallService = BoxCloneSyncService<Request<Body>, Response<Body>, Status>;

/// A client of one connection, or of what stands in its place. Clones share it.
#[derive(Debug, Clone)]
pub(super) enum Client {
    /// Each call by itself.
    Unary(UnaryClient),
    /// All over one stream, but for waits, which go by themselves: as the Rust library makes them.
    Pipeline {
        pipeline: Pipeline,
        waits: UnaryClient,
    },
}

/// Makes one call, which may take so long.
macro_rules! call {
    ($($method:ident: $ask:ident -> $answer:ident;)*) => {$(
        pub(super) async fn $method(
            &mut self,
            ask: $ask,
            within: Duration,
        ) -> Result<tonic::Response<$answer>, Status> {
            match self {
                Client::Pipeline { pipeline, .. } => {
                    let answer = timeout(within, pipeline.call(ask, within)).await;
                    answer.unwrap_or_else(|_| {
                        Err(Status::deadline_exceeded(format!("no answer within {within:?}")))
                    })
                }
                Client::Unary(client) => client.$method(by_itself(ask, within)).await,
            }
        }
    )*};
}

pub(super) fn by_itself<T>(ask: T, within: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(ask);
    request.set_timeout(within);
    request
}

impl Client {
    call! {
        create_lock_ref: CreateLockRefRequest -> CreateLockRefResponse;
        critical_get: CriticalGetRequest -> CriticalGetResponse;
        critical_put: CriticalPutRequest -> CriticalPutResponse;
        release_lock: ReleaseLockRequest -> ReleaseLockResponse;
    }

    /// Waits for a lock.
    pub(super) async fn acquire_lock(
        &mut self,
        ask: AcquireLockRequest,
        within: Duration,
    ) -> Result<tonic::Response<AcquireLockResponse>, Status> {
        let (Client::Unary(client) | Client::Pipeline { waits: client, .. }) = self;
        client.acquire_lock(by_itself(ask, within)).await
    }
}

/// A client, and where it leads to.
#[derive(Debug)]
pub(super) struct Connected {
    /// `HOST:PORT`; empty of one within the process.
    pub(super) address: String,
    pub(super) client: Client,
}

/// No connection to an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Correct it.
    #[error(transparent)]
    Endpoint(#[from] fermata_client::ConnectError),
    /// Start the server, or name another endpoint.
    #[error("cannot connect to {endpoint}: {reason}. Is `fermata serve` running there?")]
    Unreachable {
        /// Where to.
        endpoint: String,
        /// Why not.
        reason: String,
    },
}

/// How many connections to open for so many workers, where not asked for a number.
pub(super) fn connections_for(workers: usize) -> usize {
    workers.div_ceil(WORKERS_PER_CONNECTION)
}

/// A client that calls by this.
pub(super) fn unary<S, B>(service: S) -> UnaryClient
where
    S: Service<Request<Body>, Response = Response<B>, Error: Into<BoxError>>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let service = service.map_response(|response: Response<B>| response.map(Body::new));
    let service = service.map_err(|error| Status::from_error(error.into()));
    let service = BoxCloneSyncService::new(service);
    LockServiceClient::new(service).max_decoding_message_size(usize::MAX)
}

/// Opens connections, at least one to each endpoint, and the same number to each if it divides; where asked for with a Pipeline
/// on each, and another connection for waits beside it.
pub(super) async fn connect(
    (endpoints, options): (&[String], &ClientOptions),
    connections: usize,
    pipelines: bool,
) -> Result<Vec<Connected>, ConnectError> {
    let mut clients = Vec::new();
    for endpoint in endpoints
        .iter()
        .cycle()
        .take(connections.max(endpoints.len()))
    {
        let address = endpoint
            .rsplit_once("://")
            .map_or(&**endpoint, |(_, rest)| rest);
        let connection = connection(endpoint, options).await?;
        clients.push(Connected {
            address: address.trim_end_matches('/').to_owned(),
            client: match pipelines {
                true => Client::Pipeline {
                    pipeline: Pipeline::new(channel(endpoint, options).await?, metadata(options)),
                    waits: unary(connection),
                },
                false => Client::Unary(unary(connection)),
            },
        });
    }
    Ok(clients)
}

/// A connection, with what goes with each call of this client.
pub(super) type Connection = InterceptedService<Channel, SendsMetadata>;

/// Puts on each call what goes with it.
#[derive(Debug, Clone)]
pub(super) struct SendsMetadata(CallMetadata);

impl Interceptor for SendsMetadata {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, Status> {
        self.0.put_on(&mut request);
        Ok(request)
    }
}

fn metadata(options: &ClientOptions) -> CallMetadata {
    CallMetadata {
        token: options.token.clone(),
        ..CallMetadata::default()
    }
}

/// Opens a connection for calls by themselves.
pub(super) async fn connection(
    endpoint: &str,
    options: &ClientOptions,
) -> Result<Connection, ConnectError> {
    let channel = channel(endpoint, options).await?;
    Ok(InterceptedService::new(
        channel,
        SendsMetadata(metadata(options)),
    ))
}

async fn channel(endpoint: &str, options: &ClientOptions) -> Result<Channel, ConnectError> {
    let failed = |error: tonic::transport::Error| ConnectError::Unreachable {
        endpoint: endpoint.to_owned(),
        reason: innermost(&error),
    };
    let dialer = Dialer::new(endpoint, options)?.set(|endpoint| {
        endpoint
            // A server that is asked for too much is late, and not gone.
            .keep_alive_timeout(PONG_WITHIN)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
    });
    let dialer = dialer.connect_within(CONNECT_WITHIN);
    dialer.connect().await.map_err(failed)
}

/// What is at the bottom of an error: the transport's own words only say that there was one.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_is_not_there_is_named_with_the_reason() {
        let (endpoints, options) = (["http://127.0.0.1:1".to_owned()], ClientOptions::default());
        let error = connect((&endpoints, &options), 1, false)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("127.0.0.1:1") && error.contains("refused"),
            "{error}"
        );
    }
}
