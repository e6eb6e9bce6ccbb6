//! The link of a Pipeline: whether its stream gets through to the server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The time between two tries of the stream, while calls go by themselves.
const TRIED_EVERY: Duration = Duration::from_secs(60);

/// Whether calls go in frames, or by themselves.
///
/// A proxy may refuse the stream and accept calls, or accept the stream and pass nothing on. Then calls go by themselves until a
/// stream has answered something. A meaningless probe tries the stream, so that no call is lost or hangs on it.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Some stream has answered something, and no stream was silent since.
    has_answered: AtomicBool,
    /// Calls go by themselves.
    is_alone: AtomicBool,
    /// The time of the last try, or of the last refusal.
    tried: Mutex<Option<Instant>>,
    /// A caller has given up a call in a frame.
    pub(super) given_up: Notify,
}

impl Link {
    /// Whether calls go by themselves.
    pub(super) fn is_alone(&self) -> bool {
        self.is_alone.load(Ordering::Relaxed)
    }

    /// Whether the stream is to be tried now: true for one caller, and then false for a while.
    pub(super) fn is_to_be_tried(&self) -> bool {
        let mut tried = self.tried.lock();
        let is_due = tried.is_none_or(|tried| tried.elapsed() >= TRIED_EVERY);
        if is_due {
            *tried = Some(Instant::now());
        }
        is_due
    }

    /// A stream was refused. Calls go by themselves.
    pub(super) fn refused(&self) {
        *self.tried.lock() = Some(Instant::now());
        if !self.is_alone.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the Pipeline fails (the server hangs, or a proxy refuses streams): sending calls one by one, which costs \
                 server and client twice as much; retrying every {TRIED_EVERY:?}"
            );
        }
    }

    /// A stream has answered something.
    pub(super) fn answered(&self) {
        if !self.has_answered.load(Ordering::Relaxed) || self.is_alone() {
            self.has_answered.store(true, Ordering::Relaxed);
            if self.is_alone.swap(false, Ordering::Relaxed) {
                tracing::info!("the Pipeline works again");
            }
        }
    }

    /// A stream has become silent. The path to the server may have changed, and may now refuse every stream.
    pub(super) fn silent(&self) {
        self.has_answered.store(false, Ordering::Relaxed);
    }

    /// A sent call is given up. A sound stream at once answers that the call is given up; a stream without any answer may never
    /// answer.
    pub(super) fn waited_in_vain(&self) {
        if !self.has_answered.load(Ordering::Relaxed) {
            self.refused();
        }
    }
}
