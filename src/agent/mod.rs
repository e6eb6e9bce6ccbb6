//! `fermata agent`: passes the calls of the programs of one machine or pod on to the replicas, with TLS and a token that these
//! programs do not have.
//!
//! It keeps no state of a lock. Each call is a stream of its own on both sides, so the streams of a program end with its connection.
//! A session therefore ends its disconnect_grace after its program was killed or stopped.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fermata_client::Client;
use http::Request;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::service_fn;

use crate::access::Origin;
use crate::clock::{Clock as _, SystemClock};
use crate::log_throttle::LogThrottle;
use crate::server::{ConnectionInfo, ServerError, ServerListener, Stopped, serve_programs};

/// The time for calls in flight once a stop began.
pub const GRACE: Duration = Duration::from_secs(2);

/// The programs that an agent admits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callers {
    /// The users of programs on a Unix socket. A listener on a loopback address admits every program that reaches it.
    pub users: BTreeSet<u32>,
}

impl Callers {
    fn admit(&self, origin: Option<&Origin>) -> Result<(), Status> {
        let is_on_a_socket = origin.is_none_or(|origin| origin.address.is_none());
        let user = origin.and_then(|origin| origin.unix_user);
        match user {
            _ if !is_on_a_socket => Ok(()),
            Some(user) if self.users.contains(&user) => Ok(()),
            Some(user) => Err(Status::permission_denied(format!(
                "this agent does not admit user {user}; its --allow-user names the users of programs"
            ))),
            None => Err(Status::permission_denied(
                "this agent cannot tell the user of this program: `nobody` (65534) and users of other user namespaces are not told \
                 apart",
            )),
        }
    }
}

/// Passes the calls of these listeners on until `shutdown`.
pub async fn serve(
    listeners: Vec<ServerListener>,
    callers: Callers,
    client: Client,
    shutdown: impl Future<Output = ()>,
) -> Result<Stopped, ServerError> {
    let failures = Arc::new(LogThrottle::default());
    let service = service_fn(move |call: Request<Body>| {
        let info = call.extensions().get::<ConnectionInfo>();
        let admitted = callers.admit(info.and_then(|info| info.origin.as_ref()));
        let (client, failures) = (client.clone(), Arc::clone(&failures));
        async move {
            let answer = match admitted {
                Ok(()) => client.pass_on(call).await,
                Err(refused) => refused.into_http(),
            };
            if let Some(failed) = Status::from_header_map(answer.headers()) {
                log(&failed, &failures);
            }
            Ok(answer)
        }
    });
    serve_programs(listeners, service, GRACE, shutdown).await
}

/// Logs failures that the programs cannot mend.
fn log(failed: &Status, failures: &LogThrottle) {
    let why = failed.message();
    if let Code::Unavailable | Code::Unauthenticated | Code::PermissionDenied = failed.code()
        && let Some(times) = failures.met(SystemClock.boot(), why)
    {
        tracing::warn!(code = ?failed.code(), times, "a call failed: {why}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_admits_the_named_users_and_a_loopback_address_every_program() {
        let callers = Callers {
            users: BTreeSet::from([0, 1000]),
        };
        let of = |unix_user| Origin {
            unix_user,
            ..Origin::default()
        };
        assert!(callers.admit(Some(&of(Some(1000)))).is_ok());
        let refused = callers.admit(Some(&of(Some(1001)))).unwrap_err();
        assert!(refused.message().contains("user 1001"), "{refused}");
        assert!(callers.admit(Some(&of(None))).is_err());
        assert!(callers.admit(None).is_err());
        let over_tcp = Origin {
            address: Some(std::net::Ipv4Addr::LOCALHOST.into()),
            ..Origin::default()
        };
        assert!(callers.admit(Some(&over_tcp)).is_ok());
    }
}
