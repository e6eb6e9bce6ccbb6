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

/// The time until an unused session elsewhere is forgotten.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);

/// Look-ups at once of sessions that may have been opened. The sweep finds the others.
const LOOKED_UP_MAX: usize = 1_000;

/// Why a session cannot be renewed here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotRenewed {
    /// It has ended, and its row says so.
    Ended,
    /// It has ended here, but not in its row yet: another replica may become its keeper with a whole TTL.
    Ending,
    /// This replica does not keep it.
    NotKept,
}

pub use elsewhere::Due;

impl NotRenewed {
    /// The error for the client.
    pub fn error(self) -> EngineError {
        match self {
            NotRenewed::Ended => EngineError::SessionEnded,
            NotRenewed::Ending => EngineError::ending(),
            NotRenewed::NotKept => EngineError::changing_keeper(),
        }
    }
}

/// The outcome of attaching an entry to a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attached {
    /// The session is known.
    Ok,
    /// The session is unknown: its row must be read.
    Unknown,
    /// The session has ended.
    Ended,
}

/// The fate of the row of an ended session without entries here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowOfDone {
    /// It stays: it belongs to another replica, or the session has entries.
    Stays,
    /// It is deleted.
    Goes,
    /// It is deleted once all keys of the last process are taken over: the session may have entries there.
    GoesOnceRecovered,
}

/// Why a session takes no more entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRoom {
    /// It has ended, and its row says so.
    Ended,
    /// It has ended here, but not in its row yet.
    Ending,
    /// It has as many entries as allowed.
    Full,
}

/// The keeper of a session elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keeper {
    /// The replica.
    pub replica: ReplicaId,
    /// The epoch of the row that names it.
    pub epoch: u32,
    /// The session's TTL.
    pub ttl: Duration,
}

/// The row of a session that is kept here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KeptRow {
    Open,
    /// Still open; a task is writing the end of the session into it.
    Closing,
    /// It says that the session has ended.
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
        /// The last renewal that was passed on, by CLOCK_BOOTTIME.
        renewed_at: Option<Duration>,
        /// The keeper's last answer, and the end of its validity.
        said: Option<(Renewed, Duration)>,
        ended: bool,
    },
}

struct Known {
    role: SessionRole,
    /// The highest epoch seen in its row, or possibly written here.
    epoch: u32,
    entries: BTreeSet<(Arc<KeyId>, Seq)>,
    /// The number of entries in the making.
    creating: usize,
    wanted_until: Duration,
    /// The client that it counts for while it is kept here.
    share_of: Arc<str>,
    /// An earlier process opened it: it may have entries of keys that are not taken over yet.
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

    /// It has ended, and its row says so.
    fn has_ended(&self) -> bool {
        match &self.role {
            SessionRole::Kept { lease, row, .. } => lease.has_ended() && *row == KeptRow::Closed,
            SessionRole::Elsewhere { ended, .. } => *ended,
        }
    }

    /// It has ended here, but not in its row yet.
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
    /// Kept and reserved sessions by client. Sessions without a client's name are not counted.
    shares: HashMap<Arc<str>, usize>,
    /// The number of sessions that may be kept here soon.
    reserved: usize,
    /// The sessions with a look-up in progress: were they opened?
    looked_up: BTreeSet<SessionId>,
    /// The sessions that a call is adopting: no more than there are calls.
    adopted: BTreeSet<SessionId>,
    /// Ended sessions whose last user was a call: all are known, so there are no more than sessions.
    done: BTreeSet<SessionId>,
}

