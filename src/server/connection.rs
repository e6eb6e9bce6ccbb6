//! One connection: counted, cut off by the server, and dropped without a preface of HTTP/2.

use std::any::Any;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::sleep;
use tonic::transport::server::Connected;

use crate::access::{Origin, ShareOf};
use crate::clock::{Clock as _, SystemClock};
use crate::log_throttle::LogThrottle;
use crate::rpc::budget::{AccountLimits, Accounts, Connection, ConnectionInfo};
use crate::rpc::stopping::Stopping;

/// The size of the preface, the first bytes of an HTTP/2 client.
const PREFACE_BYTES: usize = 24;
/// The time for a TLS handshake, and for the preface. (Pings start after it.)
pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// The time for the last bytes of a connection that the server ends.
pub(super) const GO_AWAY_WITHIN: Duration = Duration::from_secs(1);

/// A connection that counts towards the limits while it exists.
pub(super) struct Admitted<IO> {
    pub(super) io: IO,
    pub(super) origin: Option<Origin>,
    pub(super) counted: Connection,
}

impl<IO> Admitted<IO> {
    /// The same with another stream of bytes.
    pub(super) fn map<Other>(self, other: impl FnOnce(IO) -> Other) -> Admitted<Other> {
        Admitted {
            io: other(self.io),
            origin: self.origin,
            counted: self.counted,
        }
    }
}

/// Limits for connections of other replicas: their number alone.
pub(super) fn unbounded(connections_max: usize) -> AccountLimits {
    AccountLimits {
        connections_max,
        connection_bytes_max: u64::MAX,
        bytes_max: u64::MAX,
        answer_max: Duration::MAX,
        listings_of_share: 1,
    }
}

/// The admitted connections. Others are closed at once; a client sees UNAVAILABLE.
pub(super) fn counted<IO: Connected, E>(
    incoming: impl Stream<Item = Result<IO, E>>,
    accounts: Accounts,
) -> impl Stream<Item = Result<Admitted<IO>, E>> {
    let refused = Arc::new(LogThrottle::default());
    incoming.filter_map(move |accepted| {
        let (accounts, refused) = (accounts.clone(), Arc::clone(&refused));
        async move {
            let io = match accepted {
                Ok(io) => io,
                Err(error) => return Some(Err(error)),
            };
            let origin = origin(&io);
            let who = ShareOf::of(origin.as_ref());
            if let Some(counted) = accounts.admit(who) {
                let admitted = Admitted {
                    io,
                    origin,
                    counted,
                };
                return Some(Ok(admitted));
            }
            let what =
                "a connection was refused: limits.connections_max is reached, or the share of its address";
            if let Some(times) = refused.met(SystemClock.boot(), what) {
                let open = accounts.held().connections;
                tracing::warn!(?who, open, times, "{what}");
            }
            None
        }
    })
}

/// The origin of a connection, if known.
fn origin<IO: Connected>(io: &IO) -> Option<Origin> {
    let info: Box<dyn Any> = Box::new(io.connect_info());
    info.downcast::<Origin>().ok().map(|origin| *origin)
}

/// Ends connections without a preface. `stopping` ends connections without a call in flight, `cut` all.
pub(super) fn guarded<IO, E>(
    counted: impl Stream<Item = Result<Admitted<IO>, E>>,
    stopping: Stopping,
    cut: Stopping,
) -> impl Stream<Item = Result<Guarded<IO>, E>> {
    counted.map(move |admitted| {
        admitted.map(|admitted| Guarded::new(admitted, stopping.clone(), cut.clone()))
    })
}

/// Ready when the preface is late.
type TooLate = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection that can be ended from outside.
pub(super) struct Guarded<IO> {
    io: IO,
    origin: Option<Origin>,
    /// Resolves at the end of the connection; `None` afterwards.
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Before the end of the preface: its received bytes, and its deadline.
    preface: Option<(usize, TooLate)>,
    counted: Connection,
}

impl<IO> Guarded<IO> {
    fn new(admitted: Admitted<IO>, stopping: Stopping, mut cut: Stopping) -> Self {
        let account = Arc::clone(admitted.counted.account());
        let until_cut = Arc::clone(&account).until_cut();
        let mut serves = stopping.clone();
        let unused = async move {
            serves.stopped().await;
            sleep(GO_AWAY_WITHIN).await;
            while account.calls() > 0 {
                sleep(GO_AWAY_WITHIN).await;
            }
        };
        let mut serves = stopping;
        let no_preface = async move {
            tokio::select! {
                () = serves.stopped() => {}
                () = sleep(HELLO_WITHIN) => {}
            }
        };
        Guarded {
            io: admitted.io,
            origin: admitted.origin,
            end: Some(Box::pin(async move {
                tokio::select! {
                    () = cut.stopped() => {}
                    () = until_cut => {}
                    () = unused => {}
                }
            })),
            preface: Some((0, Box::pin(no_preface))),
            counted: admitted.counted,
        }
    }

    /// An error at the end of the connection, which wakes the task.
    fn alive(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Some(end) = &mut self.end
            && end.as_mut().poll(cx).is_ready()
        {
            self.end = None;
        }
        match self.end {
            Some(_) => Ok(()),
            None => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }
}

impl<IO> Connected for Guarded<IO> {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        ConnectionInfo {
            account: Arc::clone(self.counted.account()),
            origin: self.origin.clone(),
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Guarded<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // HTTP/2 always has a read pending: this wakes the connection in each state.
        this.alive(cx)?;
        if let Some((_, too_late)) = &mut this.preface
            && too_late.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
        if let Some((came, _)) = &mut this.preface {
            *came += buf.filled().len().saturating_sub(before);
            if *came >= PREFACE_BYTES {
                this.preface = None;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Guarded<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.alive(cx)?;
        Pin::new(&mut this.io).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.alive(cx)?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.alive(cx)?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.alive(cx)?;
        Pin::new(&mut this.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
