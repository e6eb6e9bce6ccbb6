//! Entries of this home that other replicas ask for (I10): an agreement is final for its fence.

use std::time::Duration;

use tokio::sync::oneshot;

use super::super::api::EngineError;
use super::super::sessions::HANDED_OVER_FOR;
use super::intent::Intent;
use super::msg::HandOverAnswer;
use super::{Actor, Run};
use crate::lock::{Fence, Seq};

/// A holder that was served so lately is not given up: its client may make each call through another replica, and
/// would lose its grant by each. Of a short TTL a third at most: a client that moved must come in time.
const STAYS_FOR: Duration = Duration::from_secs(5);

/// An agreement.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandedOver {
    pub epoch: u32,
    /// When, by CLOCK_BOOTTIME.
    pub at: Duration,
}

impl Actor {
    /// Releases an entry to whoever asks for it: from here on nothing is served for it, until it is taken over, or
    /// this home takes it over anew.
    pub(super) fn hand_over(
        &mut self,
        run: &Run,
        (seq, fence, epoch): (Seq, Fence, u32),
        reply: oneshot::Sender<HandOverAnswer>,
    ) {
        let Some(state) = self.state.clone() else {
            // Whoever asked looks for the answer in the store.
            let _ = reply.send(HandOverAnswer::NotNow);
            return;
        };
        let Some(entry) = state.entry(seq) else {
            let _ = reply.send(HandOverAnswer::NotNow);
            return;
        };
        let holds = state.is_holder(seq);
        let in_force = if holds { state.fence } else { Fence::NONE };
        if entry.home != run.inner.replica || entry.epoch != epoch || fence != in_force {
            let _ = reply.send(HandOverAnswer::NotNow);
            return;
        }
        let at = run.inner.clock.boot();
        let served_at = self.holding.as_ref().and_then(|h| h.served_at);
        let stays_for = STAYS_FOR.min(self.ttl_of(run, entry) / 3);
        if holds && served_at.is_some_and(|then| at.saturating_sub(then) < stays_for) {
            let _ = reply.send(HandOverAnswer::No);
            return;
        }
        self.remote_entries
            .handed_over
            .insert(seq, HandedOver { epoch, at });
        run.inner.leases.hand_over_entry(&self.entry_id(seq));
        self.wakers.remove(&seq);
        self.watches.remove(&seq);
        self.fail_grant_waiters(seq, &changing_home());
        if holds {
            self.fail_put_off(&changing_home());
            self.remote_entries.hand_overs.push(reply);
            self.finish_hand_over();
        } else {
            let _ = reply.send(HandOverAnswer::Yes);
        }
    }

    /// Forgets the fence of a holder that was handed over, once its calls are answered.
    pub(super) fn finish_hand_over(&mut self) {
        if self.remote_entries.hand_overs.is_empty() {
            return;
        }
        let Some(state) = &self.state else { return };
        if !self.remote_entries.handed_over.contains_key(&state.head) {
            // Over, or taken over: nothing is left to promise.
            for reply in std::mem::take(&mut self.remote_entries.hand_overs) {
                let _ = reply.send(HandOverAnswer::NotNow);
            }
            return;
        }
        if self.holding.as_ref().is_some_and(|h| h.calls > 0) {
            return;
        }
        self.holding = None;
        for reply in std::mem::take(&mut self.remote_entries.hand_overs) {
            let _ = reply.send(HandOverAnswer::Yes);
        }
    }

    /// Whether an entry of this home was handed over to another. If nobody claimed it for a while, this home takes it
    /// over anew.
    pub(super) fn is_handed_over(&mut self, run: &Run, seq: Seq) -> bool {
        let Some(handed_over) = self.remote_entries.handed_over.get(&seq) else {
            return false;
        };
        let since = run.inner.clock.boot().saturating_sub(handed_over.at);
        if since >= HANDED_OVER_FOR {
            self.take_anew(run, seq);
        }
        true
    }

    /// Fails who waits to be granted the lock at an entry that was handed over to another.
    pub(super) fn fail_promised(&mut self, run: &Run) {
        let promised: Vec<Seq> = self
            .remote_entries
            .handed_over
            .keys()
            .copied()
            .filter(|seq| self.is_promised(run, *seq))
            .collect();
        for seq in promised {
            self.fail_grant_waiters(seq, &changing_home());
        }
    }

    /// Whether an entry was handed over to another so lately that it may still claim it.
    pub(super) fn is_promised(&self, run: &Run, seq: Seq) -> bool {
        let now = run.inner.clock.boot();
        let handed_over = self.remote_entries.handed_over.get(&seq);
        handed_over.is_some_and(|handed_over| now.saturating_sub(handed_over.at) < HANDED_OVER_FOR)
    }

    /// Takes an entry of this home over to this home: a new epoch, and for the holder a new fence.
    pub(super) fn take_anew(&mut self, run: &Run, seq: Seq) {
        let Some(state) = self.state.clone() else {
            return;
        };
        let Some(entry) = state.entry(seq) else {
            return;
        };
        if entry.home != run.inner.replica || self.is_taking_over(seq) {
            return;
        }
        self.pending.push_back(Intent::TakeOver {
            seq,
            from_home: entry.home,
            from_fence: if state.is_holder(seq) {
                state.fence
            } else {
                Fence::NONE
            },
            from_epoch: entry.epoch,
            reply: None,
        });
    }
}

/// What is told of an entry that goes to another replica.
pub(super) fn changing_home() -> EngineError {
    EngineError::Unavailable("the lockRef is changing its home".to_owned())
}
