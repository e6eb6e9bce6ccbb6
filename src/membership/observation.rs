//! The replicas of one service as this one observes them: present, suspected, or down (H2).
//!
//! One observer, on its own clock (I9). A replica is suspected after a replica TTL (H12) in which neither a new heartbeat nor a new
//! incarnation of it was observed: the longer of its announced TTL and the observer's own. A suspicion permits only to declare it down.
//! Only a row that is down, stopped or gone permits a take-over.
//!
//! A time without reads, however long, counts as one interval between two reads at most: the other replicas may have been unable
//! to write heartbeats, too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::peer::{Peer, Presence, Ranked};
use super::ranking::{self, Candidate};
use crate::lock::{NameHash, ReplicaId};
use crate::store::{ReplicaRow, ReplicaState, StateSwap};

/// The longest interval between two reads that counts in full: the longest read, and the pause before it. A longer one, with
/// failed reads or a sleeping observer, counts as this one. It does count: otherwise nobody would ever be suspected while only
/// some reads succeed.
const READS_APART_MAX: Duration = Duration::from_millis(2_500);
/// ... and at most this part of the observer's TTL: otherwise a short outage of the store would use up short TTLs.
const READS_PER_TTL: u32 = 4;
/// Ids without a row that are kept.
const UNKNOWN_MAX: usize = 10_000;
/// A replica without a heartbeat for this part of its TTL is not chosen as home.
const CHOSEN_PER_TTL: u32 = 3;

/// A moment of the observer: the time that it has observed so far.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct ObservedTime(Duration);

impl ObservedTime {
    fn since(self, earlier: ObservedTime) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The moment of an answer.
#[derive(Clone, Copy, Debug)]
struct Moment {
    observed: ObservedTime,
    /// CLOCK_BOOTTIME.
    boot: Duration,
}

/// A read of the rows in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct BegunRead {
    number: u64,
    begun: Duration,
}

#[derive(Debug)]
struct Member {
    peer: Arc<Peer>,
    candidate: Candidate,
    /// The time without a heartbeat until it is suspected.
    suspected_after: Duration,
    heartbeat: u64,
    state: ReplicaState,
    /// The first observation of this heartbeat with this incarnation.
    changed: ObservedTime,
    /// The answer that first showed them, by CLOCK_BOOTTIME.
    answered: Duration,
    /// It said that it is about to stop.
    is_leaving: bool,
}

impl Member {
    fn is_ended(&self) -> bool {
        matches!(self.state, ReplicaState::Down | ReplicaState::Stopped)
    }

    /// By all reads up to the last one, begun at `last`. A read that began before the answer that first showed this heartbeat
    /// adds observed time, but says nothing of the time after that answer.
    fn is_suspected(&self, observed: ObservedTime, last: Option<Duration>) -> bool {
        let between = last.map_or(Duration::ZERO, |last| last.saturating_sub(self.answered));
        observed.since(self.changed).min(between) >= self.suspected_after
    }
}

/// A replica without a known row.
#[derive(Clone, Copy, Debug)]
enum NoRow {
    /// Its id was first met when this many reads had begun. A later read without it shows that it is gone.
    MetAt(u64),
    /// It had a row, and a later read lacks it.
    Gone,
}

/// One replica's knowledge of all.
#[derive(Debug)]
pub(super) struct Observation {
    me: ReplicaId,
    local: Candidate,
    /// This replica is about to stop.
    is_leaving: bool,
    replica_ttl: Duration,
    members: BTreeMap<ReplicaId, Member>,
    no_row: BTreeMap<ReplicaId, NoRow>,
    /// Reads begun.
    reads: u64,
    /// The latest read with an answer.
    seen: u64,
    /// The beginning of that read.
    last: Option<Duration>,
    /// The time observed until then.
    observed: ObservedTime,
}

