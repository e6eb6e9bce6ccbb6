//! The endpoints of a service: `http://`, `https://`, and `unix:` for a socket of this machine.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fermata_tls::Sniffed;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::{BoxError, Service, ServiceExt as _, service_fn};

use super::local_status::rounded;
use super::options::ClientOptions;
use super::tls::Tls;

/// How a Unix socket is written.
const SOCKET: &str = "unix:";
/// The window of a connection, in bytes. It is a bound, and far above that of a stream, so that streams whose answers nobody takes hold
/// no others up.
const CONNECTION_WINDOW: u32 = 256 * 1024 * 1024;
/// The URI of HTTP/2 on a socket.
const SOCKET_URI: &str = "http://localhost:0";

/// Why no client was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// At least one endpoint is needed.
    #[error("no endpoint was given")]
    NoEndpoint,
    /// An endpoint is not of the form `http://host:port`, `https://host:port` or `unix:/path`.
    #[error(
        "{endpoint:?} is not an endpoint (http://HOST:PORT, https://HOST:PORT or unix:/PATH): {why}"
    )]
    InvalidEndpoint {
        /// The given endpoint.
        endpoint: String,
        /// The fault of the endpoint.
        why: String,
    },
    /// An `https://` endpoint on a system that trusts no CA needs [`ClientOptions::tls`](crate::ClientOptions::tls).
    #[error("{endpoint:?} needs a CA, and this system has no CA certificates")]
    NoCa {
        /// The given endpoint.
        endpoint: String,
    },
    /// With [`ClientOptions::tls`](crate::ClientOptions::tls) an endpoint of another machine must be `https://`.
    #[error("{endpoint:?} is not encrypted, though certificates are named: write https://")]
    NotEncrypted {
        /// The given endpoint.
        endpoint: String,
    },
    /// A client must be made inside a Tokio runtime, which drives its connections.
    #[error("a client can only be made inside a Tokio runtime")]
    NoRuntime,
}

/// Makes connections to one replica. Each connects on first use.
pub(crate) struct Connect {
    pub(crate) make: Box<dyn Fn() -> Channel + Send + Sync>,
    /// Set by a connection that finds TLS although the endpoint names none.
    pub(crate) hears_tls: Arc<AtomicBool>,
}

impl Connect {
    pub(crate) fn new(make: impl Fn() -> Channel + Send + Sync + 'static) -> Connect {
        Connect {
            make: Box::new(make),
            hears_tls: Arc::default(),
        }
    }

    /// To an endpoint, with these options.
    pub(crate) fn to(endpoint: &str, options: &ClientOptions) -> Result<Connect, ConnectError> {
        let dialer = Dialer::new(endpoint, options)?;
        Ok(Connect {
            hears_tls: Arc::clone(&dialer.hears_tls),
            make: Box::new(move || dialer.lazy()),
        })
    }
}

/// Makes connections to an endpoint, for callers of the generated clients.
#[derive(Clone, Debug)]
pub struct Dialer {
    endpoint: Endpoint,
    route: Route,
    /// The time limit for making a connection.
    within: Duration,
    /// The server speaks TLS, and the endpoint names none.
    hears_tls: Arc<AtomicBool>,
}

/// The kind of a connection.
#[derive(Clone, Debug)]
enum Route {
    Plain,
    Tls(Tls),
    Socket(PathBuf),
}

impl Dialer {
    /// For `http://host:port`, `https://host:port` or `unix:/path`, with the connections of a [`Client`](crate::Client) with
    /// these options. It does not send the token of the options; use [`CallMetadata`](crate::CallMetadata).
    pub fn new(endpoint: &str, options: &ClientOptions) -> Result<Dialer, ConnectError> {
        let named = || endpoint.to_owned();
        let invalid = |why: &str| ConnectError::InvalidEndpoint {
            endpoint: named(),
            why: why.to_owned(),
        };
        let (parsed, route) = match endpoint.strip_prefix(SOCKET) {
            Some(path) if path.starts_with('/') => (
                Endpoint::from_static(SOCKET_URI),
                Route::Socket(path.into()),
            ),
            Some(_) => return Err(invalid("write unix:/PATH with an absolute path")),
            None => {
                // `http://` may be left out. tonic knows nothing of TLS, which is below it.
                let (scheme, rest) = endpoint.split_once("://").unwrap_or(("http", endpoint));
                let parsed = Endpoint::from_shared(format!("http://{rest}"));
                let parsed = parsed.map_err(|error| invalid(&error.to_string()));
                match &*scheme.to_ascii_lowercase() {
                    "http" => (plain(parsed?, named(), options)?, Route::Plain),
                    "https" => {
                        let origin = format!("https://{rest}").parse::<Uri>();
                        let origin = origin.map_err(|error| invalid(&error.to_string()))?;
                        let of_system = || Tls::from_system(None);
                        let tls = options.tls.clone().map_or_else(of_system, Ok);
                        let no_ca = |_| ConnectError::NoCa { endpoint: named() };
                        (parsed?.origin(origin), Route::Tls(tls.map_err(no_ca)?))
                    }
                    _ => return Err(invalid("it must begin with http://, https:// or unix:")),
                }
            }
        };
        if parsed.uri().port().is_none() {
            return Err(invalid("it needs a port of at most 65535"));
        }
        let endpoint = parsed
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(options.ping_interval)
            .keep_alive_timeout(options.ping_interval);
        Ok(Dialer {
            endpoint,
            route,
            within: options.connect_timeout,
            hears_tls: Arc::default(),
        })
    }

