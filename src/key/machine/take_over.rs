//! How this replica becomes the home of a key: of one that has none (H6), or whose home is gone (H3).

use std::sync::Arc;

use super::event::{Call, Context, Effect, KeyError, Loaded, Report, SwapOutcome, fail};
use super::intent::{Intent, Swapping, Wish};
use super::serving::Serving;
use super::{Machine, Role, Turn};
use crate::key::{Command, Home, KeyState, Outcome, Refusal, decide};

/// A take-over that is being committed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Taking {
    /// The row as it was read.
    state: Arc<KeyState>,
    /// The timestamp of the value, where the key has no row.
    past: Option<u64>,
    /// It was sent on this version, and may yet apply: that is resolved before anybody is answered (I6).
    in_doubt: bool,
}

impl Machine {
    /// What a row means to a replica that is not the home, as far as it knows.
    pub(super) fn evaluate(&mut self, cx: &Context<'_>, loaded: Loaded, out: &mut Vec<Effect>) {
        let Loaded { state, past } = loaded;
        if let Some(home) = state.home
            && home.replica == cx.replica
            && (self.has_taken(home) || self.was_given(home))
        {
            return self.serve(cx, home, state, Vec::new(), out);
        }
        let in_doubt = self.is_in_doubt_on(&state);
        if !in_doubt && !self.may_take_over(cx, &state) {
            self.role = Role::Unread;
            return self.turn_away(&state, out);
        }
        self.role = Role::Taking(Taking {
            state,
            past,
            in_doubt,
        });
    }

    /// Whether this term is that of the take-over that was sent and not answered. Nobody was served in it before.
    fn has_taken(&self, home: Home) -> bool {
        match &self.role {
            Role::Taking(taking) => taking.state.term().saturating_add(1) == home.term,
            Role::Unread | Role::Serving(_) | Role::HandingOver(..) => false,
        }
    }

    /// Whether a take-over that was sent may yet apply to this row, which it cannot on another version. Then it is sent
    /// until it is settled, or this replica might serve the key in a term that its own take-over ends.
    fn is_in_doubt_on(&self, state: &KeyState) -> bool {
        match &self.role {
            Role::Taking(taking) => taking.in_doubt && taking.state.version == state.version,
            Role::Unread | Role::Serving(_) | Role::HandingOver(..) => false,
        }
    }

    /// Whether it was told that the key was handed to it in this term, and has not begun to take it from itself: that
    /// may apply yet.
    fn was_given(&self, home: Home) -> bool {
        if let Role::Taking(taking) = &self.role
            && taking.state.home == Some(home)
        {
            return false;
        }
        let given = |call: &Call| matches!(call, Call::Adopt { term } if *term == home.term);
        self.backlog.iter().any(|queued| given(&queued.call))
    }

    /// Whether the home of this row, if it has one, is gone, and somebody wants this replica to be the next. Where there is
    /// none, whoever is asked takes the key; that calls come where names rank is advice (H8).
    fn may_take_over(&self, cx: &Context<'_>, state: &KeyState) -> bool {
        let creates = |intent: &Intent| matches!(intent.what, Wish::Create { .. });
        let calls = || self.backlog.iter().map(|queued| &queued.call);
        match state.home {
            // What was never created needs no home.
            None => {
                self.pending.iter().any(creates)
                    || calls().any(|c| matches!(c, Call::Create { .. }))
            }
            // This replica's own, which lost what it knew of it (H11).
            Some(home) if home.replica == cx.replica || cx.is_alone => true,
            Some(home) => {
                calls().any(|c| matches!(c, Call::TakeOver { from } if *from == home.replica))
            }
        }
    }

    /// Answers all that ask here with where to ask (H1).
    fn turn_away(&mut self, state: &KeyState, out: &mut Vec<Effect>) {
        let why = match state.home {
            Some(home) => KeyError::Elsewhere(home),
            None => KeyError::NeverIssued,
        };
        self.fail_all(&why, out);
    }

    /// Fails all that asked, whatever they asked for, and forgets what was to be done: this replica is not the home.
    pub(super) fn fail_all(&mut self, why: &KeyError, out: &mut Vec<Effect>) {
        for queued in std::mem::take(&mut self.backlog) {
            fail(queued.id, why.clone(), out);
        }
        for intent in std::mem::take(&mut self.pending) {
            if let Some(call) = intent.call {
                fail(call, intent.failed(why.clone()), out);
            }
        }
    }

