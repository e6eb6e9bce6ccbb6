//! Ends of waits, callers that leave, and lost answers.

use std::time::Duration;

use super::Machine;
use super::context::Context;
use super::decided::{CommitDependency, Decided};
use super::event::{Answer, CallId, Effect, EntryRef, fail};
use super::holder::{Claim, Critical};
use super::role::Role;
use super::serving::Serving;
use crate::lock::{Fence, Liveness, Seq, SessionId};

impl Machine {
    /// Ends a wait at its time limit: answers WAITING, or the error.
    pub(super) fn wait_ended(&mut self, cx: &Context<'_>, call: CallId, out: &mut Vec<Effect>) {
        if let Some(at) = self.backlog.iter().position(|queued| queued.id == call) {
            self.backlog.remove(at);
            return fail(call, super::KeyError::ChangingHome, out);
        }
        let is_given_away = matches!(self.role, Role::HandingOver(..));
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let Some(at) = serving.asks.iter().position(|ask| ask.call == call) else {
            return;
        };
        let ask = serving.asks.remove(at);
        serving.wait_for_claim_anew(cx, ask.seq);
        if is_given_away {
            return fail(call, super::KeyError::ChangingHome, out);
        }
        let Some(entry) = serving.state.entry(ask.seq) else {
            let end = serving.state.end_of(ask.seq);
            return fail(call, super::KeyError::Ended(end), out);
        };
        let entry = EntryRef {
            seq: ask.seq,
            tag: entry.tag,
            grant: None,
        };
        let position = serving.state.position(ask.seq).unwrap_or(0);
        match serving.lease(cx, ask.seq) {
            Ok(lease) => out.push(Effect::Answer {
                call,
                answer: Ok(Answer::Waiting {
                    entry,
                    position,
                    existed: ask.existed,
                    lease,
                }),
            }),
            Err(why) => fail(call, why, out),
        }
    }

    /// The caller left. Operations in flight go on; the rest is dropped.
    pub(super) fn call_gone(&mut self, cx: &Context<'_>, call: CallId, out: &mut Vec<Effect>) {
        self.backlog.retain(|queued| queued.id != call);
        self.created_for_nobody(call);
        let Some(serving) = self.serving_mut() else {
            return;
        };
        for decided in &mut serving.decided {
            decided.call.take_if(|of| *of == call);
        }
        // A decision in a sent commit waits for the outcome of that commit.
        let row = &serving.row;
        let nobodys = |decided: &mut Decided| match decided.depends_on {
            CommitDependency::Seq(seq) => decided.call.is_none() && !row.may_list(seq),
            CommitDependency::EndOf(_) | CommitDependency::Recorded(_) => decided.call.is_none(),
        };
        let gone: Vec<Decided> = serving.decided.extract_if(.., nobodys).collect();
        for decided in gone.into_iter().rev() {
            if let CommitDependency::Seq(seq) = decided.depends_on {
                serving.abandon(cx, seq, out);
            }
        }
        serving.asks.retain(|ask| ask.call != call);
        serving.watchers.retain(|watcher| watcher.call != call);
        if let Some(holder) = &mut serving.holder {
            let of = |critical: &Critical| critical.call == call;
            let releases = holder.queued.iter().any(|c| of(c) && c.is_release());
            holder.queued.retain(|critical| !of(critical));
            if releases {
                // Its put never began: the client may repeat the call (I11).
                holder.last_put_failed();
            }
        }
    }

    /// HELD did not reach its client: the grant counts as unclaimed from now on, unless another answer arrived.
    pub(super) fn answer_lost(&mut self, cx: &Context<'_>, grant: Fence) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let Some(entry) = serving.state.holder() else {
            return;
        };
        let until = cx.now.plus(serving.claim_ttl(cx, entry));
        if let Some(holder) = serving.holder.as_mut().filter(|h| h.grant == grant) {
            holder.answer_lost(until);
        }
    }

    /// The TTL of a session: it sets the claim deadline of a first entry.
    pub(super) fn session_ttl(&mut self, cx: &Context<'_>, session: SessionId, ttl: Duration) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        if !serving.has_session(session) || serving.session_ttls.insert(session, ttl) == Some(ttl) {
            return;
        }
        if let Some(first) = serving.state.first()
            && first.liveness == Liveness::Session(session)
        {
            let seq = first.seq;
            serving.wait_for_claim_anew(cx, seq);
        }
    }
}

impl Serving {
    /// A client called and could not be answered HELD: its claim deadline starts anew (I5).
    pub fn wait_for_claim_anew(&mut self, cx: &Context<'_>, seq: Seq) {
        let Some(entry) = self.state.holder().filter(|entry| entry.seq == seq) else {
            return;
        };
        let until = self.claim_until(cx, entry);
        if let Some(holder) = &mut self.holder
            && matches!(holder.claim, Claim::Until(_))
        {
            holder.claim = Claim::Until(until);
        }
    }
}
