//! The machine of one key: events in, effects out.
//!
//! ```text
//!             load shows another home: calls are answered with it
//!            ┌──────┐
//!   Unread ──┴──────► Taking ──────► Serving ──────► HandingOver ──► Unread
//!      ▲     no home, or one that      │ ▲  a hand-over that was refused │
//!      │     is gone (H3, H6)          │ └───────────────────────────────┘
//!      └───────────────────────────────┘ deposed
//! ```
//!
//! A home decides in memory, at once, and its row follows. A decision is answered as soon as the row allows it (I6, H5): with
//! write-through after its commit, with write-back within the reserve of the row. At most one operation on the row is in flight
//! ([`Turn`]), and a commit takes all decisions since the last one (group commit). A commit of unknown outcome is sent again, unchanged,
//! until a later version is known. Reads and writes of the value go on beside it.
//!
//! One machine serves a key in one term, and nobody else writes under the fences of that term (I10).
//!
//! The machine knows no clock, store, socket or task. Before an answer goes out, its runner checks that this replica may still
//! answer at all (H2).

mod answers;
mod calls;
mod commit;
mod context;
mod critical;
mod decided;
mod entries;
mod event;
mod expiry;
mod hand_over;
mod holder;
mod leases;
mod pace;
mod packed;
mod refusal;
mod released;
mod role;
mod row;
mod serving;
mod settle;
mod sync;
mod take_over;
#[cfg(test)]
mod tests;
mod value;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

pub use context::{CommitRules, Context, KeyLimits};
pub use event::{
    Answer, Call, CallError, CallId, Effect, EntryRef, EntryStatus, Event, IoId, KeyError,
    LeaseSource, LeaseStatus, Loaded, PauseOf, Reason, Report, SwapOutcome, WriteOutcome,
};
use holder::Holder;
use role::{Queued, Role, Turn};
use serving::{KnownValue, Serving};
pub use value::{Datum, Mutation, Value};

use crate::key::{CommitMode, KeyState};
use crate::lock::Seq;
use crate::session::Observed;

/// The machine of one key on one replica.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Machine {
    role: Role,
    turn: Turn,
    /// Calls that wait until this replica knows whether it is the home.
    backlog: VecDeque<Queued>,
    /// Failures of the store in a row.
    tries: u32,
    next_io: u64,
}

impl Default for Machine {
    fn default() -> Self {
        Machine::new()
    }
}

impl Machine {
    /// The machine of an unknown key.
    pub fn new() -> Self {
        Machine {
            role: Role::Unread,
            turn: Turn::Free,
            backlog: VecDeque::new(),
            tries: 0,
            next_io: 0,
        }
    }

    /// Handles an event, and appends its effects to `out`.
    pub fn on(&mut self, cx: &Context<'_>, event: Event, out: &mut Vec<Effect>) {
        match event {
            Event::Call { id, call } => self.call(cx, id, call, out),
            Event::CallGone(call) => self.call_gone(cx, call, out),
            Event::WaitEnded(call) => self.wait_ended(cx, call, out),
            Event::AnswerLost { grant } => self.answer_lost(cx, grant),
            Event::Loaded(loaded) => self.loaded(cx, loaded, out),
            Event::Swapped(outcome) => self.swapped(cx, outcome, out),
            Event::DataRead { io, cell } => self.data_read(cx, io, cell, out),
            Event::DataWritten { io, outcome } => self.data_written(cx, io, outcome, out),
            Event::Resume(of) => self.resume(of, out),
            Event::Due => self.due_now(cx, out),
            Event::SessionTtl { session, ttl } => self.session_ttl(cx, session, ttl),
            Event::SessionEnded(session) => self.session_ended(cx, session, out),
        }
        self.advance(cx, out);
    }

    /// The moment for [`Event::Due`], unless another event comes before.
    pub fn due(&self, commit: CommitRules) -> Option<Observed> {
        let can_commit = self.turn == Turn::Free;
        match &self.role {
            Role::Serving(serving) => serving.due(commit, can_commit),
            Role::HandingOver(serving, hand_over) if !hand_over.is_sent() => {
                serving.due(commit, can_commit)
            }
            Role::Unread | Role::Taking(_) | Role::HandingOver(..) => None,
        }
    }

