//! One connection: counted, cut off when the server says so, and dropped if it never says what it wants.

use std::any::Any;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fermata_tls as tls;
use futures_util::{Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::sleep;
use tonic::transport::server::Connected;

use crate::access::{Origin, ShareOf};
use crate::clock::{Clock as _, SystemClock};
use crate::log_throttle::LogThrottle;
use crate::rpc::budget::{AccountLimits, Accounts, Connection, ConnectionInfo};
use crate::rpc::stopping::Stopping;

/// What an HTTP/2 client sends first, in bytes, and how long it may take. (Pings start only after it.)
const PREFACE_BYTES: usize = 24;
const PREFACE_WITHIN: Duration = Duration::from_secs(10);

/// How long a client gets to go away once the server stops, where no call of it is in flight.
const GO_AWAY_WITHIN: Duration = Duration::from_secs(1);
/// How often it is looked whether one is.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A connection, and what it counts as for as long as it is there.
pub(super) struct Admitted<IO> {
    pub(super) io: IO,
    pub(super) counted: Connection,
}

/// As many connections, which may hold as much as they like: those of other replicas.
pub(super) fn unbounded(connections_max: usize) -> AccountLimits {
    AccountLimits {
        connections_max,
        connection_bytes_max: u64::MAX,
        bytes_max: u64::MAX,
        answer_max: Duration::MAX,
        listings_of_share: 1,
    }
}

/// The connections for which there is room: another one is closed at once, which a client sees as UNAVAILABLE.
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
            let who = ShareOf::of(origin(&io).as_ref());
            if let Some(counted) = accounts.admit(who) {
                return Some(Ok(Admitted { io, counted }));
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

/// Where a connection comes from, where that is known.
fn origin<IO: Connected>(io: &IO) -> Option<Origin> {
    let info: Box<dyn Any> = Box::new(io.connect_info());
    info.downcast::<Origin>().ok().map(|origin| *origin)
}

/// The same, each with a limit on how long it may say nothing. `stopping` ends those on which no call is in flight, `cut` all.
pub(super) fn guarded<IO, E>(
    counted: impl Stream<Item = Result<Admitted<IO>, E>>,
    stopping: Stopping,
    cut: Stopping,
) -> impl Stream<Item = Result<Guarded<IO>, E>> {
    let tls_spoken = Arc::default();
    counted.map(move |admitted| {
        admitted.map(|admitted| {
            let (stopping, cut) = (stopping.clone(), cut.clone());
            Guarded::new(admitted, stopping, cut, Arc::clone(&tls_spoken))
        })
    })
}

/// Ready once the preface is late.
type TooLate = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection that can be cut off from outside.
pub(super) struct Guarded<IO> {
    io: IO,
    /// Resolves when the connection is to end; `None` after it did.
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// While the preface is awaited: how much of it came, and what ends that.
    preface: Option<(usize, TooLate)>,
    counted: Connection,
    tls_spoken: Arc<LogThrottle>,
}

impl<IO> Guarded<IO> {
    fn new(
        admitted: Admitted<IO>,
        stopping: Stopping,
        mut cut: Stopping,
        tls_spoken: Arc<LogThrottle>,
    ) -> Self {
        let account = Arc::clone(admitted.counted.account());
        let until_cut = Arc::clone(&account).until_cut();
        let mut serves = stopping.clone();
        let unused = async move {
            serves.stopped().await;
            sleep(GO_AWAY_WITHIN).await;
            while account.calls() > 0 {
                sleep(LOOK_EVERY).await;
            }
        };
        let mut serves = stopping;
        let no_preface = async move {
            tokio::select! {
                () = serves.stopped() => {}
                () = sleep(PREFACE_WITHIN) => {}
            }
        };
        Guarded {
            io: admitted.io,
            end: Some(Box::pin(async move {
                tokio::select! {
                    () = cut.stopped() => {}
                    () = until_cut => {}
                    () = unused => {}
                }
            })),
            preface: Some((0, Box::pin(no_preface))),
            counted: admitted.counted,
            tls_spoken,
        }
    }

    /// An error once the connection is to end; wakes it when that comes.
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

impl<IO: Connected> Connected for Guarded<IO> {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        ConnectionInfo {
            account: Arc::clone(self.counted.account()),
            origin: origin(&self.io),
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
        // HTTP/2 always has a read pending, so this wakes the connection whatever it does.
        this.alive(cx)?;
        if let Some((_, too_late)) = &mut this.preface
            && too_late.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
        if let Some((came, _)) = &mut this.preface {
            let first = buf.filled().get(before).copied();
            if *came == 0 && first.is_some_and(tls::is_begun_by) {
                let what = "a connection was refused: TLS is spoken there, and not here (for clients tls.cert_file, between \
                            replicas peers.tls is not set)";
                if let Some(times) = this.tls_spoken.met(SystemClock.boot(), what) {
                    tracing::warn!(who = ?this.counted.account().who(), times, "{what}");
                }
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
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
