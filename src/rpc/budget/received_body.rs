//! The body of a request: counted from its announcement, and complete in time.
//!
//! A message is decoded only when it is complete. A client that announces a message and never sends it would keep its call open
//! for ever, and delay the end of the server. On every stream, such messages would fill the memory. So a message that is not
//! small needs room for all its bytes as soon as it is announced. Without room its call is refused, and nothing is done. A stream
//! has room for one message at any time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tonic::body::Body;

use super::{CallInFlight, Charge, ChargeKind, SMALL_BYTES, wide};
use crate::rpc::status;
use crate::rpc::stopping::Stopping;

/// What a message begins with: whether it is compressed, and its length.
const HEAD_BYTES: usize = 5;

/// By when a message must be complete.
#[derive(Clone, Copy)]
pub enum Arrival {
    /// The only one of its call, by then.
    By(Instant),
    /// Each of a stream, within so long from its first byte on.
    Each(Duration),
}

/// See the module.
pub struct ReceivedBody {
    inner: Body,
    arrival: Arrival,
    stopping: Stopping,
    /// Longer messages get no room: the decoder refuses them.
    message_bytes_max: usize,
    /// `None`: nothing is counted.
    call: Option<Arc<CallInFlight>>,
    scan: Scan,
    /// The message of a call was counted.
    is_counted: bool,
    /// The decoder of a stream keeps the memory of its largest message.
    kept: Option<Charge>,
    /// The status of a message that is late. Made when there is something to wait for: most messages are complete at once.
    late: Option<BoxFuture<'static, Status>>,
}

impl ReceivedBody {
    /// The body of a call.
    pub fn new(
        inner: Body,
        call: Option<Arc<CallInFlight>>,
        arrival: Arrival,
        message_bytes_max: usize,
        stopping: Stopping,
    ) -> ReceivedBody {
        ReceivedBody {
            inner,
            arrival,
            stopping,
            message_bytes_max,
            call: call.filter(|call| call.account().is_bounded()),
            scan: Scan::default(),
            is_counted: false,
            kept: None,
            late: None,
        }
    }

    /// Counts what came.
    fn came(&mut self, data: Bytes) -> Result<Bytes, Status> {
        let completed = self.scan.completed;
        self.scan.advance(&data);
        if self.scan.completed > completed {
            self.late = None;
        }
        let is_stream = matches!(self.arrival, Arrival::Each(_));
        // Nothing would count it.
        if !is_stream && self.scan.has_second() {
            return Err(status::second_message());
        }
        let length = self.scan.largest;
        let is_too_large = length > self.message_bytes_max + HEAD_BYTES;
        let Some(call) = self.call.as_ref().filter(|_| length > 0 && !is_too_large) else {
            return Ok(data);
        };
        let account = call.account();
        if is_stream {
            if length > SMALL_BYTES {
                let kept = self
                    .kept
                    .get_or_insert_with(|| account.charge(ChargeKind::Call, 0));
                kept.grow(wide(length));
            }
            return Ok(data);
        }
        if !std::mem::replace(&mut self.is_counted, true) {
            let room = Arc::clone(account).room(ChargeKind::Message, length);
            call.received(room.now_or_never().ok_or_else(status::no_room)?);
        }
        Ok(data)
    }

    /// The status of a message that is not complete in time.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        let by = match self.arrival {
            Arrival::By(by) => by,
            // Between messages a stream may be silent for as long as it likes.
            Arrival::Each(_) if self.scan.is_between() => return Poll::Pending,
            Arrival::Each(span) => Instant::now() + span,
        };
        let late = self.late.get_or_insert_with(|| {
            let mut stopping = self.stopping.clone();
            Box::pin(async move {
                match timeout_at(by, stopping.stopped()).await {
                    Ok(()) => status::stopping(),
                    Err(_elapsed) => status::message_late(),
                }
            })
        });
        late.as_mut().poll(cx)
    }
}

impl http_body::Body for ReceivedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        Poll::Ready(match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => Some(match frame.into_data() {
                Ok(data) => this.came(data).map(Frame::data),
                Err(trailers) => Ok(trailers),
            }),
            Poll::Ready(ended) => ended,
            Poll::Pending => Some(Err(ready!(this.poll_late(cx)))),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Where one message ends and the next begins.
#[derive(Default)]
struct Scan {
    head: [u8; HEAD_BYTES],
    /// How much of the head came.
    head_came: usize,
    /// How much of the message is still to come, once its head is there.
    left: usize,
    /// The largest message that was announced, with its head; 0 for none.
    largest: usize,
    /// How many messages were completed.
    completed: usize,
}

impl Scan {
    /// No message is incomplete.
    fn is_between(&self) -> bool {
        self.head_came == 0
    }

    /// Whether more came than one message.
    fn has_second(&self) -> bool {
        self.completed > 1 || self.completed == 1 && !self.is_between()
    }

    fn advance(&mut self, mut data: &[u8]) {
        while let Some((first, rest)) = data.split_first() {
            if self.head_came < HEAD_BYTES {
                self.head[self.head_came] = *first;
                self.head_came += 1;
                data = rest;
                if self.head_came < HEAD_BYTES {
                    continue;
                }
                let [_, length @ ..] = self.head;
                self.left = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
                self.largest = self.largest.max(self.left.saturating_add(HEAD_BYTES));
            } else {
                let count = data.len().min(self.left);
                data = data.split_at(count).1;
                self.left -= count;
            }
            if self.left == 0 {
                self.head_came = 0;
                self.completed += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_seen_however_they_are_cut() {
        let mut stream = Vec::new();
        for length in [0_u32, 3, 300] {
            stream.push(0);
            stream.extend(length.to_be_bytes());
            stream.extend(vec![7; usize::try_from(length).unwrap()]);
        }
        for cut in 1..20 {
            let mut scan = Scan::default();
            for part in stream.chunks(cut) {
                scan.advance(part);
            }
            assert_eq!((scan.completed, scan.largest), (3, 305), "{cut}");
            assert!(scan.is_between() && scan.has_second());
        }
        let mut scan = Scan::default();
        scan.advance(&stream[..5]);
        assert_eq!((scan.completed, scan.largest), (1, 5));
        assert!(!scan.has_second());
        scan.advance(&stream[5..7]);
        assert!(!scan.is_between() && scan.has_second());
    }
}
