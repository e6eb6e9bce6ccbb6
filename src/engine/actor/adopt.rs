//! What a new committed state means here: for the leases this replica keeps, for what it remembers of
//! the holder's fence, and for whoever waits.

use std::sync::Arc;
use std::time::Duration;

use super::super::activity::{Cause, Grant, Minute};
use super::super::api::{EngineError, WatchEvent};
use super::super::leases::NoLease;
use super::super::wall_ms;
use super::holding::HolderState;
use super::intent::{EvictReply, Intent};
use super::{Actor, Run};
use crate::lock::{Diff, Entry, Evidence, Fence, Liveness, Lookup, Seq, State, Tag};

impl Actor {
    /// Takes a committed state as the latest one, which this showed.
    pub(super) fn adopt(&mut self, run: &mut Run, new: State, shown_by: Cause) {
        let new = Arc::new(new);
        let old = self.state.replace(Arc::clone(&new));
        // What this actor sees first may have been served by one that forgot.
        let remembers = old.is_some();
        let old = old.unwrap_or_default();
        let diff = Diff::between(&old, &new);
        for seq in &diff.ended {
            if let Some(entry) = old.entry(*seq) {
                self.forget_lease(run, entry);
            }
            self.notify_ended(&new, *seq);
        }
        for entry in &diff.written {
            if entry.home == run.inner.replica {
                // Said here, since any number of calls may have asked for it. (What an exclusive store had is taken
                // over as a whole.)
                if let Some(before) = old.entry(entry.seq)
                    && before.home != entry.home
                    && run.inner.shared
                {
                    tracing::info!(key = %self.id, seq = %entry.seq, from = %before.home, "took a lockRef over");
                }
                self.keep_lease(run, entry, remembers);
            } else {
                self.forget_lease(run, entry);
                if run.inner.shared {
                    self.lose_entry(entry.seq, &new);
                }
                if run.inner.store.is_exclusive() && !new.is_holder(entry.seq) {
                    // Opening the store proved the old home down: serve its waiters.
                    self.pending.push_back(Intent::TakeOver {
                        seq: entry.seq,
                        from_home: entry.home,
                        from_fence: Fence::NONE,
                        from_epoch: entry.epoch,
                        reply: None,
                    });
                }
            }
        }
        self.note_remote_entries(run, &new);
        self.adopt_holder(run, &old, &new, remembers, shown_by);
        self.note_turns(run, &old, &new, remembers);
        if old.head != new.head {
            // The turn of the new head has come, and so has that of any that was passed over.
            for turn in self.wakers.remove(&new.head).unwrap_or_default() {
                // A wait that was given up meanwhile does not listen any longer.
                let _ = turn.send(());
            }
        }
        self.notify_positions(run, &new);
        self.finish_hand_over();
    }

    /// An entry went to another home: whoever waits here asks there.
    fn lose_entry(&mut self, seq: Seq, state: &State) {
        self.wakers.remove(&seq);
        self.watches.remove(&seq);
        if let Some(entry) = state.entry(seq) {
            let elsewhere = EngineError::Elsewhere {
                home: entry.home,
                version: state.version,
            };
            self.fail_grant_waiters(seq, &elsewhere);
        }
    }

    fn adopt_holder(
        &mut self,
        run: &Run,
        old: &State,
        new: &State,
        remembers: bool,
        shown_by: Cause,
    ) {
        let Some(entry) = new.holder() else {
            self.drop_holding();
            return;
        };
        if let Some(holding) = &mut self.holding
            && holding.seq == entry.seq
            && holding.grant == new.grant
            && entry.home == run.inner.replica
        {
            if holding.fence != new.fence {
                // Extended: a fence of its own, its ops from the start (I3).
                holding.fence = new.fence;
                holding.op = 0;
                if holding.past.is_some_and(|past| past < new.fence.0) {
                    holding.past = None;
                }
            }
            holding.width = new.width;
            return;
        }
        self.drop_holding();
        let mine = entry.home == run.inner.replica;
        // Nobody can have served a grant that is newer than what this actor remembers.
        if mine && remembers && old.grant != new.grant {
            let mut holding = HolderState::new(entry, new.grant, new.width, new.unsynced);
            // One that was the holder before was taken over: it counts as claimed (I5).
            let was_holder = old.head == entry.seq && old.holder().is_some();
            holding.claimed = was_holder;
            // It was given back while it waited: nothing more is taken of it (I11).
            holding.releasing = self.is_giving_back(entry.seq);
            self.holding = Some(holding);
            if !was_holder {
                self.note_grant(run, old, new, entry, shown_by);
            }
        } else {
            self.ask_take_over(run);
        }
    }