    /// Changes the settings of HTTP/2.
    #[must_use]
    pub fn set(self, set: impl FnOnce(Endpoint) -> Endpoint) -> Dialer {
        let endpoint = set(self.endpoint);
        Dialer { endpoint, ..self }
    }

    /// Changes the time limit for making a connection.
    #[must_use]
    pub fn connect_within(self, within: Duration) -> Dialer {
        Dialer { within, ..self }
    }

    /// A connection that is made on first use.
    pub fn lazy(&self) -> Channel {
        self.endpoint.connect_with_connector_lazy(self.connector())
    }

    /// Makes a connection now.
    pub async fn connect(&self) -> Result<Channel, tonic::transport::Error> {
        self.endpoint.connect_with_connector(self.connector()).await
    }

    fn connector(
        &self,
    ) -> impl Service<
        Uri,
        Response = TokioIo<Box<dyn Wire>>,
        Error = BoxError,
        Future = impl Send + use<>,
    > + Send
    + use<> {
        let dialer = self.clone();
        service_fn(move |at| {
            let dialer = dialer.clone();
            // The limit is in here, so that a call without a connection is known not to have left.
            async move {
                let io = timeout(dialer.within, dialer.dial(at)).await;
                let late = |_| {
                    dialer.hears_tls.store(false, Ordering::Relaxed);
                    let words = format!("no connection within {}", rounded(dialer.within));
                    io::Error::new(io::ErrorKind::TimedOut, words)
                };
                Ok::<_, BoxError>(TokioIo::new(io.map_err(late)??))
            }
        })
    }

    async fn dial(&self, at: Uri) -> Result<Box<dyn Wire>, BoxError> {
        Ok(match &self.route {
            Route::Socket(path) => Box::new(UnixStream::connect(path).await?),
            Route::Tls(tls) => {
                let host = at.host().unwrap_or_default();
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let host = host.to_owned();
                let plain = self.tcp(at).await?;
                Box::new(tls.connect(&host, plain).await?)
            }
            Route::Plain => {
                let plain = self.tcp(at).await;
                if plain.is_err() {
                    self.hears_tls.store(false, Ordering::Relaxed);
                }
                let (read, write) = plain?.into_split();
                let hears_tls = Arc::clone(&self.hears_tls);
                // HTTP/2 fails by itself; this explains why.
                let read = Sniffed::new(read, move |is_tls| {
                    hears_tls.store(is_tls, Ordering::Relaxed);
                    Ok(())
                });
                Box::new(tokio::io::join(read, write))
            }
        })
    }

    async fn tcp(&self, at: Uri) -> Result<TcpStream, BoxError> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // Shared by the addresses that a name has.
        tcp.set_connect_timeout(Some(self.within));
        Ok(tcp.oneshot(at).await?.into_inner())
    }
}

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<IO: AsyncRead + AsyncWrite + Send + Unpin> Wire for IO {}

/// An endpoint without TLS, if the options allow it.
fn plain(
    parsed: Endpoint,
    endpoint: String,
    options: &ClientOptions,
) -> Result<Endpoint, ConnectError> {
    let host = parsed.uri().host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address = host.parse::<IpAddr>();
    let is_here =
        host == "localhost" || address.is_ok_and(|address| address.to_canonical().is_loopback());
    if options.tls.is_some() && !is_here {
        return Err(ConnectError::NotEncrypted { endpoint });
    }
    if options.token.is_some() && !is_here {
        tracing::warn!(
            endpoint = %parsed.uri(),
            "the connection is not encrypted: the network can read the token"
        );
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;

    #[tokio::test]
    async fn an_endpoint_names_its_fault() {
        for good in [
            "http://127.0.0.1:7450",
            "127.0.0.1:7450",
            "http://[::1]:1",
            "HTTP://127.0.0.1:7450",
            "unix:/run/fermata.sock",
        ] {
            assert!(Client::connect([good]).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("ftp://a:1", "http://, https:// or unix:"),
            ("https://a", "needs a port"),
            ("http://a", "needs a port"),
            ("http://[::1]", "needs a port"),
            ("http://a:99999", "a port of at most 65535"),
            ("unix:fermata.sock", "an absolute path"),
            ("http://a b:1", ""),
            ("", ""),
        ] {
            match Client::connect([bad]) {
                Err(ConnectError::InvalidEndpoint { why: answered, .. }) => {
                    assert!(answered.contains(why), "{bad}: {answered}");
                }
                other => panic!("{bad}: {other:?}"),
            }
        }
        let none: [&str; 0] = [];
        assert_eq!(Client::connect(none).err(), Some(ConnectError::NoEndpoint));
    }

    #[test]
    fn outside_a_runtime_there_is_no_client_and_no_panic() {
        assert_eq!(
            Client::connect(["http://127.0.0.1:1"]).err(),
            Some(ConnectError::NoRuntime)
        );
    }
}