/// The sessions known to a replica.
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

    /// The limit of kept sessions.
    pub fn sessions_max(&self) -> usize {
        self.sessions_max
    }

    fn inner(&self) -> MutexGuard<'_, KnownSessions> {
        self.inner.lock()
    }

    /// Reserves room for a new session of this client, within its share; an empty name has no share.
    pub fn reserve(&self, share_of: &str) -> Result<Reservation<'_>, NoShare> {
        let mut inner = self.inner();
        let have = inner.shares.get(share_of).copied().unwrap_or(0);
        shares::admit(inner.all(), have, self.sessions_max)?;
        Ok(self.reserved(&mut inner, share_of))
    }

    /// Reserves room for an open session from another replica: it counts, but is not refused because of its share.
    pub fn reserve_open(&self, share_of: &str) -> Result<Reservation<'_>, NoShare> {
        let mut inner = self.inner();
        match inner.all() < self.sessions_max {
            true => Ok(self.reserved(&mut inner, share_of)),
            false => Err(NoShare::Full),
        }
    }

    /// Reserves room for a session whose row names this replica: above the limit, if need be, because no other replica can keep
    /// it.
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

    /// Begins the look-up of a session that may have been opened; `None` if there is one already, or too many run.
    pub fn begin_look_up(&self, session: SessionId) -> Option<LookUp<'_>> {
        let mut inner = self.inner();
        let may = inner.looked_up.len() < LOOKED_UP_MAX && inner.looked_up.insert(session);
        may.then(|| LookUp {
            table: self,
            session,
        })
    }

    /// Begins to adopt a session whose row names this replica; `None` if another call does so already.
    pub fn begin_adopt(&self, session: SessionId) -> Option<Adopting<'_>> {
        self.inner().adopted.insert(session).then(|| Adopting {
            table: self,
            session,
        })
    }

    /// Whether a session is known.
    pub fn knows(&self, session: SessionId) -> bool {
        self.inner().sessions.contains_key(&session)
    }

    /// The number of sessions kept here.
    pub fn count(&self) -> usize {
        self.inner().kept
    }

    /// Attaches an entry to a session.
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

    /// Detaches an entry from a session.
    pub fn detach(&self, session: SessionId, id: &Arc<KeyId>, seq: Seq) {
        let mut inner = self.inner();
        if let Some(known) = inner.sessions.get_mut(&session) {
            known.entries.remove(&(Arc::clone(id), seq));
            if known.entries.is_empty() {
                known.emptied.notify_waiters();
            }
        }
    }

    /// Reserves room for one more entry of a session.
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

    /// Ends that reservation: the entry was made, or not.
    pub fn end_create(&self, session: SessionId) {
        let mut inner = self.inner();
        if let Some(known) = inner.sessions.get_mut(&session) {
            known.creating = known.creating.saturating_sub(1);
        }
        inner.note_if_done(session);
    }

    /// Takes the sessions that ended before their last call did: they are to be forgotten.
    pub fn take_done(&self) -> BTreeSet<SessionId> {
        std::mem::take(&mut self.inner().done)
    }

    /// The keys with entries of a session.
    pub fn keys_of(&self, session: SessionId) -> Vec<Arc<KeyId>> {
        let inner = self.inner();
        let Some(known) = inner.sessions.get(&session) else {
            return Vec::new();
        };
        let mut keys: Vec<_> = known.entries.iter().map(|(id, _)| Arc::clone(id)).collect();
        keys.dedup();
        keys
    }

    /// Notified once a session has no entries; `None` if it has none now.
    pub fn emptied(&self, session: SessionId) -> Option<Arc<Notify>> {
        let inner = self.inner();
        let known = inner.sessions.get(&session)?;
        (!known.entries.is_empty()).then(|| Arc::clone(&known.emptied))
    }

    /// The number of a session's entries that this replica knows.
    pub fn entries_of(&self, session: SessionId) -> usize {
        let inner = self.inner();
        let known = inner.sessions.get(&session);
        known.map_or(0, |known| known.entries.len())
    }

    /// Whether a session has entries here, or entries in the making.
    pub fn is_used(&self, session: SessionId) -> bool {
        let inner = self.inner();
        let known = inner.sessions.get(&session);
        known.is_some_and(|known| !known.is_unused())
    }

    /// The TTL of a session, if known here.
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

/// A look-up of a session that may have been opened.
pub struct LookUp<'a> {
    table: &'a SessionTable,
    session: SessionId,
}

impl Drop for LookUp<'_> {
    fn drop(&mut self) {
        self.table.inner().looked_up.remove(&self.session);
    }
}

/// A hand-over of a session. Unless it is done, the row says who the keeper is.
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

/// The adoption of a session.
pub struct Adopting<'a> {
    table: &'a SessionTable,
    session: SessionId,
}

impl Drop for Adopting<'_> {
    fn drop(&mut self) {
        self.table.inner().adopted.remove(&self.session);
    }
}

/// The write of a session's end into its row.
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

    /// The number of sessions that are kept here, or may be soon.
    fn all(&self) -> usize {
        self.kept.saturating_add(self.reserved)
    }

    /// Counts one more session of this client; an empty name is not counted.
    fn add_share(&mut self, share_of: &str) -> Arc<str> {
        let known = self.shares.get_key_value(share_of);
        let share_of = known.map_or_else(|| Arc::from(share_of), |(known, _)| Arc::clone(known));
        if !share_of.is_empty() {
            *self.shares.entry(Arc::clone(&share_of)).or_default() += 1;
        }
        share_of
    }

    /// Counts one session less.
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
