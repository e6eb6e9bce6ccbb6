//! What came in and is not read yet: HTTP/2 keeps it, up to a window, for as long as nobody asks for it.
//!
//! [`FrameScan`](super::FrameScan) sees it come, [`UnreadBody`] sees it being read. What is between them their account holds.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use futures_util::task::AtomicWaker;
use http_body::{Body as _, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use super::frames::FrameHead;
use super::header_table::BUFFER_BYTES;
use super::{Account, wide};

/// What a frame that is kept takes besides what is in it.
const FRAME_BYTES: u64 = 256;

/// The frames of bodies that HTTP/2 has of a connection.
#[derive(Debug, Default)]
pub(super) struct UnreadFrames {
    count: u64,
    /// What they bring, with what each takes.
    bytes: u64,
    /// What their buffers may have besides.
    between: u64,
}

impl UnreadFrames {
    /// One comes in. (HTTP/2 lets no more come than its window: `most` bytes.)
    pub fn came(&mut self, bytes: u64, head: &FrameHead, most: u64) {
        self.count = self.count.saturating_add(1);
        self.bytes = (self.bytes + bytes + FRAME_BYTES).min(most);
        self.between = self.between.saturating_add(head.keeps_between());
    }

    /// One was read.
    pub fn read(&mut self, bytes: u64) {
        self.count = self.count.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes + FRAME_BYTES);
        if self.count == 0 {
            *self = UnreadFrames::default();
        }
    }

    /// What they hold, in bytes. None keeps more than its buffer.
    pub fn held(&self) -> u64 {
        let buffers = self.count.saturating_mul(BUFFER_BYTES);
        self.bytes + self.between.min(buffers)
    }
}

/// The body of a request as HTTP/2 has it.
pub struct UnreadBody {
    inner: Body,
    /// `None`: nothing is counted.
    state: Option<Arc<DrainState>>,
    has_ended: bool,
}

/// Whether HTTP/2 has something of a body. It has nothing from when it was asked in vain until it wakes who asked.
struct DrainState {
    account: Arc<Account>,
    drain: Mutex<Drain>,
    asker: AtomicWaker,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Drain {
    HasSome,
    HasNone,
    /// Nobody will ask any more, whoever is woken.
    Gone,
}

impl DrainState {
    fn set(&self, to: Drain) {
        let mut drain = self.drain.lock().unwrap_or_else(PoisonError::into_inner);
        if *drain == Drain::Gone || *drain == to {
            return;
        }
        let before = std::mem::replace(&mut *drain, to);
        match (before, to) {
            (Drain::HasSome, _) => self.account.note_drained(true),
            (_, Drain::HasSome) => self.account.note_drained(false),
            (_, _) => {}
        }
    }
}

impl Wake for DrainState {
    fn wake(self: Arc<Self>) {
        self.set(Drain::HasSome);
        self.asker.wake();
    }
}

impl UnreadBody {
    /// On a connection that has this account.
    pub fn new(inner: Body, account: Option<Arc<Account>>) -> UnreadBody {
        let account = account.filter(|account| account.is_bounded());
        let state = account.map(|account| {
            account.note_drained(false);
            Arc::new(DrainState {
                account,
                drain: Mutex::new(Drain::HasSome),
                asker: AtomicWaker::new(),
            })
        });
        UnreadBody {
            inner,
            state,
            has_ended: false,
        }
    }
}

impl http_body::Body for UnreadBody {
    type Data = bytes::Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Status>>> {
        let this = &mut *self;
        let Some(state) = &this.state else {
            return Pin::new(&mut this.inner).poll_frame(cx);
        };
        state.asker.register(cx.waker());
        // Before it is asked: what comes meanwhile wakes.
        state.set(Drain::HasNone);
        let waker = Waker::from(Arc::clone(state));
        let next = ready!(Pin::new(&mut this.inner).poll_frame(&mut Context::from_waker(&waker)));
        match &next {
            Some(Ok(frame)) => {
                state.set(Drain::HasSome);
                let length = frame.data_ref().map_or(0, bytes::Bytes::len);
                if length > 0 {
                    state.account.read(wide(length));
                }
            }
            Some(Err(_)) | None => this.has_ended = true,
        }
        Poll::Ready(next)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for UnreadBody {
    fn drop(&mut self) {
        let Some(state) = self.state.clone() else {
            return;
        };
        // What is there goes with it, and is to be counted as gone.
        let mut cx = Context::from_waker(Waker::noop());
        while !self.has_ended && Pin::new(&mut *self).poll_frame(&mut cx).is_ready() {}
        state.set(Drain::Gone);
    }
}

#[cfg(test)]
mod tests {
    use super::super::FrameScan;
    use super::super::frames::{DATA, HEADERS};
    use super::*;

    const MOST: u64 = 1 << 30;

    /// A frame of a body of 300 bytes, after one of another kind.
    fn after(scan: &mut FrameScan, between: usize) -> FrameHead {
        let mut heads = Vec::new();
        for (kind, length) in [(HEADERS, between), (DATA, 300)] {
            let length_bytes = u32::try_from(length).unwrap().to_be_bytes();
            let mut frame = length_bytes[1..].to_vec();
            frame.extend([kind, 0, 0, 0, 0, 1]);
            frame.resize(frame.len() + length, 0);
            scan.advance(&frame, |head| heads.push(head));
        }
        heads.pop().unwrap()
    }

    #[test]
    fn small_frames_hold_what_is_between_them_until_they_are_read() {
        let mut scan = FrameScan::of_server();
        let mut frames = UnreadFrames::default();
        // As calls are.
        for _ in 0..10 {
            frames.came(300, &after(&mut scan, 900), MOST);
        }
        assert_eq!(frames.held(), 10 * (300 + FRAME_BYTES));
        for _ in 0..10 {
            frames.came(300, &after(&mut scan, 8_000), MOST);
        }
        let small = 20 * (300 + FRAME_BYTES);
        assert!(frames.held() > small + 10 * 6_900, "{}", frames.held());
        // One frame keeps one buffer.
        for _ in 0..19 {
            frames.read(300);
        }
        assert_eq!(frames.held(), 300 + FRAME_BYTES + BUFFER_BYTES);
        frames.read(300);
        assert_eq!(frames.held(), 0);
        frames.came(300, &after(&mut scan, 100_000), MOST);
        assert!(frames.held() < 300 + FRAME_BYTES + BUFFER_BYTES);
    }
}
