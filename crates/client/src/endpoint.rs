//! The endpoints of a service, as they are given: `http://`, `https://`, and `unix:` for a socket of this machine.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::{Endpoint, Uri};
use tower::service_fn;

use super::connections::Connect;
use super::error::ConnectError;
use super::options::ClientOptions;
use super::tls::Tls;

/// How a Unix socket is written.
const SOCKET: &str = "unix:";
/// What HTTP/2 says of itself on one.
const SOCKET_URI: &str = "http://localhost:0";

/// What makes connections to an endpoint.
pub(super) fn connector(endpoint: &str, options: &ClientOptions) -> Result<Connect, ConnectError> {
    let parsed = ParsedEndpoint::parse(endpoint)?;
    let invalid = |why: &str| ConnectError::InvalidEndpoint {
        endpoint: endpoint.to_owned(),
        why: why.to_owned(),
    };
    let set = |endpoint: Endpoint| {
        endpoint
            .connect_timeout(options.connect_timeout)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(options.ping_interval)
            .keep_alive_timeout(options.ping_interval)
    };
    match parsed {
        ParsedEndpoint::Plain(endpoint) => {
            let is_here = is_loopback(endpoint.uri());
            if options.tls.is_some() && !is_here {
                return Err(invalid(
                    "it is not encrypted, though certificates are named: write https://",
                ));
            }
            if options.token.is_some() && !is_here {
                tracing::warn!(
                    endpoint = %endpoint.uri(),
                    "the token goes over a connection that is not encrypted: whoever is on the way can take it"
                );
            }
            let endpoint = set(endpoint);
            Ok(Box::new(move || endpoint.connect_lazy()))
        }
        ParsedEndpoint::Tls(endpoint) => {
            let Some(tls) = options.tls.clone() else {
                return Err(invalid(
                    "https:// needs the CA that the certificate is signed by",
                ));
            };
            let endpoint = set(endpoint);
            Ok(Box::new(move || {
                let tls = tls.clone();
                endpoint.connect_with_connector_lazy(service_fn(move |at| secured(tls.clone(), at)))
            }))
        }
        ParsedEndpoint::Socket(path) => {
            let endpoint = Endpoint::from_static(SOCKET_URI);
            let endpoint = set(endpoint);
            Ok(Box::new(move || {
                let path = path.clone();
                endpoint.connect_with_connector_lazy(service_fn(move |_: Uri| {
                    let path = path.clone();
                    async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
                }))
            }))
        }
    }
}

fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address = host.parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

async fn secured(
    tls: Tls,
    at: Uri,
) -> io::Result<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>> {
    let host = at.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let plain = TcpStream::connect((host, at.port_u16().unwrap_or_default())).await?;
    plain.set_nodelay(true)?;
    Ok(TokioIo::new(tls.connect(host, plain).await?))
}

/// An endpoint, parsed.
#[derive(Clone, Debug)]
pub enum ParsedEndpoint {
    /// Over TCP.
    Plain(Endpoint),
    /// Over TCP with TLS, which whoever connects adds.
    Tls(Endpoint),
    /// A Unix socket.
    Socket(PathBuf),
}

impl ParsedEndpoint {
    /// `http://host:port`, `https://host:port` or `unix:/path`; `http://` may be left out.
    pub fn parse(endpoint: &str) -> Result<ParsedEndpoint, ConnectError> {
        let invalid = |why: String| ConnectError::InvalidEndpoint {
            endpoint: endpoint.to_owned(),
            why,
        };
        if let Some(path) = endpoint.strip_prefix(SOCKET) {
            return match path.starts_with('/') {
                true => Ok(ParsedEndpoint::Socket(path.into())),
                false => Err(invalid("write unix:/PATH, from the root on".to_owned())),
            };
        }
        let (scheme, rest) = endpoint.split_once("://").unwrap_or(("http", endpoint));
        if !["http", "https"].contains(&scheme) {
            return Err(invalid(
                "only http://, https:// and unix: are spoken".to_owned(),
            ));
        }
        // Of TLS tonic knows nothing here: it is below.
        let parsed = Endpoint::from_shared(format!("http://{rest}"));
        let parsed = parsed.map_err(|error| invalid(error.to_string()))?;
        if parsed.uri().port().is_none() {
            return Err(invalid("it names no port".to_owned()));
        }
        if scheme == "http" {
            return Ok(ParsedEndpoint::Plain(parsed));
        }
        let origin = format!("https://{rest}").parse::<Uri>();
        let origin = origin.map_err(|error| invalid(error.to_string()))?;
        Ok(ParsedEndpoint::Tls(parsed.origin(origin)))
    }
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
            "unix:/run/fermata.sock",
        ] {
            assert!(Client::connect([good]).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("ftp://a:1", "only http://, https:// and unix:"),
            ("https://a:1", "needs the CA"),
            ("https://a", "no port"),
            ("http://a", "no port"),
            ("unix:fermata.sock", "from the root on"),
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
