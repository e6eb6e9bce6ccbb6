//! Ends without a call: an expired lease anywhere in the queue, an unclaimed lock, the end of a session (I5, I8).

use super::Machine;
use super::context::Context;
use super::decided::CommitDependency;
use super::event::{Effect, EntryRef};
use super::holder::{Claim, Phase};
use super::role::Role;
use super::serving::Serving;
use crate::key::CommitMode;
use crate::lock::{EndReason, Fence, Liveness, Seq, SessionId};

impl Machine {
    /// An alarm is due: ends expired entries anywhere in the queue (I8), and a holder past its claim deadline (I5).
    pub(super) fn due_now(&mut self, cx: &Context<'_>, out: &mut Vec<Effect>) {
        self.renew_backlog(cx, out);
        if self.may_be_given() {
            return;
        }
        let waits_here = |seq: Seq| {
            let mut waiting = self.backlog.iter().filter_map(|q| q.call.of_entry());
            waiting.any(|entry| entry.seq == seq)
        };
        let holder_waits = self.state().and_then(|state| state.first());
        let holder_waits = holder_waits.is_some_and(|first| waits_here(first.seq));
        let Some(serving) = self.serving_mut() else {
            return;
        };
        serving.renew_held_up(cx);
        let mut ends: Vec<(Seq, EndReason, Option<Fence>)> = Vec::new();
        for seq in serving.leases.expire(cx.now) {
            ends.push((seq, EndReason::Expired, None));
        }
        if let Some(holder) = &serving.holder
            && let Claim::Until(at) = holder.claim
            && at <= cx.now
            && !holder.is_closing()
        {
            let (seq, grant) = (holder.seq, holder.grant);
            let is_watched = serving.watchers.iter().any(|w| w.seq == seq);
            if serving.waits_of(seq) > 0
                || is_watched
                || holder_waits
                || holder.phase == Phase::Granting
            {
                // A client waits for the sync or the value, or no client could learn of the grant yet.
                serving.wait_for_claim_anew(cx, seq);
            } else {
                ends.push((seq, EndReason::Unclaimed, Some(grant)));
                if serving.unheard.contains(&seq) {
                    ends.extend(serving.unheard_for_too_long(cx, seq));
                }
            }
        }
        serving.grant_again.take_if(|at| *at <= cx.now);
        serving.end_all(cx, ends, out);
    }

    /// Whether the next home may have the key already.
    pub(super) fn may_be_given(&self) -> bool {
        matches!(&self.role, Role::HandingOver(_, hand_over) if hand_over.is_sent())
    }

    /// Clients that wait for the end of a hand-over keep their entries meanwhile (I8).
    fn renew_backlog(&mut self, cx: &Context<'_>, out: &mut Vec<Effect>) {
        if let Role::HandingOver(serving, _) = &mut self.role {
            let waiting = self
                .backlog
                .iter()
                .filter_map(|queued| queued.call.of_entry());
            for entry in waiting {
                // An error is answered once the key is served again.
                let _ = serving.live(cx, entry, out);
            }
        }
    }

    /// A session ended, and its entries here with it.
    pub(super) fn session_ended(
        &mut self,
        cx: &Context<'_>,
        session: SessionId,
        out: &mut Vec<Effect>,
    ) {
        if self.may_be_given() {
            return;
        }
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let by_it = |liveness: Liveness| liveness == Liveness::Session(session);
        let entries = serving.state.entries.iter();
        let of_it = entries.filter(|entry| by_it(entry.liveness));
        let ends = of_it.map(|entry| (entry.seq, EndReason::SessionClosed, None));
        let ends = ends.collect();
        serving.end_all(cx, ends, out);
    }
}

impl Serving {
    /// While a call waits for the store alone, for the row or the sync, the TTL of its entry does not run out.
    fn renew_held_up(&mut self, cx: &Context<'_>) {
        let created = self.decided.iter().filter(|d| d.call.is_some());
        let created = created.filter_map(|decided| match decided.depends_on {
            CommitDependency::Seq(seq) => Some(seq),
            CommitDependency::EndOf(_) | CommitDependency::Recorded(_) => None,
        });
        let asked = self.asks.iter().filter(|ask| !ask.waits);
        let held_up: Vec<Seq> = created.chain(asked.map(|ask| ask.seq)).collect();
        for seq in held_up {
            if let Some(lease) = self.leases.get_mut(seq) {
                lease.renew(cx.now);
            }
        }
    }

    /// Inherited entries without a call since the take-over, past their claim deadline. With write-back they may have been
    /// released at the home before. They end together, so that the queue does not wait for each in turn (H3).
    fn unheard_for_too_long(
        &self,
        cx: &Context<'_>,
        first: Seq,
    ) -> Vec<(Seq, EndReason, Option<Fence>)> {
        if cx.commit.mode == CommitMode::WriteThrough {
            return Vec::new();
        }
        let behind = self.unheard.iter().filter(|seq| **seq != first);
        let entries = behind.filter_map(|seq| self.state.entry(*seq));
        let late = entries.filter(|e| self.began.plus(self.claim_ttl(cx, e)) <= cx.now);
        late.map(|entry| (entry.seq, EndReason::Unclaimed, None))
            .collect()
    }

    /// Ends these, the last one first: so none is granted the key in between.
    fn end_all(
        &mut self,
        cx: &Context<'_>,
        ends: Vec<(Seq, EndReason, Option<Fence>)>,
        out: &mut Vec<Effect>,
    ) {
        let mut ends = ends;
        ends.sort_by_key(|(seq, ..)| std::cmp::Reverse(*seq));
        for (seq, reason, only_under) in ends {
            let Some(tag) = self.state.entry(seq).map(|entry| entry.tag) else {
                continue;
            };
            let grant = None;
            let entry = EntryRef { seq, tag, grant };
            self.evict(cx, entry, (reason, only_under), out);
        }
    }
}
