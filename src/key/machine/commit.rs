//! Commits of decisions, one at a time. Each writes a part of the home's state to the row. After an unknown outcome the row is
//! read. If it still has the version before, the same commit is sent again, until a later version is known. A commit never
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

/// Entries that one commit may add and delete.
pub(super) const CHANGES_MAX: usize = 256;
/// Seqs that one commit may add to those known to the row.
pub(super) const SEQS_MAX: u64 = 2_048;

impl Machine {
    /// Sends the next version of the row, if one is due.
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

    /// Sends the prepared version of the row, the first time or again.
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

    /// The outcome of a compare-and-swap.
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
                // The store contradicts itself: pause before asking it again.
                SwapOutcome::Conflict(state) if *state == **serving.row.known() => {
                    serving.row.doubt();
                    let why = "the store refused a change although the row is unchanged".into();
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

    /// The sent change is in the row.
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

    /// The row, read while this replica takes itself for the home. Expected: the last commit, or the one in flight. Another home:
    /// this one is deposed. Anything else, as after the restore of a table: its memory is discarded, and the next call takes the
    /// key over from this replica itself.
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
        // The sent commit may still apply to an unchanged row: nothing is settled, and it is sent again.
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

    /// Another replica has the key: this one answers nothing from its memory any more (H1).
    pub(super) fn depose(&mut self, state: &KeyState, out: &mut Vec<Effect>) {
        out.push(Effect::Report(Report::Deposed { by: state.home }));
        let why = match state.home {
            Some(home) => KeyError::Elsewhere(home),
            None => KeyError::ChangingHome,
        };
        self.leave(&why, out);
    }

    /// This replica is the home no longer: every caller learns where to ask.
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

    /// The store failed: fails the calls that wait for the row. Decisions stay and are committed later, but entries unknown to
    /// any client go.
    pub(super) fn fail_callers(&mut self, cx: &Context<'_>, why: &Reason, out: &mut Vec<Effect>) {
        let failed = || KeyError::StoreUnavailable(Arc::clone(why));
        for queued in std::mem::take(&mut self.backlog) {
            fail(queued.id, failed(), out);
        }
        self.fail_created(&failed(), out);
        let Some(serving) = self.serving_mut() else {
            return;
        };
        // The last one first: so the seqs of removed entries are given out again.
        for decided in std::mem::take(&mut serving.decided).into_iter().rev() {
            if let Some(call) = decided.call {
                fail(call, decided.failed(failed()), out);
            }
            if let CommitDependency::Seq(seq) = decided.depends_on {
                serving.abandon(cx, seq, out);
            }
        }
        // A status call without `wait` does not wait for the grant either.
        if serving.is_holder_waiting() {
            let holder = serving.holder.as_ref().map(|holder| holder.seq);
            let waits_for_row = |ask: &mut Ask| !ask.waits && Some(ask.seq) == holder;
            let asks: Vec<Ask> = serving.asks.extract_if(.., waits_for_row).collect();
            for ask in asks {
                fail(ask.call, failed(), out);
            }
        }
        // These clients called, and only the store kept them from HELD.
        if let Some(seq) = serving.holder.as_ref().map(|h| h.seq)
            && serving.asks.iter().any(|ask| ask.seq == seq)
        {
            serving.wait_for_claim_anew(cx, seq);
        }
    }
}

impl Serving {
    /// The survivors of a commit, if one is due now.
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

    /// Whether the holder is durable, or shall be: it has used its lock for `keep_after`.
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

    /// Whether half of the reserve is used.
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

    /// Whether the next grant waits for a commit, and holders change so fast that it need not be durable.
    fn is_next_refused(&self, volatile: usize) -> bool {
        let Some(holder) = &self.holder else {
            return false;
        };
        let next = self.state.entries.get(1).map(|next| next.seq);
        let is_refused = next.is_some_and(|next| !self.row.allows_grant(next));
        is_refused && volatile > 1 && !self.row.may_keep(holder.seq)
    }

    /// Whether a caller waits for an end that the row lacks.
    fn is_end_to_record(&self) -> bool {
        let is_recorded = |seq| self.row.is_recorded(seq);
        let mut decided = self.decided.iter();
        decided
            .any(|d| matches!(d.depends_on, CommitDependency::Recorded(seq) if !is_recorded(seq)))
    }

    /// Prepares the next version of the row. None may be in doubt.
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
        // The rest goes into the next commit.
        self.changed = row.next < self.state.next || row.entries.len() > self.state.entries.len();
        let is_write_back = cx.commit.mode != CommitMode::WriteThrough;
        let leaves = row.entries.len() > self.state.entries.len();
        let to_tidy = leaves || (self.changed && survivors == Survivors::Holder);
        self.tidy_at = (is_write_back && to_tidy).then_some(cx.now);
        self.row.send(Arc::new(row));
    }

    /// Removes an entry that no call waits for and no client knows, unless a commit may have it.
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
            // This seq was never given out.
            state.next = seq;
            state.reserve_nothing();
        }
        self.changed = self.is_worth_a_commit();
    }

    /// Whether the row, after the commit in flight, lacks something that a client may learn of. The fence or seq of a removed
    /// entry may follow later.
    fn is_worth_a_commit(&self) -> bool {
        let sent = self.row.sent().map(|sent| &sent.state);
        let (state, row) = (&self.state, sent.unwrap_or(self.row.known()));
        let same = state.entries == row.entries && state.ended == row.ended;
        let same = same && state.unsynced == row.unsynced && state.grant == row.grant;
        !same || self.is_holder_waiting()
    }

    /// Fails every waiting call with `why`; a write in flight may have been done.
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
