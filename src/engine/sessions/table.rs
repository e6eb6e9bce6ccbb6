//! The sessions that matter here: [`kept`] by this replica, with their leases, or kept [`elsewhere`] with entries on this home.
//!
//! One table under one mutex. The mutex is never held across an await, nor while that of a key is taken.

mod elsewhere;
mod kept;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::engine::api::{EngineError, Renewed};
use crate::lock::{KeyId, ReplicaId, Seq, SessionId};
use crate::session::{Lease, Observed};
use fermata_guard::shares::{self, NoShare};

/// How long a session of which nothing is known, and that nothing lives by, is remembered to have been asked for.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);

/// Of how many sessions at once it is looked up whether they were opened. More are found by the sweep.
const LOOKED_UP_MAX: usize = 1_000;

/// Why a session cannot be renewed here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotRenewed {
    /// It has ended, for all: its row says so.
    Ended,
    /// It has ended here, and its row does not say so yet: another replica may become its keeper with a whole TTL.
    Ending,
    /// This replica does not keep it.
    NotKept,
}

pub use elsewhere::Due;

impl NotRenewed {
    /// What its client hears.
    pub fn error(self) -> EngineError {
        match self {
            NotRenewed::Ended => EngineError::SessionEnded,
            NotRenewed::Ending => EngineError::ending(),
            NotRenewed::NotKept => EngineError::changing_keeper(),
        }
    }
}

/// What came of noting that an entry lives by a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attached {
    /// It is known.
    Ok,
    /// Nothing is known of it: its row is to be read.
    Unknown,
    /// It has ended.
    Ended,
}

/// What is to become of the row of a session that has ended, and by which nothing lives here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowOfDone {
    /// It is not this replica's, or something lives by it.
    Stays,
    /// It is to be forgotten.
    Goes,
    /// The same, once all that an earlier process left is taken over: something may live by it.
    GoesOnceRecovered,
}

/// Why nothing more can live by a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRoom {
    /// It has ended, for all.
    Ended,
    /// It has ended here, and its row does not say so yet.
    Ending,
    /// As many entries live by it as may.
    Full,
}

/// Who keeps a session that this replica does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keeper {
    /// The replica.
    pub replica: ReplicaId,
    /// The epoch of the row that says so.
    pub epoch: u32,
    /// The session's TTL.
    pub ttl: Duration,
}

/// What the row of a session that is kept here says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KeptRow {
    Open,
    /// Still that; somebody writes into it that the session has ended.
    Closing,
    /// The session has ended.
    Closed,
}

enum SessionRole {
    Kept {
        lease: Lease,
        alarm: Observed,
        row: KeptRow,
    },
    Elsewhere {
        keeper: Option<Keeper>,
        read_at: Option<Duration>,
        /// When a renewal was passed on last.
        renewed_at: Option<Duration>,
        /// What its keeper said last: the TTL and the grace, and until when it is safe.
        said: Option<(Renewed, Duration)>,
        ended: bool,
    },
}

struct Known {
    role: SessionRole,
    /// The highest epoch that its row was seen with, or may have been given here.
    epoch: u32,
    entries: BTreeSet<(Arc<KeyId>, Seq)>,
    /// Entries that are being made.
    creating: usize,
    wanted_until: Duration,
    /// Whose share it is of, while it is kept here.
    share_of: Arc<str>,
    /// An earlier process opened it: an entry of a key that was not taken over yet may live by it.
    is_inherited: bool,
    /// Notified when the last entry is gone.
    emptied: Arc<Notify>,
}

impl Known {
    fn elsewhere(now: Duration) -> Self {
        Known {
            role: SessionRole::Elsewhere {
                keeper: None,
                read_at: None,
                renewed_at: None,
                said: None,
                ended: false,
            },
            epoch: 0,
            entries: BTreeSet::new(),
            creating: 0,
            wanted_until: now.saturating_add(REMEMBERED_FOR),
            share_of: Arc::from(""),
            is_inherited: false,
            emptied: Arc::default(),
        }
    }

    /// It has ended, for all.
    fn has_ended(&self) -> bool {
        match &self.role {
            SessionRole::Kept { lease, row, .. } => lease.has_ended() && *row == KeptRow::Closed,
            SessionRole::Elsewhere { ended, .. } => *ended,
        }
    }

    /// It has ended here, and its row does not say so yet.
    fn is_ending(&self) -> bool {
        match &self.role {
            SessionRole::Kept { lease, row, .. } => lease.has_ended() && *row != KeptRow::Closed,
            SessionRole::Elsewhere { .. } => false,
        }
    }

    fn is_unused(&self) -> bool {
        self.entries.is_empty() && self.creating == 0
    }

    /// It has ended, and nothing uses it.
    fn is_done(&self) -> bool {
        self.is_unused() && self.has_ended()
    }
}

