//! Listeners over TCP, on Unix sockets and within this process, their protection, and their connections.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::stream::{self, Stream, select_all};
use tokio::net::{TcpListener, UnixListener, UnixSocket, UnixStream};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::wire::{Dialed, Socket};
use crate::clock::{Clock as _, SystemClock};
use crate::log_throttle::LogThrottle;

/// The pause after a connection could not be accepted, mostly for want of file descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The queue of a Unix socket for connections that are not accepted yet.
const BACKLOG: u32 = 1024;

/// The mode of a server's Unix socket: its owner and its group may connect.
pub const SOCKET_MODE: u32 = 0o660;

/// Why no listener was opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Other machines would reach it without protection.
    #[error(
        "will not listen on {addr}: other machines could reach it, and {missing}. Or listen on a loopback address \
         (127.0.0.1 or [::1]), or set `insecure` if everybody who reaches that address may take and break locks"
    )]
    Insecure {
        /// The address.
        addr: SocketAddr,
        /// The missing protection, and its settings.
        missing: &'static str,
    },
    /// A Unix socket cannot be made there.
    #[error("cannot listen on {}: {why}", path.display())]
    Socket {
        /// Its path.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The system refused it: the port is taken, or the address is of another machine.
    #[error("cannot listen on {addr}: {error}")]
    Io {
        /// The address.
        addr: SocketAddr,
        /// The error of the system.
        error: io::Error,
    },
}

/// The protection of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protection {
    /// Connections are encrypted.
    pub tls: bool,
    /// Callers have an identity.
    pub login: bool,
}

impl Protection {
    /// None.
    pub const NONE: Protection = Protection {
        tls: false,
        login: false,
    };

    fn missing(self) -> Option<&'static str> {
        match (self.tls, self.login) {
            (true, true) => None,
            (false, true) => Some("it is not encrypted. Set tls.cert_file and tls.key_file"),
            (true, false) => {
                Some("its clients are not known. Set auth.tokens_file or tls.client_ca_file")
            }
            (false, false) => Some(
                "neither encryption nor logins protect it. Set tls.cert_file and tls.key_file, and auth.tokens_file or \
                 tls.client_ca_file",
            ),
        }
    }
}

/// Refuses addresses that other machines reach without protection, unless `insecure` is set.
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
    /// Within this process: see [`local`](super::local()).
    Local(mpsc::Receiver<Dialed>),
}

impl From<TcpListener> for ServerListener {
    fn from(listener: TcpListener) -> ServerListener {
        ServerListener::Tcp(listener)
    }
}

/// A listener on a Unix socket, whose file is removed with it.
pub struct SocketListener {
    listener: UnixListener,
    path: PathBuf,
    /// The inode of its file. A file with another one belongs to another server.
    inode: Option<u64>,
}

fn inode_of(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|file| file.ino())
}

impl Drop for SocketListener {
    fn drop(&mut self) {
        if inode_of(&self.path) != self.inode {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "a socket was not removed");
        }
    }
}

/// Opens a Unix socket with this mode. Replaces a socket without a listener, and nothing else.
pub async fn bind_socket(path: &Path, mode: u32) -> Result<SocketListener, ListenError> {
    let refused = |why: String| ListenError::Socket {
        path: path.to_owned(),
        why,
    };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(refused(error.to_string())),
        Ok(there) if !there.file_type().is_socket() => {
            return Err(refused("the path exists and is not a socket".to_owned()));
        }
        Ok(_) => match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(|error| refused(error.to_string()))?;
            }
            Ok(_) => return Err(refused("another process listens on it".to_owned())),
            Err(error) => return Err(refused(error.to_string())),
        },
    }
    let failed = |error: io::Error| refused(error.to_string());
    let socket = UnixSocket::new_stream().map_err(failed)?;
    socket.bind(path).map_err(failed)?;
    // Nobody connects before it has its mode: it refuses all until it listens.
    let mode = std::fs::Permissions::from_mode(mode);
    let listening = std::fs::set_permissions(path, mode).and_then(|()| socket.listen(BACKLOG));
    let listener = listening.map_err(|error| {
        let _ = std::fs::remove_file(path);
        refused(error.to_string())
    })?;
    Ok(SocketListener {
        listener,
        inode: inode_of(path),
        path: path.to_owned(),
    })
}

/// Opens a listener. Port 0 takes a free port, the one of its `local_addr`.
pub async fn bind(addr: SocketAddr) -> Result<TcpListener, ListenError> {
    let bound = TcpListener::bind(addr).await;
    bound.map_err(|error| ListenError::Io { addr, error })
}

/// The connections of all listeners, without Nagle's delay. Ends only without a listener.
pub(super) fn connections(
    listeners: Vec<ServerListener>,
) -> impl Stream<Item = Result<Socket, io::Error>> + Send {
    select_all(listeners.into_iter().map(|listener| {
        let begun = (listener, LogThrottle::default());
        Box::pin(stream::unfold(begun, |(mut listener, failed)| async {
            let connection = accepted(&mut listener, &failed).await;
            Some((Ok(connection), (listener, failed)))
        }))
    }))
}

/// The next connection. A failure to accept neither ends this nor makes it spin.
async fn accepted(listener: &mut ServerListener, failed: &LogThrottle) -> Socket {
    loop {
        let accepted = match listener {
            ServerListener::Tcp(listener) => listener.accept().await.map(|(connection, _peer)| {
                if let Err(error) = connection.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY was not set");
                }
                Socket::Tcp(connection)
            }),
            ServerListener::Unix(socket) => {
                let accepted = socket.listener.accept().await;
                accepted.map(|(connection, _peer)| Socket::Unix(connection))
            }
            ServerListener::Local(dialed) => match dialed.recv().await {
                Some((connection, origin)) => return Socket::Local(connection, origin),
                // Nobody can connect any more.
                None => std::future::pending().await,
            },
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
                (Protection::NONE, "neither encryption nor logins"),
                (
                    Protection { tls: false, ..all },
                    "not encrypted. Set tls.cert_file",
                ),
                (
                    Protection {
                        login: false,
                        ..all
                    },
                    "its clients are not known. Set auth.tokens_file",
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
        assert!(matches!(second, Err(ListenError::Io { .. })));
    }

    #[tokio::test]
    async fn a_socket_is_made_where_nothing_is_or_nobody_listens_and_goes_with_its_listener() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("fermata.sock");
        let listening = bind_socket(&path, SOCKET_MODE).await.unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, SOCKET_MODE);
        let refused = bind_socket(&path, SOCKET_MODE)
            .await
            .err()
            .unwrap()
            .to_string();
        assert!(
            refused.contains("another process listens on it"),
            "{refused}"
        );
        drop(listening);
        assert!(!path.exists());

        // Of a process that was killed.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(bind_socket(&path, SOCKET_MODE).await.unwrap());

        std::fs::write(&path, "a file").unwrap();
        let refused = bind_socket(&path, SOCKET_MODE)
            .await
            .err()
            .unwrap()
            .to_string();
        assert!(refused.contains("is not a socket"), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
        let long = directory.path().join("x".repeat(120));
        assert!(bind_socket(&long, SOCKET_MODE).await.is_err());
    }
}