    /// Takes over a holder that this actor has no memory of: either this home lacks it, so it may serve
    /// the holder only under a new fence; or the old home is proved down (I10).
    pub(super) fn ask_take_over(&mut self, run: &Run) {
        let Some((state, entry)) = self.state.as_ref().and_then(|s| Some((s, s.holder()?))) else {
            return;
        };
        let seq = entry.seq;
        let may = entry.home == run.inner.replica || !run.inner.shared;
        if may && !self.is_taking_over(entry.seq) && !self.is_promised(run, seq) {
            self.pending.push_back(Intent::TakeOver {
                seq: entry.seq,
                from_home: entry.home,
                from_fence: state.fence,
                from_epoch: entry.epoch,
                reply: None,
            });
        }
    }

    /// Ends the memory of a fence that has ended, and tells those whose calls it still had.
    fn drop_holding(&mut self) {
        let Some(mut gone) = self.holding.take() else {
            return;
        };
        let error = self.why_ended(gone.seq, gone.tag);
        for call in gone.put_off.drain(..) {
            call.fail(error.clone());
        }
    }

    /// What to tell a caller whose entry is no longer what it was.
    pub(super) fn why_ended(&self, seq: Seq, tag: Tag) -> EngineError {
        match self.state.as_ref().map(|s| s.lookup(seq, tag)) {
            Some(Lookup::Ended(ended)) => EngineError::Ended(ended),
            Some(Lookup::Live(_)) => EngineError::GrantSuperseded,
            Some(Lookup::NeverIssued) | None => EngineError::NeverIssued,
        }
    }

    /// Begins, or goes on, to keep valid an entry that is served here.
    fn keep_lease(&mut self, run: &Run, entry: &Entry, remembers: bool) {
        let entry_id = self.entry_id(entry.seq);
        let (kept, evidence) = match entry.liveness {
            Liveness::Own { ttl_ms } => {
                if run.inner.shared && !remembers && !run.inner.leases.has_entry(&entry_id) {
                    // Since when this home keeps it valid is not known any more: a new epoch.
                    return self.take_anew(run, entry.seq);
                }
                let ttl = Duration::from_millis(u64::from(ttl_ms));
                let since = self.remote_entries.sent_at.unwrap_or(Duration::ZERO);
                let kept = run
                    .inner
                    .leases
                    .add_entry(entry_id, entry.tag(), ttl, since);
                if run.inner.shared {
                    run.inner.heartbeat_sooner.notify_one();
                }
                (kept, Evidence::Silent { epoch: entry.epoch })
            }
            Liveness::Session(session) => {
                let mut kept = run.inner.leases.attach(session, entry_id.clone());
                if kept == Err(NoLease::Unknown) && run.inner.shared {
                    run.inner.remote.attach(session, entry_id);
                    kept = Ok(());
                }
                (kept, Evidence::SessionEnded(session))
            }
        };
        if kept.is_err() {
            // Its session was closed while this entry was being made; or it expired, and the actor that
            // was to evict it crashed, or has taken it over since: the evidence needs its present epoch.
            self.pending.push_back(Intent::Evict {
                seq: entry.seq,
                tag: entry.tag(),
                evidence,
                reply: EvictReply::None,
            });
        }
    }

