//! Listeners, over TCP and on Unix sockets: where they may be, and what they bring in.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::stream::{self, Stream, select_all};
use tokio::net::{TcpListener, UnixListener, UnixSocket, UnixStream};
use tokio::time::sleep;

use super::wire::ServerWire;
use crate::clock::{Clock as _, SystemClock};
use crate::log_throttle::LogThrottle;

/// How long to wait after a connection could not be accepted (mostly for want of file descriptors).
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// How many connections to a Unix socket wait to be accepted.
const BACKLOG: u32 = 1024;

/// Who may connect to a Unix socket: its owner and its group.
const SOCKET_MODE: u32 = 0o660;

/// Why no listener was opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Others than this machine would reach it, and it was not asked for.
    #[error(
        "will not listen on {addr}: others than this machine could reach it, and {missing}. Or listen on a loopback address \
         (127.0.0.1 or [::1]), or set `insecure` if everybody who reaches that address may take and break locks"
    )]
    Insecure {
        /// What was asked for.
        addr: SocketAddr,
        /// What is missing there, and how to have it.
        missing: &'static str,
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
    /// A Unix socket cannot be made there.
    #[error("cannot listen on {}: {why}", path.display())]
    Socket {
        /// What was asked for.
        path: PathBuf,
        /// Why not.
        why: String,
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

/// What keeps strangers out of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protection {
    /// Connections are encrypted.
    pub tls: bool,
    /// Callers must say who they are.
    pub login: bool,
}

impl Protection {
    /// Nothing does.
    pub const NONE: Protection = Protection {
        tls: false,
        login: false,
    };

    fn missing(self) -> Option<&'static str> {
        match (self.tls, self.login) {
            (true, true) => None,
            (false, true) => Some("it is not encrypted. Set tls.cert_file and tls.key_file"),
            (true, false) => Some(
                "it takes calls of everybody. Set auth.tokens_file or tls.client_ca_file, so that clients must say who they are",
            ),
            (false, false) => Some(
                "it is neither encrypted nor are its clients known. Set tls.cert_file and tls.key_file, and auth.tokens_file or \
                 tls.client_ca_file",
            ),
        }
    }
}

/// Refuses to be reached by other machines without protection, unless that was asked for.
pub fn check_listen(
    addr: SocketAddr,
    protection: Protection,
    insecure: bool,
) -> Result<(), ListenError> {
    match protection.missing() {
        Some(missing) if !insecure && !addr.ip().to_canonical().is_loopback() => {
            Err(ListenError::Insecure { addr, missing })
        }
        Some(_) | None => Ok(()),
    }
}

/// A listener of the server.
pub enum ServerListener {
    /// Over TCP.
    Tcp(TcpListener),
    /// On a Unix socket.
    Unix(SocketListener),
}

impl From<TcpListener> for ServerListener {
    fn from(listener: TcpListener) -> ServerListener {
        ServerListener::Tcp(listener)
    }
}

/// A listener on a Unix socket, which goes with it.
pub struct SocketListener {
    listener: UnixListener,
    path: PathBuf,
    /// Which it is: another process may have put its own there since.
    inode: u64,
}

impl Drop for SocketListener {
    fn drop(&mut self) {
        let there = std::fs::symlink_metadata(&self.path);
        if there.is_ok_and(|there| there.ino() != self.inode) {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "a socket was not removed");
        }
    }
}

/// Opens a Unix socket, for its owner and its group. One that nobody listens on is replaced; anything else that is there stays.
pub async fn bind_socket(path: &Path) -> Result<SocketListener, ListenError> {
    let refused = |why: String| ListenError::Socket {
        path: path.to_owned(),
        why,
    };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(refused(error.to_string())),
        Ok(there) if !there.file_type().is_socket() => {
            return Err(refused("something that is no socket is there".to_owned()));
        }
        Ok(_) => match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(|error| refused(error.to_string()))?;
            }
            Ok(_) => return Err(refused("another process listens there".to_owned())),
            Err(error) => return Err(refused(error.to_string())),
        },
    }
    let failed = |error: io::Error| refused(error.to_string());
    let socket = UnixSocket::new_stream().map_err(failed)?;
    socket.bind(path).map_err(failed)?;
    // Nobody gets through before it has its mode: it refuses all until it listens.
    let mode = std::fs::Permissions::from_mode(SOCKET_MODE);
    let listening = std::fs::set_permissions(path, mode).and_then(|()| {
        let inode = std::fs::symlink_metadata(path)?.ino();
        Ok((socket.listen(BACKLOG)?, inode))
    });
    let (listener, inode) = listening.map_err(|error| {
        let _ = std::fs::remove_file(path);
        refused(error.to_string())
    })?;
    Ok(SocketListener {
        listener,
        path: path.to_owned(),
        inode,
    })
}

