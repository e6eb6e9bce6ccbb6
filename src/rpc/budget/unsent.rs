//! An answer on its way out.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tonic::body::Body;

use super::{CallInFlight, Charge, wide};

/// So much of an answer is handed over at once: HTTP/2 sends frames of that size, and asks for more as it may send more. What
/// it has taken is kept until it is sent, or the connection is gone.
const SLICE_BYTES: usize = 16 * 1024;

/// Where messages come from. Whoever makes them keeps the memory of the last one.
pub(super) struct MessageSource(Mutex<Body>);

impl MessageSource {
    pub fn new(body: Body) -> MessageSource {
        MessageSource(Mutex::new(body))
    }

    pub fn body(&self) -> MutexGuard<'_, Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing comes any more.
    pub fn end(&self) {
        let ended = std::mem::replace(&mut *self.body(), Body::empty());
        // Without the lock: that may end what makes messages.
        drop(ended);
    }
}

/// One message of an answer, until all of it was sent.
pub(super) struct Unsent {
    /// Which is not over while HTTP/2 has some of its answer.
    call: Arc<CallInFlight>,
    /// Weak: HTTP/2 drops what it has sent under its own lock, and must not drop a body there, which may ask it for that.
    source: Weak<MessageSource>,
    /// More comes after it, of a stream.
    is_of_stream: bool,
    number: u64,
    state: Mutex<State>,
}

struct State {
    /// What was not handed over yet: its memory goes as a whole.
    left: Bytes,
    /// What all of `left` holds, for as long as there is any.
    whole: u64,
    /// What was handed over, and is not sent.
    handed_over: u64,
    charge: Charge,
    /// When some of it was taken or sent for the last time.
    since: Instant,
    is_ended: bool,
}

impl State {
    fn count(&mut self) {
        let whole = if self.left.is_empty() { 0 } else { self.whole };
        self.charge.resize(whole + self.handed_over);
    }
}

/// What comes next of it.
pub(super) enum NextSlice {
    Slice(Bytes),
    /// All was handed over.
    Done,
    /// It was taken away: nobody took it in time.
    Ended,
}

