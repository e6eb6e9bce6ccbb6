//! A connection to another replica: TCP, with or without TLS. Faults that an operator must mend are logged here; other faults go
//! to the caller.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fermata_tls as tls;
use futures_util::future::BoxFuture;
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};
use tower::{BoxError, ServiceExt as _, service_fn};

use super::PeerTls;

/// How long a connection may take to be made. TLS goes there and back twice more, and has as much for each.
const CONNECT: Duration = Duration::from_millis(500);

/// Bytes to and from a replica, with TLS or without.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<IO: AsyncRead + AsyncWrite + Send + Unpin> Wire for IO {}

/// Opens connections otherwise than by TCP: to `http://` and the address that a replica announced.
pub type Dial = Arc<dyn Fn(Uri) -> BoxFuture<'static, io::Result<Box<dyn Wire>>> + Send + Sync>;

/// The same as [`lazily`], by connections that are opened so. For tests that have a network of their own.
pub(super) fn lazily_by(endpoint: Endpoint, dial: Dial) -> Channel {
    let connector = service_fn(move |at: Uri| {
        let opened = dial(at);
        async move { Ok::<_, io::Error>(TokioIo::new(opened.await?)) }
    });
    endpoint
        .connect_timeout(CONNECT)
        .connect_with_connector_lazy(connector)
}

/// A channel that connects once it is used.
pub(super) fn lazily(endpoint: Endpoint, tls: Option<PeerTls>) -> Channel {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT));
    let within = match tls {
        Some(_) => 3 * CONNECT,
        None => CONNECT,
    };
    let connector = service_fn(move |at: Uri| connected(tcp.clone(), tls.clone(), at));
    endpoint
        .connect_timeout(within)
        .connect_with_connector_lazy(connector)
}

async fn connected(
    tcp: HttpConnector,
    tls: Option<PeerTls>,
    at: Uri,
) -> Result<TokioIo<Box<dyn Wire>>, BoxError> {
    let address = at.authority().map(ToString::to_string).unwrap_or_default();
    let host = at.host().unwrap_or_default();
    let host = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned();
    let plain = tcp.oneshot(at).await?.into_inner();
    let wire = match tls {
        Some(tls) => secured(&tls, &host, &address, plain).await?,
        None => sniffed(address, plain),
    };
    Ok(TokioIo::new(wire))
}

async fn secured(
    tls: &PeerTls,
    host: &str,
    address: &str,
    plain: TcpStream,
) -> io::Result<Box<dyn Wire>> {
    let error = match tls.connect(host, plain).await {
        Ok(secured) => return Ok(Box::new(secured)),
        Err(error) => error,
    };
    let Some(why) = tls::distrust(&error, "the replica", tls::NAMED_CA) else {
        return Err(error);
    };
    refused(address, &why);
    Err(io::Error::new(error.kind(), why))
}

fn refused(address: &str, why: &str) {
    tracing::warn!(address, why, "could not connect to another replica");
}

/// Without TLS.
fn sniffed(address: String, plain: TcpStream) -> Box<dyn Wire> {
    let (read, write) = plain.into_split();
    let read = tls::Sniffed::new(read, move |is_tls: bool| {
        if !is_tls {
            return Ok(());
        }
        let why = "the replica speaks TLS, but peers.tls is not set here";
        refused(&address, why);
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    });
    Box::new(tokio::io::join(read, write))
}
