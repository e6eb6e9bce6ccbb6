//! Group commit: what is wished while a compare-and-swap is in flight is decided together in the next one. An outcome
//! that is not known is resolved before anybody learns of it (I6).

use std::sync::Arc;

use super::event::{CallError, Context, Effect, KeyError, Reason, Report, SwapOutcome, fail};
use super::intent::{BATCH_MAX, Intent, Swapping, Wish};
use super::serving::Io;
use super::{Machine, Role, Turn};
use crate::key::{Command, KeyState, Outcome, WritesOfHolder, decide};
use crate::lock::{EndReason, EndedAs, Fence};

impl Machine {
    /// Decides what is wished. True if that could be answered without the store.
    pub(super) fn commit(&mut self, cx: &Context<'_>, out: &mut Vec<Effect>) -> bool {
        self.wish_grant();
        if self.pending.is_empty() {
            return false;
        }
        let Some(state) = self.serving_mut().map(|s| Arc::clone(&s.state)) else {
            return false;
        };
        let mut commands = Vec::new();
        let batch = self.next_batch(&mut commands);
        let decision = decide(&state, &commands, cx.decider());
        let batch: Vec<_> = batch.into_iter().zip(decision.outcomes).collect();
        if decision.state.version == state.version {
            // Nothing was left to change.
            self.deliver(cx, batch, out);
            return true;
        }
        self.send(state, Arc::new(decision.state), batch, out);
        false
    }

    /// A first entry that has no grant gets one. Where no fence can be taken that is tried again after a while, or once
    /// somebody asks for it.
    fn wish_grant(&mut self) {
        let Role::Serving(serving) = &self.role else {
            return;
        };
        let Some(first) = serving.state.first() else {
            return;
        };
        let seq = first.seq;
        let is_wanted = serving.state.grant == Fence::NONE
            && (serving.grant_again.is_none() || serving.asks.iter().any(|ask| ask.seq == seq));
        if is_wanted && !self.pending.iter().any(|i| i.what == Wish::Grant) {
            self.pending.push_back(Intent::new(None, Wish::Grant));
        }
    }

    /// The next intents; their commands are appended.
    pub(super) fn next_batch(&mut self, commands: &mut Vec<Command>) -> Vec<Intent> {
        let mut batch = Vec::new();
        while batch.len() < BATCH_MAX
            && let Some(intent) = self.pending.pop_front()
        {
            if !intent.is_wanted() {
                continue;
            }
            let holder = match &self.role {
                Role::Serving(serving) | Role::HandingOver(serving, _) => serving.holder.as_ref(),
                Role::Unread | Role::Taking(_) => None,
            };
            commands.push(intent.command(|seq| match holder {
                Some(holder) if holder.seq == seq => holder.writes_of_holder(),
                Some(_) | None => WritesOfHolder::NONE,
            }));
            batch.push(intent);
        }
        batch
    }

    /// Sends a compare-and-swap; none is in flight.
    pub(super) fn send(
        &mut self,
        old: Arc<KeyState>,
        new: Arc<KeyState>,
        batch: Vec<(Intent, Outcome)>,
        out: &mut Vec<Effect>,
    ) {
        out.push(Effect::Swap {
            old,
            new: Arc::clone(&new),
        });
        self.turn = Turn::Swapping(Box::new(Swapping { new, batch }));
    }

    /// Puts a batch back: each of it is decided again on the state that is met next.
    pub(super) fn put_back(&mut self, batch: Vec<(Intent, Outcome)>, in_doubt: bool) {
        for (mut intent, outcome) in batch.into_iter().rev() {
            intent.in_doubt |= in_doubt;
            intent.was_holder |= in_doubt && outcome == Outcome::Evicted { was_holder: true };
            self.pending.push_front(intent);
        }
    }

    /// What became of a compare-and-swap.
    pub(super) fn swapped(
        &mut self,
        cx: &Context<'_>,
        outcome: SwapOutcome,
        out: &mut Vec<Effect>,
    ) {
        let Turn::Swapping(swapping) = std::mem::replace(&mut self.turn, Turn::Free) else {
            return;
        };
        match self.role {
            Role::Unread => {}
            Role::Taking(_) => self.take_over_swapped(cx, *swapping, outcome, out),
            Role::Serving(_) => self.commit_swapped(cx, *swapping, outcome, out),
            Role::HandingOver(..) => self.hand_over_swapped(cx, *swapping, outcome, out),
        }
    }

    pub(super) fn commit_swapped(
        &mut self,
        cx: &Context<'_>,
        swapping: Swapping,
        outcome: SwapOutcome,
        out: &mut Vec<Effect>,
    ) {
        let Swapping { new, batch } = swapping;
        match outcome {
            SwapOutcome::Applied => {
                self.tries = 0;
                self.adopt(cx, new, out);
                self.deliver(cx, batch, out);
            }
            SwapOutcome::Conflict(state) => {
                self.put_back(batch, false);
                self.reread(cx, state, out);
            }
            SwapOutcome::Unknown(why) => {
                self.put_back(batch, true);
                out.push(Effect::Report(Report::InDoubt { why }));
                self.pause(true, out);
            }
            SwapOutcome::NotStarted(why) => {
                self.put_back(batch, false);
                self.fail_callers(cx, &why, out);
                self.pause(false, out);
            }
        }
    }

