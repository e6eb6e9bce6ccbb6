//! What came in and is not read yet: HTTP/2 keeps it, up to a window, for as long as nobody asks for it.
//!
//! [`FrameScan`] sees it come, [`UnreadBody`] sees it being read. What is between them their account holds.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use futures_util::task::AtomicWaker;
use http_body::{Body as _, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use super::{Account, wide};

/// What an HTTP/2 client sends first, in bytes.
const PREFACE_BYTES: usize = 24;

/// What a frame begins with: its length (3 bytes), its kind, flags, and its stream.
const HEAD_BYTES: usize = 9;

/// The kind of frames that bring a body.
const DATA: u8 = 0;

/// What a frame that is kept takes besides what is in it.
pub(super) const FRAME_BYTES: u64 = 256;

/// Where one frame of a connection ends and the next begins.
pub struct FrameScan {
    head: [u8; HEAD_BYTES],
    head_came: usize,
    /// How much is still to come of what is being skipped, or of a body.
    left: usize,
    is_data: bool,
}

impl FrameScan {
    /// From the first byte of a connection on.
    pub fn new() -> FrameScan {
        FrameScan {
            head: [0; HEAD_BYTES],
            head_came: 0,
            left: PREFACE_BYTES,
            is_data: false,
        }
    }

    /// Reads on: what of it HTTP/2 may have to keep, in bytes.
    pub fn advance(&mut self, mut came: &[u8]) -> u64 {
        let mut kept = 0;
        while !came.is_empty() {
            if self.left > 0 {
                let count = came.len().min(self.left);
                self.left -= count;
                came = came.split_at(count).1;
                kept += if self.is_data { wide(count) } else { 0 };
                continue;
            }
            let count = came.len().min(HEAD_BYTES - self.head_came);
            let (head, rest) = came.split_at(count);
            self.head[self.head_came..self.head_came + count].copy_from_slice(head);
            self.head_came += count;
            came = rest;
            if self.head_came == HEAD_BYTES {
                let [a, b, c, kind, ..] = self.head;
                let length = u32::from_be_bytes([0, a, b, c]);
                self.left = usize::try_from(length).unwrap_or(usize::MAX);
                self.is_data = kind == DATA;
                self.head_came = 0;
                kept += if self.is_data && length > 0 {
                    FRAME_BYTES
                } else {
                    0
                };
            }
        }
        kept
    }
}

impl Default for FrameScan {
    fn default() -> FrameScan {
        FrameScan::new()
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
                    state.account.read(wide(length) + FRAME_BYTES);
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
    use super::*;

    fn frame(kind: u8, length: usize) -> Vec<u8> {
        let length_bytes = u32::try_from(length).unwrap().to_be_bytes();
        let mut frame = length_bytes[1..].to_vec();
        frame.extend([kind, 0, 0, 0, 0, 1]);
        frame.extend(vec![DATA; length]);
        frame
    }

    #[test]
    fn only_bodies_are_kept_however_the_frames_are_cut() {
        let mut came = vec![DATA; PREFACE_BYTES];
        for (kind, length) in [
            (4, 12),
            (1, 300),
            (DATA, 1_000),
            (DATA, 0),
            (6, 8),
            (DATA, 7),
        ] {
            came.extend(frame(kind, length));
        }
        for cut in 1..40 {
            let mut scan = FrameScan::new();
            let kept: u64 = came.chunks(cut).map(|part| scan.advance(part)).sum();
            assert_eq!(kept, 1_007 + 2 * FRAME_BYTES, "{cut}");
        }
    }
}
