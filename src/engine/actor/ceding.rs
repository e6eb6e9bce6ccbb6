//! Places of this home that other replicas ask for (I10): a consent is final for its fence.

use std::time::Duration;

use tokio::sync::oneshot;

use super::super::api::EngineError;
use super::super::sessions::CEDED_FOR;
use super::intent::Intent;
use super::msg::GivesUp;
use super::{Actor, Run};
use crate::lock::{Fence, Seq};

/// A holder that was served so lately is not given up: its client may make each call through another replica, and
/// would lose its grant by each. Of a short TTL a third at most: a client that moved must come in time.
const STAYS_FOR: Duration = Duration::from_secs(5);

/// A consent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ceded {
    pub epoch: u32,
    /// When, by CLOCK_BOOTTIME.
    pub at: Duration,
}

impl Actor {
    /// Gives a place up to whoever asks for it: from here on nothing is served for it, until it is taken over, or
    /// this home takes it over anew.
    pub(super) fn consent(
        &mut self,
        run: &Run,
        (seq, fence, epoch): (Seq, Fence, u32),
        reply: oneshot::Sender<GivesUp>,
    ) {
        let Some(state) = self.state.clone() else {
            // Whoever asked looks for the answer in the store.
            let _ = reply.send(GivesUp::NotNow);
            return;
        };
        let Some(entry) = state.entry(seq) else {
            let _ = reply.send(GivesUp::NotNow);
            return;
        };
        let holds = state.is_holder(seq);
        let in_force = if holds { state.fence } else { Fence::NONE };
        if entry.home != run.inner.replica || entry.epoch != epoch || fence != in_force {
            let _ = reply.send(GivesUp::NotNow);
            return;
        }
        let at = run.inner.clock.boot();
        let served_at = self.holding.as_ref().and_then(|h| h.served_at);
        let stays_for = STAYS_FOR.min(self.ttl_of(run, entry) / 3);
        if holds && served_at.is_some_and(|then| at.saturating_sub(then) < stays_for) {
            let _ = reply.send(GivesUp::No);
            return;
        }
        self.others.ceded.insert(seq, Ceded { epoch, at });
        run.inner.leases.cede_place(&self.place(seq));
        self.wakes.remove(&seq);
        self.watches.remove(&seq);
        self.fail_let_ins(seq, &changing_home());
        if holds {
            self.fail_put_off(&changing_home());
            self.others.consents.push(reply);
            self.finish_consent();
        } else {
            let _ = reply.send(GivesUp::Yes);
        }
    }

    /// Forgets the fence of a holder that was promised away, once its calls are answered.
    pub(super) fn finish_consent(&mut self) {
        if self.others.consents.is_empty() {
            return;
        }
        let Some(state) = &self.state else { return };
        if !self.others.ceded.contains_key(&state.head) {
            // Over, or taken over: nothing is left to promise.
            for reply in std::mem::take(&mut self.others.consents) {
                let _ = reply.send(GivesUp::NotNow);
            }
            return;
        }
        if self.holding.as_ref().is_some_and(|h| h.calls > 0) {
            return;
        }
        self.holding = None;
        for reply in std::mem::take(&mut self.others.consents) {
            let _ = reply.send(GivesUp::Yes);
        }
    }

    /// Whether a place of this home was promised to another. If nobody came for it for a while, this home takes it
    /// over anew.
    pub(super) fn is_ceded(&mut self, run: &Run, seq: Seq) -> bool {
        let Some(ceded) = self.others.ceded.get(&seq) else {
            return false;
        };
        let since = run.inner.clock.boot().saturating_sub(ceded.at);
        if since >= CEDED_FOR {
            self.take_anew(run, seq);
        }
        true
    }

    /// Fails who waits to be let in at a place that was promised to another.
    pub(super) fn fail_promised(&mut self, run: &Run) {
        let promised: Vec<Seq> = self
            .others
            .ceded
            .keys()
            .copied()
            .filter(|seq| self.is_promised(run, *seq))
            .collect();
        for seq in promised {
            self.fail_let_ins(seq, &changing_home());
        }
    }

    /// Whether a place was promised to another so lately that it may still come for it.
    pub(super) fn is_promised(&self, run: &Run, seq: Seq) -> bool {
        let now = run.inner.clock.boot();
        let ceded = self.others.ceded.get(&seq);
        ceded.is_some_and(|ceded| now.saturating_sub(ceded.at) < CEDED_FOR)
    }

    /// Takes a place of this home over to this home: a new epoch, and for the holder a new fence.
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

/// What is told of a place that goes to another replica.
pub(super) fn changing_home() -> EngineError {
    EngineError::Unavailable("the lockRef is changing its home".to_owned())
}
