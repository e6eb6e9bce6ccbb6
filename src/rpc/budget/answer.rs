//! The body of an answer, counted until HTTP/2 has sent it.
//!
//! The HTTP/2 library takes a whole chunk of a body before it may send any of the chunk, and a message is one chunk. So it would
//! keep all answers for a client that does not read. Therefore a large message is handed over in slices.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tonic::body::Body;

use super::{CallInFlight, Charge, ChargeKind, SMALL_BYTES, wide};
use crate::rpc::status;

/// What the answers of a method are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnswerForm {
    /// A stream, which makes its own room, or a renewal: never refused.
    Always,
    /// One message. Without room in time the call is refused: nothing was done.
    Read,
    /// One message. Without room in time the call is to be repeated: something was done.
    Done,
}

/// See the module.
pub struct AnswerBody {
    inner: Body,
    call: Arc<CallInFlight>,
    /// The message in transfer: its rest, and the charge for all of it.
    message: Option<(Bytes, Charge)>,
    /// What follows it, before the rest of `inner`.
    next: Option<Frame<Bytes>>,
    /// The encoder of a stream keeps the memory of its largest message.
    kept: Option<Charge>,
}

impl AnswerBody {
    /// The answer of a call. A message waits for room until `by`.
    pub async fn new(
        mut inner: Body,
        call: Arc<CallInFlight>,
        form: AnswerForm,
        by: Instant,
    ) -> Result<AnswerBody, Status> {
        let (mut next, mut message) = (None, None);
        // A single message is complete already; a stream may begin whenever it likes.
        let first = match form {
            AnswerForm::Always => None,
            AnswerForm::Read | AnswerForm::Done => inner.frame().now_or_never(),
        };
        match first.flatten().transpose()?.map(Frame::into_data) {
            None => {}
            Some(Err(trailers)) => next = Some(trailers),
            Some(Ok(data)) => {
                let account = call.account();
                // It is in memory while it waits.
                let waiting = account.charge(ChargeKind::Call, wide(data.len()));
                let room = Arc::clone(account).room(ChargeKind::Answer, data.len());
                let room = timeout_at(by, room).await.map_err(|_elapsed| match form {
                    AnswerForm::Read => status::no_room(),
                    AnswerForm::Done | AnswerForm::Always => status::answer_lost(),
                })?;
                drop(waiting);
                message = Some((data, room));
                // The encoder keeps the memory of the message until its own end.
                next = inner.frame().now_or_never().flatten().transpose()?;
                if next.as_ref().is_some_and(Frame::is_trailers) {
                    inner = Body::empty();
                }
            }
        }
        Ok(AnswerBody {
            inner,
            call,
            message,
            next,
            kept: None,
        })
    }

    /// The next message is to be sent.
    fn send(&mut self, message: Bytes) {
        let (account, bytes) = (self.call.account(), wide(message.len()));
        if message.len() > SMALL_BYTES {
            let kept = self
                .kept
                .get_or_insert_with(|| account.charge(ChargeKind::Call, 0));
            kept.grow(bytes);
        }
        let charge = account.charge(ChargeKind::Answer, bytes);
        self.message = Some((message, charge));
    }

    /// The next slice of the message: all of a small one, else a copy, since a part would keep the whole.
    fn slice(&mut self) -> Option<Bytes> {
        let (mut left, whole) = self.message.take()?;
        let (bytes, charge) = match whole.bytes() <= wide(SMALL_BYTES) {
            true => (left, whole),
            false => {
                let part = left.split_to(left.len().min(SMALL_BYTES));
                let charge = self
                    .call
                    .account()
                    .charge(ChargeKind::Answer, wide(part.len()));
                if !left.is_empty() {
                    self.message = Some((left, whole));
                }
                (Bytes::copy_from_slice(&part), charge)
            }
        };
        Some(Bytes::from_owner(Slice {
            bytes,
            _charge: charge,
            _call: Arc::clone(&self.call),
        }))
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        loop {
            if let Some(slice) = this.slice() {
                return Poll::Ready(Some(Ok(Frame::data(slice))));
            }
            let next = match this.next.take() {
                Some(next) => next,
                None => match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                    Some(Ok(next)) => next,
                    ended => return Poll::Ready(ended),
                },
            };
            match next.into_data() {
                Ok(message) if !message.is_empty() => this.send(message),
                Ok(empty) => return Poll::Ready(Some(Ok(Frame::data(empty)))),
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.message.is_none() && self.next.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// A part that HTTP/2 has, until it was sent. The call lasts as long. (It keeps no body: HTTP/2 drops it under a lock of its own,
/// which the end of a body may want.)
struct Slice {
    bytes: Bytes,
    _charge: Charge,
    _call: Arc<CallInFlight>,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