impl Observation {
    pub fn new(me: &ReplicaRow) -> Self {
        Observation {
            me: me.id,
            local: Candidate::new(me.id, &me.name, &me.zone, me.started_at_ms),
            is_leaving: false,
            replica_ttl: ttl_of(me),
            members: BTreeMap::new(),
            no_row: BTreeMap::new(),
            reads: 0,
            seen: 0,
            last: None,
            observed: ObservedTime::default(),
        }
    }

    /// A read begins; `now` is CLOCK_BOOTTIME.
    pub fn begin_read(&mut self, now: Duration) -> BegunRead {
        self.reads += 1;
        BegunRead {
            number: self.reads,
            begun: now,
        }
    }

    /// All rows of a read. A read that a later one overtook counts for nothing.
    pub fn saw(&mut self, read: BegunRead, now: Duration, rows: &[ReplicaRow]) {
        if read.number <= self.seen {
            return;
        }
        self.seen = read.number;
        // Silence ends with the beginning of this read; a change counts from its answer.
        self.observed = self.moment(read.begun).observed;
        self.last = Some(read.begun);
        let came = self.moment(now);
        let mut before = std::mem::take(&mut self.members);
        for row in rows.iter().filter(|row| row.id != self.me) {
            let member = match before.remove(&row.id) {
                Some(known) => known.updated(row, came),
                None => self.new_member(row, came),
            };
            self.no_row.remove(&row.id);
            self.members.insert(row.id, member);
        }
        for gone in before.into_keys() {
            self.note_no_row(gone, NoRow::Gone);
        }
    }

    /// The outcome of declaring a replica down, at `now`.
    pub fn declared(&mut self, id: ReplicaId, came: &StateSwap, now: Duration) {
        let moment = self.moment(now);
        let state = match came {
            StateSwap::Applied => ReplicaState::Down,
            StateSwap::Conflict(Some(state)) => *state,
            StateSwap::Conflict(None) => {
                self.members.remove(&id);
                return self.note_no_row(id, NoRow::Gone);
            }
            StateSwap::Unknown(_) | StateSwap::NotStarted(_) => return,
        };
        if let Some(member) = self.members.get_mut(&id) {
            member.set_state(state, moment);
        }
    }

    /// The presence of a replica.
    pub fn presence(&mut self, id: ReplicaId) -> Presence {
        if id == self.me {
            return Presence::Local;
        }
        if let Some(member) = self.members.get(&id) {
            return if member.is_ended() {
                Presence::Down
            } else if member.is_suspected(self.observed, self.last) {
                Presence::Suspected
            } else {
                Presence::Live(Arc::clone(&member.peer))
            };
        }
        if !self.no_row.contains_key(&id) {
            self.note_no_row(id, NoRow::MetAt(self.reads));
        }
        // Replicas are announced before they serve, and only rows of ended ones are deleted.
        match self.no_row.get(&id) {
            Some(NoRow::Gone) => Presence::Down,
            Some(NoRow::MetAt(reads)) if self.seen > *reads => Presence::Down,
            Some(NoRow::MetAt(_)) | None => Presence::Unsure,
        }
    }

    /// The incarnation of a suspected replica during all of its silence: the one to replace by Down.
    pub fn suspected_state(&self, id: ReplicaId) -> Option<ReplicaState> {
        let member = self.members.get(&id)?;
        let is_suspected = member.is_suspected(self.observed, self.last);
        (!member.is_ended() && is_suspected).then_some(member.state)
    }

    /// The replicas to declare down.
    pub fn suspected(&self) -> impl Iterator<Item = ReplicaId> {
        let ids = self.members.keys().copied();
        ids.filter(|id| self.suspected_state(*id).is_some())
    }

    /// The other live replicas.
    pub fn peers(&self) -> Vec<Arc<Peer>> {
        let members = self.members.values();
        members
            .filter(|one| !one.is_ended() && !one.is_suspected(self.observed, self.last))
            .map(|one| Arc::clone(&one.peer))
            .collect()
    }

