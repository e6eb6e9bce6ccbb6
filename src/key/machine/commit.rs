//! Group commit: what is wished while a compare-and-swap is under way is decided together in the next one. An outcome
//! that is not known is resolved before anybody hears of it (I6).

use std::sync::Arc;

use super::calls::fail;
use super::event::{
    Answer, CallError, Context, Effect, EntryRef, KeyError, Reason, Report, SwapOutcome,
};
use super::holder::{Phase, Resume};
use super::intent::{BATCH_MAX, Intent, OutcomeOf, Swapping, Wish};
use super::serving::Io;
use super::take_over::refused;
use super::{Machine, Role, Turn};
use crate::key::{Command, Decider, KeyState, Outcome, WritesOfHolder, decide};
use crate::lock::{EndReason, Fence, Over};

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
        let by = Decider {
            replica: cx.replica,
            now_us: cx.now_us,
            limits: &cx.limits.core,
        };
        let decision = decide(&state, &commands, by);
        let outcomes = decision.outcomes.into_iter().map(OutcomeOf);
        let batch: Vec<_> = batch.into_iter().zip(outcomes).collect();
        if decision.state.version == state.version {
            // Nothing was left to change.
            self.deliver(cx, batch, out);
            return true;
        }
        let new = Arc::new(decision.state);
        out.push(Effect::Swap {
            old: state,
            new: Arc::clone(&new),
        });
        self.turn = Turn::Swapping(Box::new(Swapping { new, batch }));
        false
    }

    /// A first entry that has no grant, since no fence could be taken, gets one once somebody asks for it.
    fn wish_grant(&mut self) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let Some(first) = serving.state.first() else {
            return;
        };
        let seq = first.seq;
        let is_wanted = serving.state.grant == Fence::NONE
            && (serving.asks.iter().any(|ask| ask.seq == seq)
                || serving.watchers.iter().any(|w| w.seq == seq));
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

    /// Puts a batch back: each of it is decided again on the state that is met next.
    pub(super) fn put_back(
        &mut self,
        batch: impl IntoIterator<Item = Intent, IntoIter: DoubleEndedIterator>,
        in_doubt: bool,
    ) {
        for mut intent in batch.into_iter().rev() {
            intent.in_doubt |= in_doubt;
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
        let intents = |batch: Vec<(Intent, OutcomeOf)>| batch.into_iter().map(|(intent, _)| intent);
        match outcome {
            SwapOutcome::Applied => {
                self.tries = 0;
                if let Some(serving) = self.serving_mut() {
                    serving.adopt(cx, new, out);
                }
                self.deliver(cx, batch, out);
            }
            SwapOutcome::Conflict(state) => {
                self.put_back(intents(batch), false);
                self.reread(cx, state, out);
            }
            SwapOutcome::Unknown(why) => {
                self.put_back(intents(batch), true);
                out.push(Effect::Report(Report::InDoubt { why }));
                self.pause(true, out);
            }
            SwapOutcome::NotStarted(why) => {
                self.put_back(intents(batch), false);
                self.fail_callers(cx, &why, out);
                self.pause(false, out);
            }
        }
    }

    /// The row shows something else than what this home committed last: an earlier try of its own that was in doubt; or
    /// another home, then this one is deposed.
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
        // An open proposal may still apply while the version is the same: that settles nothing, and what is wished is
        // decided and sent again.
        if state.version > serving.state.version {
            serving.adopt(cx, state, out);
        }
    }

    /// Another replica has the key: nothing is answered any more by what this one knew.
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
        let (Role::Serving(serving) | Role::HandingOver(serving, _)) = role else {
            return;
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
            let has_written = matches!(
                intent.what,
                Wish::Release {
                    has_written: true,
                    ..
                }
            );
            if let Some(call) = intent.call.take() {
                let error = CallError {
                    why: failed(),
                    may_have_written: has_written,
                };
                fail(call, error, out);
                let forced = matches!(
                    intent.what,
                    Wish::Evict {
                        reason: EndReason::Forced { .. },
                        ..
                    }
                );
                // An operator hears that it was not done; so it is not, unless it may be already.
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

    /// Answers a batch whose outcomes stand.
    pub(super) fn deliver(
        &mut self,
        cx: &Context<'_>,
        batch: Vec<(Intent, OutcomeOf)>,
        out: &mut Vec<Effect>,
    ) {
        for (intent, OutcomeOf(outcome)) in batch {
            self.deliver_one(cx, intent, outcome, out);
        }
    }

    fn deliver_one(
        &mut self,
        cx: &Context<'_>,
        intent: Intent,
        outcome: Outcome,
        out: &mut Vec<Effect>,
    ) {
        let Intent {
            call,
            in_doubt,
            what,
        } = intent;
        let answered: Result<Answer, CallError> = match (what, outcome) {
            (Wish::Create { entry, read_value }, Outcome::Created { seq, existed }) => {
                let Some(call) = call else { return };
                let entry = EntryRef {
                    seq,
                    tag: crate::lock::Tag::of(entry.request_id),
                    grant: None,
                };
                // That it found itself may be its own earlier try.
                let existed = existed && !in_doubt;
                return self.acquire(cx, call, entry, (false, read_value), existed, out);
            }
            (Wish::Release { .. }, Outcome::Released) => Ok(Answer::Released { already: false }),
            (Wish::Release { .. }, Outcome::Gone(Over::Released)) => {
                Ok(Answer::Released { already: !in_doubt })
            }
            (Wish::Release { has_written, .. }, Outcome::Gone(end)) => Err(CallError {
                why: KeyError::Ended(end),
                may_have_written: has_written,
            }),
            (Wish::Evict { entry, reason, .. }, Outcome::Evicted { was_holder }) => {
                let end = Over::Ended(reason);
                out.push(Effect::Report(Report::Evicted {
                    entry,
                    end,
                    was_holder,
                }));
                Ok(Answer::Forced {
                    already: false,
                    was_holder,
                })
            }
            (Wish::Evict { reason, .. }, Outcome::Gone(end)) => Ok(Answer::Forced {
                already: !(in_doubt && end == Over::Ended(reason)),
                was_holder: false,
            }),
            (Wish::Grant, Outcome::Refused(refusal)) => {
                return self.grant_refused(cx, &refused(&refusal), out);
            }
            (Wish::Extend { fence, .. }, Outcome::Refused(refusal)) => {
                return self.extend_refused(fence, &refused(&refusal), out);
            }
            (Wish::Grant | Wish::Extend { .. }, _) => return,
            (Wish::Release { has_written, .. }, Outcome::Refused(refusal)) => Err(CallError {
                why: refused(&refusal),
                may_have_written: has_written,
            }),
            (_, Outcome::Refused(refusal)) => Err(refused(&refusal).into()),
            (_, _) => Err(KeyError::ChangingHome.into()),
        };
        if let Some(call) = call {
            let answer = answered;
            out.push(Effect::Answer { call, answer });
        }
    }

    /// No fence can be taken for the first entry: whoever asks for it hears so, and may ask again.
    fn grant_refused(&mut self, cx: &Context<'_>, why: &KeyError, out: &mut Vec<Effect>) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let Some(seq) = serving.state.first().map(|first| first.seq) else {
            return;
        };
        let asks: Vec<_> = serving.asks.extract_if(.., |a| a.seq == seq).collect();
        let watchers: Vec<_> = serving.watchers.extract_if(.., |w| w.seq == seq).collect();
        for ask in asks {
            self.fail_ask(cx, ask, why.clone(), out);
        }
        for watcher in watchers {
            if let Some(serving) = self.serving_mut() {
                serving.close_call(cx, watcher.seq);
            }
            fail(watcher.call, why.clone(), out);
        }
    }

    /// The holder gets no more timestamps: what waits for them fails, and may be asked for again.
    fn extend_refused(&mut self, fence: Fence, why: &KeyError, out: &mut Vec<Effect>) {
        let Some(holder) = self.holder_mut().filter(|h| h.fence == fence) else {
            return;
        };
        let Phase::Extending(resume) = holder.phase else {
            return;
        };
        holder.resume(resume);
        let queued: Vec<_> = holder.queued.drain(..).collect();
        let seq = holder.seq;
        for critical in queued {
            fail(critical.call, why.clone(), out);
        }
        if resume == Resume::Sync
            && let Some(serving) = self.serving_mut()
        {
            for ask in serving.asks.extract_if(.., |ask| ask.seq == seq) {
                fail(ask.call, why.clone(), out);
            }
        }
    }
}

