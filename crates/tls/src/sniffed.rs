//! A connection without TLS whose other end may speak TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use crate::is_begun_by;

/// A reader that tells with its first bytes whether the other side speaks TLS: it answers other bytes with an alert.
pub struct Sniffed<R, F> {
    read: R,
    /// Called once; an error ends the connection.
    hear: Option<F>,
}

impl<R, F> Sniffed<R, F> {
    /// `hear` is called once with the first bytes: whether they are of TLS.
    pub fn new(read: R, hear: F) -> Sniffed<R, F> {
        let hear = Some(hear);
        Sniffed { read, hear }
    }
}

impl<R, F> AsyncRead for Sniffed<R, F>
where
    R: AsyncRead + Unpin,
    F: FnOnce(bool) -> io::Result<()> + Unpin,
{
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.read).poll_read(cx, buf))?;
        let first = buf.filled().get(before).copied();
        let heard = match (first, this.hear.take()) {
            (Some(first), Some(hear)) => hear(is_begun_by(first)),
            (None, hear) => {
                this.hear = hear;
                Ok(())
            }
            (Some(_), None) => Ok(()),
        };
        Poll::Ready(heard)
    }
}