    /// Whether a new machine would find everything in the row: no call waits, nothing is in flight, no entry is live here.
    pub fn is_forgettable(&self) -> bool {
        let is_free = matches!(self.turn, Turn::Free);
        let is_quiet = self.backlog.is_empty();
        is_free && is_quiet && matches!(self.role, Role::Unread)
    }

    /// Whether nobody locks the key or waits for it, and nothing is in flight. Once forgotten, this replica takes the key over
    /// from itself at its next use (H11).
    pub fn is_idle(&self) -> bool {
        let is_free = matches!(self.turn, Turn::Free);
        let is_quiet = self.backlog.is_empty();
        let is_empty = match &self.role {
            Role::Unread => true,
            Role::Serving(serving) => serving.is_idle(),
            Role::Taking(_) | Role::HandingOver(..) => false,
        };
        is_free && is_quiet && is_empty
    }

    /// Whether this replica is the home of an idle key.
    pub fn serves_nobody(&self) -> bool {
        matches!(self.role, Role::Serving(_)) && self.is_idle()
    }

    /// Frees the memory of empty lists.
    pub fn shrink(&mut self) {
        if self.backlog.is_empty() {
            self.backlog = VecDeque::new();
        }
        if let Role::Serving(serving) = &mut self.role {
            serving.shrink();
        }
    }

    /// The state of the key, if this replica is the home.
    pub fn state(&self) -> Option<&Arc<KeyState>> {
        match &self.role {
            Role::Serving(serving) | Role::HandingOver(serving, _) => Some(&serving.state),
            Role::Unread | Role::Taking(_) => None,
        }
    }

    /// The value, if it is known without a read (H9).
    pub fn known_value(&self) -> Option<Option<&Datum>> {
        match &self.role {
            Role::Serving(serving) | Role::HandingOver(serving, _) => match &serving.value {
                KnownValue::Known(datum) => Some(datum.as_ref()),
                KnownValue::Unknown => None,
            },
            Role::Unread | Role::Taking(_) => None,
        }
    }

    /// Makes the next use of the value read it.
    pub fn forget_value(&mut self) {
        if let Role::Serving(serving) | Role::HandingOver(serving, _) = &mut self.role {
            serving.value = KnownValue::Unknown;
        }
    }

    /// The state that operators see, if this replica is the home. With write-through: the acknowledged row, as in all answers.
    /// With write-back: the state in memory.
    pub fn shown(&self, mode: CommitMode) -> Option<&Arc<KeyState>> {
        match &self.role {
            Role::Serving(serving) | Role::HandingOver(serving, _) => Some(match mode {
                CommitMode::WriteThrough => serving.row.known(),
                CommitMode::WriteBack(_) => &serving.state,
            }),
            Role::Unread | Role::Taking(_) => None,
        }
    }

    /// Whether the next home needs a hand-over to have the entries of this one, and no others.
    pub fn is_to_hand_over(&self) -> bool {
        match &self.role {
            Role::Serving(serving) | Role::HandingOver(serving, _) => {
                !serving.state.entries.is_empty() || serving.lists_ended()
            }
            Role::Taking(_) => true,
            Role::Unread => false,
        }
    }

    /// Whether memory alone knows of an entry or an end. `true` during a take-over, when this is unknown.
    pub fn is_ahead_of_row(&self) -> bool {
        match &self.role {
            Role::Serving(serving) | Role::HandingOver(serving, _) => {
                serving.lists_ended() || self.has_volatile()
            }
            Role::Taking(_) => true,
            Role::Unread => false,
        }
    }

    /// Whether an entry is volatile, so that the next home would end it. `true` during a take-over, when this is unknown.
    pub fn has_volatile(&self) -> bool {
        match &self.role {
            Role::Serving(serving) | Role::HandingOver(serving, _) => {
                let mut entries = serving.state.entries.iter();
                entries.any(|entry| !serving.row.is_durable(entry.seq))
            }
            Role::Taking(_) => true,
            Role::Unread => false,
        }
    }

    /// Whether an entry survives a crash of this replica, if this is the home.
    pub fn is_durable(&self, seq: Seq) -> bool {
        match &self.role {
            Role::Serving(serving) | Role::HandingOver(serving, _) => serving.row.is_durable(seq),
            Role::Unread | Role::Taking(_) => false,
        }
    }