    fn forget_lease(&self, run: &Run, entry: &Entry) {
        let entry_id = self.entry_id(entry.seq);
        match entry.liveness {
            Liveness::Own { .. } => run.inner.leases.remove_entry(&entry_id),
            Liveness::Session(session) => {
                run.inner.leases.detach(session, &entry_id);
                run.inner.remote.detach(session, &entry_id);
                super::super::sessions::forget_if_done(&run.inner, session);
            }
        }
    }

    fn notify_ended(&mut self, state: &State, seq: Seq) {
        // The waits re-read and learn how it ended.
        self.wakers.remove(&seq);
        let ended = state.how_ended(seq);
        if let Some(watch) = self.watches.remove(&seq) {
            watch.send_replace(WatchEvent::Lost(ended.clone()));
        }
        self.fail_grant_waiters(seq, &EngineError::Ended(ended));
    }

    /// Tells the watches the status of their entries. That an entry holds the key they hear once it is granted the
    /// lock.
    fn notify_positions(&mut self, run: &Run, state: &State) {
        let between = self.between_turns(run);
        self.watches.retain(|seq, watch| {
            if watch.receiver_count() == 0 {
                return false;
            }
            if let Some(position) = state.position(*seq)
                && position > 0
            {
                watch.send_if_modified(|seen| {
                    let answered = |seen: &WatchEvent| match seen {
                        WatchEvent::Waiting { position, .. } => Some(*position),
                        WatchEvent::Held { .. } | WatchEvent::Lost(_) => None,
                    };
                    let changed = answered(seen) != Some(position);
                    if changed {
                        *seen = WatchEvent::Waiting {
                            position,
                            estimate: estimated(between, position),
                        };
                    }
                    changed
                });
            }
            true
        });
    }

    /// Counts a grant of this home, for operators.
    fn note_grant(&self, run: &Run, old: &State, new: &State, entry: &Entry, shown_by: Cause) {
        let cause = match old.entry(entry.seq) {
            Some(_) => shown_by,
            None => Cause::AtOnce,
        };
        let waited_ms = wall_ms(&run.inner).saturating_sub(entry.created_at_ms);
        let waited = Duration::from_millis(u64::try_from(waited_ms).unwrap_or(0));
        let grant = Grant {
            cause,
            owner: entry.owner.clone(),
            waited,
            waiters: waiters(new),
        };
        let now = run.inner.clock.boot();
        run.inner.activity.granted(&self.id, now, grant);
    }

    /// Counts the turns of the key while somebody waits here, by which it is guessed how long that may take.
    fn note_turns(&mut self, run: &Run, old: &State, new: &State, remembers: bool) {
        // Most keys have no waiters, and nobody is notified of those.
        if waiters(old) != waiters(new) {
            run.inner.activity.waiting(&self.id, waiters(new));
        }
        if self.turns.is_none() && self.wakers.is_empty() && self.watches.is_empty() {
            return;
        }
        let now = run.inner.clock.boot();
        let turns = self.count_turns(run);
        let gone = |entry: &&Arc<Entry>| remembers && entry.seq < new.head;
        for _ in old.entries.iter().filter(gone) {
            turns.turn(now, Duration::ZERO);
        }
    }

    /// From now on, until nobody waits here any longer.
    pub(super) fn count_turns(&mut self, run: &Run) -> &mut Minute {
        let turns = self.turns.get_or_insert_default();
        turns.watch(run.inner.clock.boot());
        turns
    }

    /// The mean time between two turns of the last minute.
    fn between_turns(&self, run: &Run) -> Option<Duration> {
        let turns = self.turns.as_ref()?;
        turns.between_turns(run.inner.clock.boot())
    }

    /// How long one may wait that has so many ahead, by the turns of the last minute.
    pub(super) fn estimate(&self, run: &Run, position: usize) -> Option<Duration> {
        estimated(self.between_turns(run), position)
    }
}

fn estimated(between_turns: Option<Duration>, position: usize) -> Option<Duration> {
    let ahead = u32::try_from(position).unwrap_or(u32::MAX);
    between_turns.map(|between| between.saturating_mul(ahead))
}

/// How many wait behind the holder.
fn waiters(state: &State) -> usize {
    state.entries.len().saturating_sub(1)
}
