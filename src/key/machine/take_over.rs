//! The ways to become the home of a key: it has none (H6), or its home is gone (H3).

use std::sync::Arc;

use super::Machine;
use super::commit::CHANGES_MAX;
use super::context::Context;
use super::decided::{CommitDependency, Decided, Reply};
use super::event::{
    Call, CallId, Effect, EntryRef, KeyError, Loaded, Reason, Report, SwapOutcome, fail,
};
use super::refusal::refused;
use super::role::{Created, Queued, Role, SentTakeOver, Taking, Turn};
use super::serving::Serving;
use crate::key::{Command, CommitMode, Home, KeyState, NextRow, Outcome, Survivors, apply};

impl Machine {
    /// Decides by a row, while this replica is not the home: serve the key, take it over, or turn callers away.
    pub(super) fn evaluate(&mut self, cx: &Context<'_>, loaded: Loaded, out: &mut Vec<Effect>) {
        let Loaded { state: found, past } = loaded;
        if let Role::Taking(Taking {
            found: before,
            sent: Some(sent),
            ..
        }) = &mut self.role
        {
            if found == sent.row {
                return self.taken(cx, out);
            }
            // The sent take-over may yet apply to this row, but not to another version. It is sent until it is settled; otherwise
            // this replica might serve the key in a term that its own take-over ends.
            if sent.in_doubt && before.version == found.version {
                return;
            }
            self.ask_anew();
        }
        if let Some(home) = found.home
            && home.replica == cx.replica
            && self.was_given(home)
            && !found.may_be_behind()
        {
            let kept = found.kept;
            let state = KeyState::clone(&found);
            let from = match &self.role {
                Role::Taking(taking) => taking.found.home,
                Role::Unread | Role::Serving(_) | Role::HandingOver(..) => None,
            };
            return self.serve(cx, (from, home), (state, found), kept, out);
        }
        if !self.may_take_over(cx, &found) {
            self.role = Role::Unread;
            return self.turn_away(&found, out);
        }
        let sent = None;
        self.role = Role::Taking(Taking { found, past, sent });
    }

    /// The sent take-over cannot apply any more: its creates are queued anew.
    fn ask_anew(&mut self) {
        let Role::Taking(taking) = &mut self.role else {
            return;
        };
        let created = taking.sent.take().map(|sent| sent.created);
        for created in created.into_iter().flatten().rev() {
            if let Some(id) = created.call {
                let call = created.asked;
                self.backlog.push_front(Queued { id, call });
            }
        }
    }

    /// The caller of a create in a take-over left.
    pub(super) fn created_for_nobody(&mut self, call: CallId) {
        if let Role::Taking(Taking {
            sent: Some(sent), ..
        }) = &mut self.role
        {
            for created in &mut sent.created {
                created.call.take_if(|of| *of == call);
            }
        }
    }

    /// The store failed: fails the creates in a take-over, which may yet apply.
    pub(super) fn fail_created(&mut self, why: &KeyError, out: &mut Vec<Effect>) {
        if let Role::Taking(Taking {
            sent: Some(sent), ..
        }) = &mut self.role
        {
            for call in sent.created.iter_mut().filter_map(|c| c.call.take()) {
                fail(call, why.clone(), out);
            }
        }
    }

    /// Whether another replica said that it handed the key over in this term, and this replica has begun no take-over from
    /// itself, which may yet apply.
    fn was_given(&self, home: Home) -> bool {
        if let Role::Taking(taking) = &self.role
            && taking.found.home == Some(home)
        {
            return false;
        }
        let given = |call: &Call| matches!(call, Call::Adopt { term } if *term == home.term);
        self.backlog.iter().any(|queued| given(&queued.call))
    }

    /// Whether a call makes this replica the next home of this row. The caller of `TakeOver` has found the named home down or
    /// stopped (`declare_down` in membership/declare.rs). A key without a home goes to the replica that is called: the ranking is
    /// advice (H8).
    fn may_take_over(&self, cx: &Context<'_>, state: &KeyState) -> bool {
        let calls = || self.backlog.iter().map(|queued| &queued.call);
        match state.home {
            // A key without a Create needs no home.
            None => calls().any(|call| matches!(call, Call::Create { .. })),
            // This replica's own key, after its memory was lost (H11).
            Some(home) if home.replica == cx.replica || cx.is_alone => true,
            Some(home) => {
                calls().any(|c| matches!(c, Call::TakeOver { from } if *from == home.replica))
            }
        }
    }

    /// Tells every queued call where to ask (H1).
    fn turn_away(&mut self, state: &KeyState, out: &mut Vec<Effect>) {
        let why = match state.home {
            Some(home) => KeyError::Elsewhere(home),
            None => KeyError::NeverIssued,
        };
        self.fail_all(&why, out);
    }

    /// Fails every queued call: this replica is not the home.
    pub(super) fn fail_all(&mut self, why: &KeyError, out: &mut Vec<Effect>) {
        for queued in std::mem::take(&mut self.backlog) {
            fail(queued.id, why.clone(), out);
        }
    }

