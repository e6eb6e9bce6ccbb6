//! What a connection is made of, and what is known of whoever is at its other end.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Once, OnceLock};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::access::Origin;

/// A connection over TCP, with TLS or without, or over a Unix socket.
pub(super) struct ServerWire {
    pub(super) io: ServerIo,
    pub(super) caller: Origin,
}

pub(super) enum ServerIo {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl From<TcpStream> for ServerWire {
    fn from(io: TcpStream) -> ServerWire {
        let from = io.peer_addr().ok();
        ServerWire {
            caller: Origin {
                from: from.map_or_else(|| Arc::from(""), |from| Arc::from(from.to_string())),
                address: from.map(|from| from.ip()),
                ..Origin::default()
            },
            io: ServerIo::Tcp(io),
        }
    }
}

impl From<UnixStream> for ServerWire {
    fn from(io: UnixStream) -> ServerWire {
        let peer = io.peer_cred().ok();
        let process = peer.and_then(|peer| peer.pid());
        ServerWire {
            caller: Origin {
                from: process.map_or_else(
                    || Arc::from("unix"),
                    |id| Arc::from(format!("unix, process {id}")),
                ),
                unix_user: peer
                    .map(|peer| peer.uid())
                    .filter(|user| !is_unmapped(*user)),
                ..Origin::default()
            },
            io: ServerIo::Unix(io),
        }
    }
}

/// Whether the kernel says no more of a user than that it has no number in the user namespace of this process: all such are the same to it.
fn is_unmapped(user: u32) -> bool {
    static UNMAPPED: OnceLock<Option<u32>> = OnceLock::new();
    let unmapped = *UNMAPPED.get_or_init(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
        let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
        unmapped_user(&map, &overflow)
    });
    if unmapped != Some(user) {
        return false;
    }
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::warn!(
            "a caller at the Unix socket is of a user of another user namespace (PrivateUsers=, a rootless container): \
             it counts as nobody known"
        );
    });
    true
}

/// What stands for all users that have no number here; `None` where each has one. The files are as the kernel shows them.
fn unmapped_user(map: &str, overflow: &str) -> Option<u32> {
    let whole = ["0", "0", "4294967295"];
    match map.split_whitespace().eq(whole) {
        true => None,
        false => overflow.trim().parse().ok(),
    }
}

impl Connected for ServerWire {
    type ConnectInfo = Origin;

    fn connect_info(&self) -> Origin {
        self.caller.clone()
    }
}

impl AsyncRead for ServerWire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            ServerIo::Tcp(io) => Pin::new(io).poll_read(cx, buf),
            ServerIo::Tls(io) => Pin::new(io).poll_read(cx, buf),
            ServerIo::Unix(io) => Pin::new(io).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ServerWire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().io {
            ServerIo::Tcp(io) => Pin::new(io).poll_write(cx, buf),
            ServerIo::Tls(io) => Pin::new(io).poll_write(cx, buf),
            ServerIo::Unix(io) => Pin::new(io).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            ServerIo::Tcp(io) => Pin::new(io).poll_flush(cx),
            ServerIo::Tls(io) => Pin::new(io).poll_flush(cx),
            ServerIo::Unix(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            ServerIo::Tcp(io) => Pin::new(io).poll_shutdown(cx),
            ServerIo::Tls(io) => Pin::new(io).poll_shutdown(cx),
            ServerIo::Unix(io) => Pin::new(io).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().io {
            ServerIo::Tcp(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            ServerIo::Tls(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            ServerIo::Unix(io) => Pin::new(io).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            ServerIo::Tcp(io) => io.is_write_vectored(),
            ServerIo::Tls(io) => io.is_write_vectored(),
            ServerIo::Unix(io) => io.is_write_vectored(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_without_a_number_here_are_nobody_and_those_with_one_are_who_they_are() {
        let whole = "         0          0 4294967295\n";
        assert_eq!(unmapped_user(whole, "65534\n"), None);
        for part in ["0 0 1\n", "0 100000 65536\n", "0 0 1\n1000 1000 1\n"] {
            assert_eq!(unmapped_user(part, "65534\n"), Some(65_534), "{part}");
        }
    }
}