impl Unsent {
    pub fn new(
        call: &Arc<CallInFlight>,
        source: &Arc<MessageSource>,
        is_of_stream: bool,
        message: Bytes,
        charge: Charge,
    ) -> Arc<Unsent> {
        Arc::new_cyclic(|this| Unsent {
            number: call.account().note_unsent(this.clone()),
            call: Arc::clone(call),
            source: Arc::downgrade(source),
            is_of_stream,
            state: Mutex::new(State {
                whole: wide(message.len()),
                left: message,
                handed_over: 0,
                charge,
                since: Instant::now(),
                is_ended: false,
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of which call it is.
    pub fn call(&self) -> &Arc<CallInFlight> {
        &self.call
    }

    pub fn next(self: &Arc<Self>) -> NextSlice {
        let mut state = self.state();
        if state.is_ended {
            return NextSlice::Ended;
        }
        if state.left.is_empty() {
            return NextSlice::Done;
        }
        state.since = Instant::now();
        let is_small = state.whole <= wide(SLICE_BYTES);
        let length = state.left.len().min(SLICE_BYTES);
        let part = state.left.split_to(length);
        // Of a large message a copy: a part of it would keep all of it.
        let bytes = match is_small {
            true => part,
            false => Bytes::copy_from_slice(&part),
        };
        if state.left.is_empty() {
            // An empty part keeps it as well.
            state.left = Bytes::new();
        }
        state.handed_over += wide(length);
        state.count();
        let of = Arc::clone(self);
        NextSlice::Slice(Bytes::from_owner(Slice { bytes, of }))
    }

    /// Whether none of it was taken for so long: then what is left is taken away, and nothing comes after it.
    pub fn end_if_untaken(&self, now: Instant, answer_max: Duration) -> bool {
        let mut state = self.state();
        if now.saturating_duration_since(state.since) < answer_max {
            return false;
        }
        let left = std::mem::take(&mut state.left);
        let ends = !left.is_empty() || self.is_of_stream;
        let is_new = ends && !state.is_ended;
        state.is_ended |= is_new;
        state.count();
        drop(state);
        if is_new && let Some(source) = self.source.upgrade() {
            source.end();
        }
        true
    }

    fn sent(&self, bytes: usize) {
        let mut state = self.state();
        state.since = Instant::now();
        state.handed_over = state.handed_over.saturating_sub(wide(bytes));
        state.count();
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        self.call.account().forget_unsent(self.number);
    }
}

/// A part that HTTP/2 has: counted until it is sent.
struct Slice {
    bytes: Bytes,
    of: Arc<Unsent>,
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::{AccountLimits, Accounts, CallForm, Connection, ShareOf};
    use super::*;

    /// A message that tells when its memory is free.
    struct Message {
        bytes: Vec<u8>,
        is_free: Arc<AtomicBool>,
    }

    impl AsRef<[u8]> for Message {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    impl Drop for Message {
        fn drop(&mut self) {
            self.is_free.store(true, Ordering::Relaxed);
        }
    }

    async fn connection() -> Connection {
        let accounts = Accounts::new(AccountLimits {
            connections_max: 1,
            connection_bytes_max: 1 << 30,
            bytes_max: 1 << 30,
            window_bytes: 0,
            answer_max: Duration::from_secs(1),
            listings_of_share: 1,
        });
        accounts.admit(ShareOf::Unknown).await.unwrap()
    }

    /// One of so many bytes, and whether its memory is free.
    fn unsent(connection: &Connection, length: usize) -> (Arc<Unsent>, Arc<AtomicBool>) {
        let is_free = Arc::new(AtomicBool::new(false));
        let message = Bytes::from_owner(Message {
            bytes: vec![7; length],
            is_free: Arc::clone(&is_free),
        });
        let call = connection.account().begin(CallForm::Unary, 0, true);
        let source = Arc::new(MessageSource::new(Body::empty()));
        let charge = connection.account().charge(wide(length));
        let unsent = Unsent::new(&call, &source, false, message, charge);
        (unsent, is_free)
    }

    fn charged(unsent: &Unsent) -> usize {
        usize::try_from(unsent.state().charge.bytes()).unwrap()
    }

    #[tokio::test]
    async fn a_large_message_is_counted_and_kept_until_its_last_slice_was_handed_over() {
        let connection = connection().await;
        let length = 3 * SLICE_BYTES + 11;
        let (unsent, is_free) = unsent(&connection, length);
        let mut slices = Vec::new();
        while let NextSlice::Slice(slice) = unsent.next() {
            slices.push(slice);
            let handed_over: usize = slices.iter().map(Bytes::len).sum();
            let is_last = handed_over == length;
            assert_eq!(is_free.load(Ordering::Relaxed), is_last);
            let whole = if is_last { 0 } else { length };
            assert_eq!(charged(&unsent), whole + handed_over);
        }
        assert_eq!(slices.concat(), vec![7; length]);
        // What HTTP/2 has sent is gone, and the last eleven bytes keep nothing else.
        slices.drain(..3);
        assert_eq!(charged(&unsent), 11);
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_takes_is_free_but_for_what_was_handed_over() {
        let connection = connection().await;
        let (unsent, is_free) = unsent(&connection, 3 * SLICE_BYTES);
        let NextSlice::Slice(slice) = unsent.next() else {
            panic!("it has one");
        };
        assert!(!unsent.end_if_untaken(Instant::now(), Duration::from_secs(1)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(unsent.end_if_untaken(Instant::now(), Duration::from_secs(1)));
        assert!(is_free.load(Ordering::Relaxed));
        assert_eq!(charged(&unsent), slice.len());
        assert!(matches!(unsent.next(), NextSlice::Ended));
    }

    /// What makes messages, and tells when it is gone.
    struct Maker(Arc<AtomicBool>);

    impl http_body::Body for Maker {
        type Data = Bytes;
        type Error = tonic::Status;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, tonic::Status>>> {
            std::task::Poll::Pending
        }
    }

    impl Drop for Maker {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// HTTP/2 drops slices under its own lock: no body, which may ask it for something, may go with one.
    #[tokio::test]
    async fn a_slice_keeps_no_body() {
        let connection = connection().await;
        let is_gone = Arc::new(AtomicBool::new(false));
        let maker = Body::new(Maker(Arc::clone(&is_gone)));
        let source = Arc::new(MessageSource::new(maker));
        let call = connection.account().begin(CallForm::Unary, 0, true);
        let charge = connection.account().charge(5);
        let unsent = Unsent::new(&call, &source, true, Bytes::from_static(b"hello"), charge);
        let NextSlice::Slice(slice) = unsent.next() else {
            panic!("it has one");
        };
        assert!(!is_gone.load(Ordering::Relaxed));
        drop((source, unsent));
        assert!(is_gone.load(Ordering::Relaxed));
        assert_eq!(&slice[..], b"hello");
    }
}
