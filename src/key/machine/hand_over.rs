//! Giving the key to another replica (H4): calls are answered or failed before, and from the sending of the commit until
//! a later version is known the key answers nothing.

use std::sync::Arc;

use super::event::{Answer, CallId, Context, Effect, KeyError, Report, SwapOutcome, fail};
use super::holder::Claim;
use super::intent::Swapping;
use super::serving::Serving;
use super::take_over::refused;
use super::{Machine, Role};
use crate::key::{Command, KeyState, Outcome, decide};
use crate::lock::ReplicaId;

/// A hand-over in flight.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct HandOver {
    to: ReplicaId,
    /// Who asked for it.
    calls: Vec<CallId>,
    stage: Stage,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    /// What was begun is brought to its end; nothing was sent.
    Draining,
    /// Its commit was sent, and may apply: sent again, it is the same one.
    Sent(Arc<KeyState>),
}

impl Machine {
    /// Begins to give the key away: from here on no call is taken in.
    pub(super) fn begin_hand_over(
        &mut self,
        cx: &Context<'_>,
        call: CallId,
        to: ReplicaId,
        out: &mut Vec<Effect>,
    ) {
        if let Role::Serving(serving) = &self.role
            && to == cx.replica
        {
            let answer = Ok(Answer::HandedOver(serving.home));
            return out.push(Effect::Answer { call, answer });
        }
        self.role = match std::mem::replace(&mut self.role, Role::Unread) {
            Role::Serving(serving) => Role::HandingOver(
                serving,
                HandOver {
                    to,
                    calls: vec![call],
                    stage: Stage::Draining,
                },
            ),
            other => other,
        };
    }

    /// Brings to its end what was begun, and then commits the hand-over.
    pub(super) fn commit_hand_over(&mut self, cx: &Context<'_>, out: &mut Vec<Effect>) -> bool {
        let Role::HandingOver(serving, hand_over) = &mut self.role else {
            return false;
        };
        let state = Arc::clone(&serving.state);
        if let Stage::Sent(new) = &hand_over.stage {
            let new = Arc::clone(new);
            self.send(state, new, Vec::new(), out);
            return false;
        }
        if !self.pending.is_empty() {
            return self.commit(cx, out);
        }
        if !serving.is_drained() {
            return false;
        }
        let holder = serving.holder.as_ref();
        let answered = holder.filter(|holder| !matches!(holder.claim, Claim::Until(_)));
        let command = Command::HandOver {
            to: hand_over.to,
            holder: answered.map(|holder| holder.writes_of_holder()),
            left_ms: serving.first_left_ms(cx.now),
        };
        let decision = decide(&state, &[command], cx.decider());
        if let [Outcome::Refused(refusal)] = &decision.outcomes[..] {
            let why = refused(refusal);
            self.keep_key(cx, &why, out);
            return true;
        }
        let new = Arc::new(decision.state);
        hand_over.stage = Stage::Sent(Arc::clone(&new));
        self.send(state, new, Vec::new(), out);
        false
    }

    /// What became of a commit while the key is being given away.
    pub(super) fn hand_over_swapped(
        &mut self,
        cx: &Context<'_>,
        swapping: Swapping,
        outcome: SwapOutcome,
        out: &mut Vec<Effect>,
    ) {
        let Role::HandingOver(_, hand_over) = &self.role else {
            return;
        };
        if hand_over.stage == Stage::Draining {
            return self.commit_swapped(cx, swapping, outcome, out);
        }
        match outcome {
            SwapOutcome::Applied => self.handed_over(&swapping.new, out),
            SwapOutcome::Conflict(state) => self.reread(cx, state, out),
            // To read the old version would prove nothing: it is sent again after the row was read.
            SwapOutcome::Unknown(why) => {
                out.push(Effect::Report(Report::InDoubt { why }));
                self.pause(true, out);
            }
            // An earlier try may apply yet: it goes on until that is settled.
            SwapOutcome::NotStarted(_) => self.pause(true, out),
        }
    }

    /// Whether the row shows that the hand-over took effect.
    pub(super) fn was_handed_over(&self, state: &KeyState) -> bool {
        match &self.role {
            Role::HandingOver(serving, hand_over) => {
                // It may have gone on from there.
                matches!(hand_over.stage, Stage::Sent(_)) && state.term() > serving.home.term
            }
            Role::Unread | Role::Taking(_) | Role::Serving(_) => false,
        }
    }

    /// The row shows a later version of this home: no hand-over that was sent can apply any more.
    pub(super) fn hand_over_missed(&mut self) {
        if let Role::HandingOver(_, hand_over) = &mut self.role {
            hand_over.stage = Stage::Draining;
        }
    }

    /// This replica is the home no longer.
    pub(super) fn handed_over(&mut self, state: &KeyState, out: &mut Vec<Effect>) {
        let Some(home) = state.home else { return };
        if let Role::HandingOver(serving, hand_over) = &mut self.role
            && home.replica == hand_over.to
            && home.term == serving.home.term.saturating_add(1)
        {
            for call in std::mem::take(&mut hand_over.calls) {
                let answer = Ok(Answer::HandedOver(home));
                out.push(Effect::Answer { call, answer });
            }
        }
        self.leave(&KeyError::Elsewhere(home), out);
    }

    /// Serves the key again, since nothing was sent that could give it away.
    fn keep_key(&mut self, cx: &Context<'_>, why: &KeyError, out: &mut Vec<Effect>) {
        let role = std::mem::replace(&mut self.role, Role::Unread);
        let Role::HandingOver(serving, hand_over) = role else {
            self.role = role;
            return;
        };
        self.role = Role::Serving(serving);
        hand_over.close(why, out);
        for queued in std::mem::take(&mut self.backlog) {
            self.call(cx, queued.id, queued.call, out);
        }
    }
}

impl HandOver {
    /// Those who asked for it, who learn that it came otherwise.
    pub fn close(self, why: &KeyError, out: &mut Vec<Effect>) {
        for call in self.calls {
            fail(call, why.clone(), out);
        }
    }
}

impl Serving {
    /// Whether no read and no write of the value is in flight, those of a sync included.
    fn is_drained(&self) -> bool {
        self.ios.is_empty()
    }
}