impl super::serving::Serving {
    /// Everybody who waits here hears where to ask, or why not; a write under way may have been done.
    fn close(mut self: Box<Self>, why: &KeyError, out: &mut Vec<Effect>) {
        let mut failed: Vec<CallError> = Vec::new();
        let mut calls = Vec::new();
        let mut note = |call, may_have_written| {
            calls.push(call);
            failed.push(CallError {
                why: why.clone(),
                may_have_written,
            });
        };
        for ask in self.asks.drain(..) {
            note(ask.call, false);
        }
        for (_, io) in self.ios.drain(..) {
            match io {
                Io::Get { critical, .. } => note(critical.call, false),
                Io::Held { ask, .. } => note(ask.call, false),
                Io::Put { critical, .. } => note(critical.call, true),
                Io::SyncRead { .. } | Io::SyncWrite { .. } => {}
            }
        }
        if let Some(mut holder) = self.holder.take() {
            for critical in holder.queued.drain(..) {
                note(critical.call, false);
            }
        }
        for (call, error) in calls.into_iter().zip(failed) {
            fail(call, error, out);
        }
        for watcher in self.watchers.drain(..) {
            let status = match why {
                KeyError::Elsewhere(home) => super::EntryStatus::Elsewhere(*home),
                _ => super::EntryStatus::Waiting { position: 0 },
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
