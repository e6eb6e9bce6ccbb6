//! Handing the key over to another replica (H4). Calls are answered or failed first. Then the hand-over is committed. This home
//! answers nothing about the key after it sent the commit, until it knows a later version of the row.

use std::sync::Arc;

use super::Machine;
use super::commit::{CHANGES_MAX, SEQS_MAX};
use super::context::Context;
use super::event::{Answer, CallId, Effect, KeyError, Report};
use super::refusal::refused;
use super::role::{HandOver, Role, Stage};
use super::serving::Serving;
use crate::key::{Command, CommitMode, KeyState, NextRow, Outcome, Survivors, apply, changes};
use crate::lock::{Liveness, ReplicaId};

impl Machine {
    /// Begins a hand-over: from here on calls wait. With `if_idle` a key in use stays here. A hand-over to this replica itself
    /// leaves a complete row of another term, to be read before the key is served again.
    pub(super) fn begin_hand_over(
        &mut self,
        cx: &Context<'_>,
        call: CallId,
        (to, if_idle): (ReplicaId, bool),
        out: &mut Vec<Effect>,
    ) {
        if let Role::Serving(serving) = &self.role
            && if_idle
            && (to == cx.replica || !self.serves_nobody())
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

    /// Waits for operations in flight, then commits the hand-over.
    pub(super) fn commit_hand_over(&mut self, cx: &Context<'_>, out: &mut Vec<Effect>) -> bool {
        let Role::HandingOver(serving, hand_over) = &mut self.role else {
            return false;
        };
        if serving.row.sent().is_some() {
            self.send(out);
            return false;
        }
        if !serving.decided.is_empty() || !serving.fits_one_commit() {
            let holder = serving.holder.as_ref();
            let is_unheard =
                holder.is_some_and(|h| h.is_unclaimed() && !serving.row.may_keep(h.seq));
            let survivors = match is_unheard {
                true => Survivors::AllOfUnheard,
                false => Survivors::All,
            };
            serving.make_commit(cx, survivors);
            self.send(out);
            return false;
        }
        if !serving.is_drained() {
            return false;
        }
        let holder = serving.holder.as_ref();
        let answered = holder.filter(|holder| !holder.is_unclaimed());
        let command = Command::HandOver {
            to: hand_over.to,
            holder: answered.map(|holder| holder.writes_of_holder()),
            left_ms: serving.first_left_ms(cx.now),
        };
        let mut state = KeyState::clone(&serving.state);
        if let Outcome::Refused(refusal) = apply(&mut state, &command, cx.decider()).outcome {
            let why = refused(&refusal);
            self.keep_key(cx, &why, out);
            return true;
        }
        let next = NextRow {
            row: serving.row.known(),
            mode: CommitMode::WriteThrough,
            survivors: Survivors::All,
            lists_volatile: true,
            changes_max: CHANGES_MAX,
            seqs_max: SEQS_MAX,
            now_us: cx.now_us,
        };
        let row = Arc::new(next.of(&state));
        hand_over.stage = Stage::Sent;
        serving.row.send(row);
        self.send(out);
        false
    }

    /// Whether the row shows that the hand-over took effect.
    pub(super) fn was_handed_over(&self, state: &KeyState) -> bool {
        match &self.role {
            Role::HandingOver(serving, hand_over) => {
                // The next home may have committed since.
                hand_over.is_sent() && state.term() > serving.home.term
            }
            Role::Unread | Role::Taking(_) | Role::Serving(_) => false,
        }
    }

    /// The commit of a hand-over was not begun, and no earlier try of it may apply.
    pub(super) fn hand_over_not_sent(&mut self, out: &mut Vec<Effect>) {
        if let Role::HandingOver(serving, hand_over) = &mut self.role
            && hand_over.is_sent()
        {
            hand_over.stage = Stage::Draining;
            serving.attach_again(out);
        }
    }

    /// The hand-over took effect: this replica is the home no longer.
    pub(super) fn handed_over(&mut self, state: &KeyState, out: &mut Vec<Effect>) {
        let Some(home) = state.home else { return };
        if let Role::HandingOver(serving, hand_over) = &mut self.role
            && home.replica == hand_over.to
            && home.term == serving.home.term.saturating_add(1)
        {
            if home.replica != serving.home.replica {
                out.push(Effect::Report(Report::HandedOver { to: home }));
            }
            for call in std::mem::take(&mut hand_over.calls) {
                let answer = Ok(Answer::HandedOver(home));
                out.push(Effect::Answer { call, answer });
            }
        }
        self.leave(&KeyError::Elsewhere(home), out);
    }

    /// Serves the key again: nothing was sent that could hand it over.
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

impl Serving {
    /// Sessions may have ended unnoticed meanwhile.
    fn attach_again(&self, out: &mut Vec<Effect>) {
        for entry in &self.state.entries {
            if let Liveness::Session(session) = entry.liveness {
                let seq = entry.seq;
                out.push(Effect::Attach { session, seq });
            }
        }
    }

    /// Whether one commit brings the row up to this state.
    fn fits_one_commit(&self) -> bool {
        let (state, row) = (&self.state, self.row.known());
        let from = row.next.max(state.head());
        state.next.0 - from.0 <= SEQS_MAX && changes(state, row) <= CHANGES_MAX
    }

    /// Whether no read or write of the value is in flight, syncs included.
    fn is_drained(&self) -> bool {
        self.ios.is_empty()
    }
}
