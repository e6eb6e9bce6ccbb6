//! The socket of a connection, and the origin of its calls.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::server::Connected;

use super::connection::Admitted;
use crate::access::Origin;

/// The kernel shows all users of other user namespaces as this one. So it is no identity.
pub const NOBODY: u32 = 65_534;

/// The server's end of a connection within this process, and whose calls it carries.
pub type Dialed = (DuplexStream, Origin);

/// An accepted connection.
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// Of this process, for a caller of that origin.
    Local(DuplexStream, Origin),
}

impl Connected for Socket {
    type ConnectInfo = Origin;

    fn connect_info(&self) -> Origin {
        match self {
            Socket::Tcp(io) => {
                let from = io.peer_addr().ok();
                Origin {
                    from: from.map_or_else(|| Arc::from(""), |from| Arc::from(from.to_string())),
                    address: from.map(|from| from.ip()),
                    ..Origin::default()
                }
            }
            Socket::Local(_, origin) => origin.clone(),
            Socket::Unix(io) => {
                let peer = io.peer_cred().ok();
                let process = peer.and_then(|peer| peer.pid());
                Origin {
                    from: process.map_or_else(
                        || Arc::from("unix"),
                        |id| Arc::from(format!("unix, process {id}")),
                    ),
                    unix_user: peer.map(|peer| peer.uid()).filter(|user| *user != NOBODY),
                    ..Origin::default()
                }
            }
        }
    }
}

/// The bytes of a connection, with TLS or without.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for T {}

/// A connection without TLS.
pub(super) fn plain(admitted: Admitted<Socket>) -> Admitted<Box<dyn ByteStream>> {
    admitted.map(|io| match io {
        Socket::Tcp(io) => Box::new(io) as Box<dyn ByteStream>,
        Socket::Unix(io) => Box::new(io),
        Socket::Local(io, _) => Box::new(io),
    })
}
