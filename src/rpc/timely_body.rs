//! The body of a request that must come in in time.
//!
//! tonic reads the message of a call before any handler is reached. A client that announces a message and
//! never sends it would keep its call open for ever, and hold up the end of the server.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, sleep_until};
use tonic::Status;
use tonic::body::Body;

use super::status;
use super::stopping::Stopping;

/// A body that fails with a status if it is not complete by then, or once the replica stops.
pub(super) struct TimelyBody {
    inner: Body,
    by: Instant,
    stopping: Stopping,
    /// Made when there is something to wait for: most messages are there at once.
    late: Option<Pin<Box<dyn Future<Output = Status> + Send>>>,
}

impl TimelyBody {
    pub fn new(inner: Body, by: Instant, stopping: Stopping) -> Self {
        TimelyBody {
            inner,
            by,
            stopping,
            late: None,
        }
    }
}

impl http_body::Body for TimelyBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        let late = this.late.get_or_insert_with(|| {
            let by = this.by;
            let mut stopping = this.stopping.clone();
            Box::pin(async move {
                tokio::select! {
                    biased;
                    () = stopping.stopped() => status::stopping(),
                    () = sleep_until(by) => status::message_late(),
                }
            })
        });
        late.as_mut().poll(cx).map(|status| Some(Err(status)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