#[derive(Default)]
struct KnownSessions {
    sessions: HashMap<SessionId, Known>,
    alarms: BTreeMap<(Observed, SessionId), ()>,
    kept: usize,
    /// How many of them, and of those that may be kept soon, are of whom; of nobody in particular they are not counted.
    shares: HashMap<Arc<str>, usize>,
    /// Those that may be kept here soon.
    reserved: usize,
    /// Those of which it is being looked up whether they were opened.
    looked_up: BTreeSet<SessionId>,
    /// Those that a call is taking in: no more than there are calls.
    adopted: BTreeSet<SessionId>,
    /// Those whose last user was a call: each of them is known, so there are no more than sessions.
    done: BTreeSet<SessionId>,
}

/// The sessions that matter to a replica.
pub struct SessionTable {
    inner: Mutex<KnownSessions>,
    sessions_max: usize,
    entries_max: usize,
}

impl SessionTable {
    pub fn new(sessions_max: usize, entries_max: usize) -> Self {
        SessionTable {
            inner: Mutex::default(),
            sessions_max,
            entries_max,
        }
    }

    /// How many may be kept.
    pub fn sessions_max(&self) -> usize {
        self.sessions_max
    }

    fn inner(&self) -> MutexGuard<'_, KnownSessions> {
        self.inner.lock()
    }

    /// Keeps room for a new session of whom this names, where it names one.
    pub fn reserve(&self, share_of: &str) -> Result<Reservation<'_>, NoShare> {
        let mut inner = self.inner();
        let have = inner.shares.get(share_of).copied().unwrap_or(0);
        shares::admit(inner.all(), have, self.sessions_max)?;
        Ok(self.reserved(&mut inner, share_of))
    }

    /// The same, for one that another replica kept: it is open, and counts, but is not refused for its share.
    pub fn reserve_open(&self, share_of: &str) -> Result<Reservation<'_>, NoShare> {
        let mut inner = self.inner();
        match inner.all() < self.sessions_max {
            true => Ok(self.reserved(&mut inner, share_of)),
            false => Err(NoShare::Full),
        }
    }

    /// The same, for one that is this replica's by its row: above the limit, if need be, for nobody else can keep it.
    pub fn reserve_own(&self, share_of: &str) -> Reservation<'_> {
        let mut inner = self.inner();
        self.reserved(&mut inner, share_of)
    }

    fn reserved(&self, inner: &mut KnownSessions, share_of: &str) -> Reservation<'_> {
        inner.reserved += 1;
        Reservation {
            table: self,
            share_of: inner.add_share(share_of),
        }
    }

    /// The one that looks up whether a session was opened; `None` where somebody does already, or too many are looked up.
    pub fn begin_look_up(&self, session: SessionId) -> Option<LookUp<'_>> {
        let mut inner = self.inner();
        let may = inner.looked_up.len() < LOOKED_UP_MAX && inner.looked_up.insert(session);
        may.then(|| LookUp {
            table: self,
            session,
        })
    }

    /// The one that takes in a session whose row names this replica; `None` where somebody does already.
    pub fn begin_adopt(&self, session: SessionId) -> Option<Adopting<'_>> {
        self.inner().adopted.insert(session).then(|| Adopting {
            table: self,
            session,
        })
    }

    /// Whether anything is known of a session.
    pub fn knows(&self, session: SessionId) -> bool {
        self.inner().sessions.contains_key(&session)
    }

    /// How many are kept here.
    pub fn count(&self) -> usize {
        self.inner().kept
    }

    /// Notes that an entry lives by a session.
    pub fn attach(
        &self,
        session: SessionId,
        id: &Arc<KeyId>,
        seq: Seq,
        boot: Duration,
    ) -> Attached {
        let mut inner = self.inner();
        let known = inner
            .sessions
            .entry(session)
            .or_insert_with(|| Known::elsewhere(boot));
        known.entries.insert((Arc::clone(id), seq));
        match &known.role {
            _ if known.has_ended() => Attached::Ended,
            SessionRole::Elsewhere { keeper: None, .. } => Attached::Unknown,
            SessionRole::Elsewhere { .. } | SessionRole::Kept { .. } => Attached::Ok,
        }
    }

    /// Notes that an entry lives by a session no longer.
    pub fn detach(&self, session: SessionId, id: &Arc<KeyId>, seq: Seq) {
        let mut inner = self.inner();
        if let Some(known) = inner.sessions.get_mut(&session) {
            known.entries.remove(&(Arc::clone(id), seq));
            if known.entries.is_empty() {
                known.emptied.notify_waiters();
            }
        }
    }

    /// Keeps room for one more entry of a session.
    pub fn begin_create(&self, session: SessionId, boot: Duration) -> Result<(), NoRoom> {
        let mut inner = self.inner();
        let known = inner
            .sessions
            .entry(session)
            .or_insert_with(|| Known::elsewhere(boot));
        if known.has_ended() {
            return Err(NoRoom::Ended);
        }
        if known.is_ending() {
            return Err(NoRoom::Ending);
        }
        if known.entries.len().saturating_add(known.creating) >= self.entries_max {
            return Err(NoRoom::Full);
        }
        known.creating += 1;
        Ok(())
    }

    /// The entry was made, or was not.
    pub fn end_create(&self, session: SessionId) {
        let mut inner = self.inner();
        if let Some(known) = inner.sessions.get_mut(&session) {
            known.creating = known.creating.saturating_sub(1);
        }
        inner.note_if_done(session);
    }

    /// Those that ended before the last call that used them did: they are to be forgotten.
    pub fn take_done(&self) -> BTreeSet<SessionId> {
        std::mem::take(&mut self.inner().done)
    }

    /// The keys with entries that live by a session.
    pub fn keys_of(&self, session: SessionId) -> Vec<Arc<KeyId>> {
        let inner = self.inner();
        let Some(known) = inner.sessions.get(&session) else {
            return Vec::new();
        };
        let mut keys: Vec<_> = known.entries.iter().map(|(id, _)| Arc::clone(id)).collect();
        keys.dedup();
        keys
    }

    /// Notified once nothing lives by a session; `None` if that is so.
    pub fn emptied(&self, session: SessionId) -> Option<Arc<Notify>> {
        let inner = self.inner();
        let known = inner.sessions.get(&session)?;
        (!known.entries.is_empty()).then(|| Arc::clone(&known.emptied))
    }

    /// How many entries live by a session, as far as this replica knows.
    pub fn entries_of(&self, session: SessionId) -> usize {
        let inner = self.inner();
        let known = inner.sessions.get(&session);
        known.map_or(0, |known| known.entries.len())
    }

    /// Whether entries live by a session here, or are being made.
    pub fn is_used(&self, session: SessionId) -> bool {
        let inner = self.inner();
        let known = inner.sessions.get(&session);
        known.is_some_and(|known| !known.is_unused())
    }

    /// The TTL of a session, as far as it is known here.
    pub fn ttl_of(&self, session: SessionId) -> Option<Duration> {
        match &self.inner().sessions.get(&session)?.role {
            SessionRole::Kept { lease, .. } => Some(lease.ttl()),
            SessionRole::Elsewhere { keeper, .. } => keeper.map(|keeper| keeper.ttl),
        }
    }
}

