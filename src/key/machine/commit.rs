//! Commits of decisions: one at a time, each a copy of the home's state as far as the row shall have it. After an unknown outcome the
//! row is read. If it still has the version before, the same commit is sent again, until a later version is known. It never
//! changes a decision (I6, H5).

use std::sync::Arc;
use std::time::Duration;

use super::Machine;
use super::context::Context;
use super::decided::CommitDependency;
use super::event::{CallError, Effect, KeyError, Reason, Report, SwapOutcome, fail};
use super::holder::Phase;
use super::role::{Role, Turn};
use super::serving::{Ask, Io, Serving};
use crate::key::{Command, CommitMode, KeyState, NextRow, Reserve, Survivors, WritesOfHolder};
use crate::lock::{EndedAs, Liveness, Seq};

/// How many entries one commit may add and delete.
pub(super) const CHANGES_MAX: usize = 256;
/// How many seqs beyond those that the row knows one commit may tell it of.
pub(super) const SEQS_MAX: u64 = 2_048;

impl Machine {
    /// Sends what the row is to have next.
    pub(super) fn commit(&mut self, cx: &Context<'_>, out: &mut Vec<Effect>) {
        let (Role::Serving(serving) | Role::HandingOver(serving, _)) = &mut self.role else {
            return;
        };
        if serving.row.sent().is_none() {
            let Some(survivors) = serving.wanted(cx) else {
                return;
            };
            serving.make_commit(cx, survivors);
        }
        self.send(out);
    }

    /// Sends what is to be the next version, the first time or again.
    pub(super) fn send(&mut self, out: &mut Vec<Effect>) {
        let (Role::Serving(serving) | Role::HandingOver(serving, _)) = &self.role else {
            return;
        };
        let Some(sent) = serving.row.sent() else {
            return;
        };
        out.push(Effect::Swap {
            old: Arc::clone(serving.row.known()),
            new: Arc::clone(&sent.state),
        });
        self.turn = Turn::Swapping;
    }

    /// What became of a compare-and-swap.
    pub(super) fn swapped(
        &mut self,
        cx: &Context<'_>,
        outcome: SwapOutcome,
        out: &mut Vec<Effect>,
    ) {
        if self.turn != Turn::Swapping {
            return;
        }
        self.turn = Turn::Free;
        match &mut self.role {
            Role::Unread => {}
            Role::Taking(_) => self.take_over_swapped(cx, outcome, out),
            Role::Serving(serving) | Role::HandingOver(serving, _) => match outcome {
                SwapOutcome::Applied => {
                    self.tries = 0;
                    self.sent_applied(out);
                }
                // A store that contradicts itself is not asked again at once.
                SwapOutcome::Conflict(state) if *state == **serving.row.known() => {
                    serving.row.doubt();
                    let why = "the store refused a change of a row that is as it was".into();
                    out.push(Effect::Report(Report::InDoubt { why }));
                    self.pause(true, out);
                }
                SwapOutcome::Conflict(state) => self.reread(&state, out),
                SwapOutcome::Unknown(why) => {
                    serving.row.doubt();
                    out.push(Effect::Report(Report::InDoubt { why }));
                    self.pause(true, out);
                }
                SwapOutcome::NotStarted(why) => {
                    let was_taken_back = serving.row.take_back();
                    serving.changed |= was_taken_back;
                    if was_taken_back {
                        serving.tidy_by(cx, Duration::ZERO);
                    }
                    if was_taken_back {
                        self.hand_over_not_sent(out);
                    }
                    self.fail_callers(cx, &why, out);
                    self.pause(!was_taken_back, out);
                }
            },
        }
    }

