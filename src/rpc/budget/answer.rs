//! The body of an answer, counted until HTTP/2 has sent it.
//!
//! HTTP/2 takes the next chunk of a body before it may send any of it, and a message is one chunk: a client that does not read
//! would have all of its answers kept there. So a large message is handed over in slices, and one that nobody takes ends.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tonic::body::Body;

use super::{CallInFlight, Charge, SMALL_BYTES, wide};
use crate::rpc::status;

/// How much of an answer is handed over at once: a frame of HTTP/2.
const SLICE_BYTES: usize = 16 * 1024;

/// What the answers of a method are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnswerForm {
    /// Those of a stream, which make their own room, and of renewals: never refused.
    Always,
    /// One, which waits for room, and is refused where there is none in time: nothing was done.
    Read,
    /// One, which is refused where there is no room: something was done, and the call is to be repeated.
    Done,
}

/// See the module.
pub struct AnswerBody {
    inner: Body,
    call: Arc<CallInFlight>,
    form: AnswerForm,
    /// What comes before the rest of `inner`.
    next: Option<Frame<Bytes>>,
    sending: Option<Arc<UnsentAnswer>>,
    /// A stream keeps the memory of its largest message.
    kept: Option<Charge>,
}

impl AnswerBody {
    /// Of a call. Waits for room until then where the call may be refused.
    pub async fn new(
        mut inner: Body,
        call: Arc<CallInFlight>,
        form: AnswerForm,
        by: Instant,
    ) -> Result<AnswerBody, Status> {
        let (mut next, mut sending) = (None, None);
        // The message of an answer by itself is there; a stream may begin whenever it likes.
        let first = match form {
            AnswerForm::Always => None,
            AnswerForm::Read | AnswerForm::Done => inner.frame().now_or_never(),
        };
        match first.flatten().transpose()?.map(Frame::into_data) {
            None => {}
            Some(Err(trailers)) => next = Some(trailers),
            Some(Ok(message)) => {
                // It is here, whether there is room for it or not.
                let waiting = call.account().keep(wide(message.len()));
                let room = room(&call, form, message.len(), by).await?;
                drop(waiting);
                sending = Some(UnsentAnswer::new(&call, false, message, room));
                // Whoever made the message keeps its memory until its own end.
                next = inner.frame().now_or_never().flatten().transpose()?;
                if next.as_ref().is_some_and(Frame::is_trailers) {
                    inner = Body::empty();
                }
            }
        }
        Ok(AnswerBody {
            inner,
            call,
            form,
            next,
            sending,
            kept: None,
        })
    }

    /// The next message is to be sent.
    fn send(&mut self, message: Bytes) {
        let account = self.call.account();
        if message.len() > SMALL_BYTES {
            let kept = self.kept.get_or_insert_with(|| account.keep(0));
            kept.grow(wide(message.len()));
        }
        let room = account.charge(wide(message.len()));
        let is_of_stream = self.form == AnswerForm::Always;
        self.sending = Some(UnsentAnswer::new(&self.call, is_of_stream, message, room));
    }
}

/// Room for the answer of a call.
async fn room(
    call: &CallInFlight,
    form: AnswerForm,
    bytes: usize,
    by: Instant,
) -> Result<Charge, Status> {
    let account = Arc::clone(call.account());
    let all = Arc::clone(&account.answers);
    let (by, refused) = match form {
        AnswerForm::Read => (by, status::no_room()),
        AnswerForm::Done | AnswerForm::Always => (Instant::now(), status::answer_lost()),
    };
    let room = timeout_at(by, account.room(all, bytes)).await;
    room.map_err(|_elapsed| refused)
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
            if let Some(sending) = &this.sending {
                match sending.slice() {
                    Ok(Some(slice)) => return Poll::Ready(Some(Ok(Frame::data(slice)))),
                    Ok(None) => this.sending = None,
                    Err(untaken) => return Poll::Ready(Some(Err(untaken))),
                }
            }
            let next = match this.next.take() {
                Some(next) => Some(Ok(next)),
                None => ready!(Pin::new(&mut this.inner).poll_frame(cx)),
            };
            match next {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(message) if !message.is_empty() => this.send(message),
                    Ok(empty) => return Poll::Ready(Some(Ok(Frame::data(empty)))),
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return Poll::Ready(ended),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.sending.is_none() && self.next.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// One message of an answer, until all of it was sent.
pub(super) struct UnsentAnswer {
    /// It is in flight until then.
    _call: Arc<CallInFlight>,
    is_of_stream: bool,
    state: Mutex<State>,
}

struct State {
    /// What was not handed over yet: its memory goes as a whole.
    left: Bytes,
    /// What all of `left` holds, for as long as there is any.
    whole: usize,
    /// What HTTP/2 has, and has not sent.
    handed_over: usize,
    room: Charge,
    /// When some of it was taken or sent for the last time.
    since: Instant,
    is_untaken: bool,
}

impl State {
    fn count(&mut self) {
        let left = if self.left.is_empty() { 0 } else { self.whole };
        self.room.resize(wide(left + self.handed_over));
    }
}

impl UnsentAnswer {
    fn new(
        call: &Arc<CallInFlight>,
        is_of_stream: bool,
        message: Bytes,
        room: Charge,
    ) -> Arc<UnsentAnswer> {
        let answer = Arc::new(UnsentAnswer {
            _call: Arc::clone(call),
            is_of_stream,
            state: Mutex::new(State {
                whole: message.len(),
                left: message,
                handed_over: 0,
                room,
                since: Instant::now(),
                is_untaken: false,
            }),
        });
        call.account().note_unsent(&answer);
        answer
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_of_stream(&self) -> bool {
        self.is_of_stream
    }

    /// What is handed over next; `None` after all of it. An error where nobody took it in time.
    fn slice(self: &Arc<Self>) -> Result<Option<Bytes>, Status> {
        let mut state = self.state();
        if state.is_untaken {
            return Err(status::untaken());
        }
        if state.left.is_empty() {
            return Ok(None);
        }
        state.since = Instant::now();
        let length = state.left.len().min(SLICE_BYTES);
        let part = state.left.split_to(length);
        // Of a large message a copy: a part of it would keep all of it.
        let bytes = match state.whole <= SLICE_BYTES {
            true => part,
            false => Bytes::copy_from_slice(&part),
        };
        if state.left.is_empty() {
            // An empty part keeps it as well.
            state.left = Bytes::new();
        }
        state.handed_over += length;
        state.count();
        let of = Arc::clone(self);
        Ok(Some(Bytes::from_owner(Slice { bytes, of })))
    }

    /// Whether none of it was taken for so long: then what is left of it goes.
    pub fn end_if_untaken(&self, now: Instant, answer_max: Duration) -> bool {
        let mut state = self.state();
        if now.saturating_duration_since(state.since) < answer_max {
            return false;
        }
        state.is_untaken |= !state.left.is_empty();
        state.left = Bytes::new();
        state.count();
        true
    }

    fn sent(&self, bytes: usize) {
        let mut state = self.state();
        state.since = Instant::now();
        state.handed_over = state.handed_over.saturating_sub(bytes);
        state.count();
    }
}

/// A part that HTTP/2 has. It keeps no body: HTTP/2 drops it under a lock of its own, which the end of a body may want.
struct Slice {
    bytes: Bytes,
    of: Arc<UnsentAnswer>,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        self.of.sent(self.bytes.len());
    }
}