    /// Commits the take-over, with the entries of waiting creates; once sent, unchanged until settled (I6). True if there is
    /// nothing to commit.
    pub(super) fn commit_take_over(&mut self, cx: &Context<'_>, out: &mut Vec<Effect>) -> bool {
        let Role::Taking(taking) = &mut self.role else {
            return false;
        };
        if taking.sent.is_none() {
            let mut state = KeyState::clone(&taking.found);
            let command = Command::TakeOver {
                from: state.home,
                to: cx.replica,
                past: taking.past,
            };
            if let Outcome::Refused(refusal) = apply(&mut state, &command, cx.decider()).outcome {
                self.fail_all(&refused(&refusal), out);
                self.role = Role::Unread;
                return true;
            }
            let created = create_all(cx, &mut self.backlog, &mut state, out);
            let kept = taking.found.kept;
            let next = NextRow {
                row: &taking.found,
                mode: cx.commit.mode,
                survivors: match cx.commit.mode {
                    CommitMode::WriteThrough => Survivors::All,
                    CommitMode::WriteBack(_) if kept.is_some() => Survivors::Holder,
                    CommitMode::WriteBack(_) => Survivors::Behind(1),
                },
                lists_volatile: false,
                changes_max: usize::MAX,
                seqs_max: u64::MAX,
                now_us: cx.now_us,
            };
            let row = Arc::new(next.of(&state));
            state.version = row.version;
            taking.sent = Some(SentTakeOver {
                state: Box::new(state),
                row,
                created,
                in_doubt: false,
            });
        }
        if let Some(sent) = &taking.sent {
            out.push(Effect::Swap {
                old: Arc::clone(&taking.found),
                new: Arc::clone(&sent.row),
            });
            self.turn = Turn::Swapping;
        }
        false
    }

    /// The outcome of the commit of a take-over.
    pub(super) fn take_over_swapped(
        &mut self,
        cx: &Context<'_>,
        outcome: SwapOutcome,
        out: &mut Vec<Effect>,
    ) {
        match outcome {
            SwapOutcome::Applied => self.taken(cx, out),
            // Without a row the timestamp of the value is needed, too (I2).
            SwapOutcome::Conflict(state) if state.version == 0 => {
                self.ask_anew();
                self.turn = Turn::InDoubt;
            }
            SwapOutcome::Conflict(state) => {
                self.evaluate(cx, Loaded { state, past: None }, out);
            }
            SwapOutcome::Unknown(why) => {
                if let Role::Taking(Taking {
                    sent: Some(sent), ..
                }) = &mut self.role
                {
                    sent.in_doubt = true;
                }
                out.push(Effect::Report(Report::InDoubt { why }));
                self.pause(true, out);
            }
            SwapOutcome::NotStarted(why) => self.take_over_not_started(cx, &why, out),
        }
    }

    fn take_over_not_started(&mut self, cx: &Context<'_>, why: &Reason, out: &mut Vec<Effect>) {
        let Role::Taking(taking) = &self.role else {
            return;
        };
        let is_in_doubt = taking.sent.as_ref().is_some_and(|sent| sent.in_doubt);
        if !is_in_doubt {
            self.ask_anew();
        }
        self.fail_callers(cx, why, out);
        if !is_in_doubt {
            self.role = Role::Unread;
        }
        self.pause(is_in_doubt, out);
    }

    /// The sent take-over took effect.
    fn taken(&mut self, cx: &Context<'_>, out: &mut Vec<Effect>) {
        let Role::Taking(taking) = std::mem::replace(&mut self.role, Role::Unread) else {
            return;
        };
        let (Some(sent), found) = (taking.sent, taking.found) else {
            return;
        };
        let Some(home) = sent.row.home else {
            return;
        };
        self.tries = 0;
        let states = (*sent.state, sent.row);
        self.serve(cx, (found.home, home), states, found.kept, out);
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let created = sent.created.into_iter();
        let waiting: Vec<Decided> = created.filter_map(Created::awaited).collect();
        // Calls that came later are in the list already.
        serving.decided.splice(0..0, waiting);
    }

    /// Makes this replica the home.
    fn serve(
        &mut self,
        cx: &Context<'_>,
        (from, home): (Option<Home>, Home),
        states: (KeyState, Arc<KeyState>),
        kept: Option<crate::lock::Seq>,
        out: &mut Vec<Effect>,
    ) {
        out.push(Effect::Report(Report::TookOver { from }));
        let serving = Serving::begin(cx, home, states, kept, out);
        self.role = Role::Serving(Box::new(serving));
        for queued in std::mem::take(&mut self.backlog) {
            self.call(cx, queued.id, queued.call, out);
        }
    }
}

impl Created {
    fn awaited(self) -> Option<Decided> {
        let read_value = matches!(
            self.asked,
            Call::Create {
                read_value: true,
                ..
            }
        );
        let (entry, existed) = (self.entry, self.existed);
        Some(Decided {
            call: Some(self.call?),
            reply: Reply::Created {
                entry,
                read_value,
                existed,
            },
            depends_on: CommitDependency::Seq(entry.seq),
        })
    }
}

/// Creates the requested entries. All other calls wait.
fn create_all(
    cx: &Context<'_>,
    backlog: &mut std::collections::VecDeque<Queued>,
    state: &mut KeyState,
    out: &mut Vec<Effect>,
) -> Vec<Created> {
    let mut created = Vec::new();
    for Queued { id, call: asked } in std::mem::take(backlog) {
        let new = match &asked {
            Call::Create { entry, .. } if created.len() < CHANGES_MAX => entry,
            _ => {
                backlog.push_back(Queued { id, call: asked });
                continue;
            }
        };
        let tag = new.tag;
        let command = Command::Create(crate::key::NewEntry::clone(new));
        match apply(state, &command, cx.decider()).outcome {
            Outcome::Created { seq, existed } => created.push(Created {
                call: Some(id),
                entry: EntryRef {
                    seq,
                    tag,
                    grant: None,
                },
                existed,
                asked,
            }),
            Outcome::Gone(end) => fail(id, KeyError::Ended(end), out),
            Outcome::Refused(refusal) => fail(id, refused(&refusal), out),
            _ => fail(id, KeyError::ChangingHome, out),
        }
    }
    created
}
