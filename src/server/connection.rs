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
use tokio::time::{Sleep, sleep};
use tonic::transport::server::Connected;

use crate::access::Origin;
use crate::clock::{Clock as _, SystemClock};
use crate::log_throttle::LogThrottle;
use crate::rpc::budget::{
    AccountLimits, Accounts, Connection, ConnectionInfo, FrameScan, PREFACE_BYTES, ShareOf,
};
use crate::rpc::stopping::Stopping;

/// How long a client may take for what it sends first. (Pings start only after it.)
const PREFACE_WITHIN: Duration = Duration::from_secs(10);

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
        window_bytes: 0,
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
            if let Some(counted) = accounts.admit(who).await {
                return Some(Ok(Admitted { io, counted }));
            }
            let what =
                "a connection was refused: limits.connections_max is reached, or the share of its address, and none is idle";
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

/// The same, each with a limit on how long it may say nothing. `cut` ends all of them.
pub(super) fn guarded<IO, E>(
    counted: impl Stream<Item = Result<Admitted<IO>, E>>,
    cut: Stopping,
) -> impl Stream<Item = Result<Guarded<IO>, E>> {
    let tls_spoken = Arc::default();
    counted.map(move |admitted| {
        admitted.map(|admitted| Guarded::new(admitted, cut.clone(), Arc::clone(&tls_spoken)))
    })
}

/// A connection that can be cut off from outside.
pub(super) struct Guarded<IO> {
    io: IO,
    /// Resolves when the connection is to end; `None` after it did.
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// While the preface is awaited: how much of it came, and when it is too late.
    preface: Option<(usize, Pin<Box<Sleep>>)>,
    counted: Connection,
    /// What comes in and goes out; `None`: nothing is bounded there.
    frames: Option<(FrameScan, FrameScan)>,
    tls_spoken: Arc<LogThrottle>,
}

impl<IO> Guarded<IO> {
    fn new(admitted: Admitted<IO>, mut cut: Stopping, tls_spoken: Arc<LogThrottle>) -> Self {
        let until_cut = Arc::clone(admitted.counted.account()).until_cut();
        let is_bounded = admitted.counted.account().is_bounded();
        Guarded {
            io: admitted.io,
            end: Some(Box::pin(async move {
                tokio::select! {
                    () = cut.stopped() => {}
                    () = until_cut => {}
                }
            })),
            preface: Some((0, Box::pin(sleep(PREFACE_WITHIN)))),
            frames: is_bounded.then(|| (FrameScan::of_client(), FrameScan::of_server())),
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

    /// At most so many bytes of this were sent. How many those are.
    fn note_sent(&mut self, buf: &[u8], count: usize) -> usize {
        let sent = buf.get(..count).unwrap_or(buf);
        if let Some((_, outgoing)) = &mut self.frames {
            let account = self.counted.account();
            outgoing.advance(sent, |head| account.frame_sent(&head));
        }
        sent.len()
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
        if let Some((incoming, _)) = &mut this.frames {
            let came = buf.filled().get(before..).unwrap_or_default();
            let account = this.counted.account();
            incoming.advance(came, |head| account.frame_came(&head));
            account.note_headers(incoming.kept_by_headers());
            if let Some(why) = incoming.fault() {
                account.cut(why);
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
        }
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
        let count = ready!(Pin::new(&mut this.io).poll_write(cx, buf))?;
        this.note_sent(buf, count);
        Poll::Ready(Ok(count))
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
        let count = ready!(Pin::new(&mut this.io).poll_write_vectored(cx, bufs))?;
        let mut left = count;
        for buf in bufs {
            left -= this.note_sent(buf, left);
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