    /// The change that was sent is the row.
    fn sent_applied(&mut self, out: &mut Vec<Effect>) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        serving.row.settle();
        let known = Arc::clone(serving.row.known());
        if !known.is_home(serving.home) {
            return self.handed_over(&known, out);
        }
        Arc::make_mut(&mut serving.state).version = known.version;
    }

    /// The row, as it was read while this replica takes itself for the home. It never stands above what was decided: either
    /// it is what was committed last, or what was sent; or another home has the key, then this one is deposed; or it is
    /// what nobody can have written, as a table that was restored shows, then all that was known is dropped, and the next
    /// call takes the key over from this replica itself.
    pub(super) fn reread(&mut self, state: &KeyState, out: &mut Vec<Effect>) {
        if self.was_handed_over(state) {
            return self.handed_over(state, out);
        }
        let Some(serving) = self.serving_mut() else {
            return;
        };
        if serving.row.is_sent(state) {
            return self.sent_applied(out);
        }
        // What was sent may still apply while the row is the same: that settles nothing, and it is sent again.
        if *state == **serving.row.known() {
            return;
        }
        if !state.is_home(serving.home) {
            return self.depose(state, out);
        }
        let (known, found) = (serving.row.known().version, state.version);
        out.push(Effect::Report(Report::Contradicted { known, found }));
        self.leave(&KeyError::ChangingHome, out);
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

    /// Tells those who wait for the row that the store did not do it. What was decided stays, and is committed later; but an
    /// entry that nobody learned of goes.
    pub(super) fn fail_callers(&mut self, cx: &Context<'_>, why: &Reason, out: &mut Vec<Effect>) {
        let failed = || KeyError::StoreUnavailable(Arc::clone(why));
        for queued in std::mem::take(&mut self.backlog) {
            fail(queued.id, failed(), out);
        }
        self.fail_created(&failed(), out);
        let Some(serving) = self.serving_mut() else {
            return;
        };
        // The last one first: so the seqs of those that go are given out again.
        for decided in std::mem::take(&mut serving.decided).into_iter().rev() {
            if let Some(call) = decided.call {
                fail(call, decided.failed(failed()), out);
            }
            if let CommitDependency::Seq(seq) = decided.depends_on {
                serving.abandon(cx, seq, out);
            }
        }
        // Nor does anybody wait for a grant who asked only whether there is one.
        if serving.is_holder_waiting() {
            let holder = serving.holder.as_ref().map(|holder| holder.seq);
            let waits_for_row = |ask: &mut Ask| !ask.waits && Some(ask.seq) == holder;
            let asks: Vec<Ask> = serving.asks.extract_if(.., waits_for_row).collect();
            for ask in asks {
                fail(ask.call, failed(), out);
            }
        }
        // Clients were there, and could not be answered for want of the store.
        if let Some(seq) = serving.holder.as_ref().map(|h| h.seq)
            && serving.asks.iter().any(|ask| ask.seq == seq)
        {
            serving.wait_for_claim_anew(cx, seq);
        }
    }
}

impl Serving {
    /// Whether the row is to be committed now, and who is to survive by it.
    fn wanted(&self, cx: &Context<'_>) -> Option<Survivors> {
        let reserve = match cx.commit.mode {
            CommitMode::WriteThrough => return self.changed.then_some(Survivors::All),
            CommitMode::WriteBack(reserve) => reserve,
        };
        let keep = self.is_to_keep(cx);
        let volatile = self.pace.volatile(cx.now, cx.commit.keep_after);
        let is_wanted = !self.decided.is_empty()
            || !self.detaching.is_empty()
            || self.is_holder_waiting()
            || (keep && !self.is_kept())
            || self.is_reserve_used(cx, reserve)
            || self.is_next_refused(volatile)
            || self.tidy_at.is_some_and(|at| at <= cx.now);
        let survivors = match keep {
            true => Survivors::Holder,
            false => Survivors::Behind(volatile),
        };
        is_wanted.then_some(survivors)
    }

    /// Whether the holder is durable, or is to be: it was told that it holds the key, and has held it for a while.
    fn is_to_keep(&self, cx: &Context<'_>) -> bool {
        let kept = self
            .holder
            .as_ref()
            .is_some_and(|h| self.row.may_keep(h.seq));
        kept || self.keep_at(cx.commit).is_some_and(|at| at <= cx.now)
    }

    /// Whether the holder waits for the row.
    fn is_holder_waiting(&self) -> bool {
        let waits = |phase: &Phase| matches!(phase, Phase::Granting | Phase::Extending(_));
        self.holder.as_ref().is_some_and(|h| waits(&h.phase))
    }

    /// Whether half of what is reserved is used.
    fn is_reserve_used(&self, cx: &Context<'_>, reserve: Reserve) -> bool {
        let reserved = self.row.known().reserved;
        let seqs = reserved.seq_end.0.saturating_sub(self.state.next.0);
        let wanted_seqs = reserve.seqs.min(Seq::LAST.0 + 1 - self.state.next.0);
        let from = self.state.fence.0.saturating_add(self.state.width.into());
        let from = from.max(cx.now_us.unwrap_or(0));
        let fence = reserved.fence_end.saturating_sub(from);
        let wanted = reserve.fence_end(from, cx.now_us) - from;
        let is_used = !self.state.entries.is_empty();
        is_used && (seqs < wanted_seqs / 2 || fence < wanted / 2)
    }

