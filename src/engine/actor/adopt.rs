//! What a new committed state means here: for the leases this replica keeps, for what it remembers of
//! the holder's fence, and for whoever waits.

use std::sync::Arc;
use std::time::Duration;

use super::super::activity::{Cause, Grant, Minute};
use super::super::api::{EngineError, Watched};
use super::super::leases::NoLease;
use super::super::wall_ms;
use super::holding::Holding;
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
        for seq in &diff.over {
            if let Some(entry) = old.entry(*seq) {
                self.forget_lease(run, entry);
            }
            self.tell_over(&new, *seq);
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
                    self.lose_place(entry.seq, &new);
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
        self.note_others(run, &new);
        self.adopt_holder(run, &old, &new, remembers, shown_by);
        self.note_turns(run, &old, &new, remembers);
        if old.head != new.head {
            // The turn of the new head has come, and so has that of any that was passed over.
            for turn in self.wakes.remove(&new.head).unwrap_or_default() {
                // A wait that was given up meanwhile does not listen any longer.
                let _ = turn.send(());
            }
        }
        self.tell_positions(run, &new);
        self.finish_consent();
    }

    /// A place went to another home: whoever waits here asks there.
    fn lose_place(&mut self, seq: Seq, state: &State) {
        self.wakes.remove(&seq);
        self.watches.remove(&seq);
        if let Some(entry) = state.entry(seq) {
            let elsewhere = EngineError::Elsewhere {
                home: entry.home,
                version: state.version,
            };
            self.fail_let_ins(seq, &elsewhere);
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
            let mut holding = Holding::new(entry, new.grant, new.width, new.unsynced);
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

    /// Ends the memory of a fence that is over, and tells those whose calls it still had.
    fn drop_holding(&mut self) {
        let Some(mut gone) = self.holding.take() else {
            return;
        };
        let error = self.why_over(gone.seq, gone.tag);
        for call in gone.put_off.drain(..) {
            call.fail(error.clone());
        }
    }

    /// What to tell a caller whose place is no longer what it was.
    pub(super) fn why_over(&self, seq: Seq, tag: Tag) -> EngineError {
        match self.state.as_ref().map(|s| s.lookup(seq, tag)) {
            Some(Lookup::Over(over)) => EngineError::Over(over),
            Some(Lookup::Live(_)) => EngineError::GrantSuperseded,
            Some(Lookup::NeverIssued) | None => EngineError::NeverIssued,
        }
    }

    /// Begins, or goes on, to vouch for a place that is served here.
    fn keep_lease(&mut self, run: &Run, entry: &Entry, remembers: bool) {
        let place = self.place(entry.seq);
        let (kept, evidence) = match entry.liveness {
            Liveness::Own { ttl_ms } => {
                if run.inner.shared && !remembers && !run.inner.leases.has_place(&place) {
                    // Since when this home vouches for it is not known any more: a new epoch.
                    return self.take_anew(run, entry.seq);
                }
                let ttl = Duration::from_millis(u64::from(ttl_ms));
                let since = self.others.sent_at.unwrap_or(Duration::ZERO);
                let kept = run.inner.leases.add_place(place, entry.tag(), ttl, since);
                if run.inner.shared {
                    run.inner.beat_sooner.notify_one();
                }
                (kept, Evidence::Silent { epoch: entry.epoch })
            }
            Liveness::Session(session) => {
                let mut kept = run.inner.leases.attach(session, place.clone());
                if kept == Err(NoLease::Unknown) && run.inner.shared {
                    run.inner.remote.attach(session, place);
                    kept = Ok(());
                }
                (kept, Evidence::SessionOver(session))
            }
        };
        if kept.is_err() {
            // Its session was closed while this place was being made; or it expired, and the actor that
            // was to evict it died, or has taken it over since: the evidence needs its present epoch.
            self.pending.push_back(Intent::Evict {
                seq: entry.seq,
                tag: entry.tag(),
                evidence,
                reply: EvictReply::None,
            });
        }
    }

    fn forget_lease(&self, run: &Run, entry: &Entry) {
        let place = self.place(entry.seq);
        match entry.liveness {
            Liveness::Own { .. } => run.inner.leases.remove_place(&place),
            Liveness::Session(session) => {
                run.inner.leases.detach(session, &place);
                run.inner.remote.detach(session, &place);
                super::super::sessions::forget_if_done(&run.inner, session);
            }
        }
    }

    fn tell_over(&mut self, state: &State, seq: Seq) {
        // The waits look again and hear how it ended.
        self.wakes.remove(&seq);
        let over = state.over(seq);
        if let Some(watch) = self.watches.remove(&seq) {
            watch.send_replace(Watched::Lost(over.clone()));
        }
        self.fail_let_ins(seq, &EngineError::Over(over));
    }

    /// Tells the watches where their places stand. That a place holds the key they hear once it is let
    /// in.
    fn tell_positions(&mut self, run: &Run, state: &State) {
        let between = self.between_turns(run);
        self.watches.retain(|seq, watch| {
            if watch.receiver_count() == 0 {
                return false;
            }
            if let Some(position) = state.position(*seq)
                && position > 0
            {
                watch.send_if_modified(|seen| {
                    let told = |seen: &Watched| match seen {
                        Watched::Waiting { position, .. } => Some(*position),
                        Watched::Held { .. } | Watched::Lost(_) => None,
                    };
                    let changed = told(seen) != Some(position);
                    if changed {
                        *seen = Watched::Waiting {
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
        // Most keys have no waiters, and nobody is told of those.
        if waiters(old) != waiters(new) {
            run.inner.activity.waiting(&self.id, waiters(new));
        }
        if self.turns.is_none() && self.wakes.is_empty() && self.watches.is_empty() {
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
