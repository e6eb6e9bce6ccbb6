//! The endpoints of a service, as they are given.

use tonic::transport::Endpoint;

use super::connections::Connect;
use super::error::ConnectError;
use super::options::ClientOptions;

/// What makes connections to an endpoint.
pub(super) fn connector(endpoint: &str, options: &ClientOptions) -> Result<Connect, ConnectError> {
    let endpoint = parse_endpoint(endpoint)?
        .connect_timeout(options.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(options.ping_interval)
        .keep_alive_timeout(options.ping_interval);
    Ok(Box::new(move || endpoint.connect_lazy()))
}

/// `http://host:port`; the scheme may be left out.
pub fn parse_endpoint(endpoint: &str) -> Result<Endpoint, ConnectError> {
    let invalid = |why: String| ConnectError::InvalidEndpoint {
        endpoint: endpoint.to_owned(),
        why,
    };
    let uri = if endpoint.contains("://") {
        endpoint.to_owned()
    } else {
        format!("http://{endpoint}")
    };
    if !uri.starts_with("http://") {
        return Err(invalid("only http:// is spoken so far".to_owned()));
    }
    let parsed = Endpoint::from_shared(uri).map_err(|error| invalid(error.to_string()))?;
    if parsed.uri().port().is_none() {
        return Err(invalid("it names no port".to_owned()));
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;

    #[tokio::test]
    async fn an_endpoint_names_its_fault() {
        for good in ["http://127.0.0.1:7450", "127.0.0.1:7450", "http://[::1]:1"] {
            assert!(Client::connect([good]).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("https://a:1", "only http"),
            ("http://a", "no port"),
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