/// Room for one more session.
pub struct Reservation<'a> {
    table: &'a SessionTable,
    share_of: Arc<str>,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut inner = self.table.inner();
        inner.reserved = inner.reserved.saturating_sub(1);
        inner.give_back(&self.share_of);
    }
}

/// The one that looks up whether a session was opened.
pub struct LookUp<'a> {
    table: &'a SessionTable,
    session: SessionId,
}

impl Drop for LookUp<'_> {
    fn drop(&mut self) {
        self.table.inner().looked_up.remove(&self.session);
    }
}

/// The one that gives a session away. Unless it knows that it did, the row says who keeps it.
pub struct Giving<'a> {
    table: &'a SessionTable,
    session: SessionId,
    is_given: bool,
}

impl Giving<'_> {
    /// The row names the next keeper.
    pub fn done(mut self) {
        self.is_given = true;
    }
}

impl Drop for Giving<'_> {
    fn drop(&mut self) {
        if !self.is_given {
            self.table.forget_keeper(self.session);
        }
    }
}

/// The one that takes a session in.
pub struct Adopting<'a> {
    table: &'a SessionTable,
    session: SessionId,
}

impl Drop for Adopting<'_> {
    fn drop(&mut self) {
        self.table.inner().adopted.remove(&self.session);
    }
}

/// The one that writes into the row of a session that it has ended.
pub struct Closing<'a> {
    table: &'a SessionTable,
    session: SessionId,
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        if let Some(known) = self.table.inner().sessions.get_mut(&self.session)
            && let SessionRole::Kept { row, .. } = &mut known.role
            && *row == KeptRow::Closing
        {
            *row = KeptRow::Open;
        }
    }
}

impl KnownSessions {
    fn note_if_done(&mut self, session: SessionId) {
        if self.sessions.get(&session).is_some_and(Known::is_done) {
            self.done.insert(session);
        }
    }

    /// How many are kept here, or may be soon.
    fn all(&self) -> usize {
        self.kept.saturating_add(self.reserved)
    }

    /// One more of whom this names, where it names one.
    fn add_share(&mut self, share_of: &str) -> Arc<str> {
        let known = self.shares.get_key_value(share_of);
        let share_of = known.map_or_else(|| Arc::from(share_of), |(known, _)| Arc::clone(known));
        if !share_of.is_empty() {
            *self.shares.entry(Arc::clone(&share_of)).or_default() += 1;
        }
        share_of
    }

    /// One less of whom this names.
    fn give_back(&mut self, share_of: &Arc<str>) {
        if let Some(count) = self.shares.get_mut(share_of) {
            *count -= 1;
            if *count == 0 {
                self.shares.remove(share_of);
            }
        }
    }

    fn forget(&mut self, session: SessionId) {
        let Some(known) = self.sessions.remove(&session) else {
            return;
        };
        self.done.remove(&session);
        if let SessionRole::Kept { alarm, .. } = known.role {
            self.alarms.remove(&(alarm, session));
            self.kept -= 1;
        }
        self.give_back(&known.share_of);
        if self.sessions.capacity() > 64 && self.sessions.len() < self.sessions.capacity() / 8 {
            self.sessions.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests;