    /// Whether the holder is inherited from another home, without a call here yet.
    pub fn has_inherited_holder(&self) -> bool {
        match &self.role {
            Role::Serving(serving) | Role::HandingOver(serving, _) => {
                let holder = serving.state.holder().map(|holder| holder.seq);
                holder.is_some() && holder == serving.inherited
            }
            Role::Unread | Role::Taking(_) => false,
        }
    }

    /// The TTL of an entry outside sessions, and the rest of it, if this replica is the home.
    pub fn lease_left(&self, seq: Seq, now: Observed) -> Option<(Duration, Duration)> {
        match &self.role {
            Role::Serving(serving) | Role::HandingOver(serving, _) => {
                let lease = serving.leases.get(seq)?;
                Some((lease.ttl(), lease.left(now)))
            }
            Role::Unread | Role::Taking(_) => None,
        }
    }

    /// The store's answer to a load.
    fn loaded(&mut self, cx: &Context<'_>, loaded: Result<Loaded, Reason>, out: &mut Vec<Effect>) {
        if self.turn != Turn::Reading {
            return;
        }
        self.turn = Turn::Free;
        match loaded {
            Ok(loaded) => {
                self.tries = 0;
                match &self.role {
                    Role::Unread | Role::Taking(_) => self.evaluate(cx, loaded, out),
                    Role::Serving(_) | Role::HandingOver(..) => self.reread(&loaded.state, out),
                }
            }
            Err(why) => {
                self.fail_callers(cx, &why, out);
                // A home reads only to resolve doubt.
                let in_doubt = !matches!(self.role, Role::Unread);
                self.pause(in_doubt, out);
            }
        }
    }

    fn resume(&mut self, of: PauseOf, out: &mut Vec<Effect>) {
        match (of, &self.turn) {
            (PauseOf::Sync(grant), _) => self.resume_sync(grant, out),
            (PauseOf::Row, Turn::Paused { in_doubt }) => {
                self.turn = match in_doubt {
                    true => Turn::InDoubt,
                    false => Turn::Free,
                };
            }
            (PauseOf::Row, _) => {}
        }
    }

    /// Pauses operations on the row, longer after each failure of the store. None may be in flight.
    fn pause(&mut self, in_doubt: bool, out: &mut Vec<Effect>) {
        let tries = self.tries;
        self.tries = tries.saturating_add(1);
        self.turn = Turn::Paused { in_doubt };
        let of = PauseOf::Row;
        out.push(Effect::Pause { of, tries });
    }

    /// The state of the home, also during a hand-over.
    fn serving_mut(&mut self) -> Option<&mut Serving> {
        match &mut self.role {
            Role::Serving(serving) | Role::HandingOver(serving, _) => Some(serving),
            Role::Unread | Role::Taking(_) => None,
        }
    }

    fn holder_mut(&mut self) -> Option<&mut Holder> {
        self.serving_mut()?.holder.as_mut()
    }

    fn io(&mut self) -> IoId {
        let io = IoId(self.next_io);
        self.next_io = self.next_io.wrapping_add(1);
        io
    }

    /// Begins all that can begin now.
    fn advance(&mut self, cx: &Context<'_>, out: &mut Vec<Effect>) {
        loop {
            self.grant_first(cx, out);
            if self.answer_decided(cx, out) {
                continue;
            }
            self.advance_holder(cx, out);
            if let Some(serving) = self.serving_mut() {
                serving.notify_positions(out);
            }
            let goes_on = match (&self.turn, &self.role) {
                (Turn::Reading | Turn::Swapping | Turn::Paused { .. }, _) => false,
                (Turn::InDoubt, _) => {
                    self.turn = Turn::Reading;
                    out.push(Effect::Load { settle: true });
                    false
                }
                (Turn::Free, Role::Unread) => {
                    if !self.backlog.is_empty() {
                        self.turn = Turn::Reading;
                        out.push(Effect::Load { settle: false });
                    }
                    false
                }
                (Turn::Free, Role::Taking(_)) => self.commit_take_over(cx, out),
                (Turn::Free, Role::Serving(_)) => {
                    self.commit(cx, out);
                    false
                }
                (Turn::Free, Role::HandingOver(..)) => self.commit_hand_over(cx, out),
            };
            if !goes_on {
                return;
            }
        }
    }
}
