//! Who may call the API of the console. The rules for identities are those of every call, and are kept by the server; this is what a
//! browser adds: pages of others, names of others, and connections that others can read.

use std::net::IpAddr;

use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue};

use crate::access::Origin;

/// The other end of a connection.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// As the server knows callers.
    pub origin: Origin,
    /// The connection has TLS.
    pub is_encrypted: bool,
}

impl Caller {
    fn is_local(&self) -> bool {
        let address = self.origin.address.map(|address| address.to_canonical());
        address.is_some_and(|address| address.is_loopback())
    }
}

/// What protects the server.
#[derive(Clone, Copy, Debug)]
pub struct Protection {
    /// Callers must log in.
    pub login: bool,
    /// The setting `insecure`.
    pub insecure: bool,
}

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A token would be readable.
    #[error(
        "the console takes logins over TLS, or from this machine: others can read this connection. Use https:// (tls.cert_file and \
         tls.key_file), or bring the port to your machine: ssh -L, or kubectl port-forward"
    )]
    Unencrypted,
    /// Everybody on the network would be an operator.
    #[error(
        "this server knows no logins, so its console is for this machine alone: set auth.tokens_file or tls.client_ca_file, or \
         bring the port to your machine: ssh -L, or kubectl port-forward"
    )]
    NotLocal,
    /// A name that anybody may have given to this address.
    #[error(
        "this server knows no logins: open its console as localhost, or by an IP address. Another name could be that of a \
         stranger's page"
    )]
    StrangeHost,
    /// The page of another site.
    #[error("calls of other sites are refused (Sec-Fetch-Site)")]
    OtherSite,
    /// A form of another site could be sent so.
    #[error("the content-type must be application/json")]
    NotJson,
}

/// Whether the connection and the name that the page was opened by will do.
pub fn check_way(
    caller: &Caller,
    headers: &HeaderMap,
    protection: Protection,
) -> Result<(), Refused> {
    if protection.login {
        return match caller.is_encrypted || caller.is_local() {
            true => Ok(()),
            false => Err(Refused::Unencrypted),
        };
    }
    match (
        caller.is_local() || protection.insecure,
        is_plain_host(headers),
    ) {
        (false, _) => Err(Refused::NotLocal),
        (true, false) => Err(Refused::StrangeHost),
        (true, true) => Ok(()),
    }
}

/// Whether a page of this server makes the call. A browser asks before it sends JSON of another site's page, and gets no leave.
pub fn check_call(headers: &HeaderMap) -> Result<(), Refused> {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    if !matches!(site, None | Some(b"same-origin" | b"none")) {
        return Err(Refused::OtherSite);
    }
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    match kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
        true => Ok(()),
        false => Err(Refused::NotJson),
    }
}

/// Whether the server was called `localhost` or by an address: no stranger's name leads there.
fn is_plain_host(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let Some(host) = host.and_then(|host| host.parse::<Authority>().ok()) else {
        return false;
    };
    let host = host.host();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let all = all.iter();
        all.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    }

    fn way(
        from: &str,
        tls: bool,
        host: &'static str,
        protection: (bool, bool),
    ) -> Result<(), Refused> {
        let caller = Caller {
            origin: Origin {
                address: Some(from.parse().unwrap()),
                ..Origin::default()
            },
            is_encrypted: tls,
        };
        let (login, insecure) = protection;
        check_way(
            &caller,
            &headers(&[("host", host)]),
            Protection { login, insecure },
        )
    }

    const LOGIN: (bool, bool) = (true, false);
    const OPEN: (bool, bool) = (false, false);
    const INSECURE: (bool, bool) = (false, true);

    #[test]
    fn a_login_is_taken_where_nobody_else_can_read_it() {
        for local in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(
                way(local, false, "locks.acme.net", LOGIN),
                Ok(()),
                "{local}"
            );
        }
        assert_eq!(way("10.0.0.1", true, "locks.acme.net", LOGIN), Ok(()));
        let refused = Err(Refused::Unencrypted);
        assert_eq!(way("10.0.0.1", false, "10.0.0.2", LOGIN), refused);
        // `insecure` lets nobody send a token in clear by a form that asks for it.
        assert_eq!(way("10.0.0.1", false, "10.0.0.2", (true, true)), refused);
    }

    #[test]
    fn without_logins_the_console_is_for_this_machine_by_names_that_no_stranger_gives() {
        for host in [
            "localhost",
            "LocalHost:7452",
            "127.0.0.1:7452",
            "[::1]:7452",
            "10.0.0.2",
        ] {
            assert_eq!(way("127.0.0.1", false, host, OPEN), Ok(()), "{host}");
            assert_eq!(way("10.0.0.1", true, host, OPEN), Err(Refused::NotLocal));
            assert_eq!(way("10.0.0.1", false, host, INSECURE), Ok(()));
        }
        for host in [
            "evil.example",
            "evil.example:7452",
            "localhost.evil.example",
            "",
            "a b",
        ] {
            for protection in [OPEN, INSECURE] {
                let refused = Err(Refused::StrangeHost);
                assert_eq!(way("127.0.0.1", false, host, protection), refused, "{host}");
            }
        }
        let unknown = check_way(
            &Caller::default(),
            &headers(&[("host", "localhost")]),
            Protection {
                login: false,
                insecure: false,
            },
        );
        assert_eq!(unknown, Err(Refused::NotLocal));
    }

    #[test]
    fn no_page_of_another_site_makes_a_call() {
        let json = ("content-type", "application/json; charset=utf-8");
        assert_eq!(check_call(&headers(&[json])), Ok(()));
        for (site, came) in [
            ("same-origin", Ok(())),
            ("none", Ok(())),
            ("same-site", Err(Refused::OtherSite)),
            ("cross-site", Err(Refused::OtherSite)),
        ] {
            assert_eq!(
                check_call(&headers(&[json, ("sec-fetch-site", site)])),
                came
            );
        }
        for form in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/jsonp",
        ] {
            let refused = check_call(&headers(&[("content-type", form)]));
            assert_eq!(refused, Err(Refused::NotJson), "{form}");
        }
        assert_eq!(check_call(&headers(&[])), Err(Refused::NotJson));
    }
}
