//! The body of an answer: counted until it was sent, and refused where its connection holds too much.
//!
//! Whoever asks and does not read would else have every answer kept, whole: of a body HTTP/2 takes the next chunk before it
//! knows that it may send any of it, and a message is one chunk.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use super::unsent::{MessageSource, NextSlice, Unsent};
use super::{CallInFlight, Charge, KeptBytes, ReservedBytes, SMALL_BYTES, wide};
use crate::rpc::status;

/// What becomes of an answer where there is no room for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WithoutRoom {
    /// It is sent all the same: one of a stream, which makes its own room.
    Never,
    /// It is refused: nothing was done.
    NothingDone,
    /// It is refused, and its call is to be repeated: something was done.
    Repeat,
}

impl WithoutRoom {
    fn status(self) -> Status {
        match self {
            WithoutRoom::Repeat => status::answer_lost(),
            WithoutRoom::NothingDone | WithoutRoom::Never => status::no_room(),
        }
    }
}

/// See the module.
pub struct UnsentBody {
    source: Arc<MessageSource>,
    /// What comes after the message that is being sent, where that is known.
    next: Option<Result<Frame<Bytes>, Status>>,
    /// What a stream keeps of its largest message, however many it sends.
    kept: Option<KeptBytes>,
    call: Arc<CallInFlight>,
    refusal: WithoutRoom,
    /// Counted before there was an answer.
    reserved: Option<ReservedBytes>,
    unsent: Option<Arc<Unsent>>,
    /// Nothing comes after that.
    is_refused: bool,
}

impl UnsentBody {
    /// Of a call; `reserved` is what was counted for its answer before there was one.
    pub fn new(
        inner: Body,
        call: Arc<CallInFlight>,
        refusal: WithoutRoom,
        reserved: Option<ReservedBytes>,
    ) -> UnsentBody {
        UnsentBody {
            source: Arc::new(MessageSource::new(inner)),
            next: None,
            kept: None,
            call,
            refusal,
            reserved,
            unsent: None,
            is_refused: false,
        }
    }

    /// Whoever made a large message keeps its memory: of a call with one answer until its end, which is near; of a stream for
    /// as long as that lasts, which is counted.
    fn let_go(&mut self, bytes: usize, cx: &mut Context<'_>) {
        if bytes <= SMALL_BYTES {
            return;
        }
        if self.refusal == WithoutRoom::Never {
            let account = self.call.account();
            let kept = self.kept.get_or_insert_with(|| account.keep(0));
            return kept.grow(wide(bytes));
        }
        // Bound first: else the lock lasts as long as the match.
        let after = http_body::Body::poll_frame(Pin::new(&mut *self.source.body()), cx);
        if let Poll::Ready(after) = after {
            let is_last = match &after {
                Some(Ok(frame)) => frame.is_trailers(),
                Some(Err(_)) | None => true,
            };
            self.next = after;
            if is_last {
                self.source.end();
            }
        }
    }

    /// What the answer holds; `None` where there is no room for it.
    fn charge(&mut self, bytes: usize) -> Option<Charge> {
        let account = self.call.account();
        let reserved = self.reserved.take();
        if reserved.is_some() {
            account.value_came(bytes);
        }
        let bytes_held = wide(bytes);
        match self.refusal {
            WithoutRoom::NothingDone | WithoutRoom::Repeat if bytes > SMALL_BYTES => {
                account.try_charge_for(bytes_held, reserved)
            }
            WithoutRoom::NothingDone | WithoutRoom::Repeat | WithoutRoom::Never => {
                Some(account.charge(bytes_held))
            }
        }
    }
}

impl http_body::Body for UnsentBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if this.is_refused {
            return Poll::Ready(None);
        }
        if let Some(unsent) = &this.unsent {
            match unsent.next() {
                NextSlice::Slice(slice) => return Poll::Ready(Some(Ok(Frame::data(slice)))),
                NextSlice::Ended => return Poll::Ready(Some(Err(status::untaken()))),
                NextSlice::Done => this.unsent = None,
            }
        }
        let next = match this.next.take() {
            Some(next) => Some(next),
            None => ready!(Pin::new(&mut *this.source.body()).poll_frame(cx)),
        };
        let frame = match next {
            Some(Ok(frame)) => frame,
            ended => return Poll::Ready(ended),
        };
        let message = match frame.into_data() {
            Ok(message) => message,
            Err(frame) => return Poll::Ready(Some(Ok(frame))),
        };
        if message.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        let Some(charge) = this.charge(message.len()) else {
            this.is_refused = true;
            let (status, mut trailers) = (this.refusal.status(), HeaderMap::new());
            return Poll::Ready(Some(match status.add_header(&mut trailers) {
                Ok(()) => Ok(Frame::trailers(trailers)),
                Err(unsendable) => Err(unsendable),
            }));
        };
        this.let_go(message.len(), cx);
        let is_of_stream = this.refusal == WithoutRoom::Never;
        let unsent = Unsent::new(&this.call, &this.source, is_of_stream, message, charge);
        let first = unsent.next();
        this.unsent = Some(unsent);
        Poll::Ready(Some(match first {
            NextSlice::Slice(slice) => Ok(Frame::data(slice)),
            NextSlice::Done | NextSlice::Ended => Err(status::untaken()),
        }))
    }

    fn is_end_stream(&self) -> bool {
        let is_sent = self.unsent.is_none() && self.next.is_none();
        self.is_refused || (is_sent && self.source.body().is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.unsent, &self.next) {
            (None, None) => self.source.body().size_hint(),
            (Some(_), _) | (_, Some(_)) => SizeHint::default(),
        }
    }
}
