//! An answer on its way out.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::{Account, Charge, wide};

/// So much of an answer is handed over at once: HTTP/2 sends frames of that size, and asks for more as it may send more. What
/// it has taken is kept until it is sent, or the connection is gone.
const SLICE_BYTES: usize = 16 * 1024;

/// One message of an answer, until all of it was sent.
pub(super) struct Unsent {
    account: Arc<Account>,
    number: u64,
    state: Mutex<State>,
}

struct State {
    /// What was not handed over yet.
    left: Bytes,
    charge: Charge,
    /// When some of it was taken or sent for the last time.
    since: Instant,
    is_ended: bool,
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
    pub fn new(account: &Arc<Account>, message: Bytes, charge: Charge) -> Arc<Unsent> {
        Arc::new_cyclic(|this| Unsent {
            account: Arc::clone(account),
            number: account.note_unsent(this.clone()),
            state: Mutex::new(State {
                left: message,
                charge,
                since: Instant::now(),
                is_ended: false,
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        let length = state.left.len().min(SLICE_BYTES);
        let bytes = state.left.split_to(length);
        let of = Arc::clone(self);
        NextSlice::Slice(Bytes::from_owner(Slice { bytes, of }))
    }

    /// Whether none of it was taken for so long: then what is left is taken away.
    pub fn end_if_untaken(&self, now: Instant, answer_max: Duration) -> bool {
        let mut state = self.state();
        if now.saturating_duration_since(state.since) < answer_max {
            return false;
        }
        let left = wide(std::mem::take(&mut state.left).len());
        state.is_ended |= left > 0;
        let rest = state.charge.bytes().saturating_sub(left);
        state.charge.resize(rest);
        true
    }

    fn sent(&self, bytes: usize) {
        let mut state = self.state();
        state.since = Instant::now();
        let rest = state.charge.bytes().saturating_sub(wide(bytes));
        state.charge.resize(rest);
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        self.account.forget_unsent(self.number);
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