    /// Commits the take-over, with the entries that are to be created.
    pub(super) fn commit_take_over(&mut self, cx: &Context<'_>, out: &mut Vec<Effect>) -> bool {
        let Role::Taking(taking) = &self.role else {
            return false;
        };
        let state = Arc::clone(&taking.state);
        let in_doubt = taking.in_doubt;
        let mut commands = vec![Command::TakeOver {
            from: state.home,
            to: cx.replica,
            past: taking.past,
        }];
        self.wish_created(cx);
        let batch = self.next_batch(&mut commands);
        let decision = decide(&state, &commands, cx.decider());
        let mut outcomes = decision.outcomes.into_iter();
        if let Some(Outcome::Refused(refusal)) = outcomes.next() {
            let why = refused(&refusal);
            let rest = std::mem::replace(&mut self.pending, batch.into());
            self.pending.extend(rest);
            self.fail_all(&why, out);
            match in_doubt {
                true => self.pause(true, out),
                false => self.role = Role::Unread,
            }
            return !in_doubt;
        }
        let batch = batch.into_iter().zip(outcomes).collect();
        self.send(state, Arc::new(decision.state), batch, out);
        false
    }

    /// Entries that were asked for go into the commit of the take-over.
    fn wish_created(&mut self, cx: &Context<'_>) {
        for queued in std::mem::take(&mut self.backlog) {
            let has_room = self.pending.len() < cx.limits.calls_max;
            match queued.call {
                Call::Create { entry, read_value } if has_room => self.pending.push_back(
                    Intent::new(Some(queued.id), Wish::Create { entry, read_value }),
                ),
                _ => self.backlog.push_back(queued),
            }
        }
    }

    /// What became of the commit of a take-over.
    pub(super) fn take_over_swapped(
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
                if let Some(home) = new.home {
                    self.serve(cx, home, new, batch, out);
                }
            }
            // Without a row the timestamp of the value is wanted, too (I2).
            SwapOutcome::Conflict(state) if state.version == 0 => {
                self.put_back(batch, false);
                self.turn = Turn::InDoubt;
            }
            SwapOutcome::Conflict(state) => {
                self.put_back(batch, false);
                self.evaluate(cx, Loaded { state, past: None }, out);
            }
            SwapOutcome::Unknown(why) => {
                self.put_back(batch, true);
                if let Role::Taking(taking) = &mut self.role {
                    taking.in_doubt = true;
                }
                out.push(Effect::Report(Report::InDoubt { why }));
                self.pause(true, out);
            }
            SwapOutcome::NotStarted(why) => {
                self.put_back(batch, false);
                self.fail_callers(cx, &why, out);
                self.give_up_taking();
                self.pause(true, out);
            }
        }
    }

    /// Nobody waits for the take-over, and it was never sent.
    fn give_up_taking(&mut self) {
        if let Role::Taking(taking) = &self.role
            && !taking.in_doubt
            && self.backlog.is_empty()
            && self.pending.is_empty()
        {
            self.role = Role::Unread;
        }
    }

    /// This replica is the home from here on. `batch` took effect with the take-over.
    fn serve(
        &mut self,
        cx: &Context<'_>,
        home: Home,
        state: Arc<KeyState>,
        batch: Vec<(Intent, Outcome)>,
        out: &mut Vec<Effect>,
    ) {
        let (from, kept) = match &self.role {
            Role::Taking(taking) if self.has_taken(home) => (taking.state.home, taking.state.kept),
            // It was given the key while it was about to take it from somebody before: the row says who holds it.
            Role::Taking(taking) => (taking.state.home, state.kept),
            Role::Unread | Role::Serving(_) | Role::HandingOver(..) => (None, state.kept),
        };
        out.push(Effect::Report(Report::TookOver { from }));
        let serving = Serving::begin(cx, home, state, kept, out);
        self.role = Role::Serving(Box::new(serving));
        self.deliver(cx, batch, out);
        for queued in std::mem::take(&mut self.backlog) {
            self.call(cx, queued.id, queued.call, out);
        }
    }
}

/// What a caller learns of a refusal.
pub(super) fn refused(refusal: &Refusal) -> KeyError {
    match refusal {
        Refusal::NotHome(Some(home)) => KeyError::Elsewhere(*home),
        Refusal::NotHome(None) | Refusal::OtherGrant => KeyError::ChangingHome,
        Refusal::QueueFull { entries_max } => KeyError::Exhausted {
            what: "entries_per_key_max",
            limit: *entries_max,
        },
        Refusal::SeqUsedUp => KeyError::SeqUsedUp,
        Refusal::Fence(error) => KeyError::Fence(*error),
        Refusal::ClockIsWrong => KeyError::ClockIsWrong,
        Refusal::RequestMismatch { field } => KeyError::RequestMismatch { field },
        Refusal::NeverIssued => KeyError::NeverIssued,
    }
}