    /// The row shows something else than what this home committed last: an earlier try of its own that was in doubt; or
    /// another home, then this one is deposed; or what nobody can have written after it, as a table that was restored shows,
    /// then all that was known is dropped, and the next call takes the key over from this replica itself.
    pub(super) fn reread(&mut self, cx: &Context<'_>, state: Arc<KeyState>, out: &mut Vec<Effect>) {
        if self.was_handed_over(&state) {
            return self.handed_over(&state, out);
        }
        let Some(serving) = self.serving_mut() else {
            return;
        };
        if !state.is_home(serving.home) {
            return self.depose(&state, out);
        }
        if state.version > serving.state.version {
            self.hand_over_missed();
            return self.adopt(cx, state, out);
        }
        // An open proposal may still apply while the row is the same: that settles nothing, and what is wished is decided
        // and sent again.
        if *state != *serving.state {
            let (known, found) = (serving.state.version, state.version);
            out.push(Effect::Report(Report::Contradicted { known, found }));
            self.leave(&KeyError::ChangingHome, out);
        }
    }

    /// Takes a committed state of this term as the latest one; a lock is granted on nothing else (I4). A new holder whose
    /// end is wanted already is never answered HELD.
    fn adopt(&mut self, cx: &Context<'_>, state: Arc<KeyState>, out: &mut Vec<Effect>) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        serving.adopt(cx, state, out);
        let Some((seq, grant)) = serving.holder.as_ref().map(|h| (h.seq, h.grant)) else {
            return;
        };
        let ends = self.pending.iter().find_map(|i| match &i.what {
            Wish::Release { entry, .. } if entry.seq == seq => Some(None),
            // One that an operator waits for may be dropped.
            Wish::Evict {
                entry,
                reason,
                only_under,
            } if entry.seq == seq && i.call.is_none() => {
                let is_meant = only_under.is_none_or(|under| under == grant);
                is_meant.then(|| Some(reason.clone()))
            }
            _ => None,
        });
        if let Some(holder) = self.holder_mut().filter(|h| !h.is_closing()) {
            match ends {
                Some(Some(reason)) => holder.begin_eviction(reason),
                Some(None) => holder.begin_release(),
                None => {}
            }
        }
    }

    /// Another replica has the key: nothing is answered any more by what this one knew (H1).
    pub(super) fn depose(&mut self, state: &KeyState, out: &mut Vec<Effect>) {
        out.push(Effect::Report(Report::Deposed { by: state.home }));
        let why = match state.home {
            Some(home) => KeyError::Elsewhere(home),
            None => KeyError::ChangingHome,
        };
        self.leave(&why, out);
    }

    /// This replica is the home no longer: everybody hears where to ask.
    pub(super) fn leave(&mut self, why: &KeyError, out: &mut Vec<Effect>) {
        let role = std::mem::replace(&mut self.role, Role::Unread);
        let serving = match role {
            Role::Serving(serving) => serving,
            Role::HandingOver(serving, hand_over) => {
                hand_over.close(why, out);
                serving
            }
            Role::Unread | Role::Taking(_) => return,
        };
        serving.close(why, out);
        self.fail_all(why, out);
    }

    /// Tells those who wait that the store did not do it. What cleans up stays, and is tried again.
    pub(super) fn fail_callers(&mut self, cx: &Context<'_>, why: &Reason, out: &mut Vec<Effect>) {
        let failed = || KeyError::StoreUnavailable(Arc::clone(why));
        for queued in std::mem::take(&mut self.backlog) {
            fail(queued.id, failed(), out);
        }
        let mut kept = std::collections::VecDeque::new();
        for mut intent in std::mem::take(&mut self.pending) {
            if let Some(call) = intent.call.take() {
                fail(call, intent.failed(failed()), out);
                let forced = matches!(
                    intent.what,
                    Wish::Evict {
                        reason: EndReason::Forced { .. },
                        ..
                    }
                );
                // An operator learns that it was not done; so it is not, unless it may be already.
                if forced && !intent.in_doubt {
                    continue;
                }
            }
            if intent.is_wanted() {
                kept.push_back(intent);
            }
        }
        self.pending = kept;
        self.renew_claims(cx);
    }

    /// Clients were there, and could not be answered for want of the store.
    fn renew_claims(&mut self, cx: &Context<'_>) {
        if let Some(serving) = self.serving_mut()
            && let Some(seq) = serving.holder.as_ref().map(|h| h.seq)
            && serving.asks.iter().any(|ask| ask.seq == seq)
        {
            serving.wait_for_claim_anew(cx, seq);
        }
    }
}

impl super::serving::Serving {
    /// Everybody who waits here hears where to ask, or why not; a write in flight may have been done.
    fn close(mut self: Box<Self>, why: &KeyError, out: &mut Vec<Effect>) {
        let mut close = |call, may_have_written| {
            let why = why.clone();
            let error = CallError {
                why,
                may_have_written,
            };
            fail(call, error, out);
        };
        for ask in self.asks.drain(..) {
            close(ask.call, false);
        }
        for (_, io) in self.ios.drain(..) {
            match io {
                Io::Get { critical, .. } => close(critical.call, false),
                Io::Held { ask, .. } => close(ask.call, false),
                Io::Put { critical, .. } => close(critical.call, true),
                Io::SyncRead { .. } | Io::SyncWrite { .. } => {}
            }
        }
        if let Some(mut holder) = self.holder.take() {
            for critical in holder.queued.drain(..) {
                close(critical.call, false);
            }
        }
        for watcher in self.watchers.drain(..) {
            let status = match why {
                KeyError::Elsewhere(home) => super::EntryStatus::Elsewhere(*home),
                // The row is lost, and with it the queue.
                _ => super::EntryStatus::Ended(EndedAs::NoLongerKept),
            };
            out.push(Effect::Notify {
                call: watcher.call,
                status,
            });
        }
        for entry in &self.state.entries {
            if let crate::lock::Liveness::Session(session) = entry.liveness {
                out.push(Effect::Detach {
                    session,
                    seq: entry.seq,
                });
            }
        }
    }
}
