//! The entries that end by themselves: those whose lease expired, wherever they stand in the queue, a holder that did not
//! claim its lock, and those whose session ended (I5, I8).

use super::event::{Context, Effect, EntryRef};
use super::holder::Claim;
use super::intent::{Intent, Wish};
use super::serving::Serving;
use super::{Machine, Role};
use crate::lock::{EndReason, Fence, Liveness, Seq, SessionId};

impl Machine {
    /// The moment of the next alarm has come: who expired ends, wherever it stands in the queue (I8), and a holder that did not
    /// claim its lock in time (I5).
    pub(super) fn due_now(&mut self, cx: &Context<'_>, out: &mut Vec<Effect>) {
        self.renew_backlog(cx, out);
        let waits_here = |seq: Seq| {
            let mut waiting = self.backlog.iter().filter_map(|q| q.call.of_entry());
            waiting.any(|entry| entry.seq == seq)
        };
        let holder_waits = self.state().and_then(|state| state.first());
        let holder_waits = holder_waits.is_some_and(|first| waits_here(first.seq));
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let mut ends: Vec<(EntryRef, EndReason, Option<Fence>)> = Vec::new();
        for seq in serving.leases.expire(cx.now) {
            ends.extend(serving.begin_eviction(seq, EndReason::Expired, None));
        }
        if let Some(holder) = &serving.holder
            && let Claim::Until(at) = holder.claim
            && at <= cx.now
            && !holder.is_closing()
        {
            let (seq, grant) = (holder.seq, holder.grant);
            let is_watched = serving.watchers.iter().any(|w| w.seq == seq);
            if serving.waits_of(seq) > 0 || is_watched || holder_waits {
                // Somebody is there, and waits for the sync, or for the value.
                serving.wait_for_claim_anew(cx, seq);
            } else {
                ends.extend(serving.begin_eviction(seq, EndReason::Unclaimed, Some(grant)));
            }
        }
        serving.grant_again.take_if(|at| *at <= cx.now);
        self.evict(ends);
    }

    /// Who waits for the end of a hand-over is not ended for it (I8).
    fn renew_backlog(&mut self, cx: &Context<'_>, out: &mut Vec<Effect>) {
        if let Role::HandingOver(serving, _) = &mut self.role {
            let waiting = self
                .backlog
                .iter()
                .filter_map(|queued| queued.call.of_entry());
            for entry in waiting {
                // Whether it lives is told once the key is served again.
                let _ = serving.live(cx, entry, out);
            }
        }
    }

    /// A session ended: what lives by it here ends.
    pub(super) fn session_ended(&mut self, session: SessionId) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let by_it = |liveness: Liveness| liveness == Liveness::Session(session);
        let seqs: Vec<Seq> = serving
            .state
            .entries
            .iter()
            .filter(|entry| by_it(entry.liveness))
            .map(|entry| entry.seq)
            .collect();
        let ends = seqs.into_iter();
        let ends =
            ends.filter_map(|seq| serving.begin_eviction(seq, EndReason::SessionClosed, None));
        let ends = ends.collect();
        self.evict(ends);
    }

    fn evict(&mut self, ends: Vec<(EntryRef, EndReason, Option<Fence>)>) {
        for (entry, reason, only_under) in ends {
            // One that an operator waits for may be dropped.
            let is_wanted = |i: &Intent| {
                let same = matches!(&i.what, Wish::Evict { entry: e, .. } if e.seq == entry.seq);
                same && i.call.is_none()
            };
            if self.pending.iter().any(is_wanted) {
                continue;
            }
            let wish = Wish::Evict {
                entry,
                reason,
                only_under,
            };
            self.pending.push_back(Intent::new(None, wish));
        }
    }
}

impl Serving {
    /// Nobody is answered HELD for this entry any more, if it is the holder. What is to be evicted.
    fn begin_eviction(
        &mut self,
        seq: Seq,
        reason: EndReason,
        only_under: Option<Fence>,
    ) -> Option<(EntryRef, EndReason, Option<Fence>)> {
        let tag = self.state.entry(seq)?.tag();
        if let Some(holder) = self.holder.as_mut().filter(|h| h.seq == seq) {
            holder.begin_eviction(reason.clone());
        }
        let grant = None;
        Some((EntryRef { seq, tag, grant }, reason, only_under))
    }
}
