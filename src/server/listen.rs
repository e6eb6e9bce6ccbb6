//! TCP listeners: where they may be, and what they bring in.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::stream::{self, Stream, select_all};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// How long to wait after a connection could not be accepted (mostly for want of file descriptors).
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Why no listener was opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Others than this machine would reach it, and it was not asked for.
    #[error(
        "will not listen on {addr}: others than this machine could reach it, and there is neither \
         encryption nor authentication. Listen on a loopback address (127.0.0.1 or [::1]), or set \
         `insecure` if everybody who reaches that address may take and break locks"
    )]
    Insecure {
        /// What was asked for.
        addr: SocketAddr,
    },
    /// Another process listens there.
    #[error(
        "cannot listen on {addr}: the port is taken. Stop what listens there, or choose another port"
    )]
    Taken {
        /// What was asked for.
        addr: SocketAddr,
    },
    /// The address is of another machine.
    #[error("cannot listen on {addr}: this machine does not have that address")]
    NotHere {
        /// What was asked for.
        addr: SocketAddr,
    },
    /// The port needs a privilege.
    #[error("cannot listen on {addr}: not permitted (ports below 1024 may need a privilege)")]
    NotPermitted {
        /// What was asked for.
        addr: SocketAddr,
    },
    /// Anything else.
    #[error("cannot listen on {addr}: {error}")]
    Io {
        /// What was asked for.
        addr: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
}

/// Refuses to be reached by other machines unless that was asked for.
pub fn check_listen(addr: SocketAddr, insecure: bool) -> Result<(), ListenError> {
    if insecure || addr.ip().to_canonical().is_loopback() {
        Ok(())
    } else {
        Err(ListenError::Insecure { addr })
    }
}

/// Opens a listener. Port 0 takes a free port; its `local_addr` says which.
pub async fn bind(addr: SocketAddr, insecure: bool) -> Result<TcpListener, ListenError> {
    check_listen(addr, insecure)?;
    TcpListener::bind(addr)
        .await
        .map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => ListenError::Taken { addr },
            io::ErrorKind::AddrNotAvailable => ListenError::NotHere { addr },
            io::ErrorKind::PermissionDenied => ListenError::NotPermitted { addr },
            _ => ListenError::Io { addr, error },
        })
}

/// The connections of all listeners, without Nagle's delay. Never ends, unless there is no listener.
pub(super) fn connections(
    listeners: Vec<TcpListener>,
) -> impl Stream<Item = Result<TcpStream, io::Error>> {
    select_all(listeners.into_iter().map(|listener| {
        Box::pin(stream::unfold(listener, |listener| async {
            Some((Ok(accepted(&listener).await), listener))
        }))
    }))
}

/// The next connection. A failure to accept one is no reason to end, nor to spin.
async fn accepted(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((connection, _peer)) => {
                if let Err(error) = connection.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY was not set");
                }
                return connection;
            }
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_are_admitted_only_where_asked_for() {
        for loopback in [
            "127.0.0.1:1",
            "127.8.8.8:1",
            "[::1]:1",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert!(check_listen(loopback.parse().unwrap(), false).is_ok());
        }
        for open in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            let addr = open.parse().unwrap();
            let refused = check_listen(addr, false).unwrap_err().to_string();
            assert!(refused.contains("insecure"), "{refused}");
            assert!(check_listen(addr, true).is_ok());
        }
    }

    #[tokio::test]
    async fn a_taken_port_is_said_to_be_taken() {
        let first = bind("127.0.0.1:0".parse().unwrap(), false).await.unwrap();
        let second = bind(first.local_addr().unwrap(), false).await;
        assert!(matches!(second, Err(ListenError::Taken { .. })));
    }
}
