//! What a connection is made of, and what is known of whoever is at its other end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
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
                unix_user: peer.map(|peer| peer.uid()),
                ..Origin::default()
            },
            io: ServerIo::Unix(io),
        }
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
