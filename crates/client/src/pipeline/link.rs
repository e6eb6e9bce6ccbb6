//! What those who call over a Pipeline, and the task that has its stream, tell each other beside the calls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Where calls go by themselves it is tried this often whether the stream is taken by now.
const TRIED_EVERY: Duration = Duration::from_secs(60);

/// Whether calls go in frames, and that some are given up.
///
/// A proxy may refuse a stream and take calls, or take the stream and keep what is sent on it for itself. Then calls go by
/// themselves, until a stream has answered something. That is tried with a call that nobody waits for: no other one is to be
/// lost on it, or to hang.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Some stream has answered something, and none was silent since then.
    has_answered: AtomicBool,
    /// Calls go by themselves.
    is_alone: AtomicBool,
    /// Since when they do, or when it was last tried.
    tried: Mutex<Option<Instant>>,
    /// Nobody waits for some call in a frame any more.
    pub(super) given_up: Notify,
}

impl Link {
    /// Whether calls go by themselves.
    pub(super) fn is_alone(&self) -> bool {
        self.is_alone.load(Ordering::Relaxed)
    }

    /// Whether the stream is to be tried now; then nobody else is told so for a while.
    pub(super) fn is_to_be_tried(&self) -> bool {
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = tried.is_none_or(|tried| tried.elapsed() >= TRIED_EVERY);
        if is_due {
            *tried = Some(Instant::now());
        }
        is_due
    }

    /// A stream was refused. Calls go by themselves.
    pub(super) fn refused(&self) {
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        *tried = Some(Instant::now());
        if !self.is_alone.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "nothing comes over the Pipeline (does the server hang, or a proxy on the way refuse streams?): until something \
                 does, each call goes by itself, which costs server and client twice as much; tried every {TRIED_EVERY:?}"
            );
        }
    }

    /// A stream has answered something.
    pub(super) fn answered(&self) {
        if !self.has_answered.load(Ordering::Relaxed) || self.is_alone() {
            self.has_answered.store(true, Ordering::Relaxed);
            if self.is_alone.swap(false, Ordering::Relaxed) {
                tracing::info!("the Pipeline gets through again");
            }
        }
    }

    /// A stream answers nothing any more. The way to the server may be another one by now, on which none ever will.
    pub(super) fn silent(&self) {
        self.has_answered.store(false, Ordering::Relaxed);
    }

    /// A call that was sent is given up. Of a stream that never answered anything it may be that it never will; where it is
    /// sound the server answers at once that the call is given up.
    pub(super) fn waited_in_vain(&self) {
        if !self.has_answered.load(Ordering::Relaxed) {
            self.refused();
        }
    }
}