/// Opens a listener. Port 0 takes a free port; its `local_addr` says which.
pub async fn bind(addr: SocketAddr) -> Result<TcpListener, ListenError> {
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
    listeners: Vec<ServerListener>,
) -> impl Stream<Item = Result<ServerWire, io::Error>> + Send {
    select_all(listeners.into_iter().map(|listener| {
        let begun = (listener, LogThrottle::default());
        Box::pin(stream::unfold(begun, |(listener, failed)| async {
            let connection = accepted(&listener, &failed).await;
            Some((Ok(connection), (listener, failed)))
        }))
    }))
}

/// The next connection. A failure to accept one is no reason to end, nor to spin.
async fn accepted(listener: &ServerListener, failed: &LogThrottle) -> ServerWire {
    loop {
        let accepted = match listener {
            ServerListener::Tcp(listener) => listener.accept().await.map(|(connection, _peer)| {
                if let Err(error) = connection.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY was not set");
                }
                ServerWire::from(connection)
            }),
            ServerListener::Unix(socket) => {
                let accepted = socket.listener.accept().await;
                accepted.map(|(connection, _peer)| ServerWire::from(connection))
            }
        };
        match accepted {
            Ok(connection) => return connection,
            Err(error) => {
                if let Some(times) = failed.met(SystemClock.boot(), &error.to_string()) {
                    tracing::warn!(%error, times, "a connection was not accepted");
                }
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_are_admitted_only_with_protection_or_where_asked_for() {
        let all = Protection {
            tls: true,
            login: true,
        };
        for loopback in [
            "127.0.0.1:1",
            "127.8.8.8:1",
            "[::1]:1",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert!(check_listen(loopback.parse().unwrap(), Protection::NONE, false).is_ok());
        }
        for open in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            let addr = open.parse().unwrap();
            for (protection, missing) in [
                (Protection::NONE, "neither encrypted nor"),
                (
                    Protection { tls: false, ..all },
                    "not encrypted. Set tls.cert_file",
                ),
                (
                    Protection {
                        login: false,
                        ..all
                    },
                    "calls of everybody. Set auth.tokens_file",
                ),
            ] {
                let refused = check_listen(addr, protection, false)
                    .unwrap_err()
                    .to_string();
                assert!(
                    refused.contains(missing) && refused.contains("`insecure`"),
                    "{refused}"
                );
                assert!(check_listen(addr, protection, true).is_ok());
            }
            assert!(check_listen(addr, all, false).is_ok());
        }
    }

    #[tokio::test]
    async fn a_taken_port_is_said_to_be_taken() {
        let first = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let second = bind(first.local_addr().unwrap()).await;
        assert!(matches!(second, Err(ListenError::Taken { .. })));
    }

    #[tokio::test]
    async fn a_socket_is_made_where_nothing_is_or_nobody_listens_and_goes_with_its_listener() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("fermata.sock");
        let listening = bind_socket(&path).await.unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let refused = bind_socket(&path).await.err().unwrap().to_string();
        assert!(
            refused.contains("another process listens there"),
            "{refused}"
        );
        drop(listening);
        assert!(!path.exists());

        // Of a process that was killed.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(bind_socket(&path).await.unwrap());

        std::fs::write(&path, "a file").unwrap();
        let refused = bind_socket(&path).await.err().unwrap().to_string();
        assert!(refused.contains("no socket is there"), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
        let long = directory.path().join("x".repeat(120));
        assert!(bind_socket(&long).await.is_err());
    }
}
