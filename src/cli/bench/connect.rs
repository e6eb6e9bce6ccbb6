//! The connections that the workers share.

use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

use crate::proto::clients::lock_service_client::LockServiceClient;

/// How long a server may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How much a server may send unasked for one call: a value of any configured size in one go.
const WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// How many workers share a connection, unless asked otherwise.
const WORKERS_PER_CONNECTION: usize = 16;

/// A client of one connection. Clones share it.
pub(super) type Client = LockServiceClient<Channel>;

/// No connection to an endpoint.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {endpoint}: {reason}. Is `fermata serve` running there?")]
pub struct ConnectError {
    endpoint: String,
    reason: String,
}

/// How many connections to open for so many workers, where not asked for a number.
pub(super) fn connections_for(workers: usize) -> usize {
    workers.div_ceil(WORKERS_PER_CONNECTION)
}

/// Opens connections, at least one to each endpoint, and the same number to each if it divides.
pub(super) async fn connect(
    endpoints: &[String],
    connections: usize,
) -> Result<Vec<Client>, ConnectError> {
    let mut clients = Vec::new();
    for endpoint in endpoints
        .iter()
        .cycle()
        .take(connections.max(endpoints.len()))
    {
        let failed = |error: tonic::transport::Error| ConnectError {
            endpoint: endpoint.clone(),
            reason: innermost(&error),
        };
        let channel = Endpoint::from_shared(endpoint.clone())
            .map_err(failed)?
            .connect_timeout(CONNECT_WITHIN)
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .connect()
            .await
            .map_err(failed)?;
        clients.push(LockServiceClient::new(channel).max_decoding_message_size(usize::MAX));
    }
    Ok(clients)
}

/// What is at the bottom of an error: the transport's own words only say that there was one.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// An endpoint as given: `http://` may be left out.
pub(super) fn parse_endpoint(text: &str) -> Result<String, String> {
    let uri = match text.split_once("://") {
        Some(("http", _)) => text.to_owned(),
        Some((scheme, _)) => return Err(format!("{scheme}:// is not supported; use http://")),
        None => format!("http://{text}"),
    };
    match uri.parse::<http::Uri>() {
        Ok(parsed) if parsed.port().is_some() => Ok(uri),
        Ok(_) => Err("it needs a port, as in http://127.0.0.1:7450".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_needs_a_port_and_no_scheme() {
        for text in ["127.0.0.1:7450", "http://127.0.0.1:7450"] {
            assert_eq!(parse_endpoint(text).unwrap(), "http://127.0.0.1:7450");
        }
        for text in ["localhost", "https://localhost:1", "http://a b:1", ""] {
            assert!(parse_endpoint(text).is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_named_with_the_reason() {
        let error = connect(&["http://127.0.0.1:1".to_owned()], 1)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("127.0.0.1:1") && error.contains("refused"),
            "{error}"
        );
    }
}
