//! Entries of another home that callers here ask for, and that live by what that home learns of them (I10).
//!
//! Such an entry goes to another home with the agreement of its own, or once that is down. A third way is as good: once
//! its home was silent for the TTL of the entry, counted from when this observer first saw its present epoch, anybody
//! may evict it, since its home tells its client nothing more before a swap of its own. So to take it over then is no
//! more than to end it: it raises the epoch, and is refused where the home was quicker. Not of a holder: that has a
//! fence, which its home may be writing under.
//!
//! All this is observed from when an entry was first asked for: its home, and those ahead, so that who holds the key
//! is found expired with it and not a TTL later. Meanwhile it is not evicted here, nor made the head, as which it could
//! not be taken over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::api::EngineError;
use super::intent::Intent;
use super::msg::Reply;
use super::{Actor, Run};
use crate::lock::{Entry, Fence, Liveness, ReplicaId, Seq, State};

/// An entry that was asked for is observed for so long after that, so that what was seen is not lost while its client
/// makes its next call.
const ASKED_FOR: Duration = Duration::from_secs(6);

struct TakeOverRequest {
    home: ReplicaId,
    epoch: u32,
    /// By CLOCK_BOOTTIME.
    until: Duration,
    /// Who waits for it to be taken over.
    replies: Vec<Reply<bool>>,
}

/// Entries of other homes that callers here ask for; live ones of the key, so no more than there are of those.
#[derive(Default)]
pub(super) struct TakeOverRequests {
    entries: BTreeMap<Seq, TakeOverRequest>,
}

impl TakeOverRequests {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn has(&self, seq: Seq) -> bool {
        self.entries.contains_key(&seq)
    }

    /// How many entries of the queue are to be observed for their sake: up to the last one.
    pub fn reach(&self, state: &State) -> usize {
        let last = state.entries.iter().rposition(|entry| self.has(entry.seq));
        last.map_or(0, |at| at + 1)
    }

    /// Forgets those that nobody asked for lately.
    pub fn forget_old(&mut self, now: Duration) {
        self.entries.retain(|_, ask| ask.until > now);
    }

    /// Tells those whose entries have ended, elsewhere, or the head, to re-read.
    pub fn note(&mut self, new: &State) {
        self.entries.retain(|seq, ask| {
            let same = |entry: &Arc<Entry>| entry.home == ask.home && entry.epoch == ask.epoch;
            let stays = !new.is_holder(*seq) && new.entry(*seq).is_some_and(same);
            if !stays {
                for reply in ask.replies.drain(..) {
                    let _ = reply.send(Ok(false));
                }
            }
            stays
        });
    }
}

impl Actor {
    /// Somebody asks for a waiter of another home that does not answer: answered true once it was taken over for its
    /// silence, and false where it is another one than that by now.
    pub(super) fn ask_for(
        &mut self,
        run: &Run,
        (seq, home, epoch): (Seq, ReplicaId, u32),
        reply: Reply<bool>,
    ) {
        let entry = self.state.as_ref().and_then(|state| state.entry(seq));
        let waits = self
            .state
            .as_ref()
            .is_some_and(|state| !state.is_holder(seq));
        let is_it = |entry: &Arc<Entry>| {
            let own = matches!(entry.liveness, Liveness::Own { .. });
            own && entry.home == home && entry.epoch == epoch
        };
        if !waits || !entry.is_some_and(is_it) {
            return drop(reply.send(Ok(false)));
        }
        let ask = self
            .take_over_requests
            .entries
            .entry(seq)
            .or_insert(TakeOverRequest {
                home,
                epoch,
                until: Duration::ZERO,
                replies: Vec::new(),
            });
        ask.until = run.inner.clock.boot().saturating_add(ASKED_FOR);
        ask.replies.retain(|reply| !reply.is_closed());
        let waits_max = run.inner.limits.waits_per_lock_ref_max;
        if ask.replies.len() >= waits_max {
            return drop(reply.send(Err(EngineError::Exhausted {
                what: "waits_per_lock_ref_max",
                limit: waits_max as u64,
            })));
        }
        ask.replies.push(reply);
        self.read_for(super::Cause::Poll);
    }

    /// Takes over an entry that was asked for and whose home was silent for its TTL, for those who still wait for that.
    /// True if anybody does.
    pub(super) fn take_silent(&mut self, entry: &Entry) -> bool {
        let Some(ask) = self.take_over_requests.entries.get_mut(&entry.seq) else {
            return false;
        };
        let replies = std::mem::take(&mut ask.replies);
        let open = replies.into_iter().filter(|reply| !reply.is_closed());
        let before = self.pending.len();
        self.pending.extend(open.map(|reply| Intent::TakeOver {
            seq: entry.seq,
            from_home: entry.home,
            from_fence: Fence::NONE,
            from_epoch: entry.epoch,
            reply: Some(reply),
        }));
        self.pending.len() > before
    }
}