    /// Replicas whose end was observed at least this long ago: their rows are no longer needed.
    pub fn ended_for(&self, span: Duration) -> impl Iterator<Item = ReplicaId> {
        let members = self.members.iter();
        members
            .filter(move |(_, one)| one.is_ended() && self.observed.since(one.changed) >= span)
            .map(|(id, _)| *id)
    }

    /// The replica that should be home of a key (H8), in this zone if there is one. No zone: empty.
    pub fn ranked(&self, key: NameHash, zone: &str) -> Ranked {
        let local = (!self.is_leaving).then_some(&self.local);
        let best = ranking::best(key, zone, self.chosen().chain(local));
        match best.and_then(|id| self.members.get(&id)) {
            Some(member) => Ranked::Remote(Arc::clone(&member.peer)),
            None => Ranked::Local,
        }
    }

    /// The replica that should be the home of a key once this one is gone.
    pub fn next_ranked(&self, key: NameHash, zone: &str) -> Option<Arc<Peer>> {
        let best = ranking::best(key, zone, self.chosen())?;
        self.members
            .get(&best)
            .map(|member| Arc::clone(&member.peer))
    }

    /// The other replicas that may be chosen as home.
    fn chosen(&self) -> impl Iterator<Item = &Candidate> {
        let chosen = self.members.values().filter(|one| {
            let silence = self.observed.since(one.changed);
            let is_silent = silence >= one.suspected_after / CHOSEN_PER_TTL;
            !(one.is_ended() || one.is_leaving || is_silent)
        });
        chosen.map(|one| &one.candidate)
    }

    /// A replica, perhaps this one, is about to stop: it is not chosen as home any more.
    pub fn note_leaving(&mut self, id: ReplicaId) {
        if id == self.me {
            self.is_leaving = true;
        } else if let Some(member) = self.members.get_mut(&id) {
            member.is_leaving = true;
        }
    }

    fn new_member(&self, row: &ReplicaRow, came: Moment) -> Member {
        Member {
            peer: Arc::new(Peer::from(row)),
            candidate: Candidate::new(row.id, &row.name, &row.zone, row.started_at_ms),
            suspected_after: self.replica_ttl.max(ttl_of(row)),
            heartbeat: row.heartbeat,
            state: row.state,
            changed: came.observed,
            answered: came.boot,
            is_leaving: false,
        }
    }

    fn note_no_row(&mut self, id: ReplicaId, why: NoRow) {
        if self.no_row.len() >= UNKNOWN_MAX {
            // The next read without them finds them again.
            self.no_row.clear();
        }
        self.no_row.insert(id, why);
    }

    /// A moment after the latest read: the time that a read would count if it began then.
    fn moment(&self, now: Duration) -> Moment {
        let most = READS_APART_MAX.min(self.replica_ttl / READS_PER_TTL);
        let since = self
            .last
            .map_or(Duration::ZERO, |last| now.saturating_sub(last));
        Moment {
            observed: ObservedTime(self.observed.0 + since.min(most)),
            boot: now,
        }
    }
}

impl Member {
    /// The same replica, by a later row. Its names and addresses never change.
    fn updated(mut self, row: &ReplicaRow, came: Moment) -> Member {
        if self.heartbeat != row.heartbeat && !self.is_ended() {
            self.heartbeat = row.heartbeat;
            self.note_change(came);
        }
        self.set_state(row.state, came);
        self
    }

    fn set_state(&mut self, state: ReplicaState, moment: Moment) {
        // A read that began before the declaration may be answered after it.
        if self.state != state && !self.is_ended() {
            self.state = state;
            self.note_change(moment);
        }
    }

    fn note_change(&mut self, moment: Moment) {
        self.changed = moment.observed;
        self.answered = moment.boot;
    }
}

fn ttl_of(row: &ReplicaRow) -> Duration {
    Duration::from_millis(row.ttl_ms.into())
}

#[cfg(test)]
mod tests;