    /// Whether the next one would wait for a commit that may be made now: so many held the key lately that it need not be
    /// durable.
    fn is_next_refused(&self, volatile: usize) -> bool {
        let Some(holder) = &self.holder else {
            return false;
        };
        let next = self.state.entries.get(1).map(|next| next.seq);
        let is_refused = next.is_some_and(|next| !self.row.allows_grant(next));
        is_refused && volatile > 1 && !self.row.may_keep(holder.seq)
    }

    /// Whether an end is waited for that the row does not know of yet.
    fn is_end_to_record(&self) -> bool {
        let is_recorded = |seq| self.row.is_recorded(seq);
        let mut decided = self.decided.iter();
        decided
            .any(|d| matches!(d.depends_on, CommitDependency::Recorded(seq) if !is_recorded(seq)))
    }

    /// Makes the next version of the row. None is in doubt.
    pub(super) fn make_commit(&mut self, cx: &Context<'_>, survivors: Survivors) {
        let next = NextRow {
            row: self.row.known(),
            mode: cx.commit.mode,
            survivors,
            lists_volatile: self.is_end_to_record(),
            changes_max: CHANGES_MAX,
            seqs_max: SEQS_MAX,
            now_us: cx.now_us,
        };
        let row = next.of(&self.state);
        // What did not fit is left for the next one.
        self.changed = row.next < self.state.next || row.entries.len() > self.state.entries.len();
        let is_write_back = cx.commit.mode != CommitMode::WriteThrough;
        let leaves = row.entries.len() > self.state.entries.len();
        let to_tidy = leaves || (self.changed && survivors == Survivors::Holder);
        self.tidy_at = (is_write_back && to_tidy).then_some(cx.now);
        self.row.send(Arc::new(row));
    }

    /// Nobody waits for this entry any longer, nor learned of it. Unless a commit has it already, it goes.
    pub(super) fn abandon(&mut self, cx: &Context<'_>, seq: Seq, out: &mut Vec<Effect>) {
        let is_awaited = self
            .decided
            .iter()
            .any(|d| d.depends_on == CommitDependency::Seq(seq));
        if is_awaited || self.row.may_list(seq) {
            return;
        }
        let Some(entry) = self.state.entry(seq).map(Arc::clone) else {
            return;
        };
        let command = Command::Release {
            seq,
            tag: entry.tag,
            writes: WritesOfHolder::NONE,
        };
        self.apply(cx, &command, out);
        let state = Arc::make_mut(&mut self.state);
        if state.next.0 == seq.0 + 1 {
            // Nobody knows of it: it was never given out.
            state.next = seq;
            state.reserve_nothing();
        }
        self.changed = self.is_worth_a_commit();
    }

    /// Whether the row lacks something that somebody may learn of, also once what was sent applied. A fence or a seq that went
    /// with an entry which nobody learned of may follow later.
    fn is_worth_a_commit(&self) -> bool {
        let sent = self.row.sent().map(|sent| &sent.state);
        let (state, row) = (&self.state, sent.unwrap_or(self.row.known()));
        let same = state.entries == row.entries && state.ended == row.ended;
        let same = same && state.unsynced == row.unsynced && state.grant == row.grant;
        !same || self.is_holder_waiting()
    }

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
                Io::SettleRead { .. }
                | Io::SettleWrite { .. }
                | Io::SyncRead { .. }
                | Io::SyncWrite { .. } => {}
            }
        }
        if let Some(mut holder) = self.holder.take() {
            for critical in holder.queued.drain(..) {
                close(critical.call, false);
            }
        }
        for decided in self.decided.drain(..) {
            if let Some(call) = decided.call {
                fail(call, decided.failed(why.clone()), out);
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
        out.extend(
            self.detaching
                .drain(..)
                .map(|(session, seq)| Effect::Detach { session, seq }),
        );
        for entry in &self.state.entries {
            if let Liveness::Session(session) = entry.liveness {
                out.push(Effect::Detach {
                    session,
                    seq: entry.seq,
                });
            }
        }
    }
}
