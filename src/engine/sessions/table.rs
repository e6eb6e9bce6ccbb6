//! The sessions that matter here: those that this replica keeps, with their leases, and those that others keep and that
//! entries of this home live by.
//!
//! One table under one mutex that is never held across an await, nor while a key's is taken.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::engine::api::Renewed;
use crate::lock::{KeyId, ReplicaId, Seq, SessionId};
use crate::session::{Lease, Observed};
use crate::store::SessionRow;

/// After this the row of a session that another replica keeps is read again: its keeper tells of an end at once, so this
/// is for what it could not tell.
const READ_AGAIN: Duration = Duration::from_secs(5);
/// How long a session of which nothing is known, and that nothing lives by, is remembered to have been asked for.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);

/// Why a session cannot be renewed here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotRenewed {
    /// It has ended.
    Ended,
    /// This replica does not keep it.
    NotKept,
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

/// Why nothing more can live by a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRoom {
    /// It has ended.
    Ended,
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

enum Role {
    Kept {
        row: SessionRow,
        lease: Lease,
        alarm: Observed,
        /// That it has ended stands in its row.
        closed: bool,
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
    role: Role,
    entries: BTreeSet<(Arc<KeyId>, Seq)>,
    /// Entries that are being made.
    creating: usize,
    /// Calls open here that keep it alive, wherever it is kept.
    open_calls: u32,
    wanted_until: Duration,
    /// Notified when the last entry is gone.
    emptied: Arc<Notify>,
}

impl Known {
    fn elsewhere(now: Duration) -> Self {
        Known {
            role: Role::Elsewhere {
                keeper: None,
                read_at: None,
                renewed_at: None,
                said: None,
                ended: false,
            },
            entries: BTreeSet::new(),
            creating: 0,
            open_calls: 0,
            wanted_until: now.saturating_add(REMEMBERED_FOR),
            emptied: Arc::default(),
        }
    }

    fn has_ended(&self) -> bool {
        match &self.role {
            Role::Kept { lease, .. } => lease.has_ended(),
            Role::Elsewhere { ended, .. } => *ended,
        }
    }
}

#[derive(Default)]
struct Inner {
    sessions: HashMap<SessionId, Known>,
    alarms: BTreeMap<(Observed, SessionId), ()>,
    kept: usize,
}

/// The sessions that matter to a replica.
pub struct Table {
    inner: Mutex<Inner>,
    sessions_max: usize,
    entries_max: usize,
}

/// What is to be done about a session that another replica keeps.
#[derive(Clone, Debug)]
pub struct Due {
    /// Which.
    pub session: SessionId,
    /// Who keeps it, as far as it is known.
    pub keeper: Option<Keeper>,
    /// Its row is to be read.
    pub read: bool,
    /// A call that is open here keeps it alive: that is to be passed on.
    pub renew: bool,
    /// It has ended, and what lives by it is to be told so.
    pub ended: bool,
}

impl Table {
    pub fn new(sessions_max: usize, entries_max: usize) -> Self {
        Table {
            inner: Mutex::default(),
            sessions_max,
            entries_max,
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing below panics between two dependent changes, so a poisoned table is still whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no further session can be kept here.
    pub fn is_full(&self) -> bool {
        self.inner().kept >= self.sessions_max
    }

    /// How many are kept here.
    pub fn count(&self) -> usize {
        self.inner().kept
    }

    /// This replica keeps a session from here on, with a full TTL; what lives by it stays. False if it is full.
    pub fn keep(&self, row: SessionRow, now: Observed) -> bool {
        let mut inner = self.inner();
        let id = row.id;
        let is_kept = matches!(
            inner.sessions.get(&id).map(|known| &known.role),
            Some(Role::Kept { .. })
        );
        if !is_kept && inner.kept >= self.sessions_max {
            return false;
        }
        let Inner {
            sessions,
            alarms,
            kept,
        } = &mut *inner;
        let known = sessions
            .entry(id)
            .or_insert_with(|| Known::elsewhere(Duration::ZERO));
        if let Role::Kept {
            row: present,
            lease,
            ..
        } = &mut known.role
        {
            if !lease.has_ended() {
                *present = row;
            }
            return true;
        }
        let lease = Lease::with_open_calls(row.ttl(), now, known.open_calls)
            .with_disconnect_grace(row.disconnect_grace());
        let alarm = lease.expires(now);
        alarms.insert((alarm, id), ());
        *kept += 1;
        known.role = Role::Kept {
            row,
            lease,
            alarm,
            closed: false,
        };
        true
    }

    /// A renewal; `on_stream`: its client is connected.
    pub fn renew(
        &self,
        session: SessionId,
        now: Observed,
        on_stream: bool,
    ) -> Result<Renewed, NotRenewed> {
        let mut inner = self.inner();
        let Some(known) = inner.sessions.get_mut(&session) else {
            return Err(NotRenewed::NotKept);
        };
        match &mut known.role {
            Role::Kept { lease, .. } => {
                let renewed = match on_stream {
                    true => lease.renew_on_stream(now),
                    false => lease.renew(now),
                };
                let valid_for = renewed.ok_or(NotRenewed::Ended)?;
                Ok(Renewed {
                    ttl: lease.ttl(),
                    disconnect_grace: lease.disconnect_grace(),
                    valid_for,
                })
            }
            Role::Elsewhere { ended: true, .. } => Err(NotRenewed::Ended),
            Role::Elsewhere { .. } => Err(NotRenewed::NotKept),
        }
    }

    /// What the keeper of a session elsewhere said, while at least two thirds of it are left (H10).
    pub fn said(&self, session: SessionId, boot: Duration) -> Option<Renewed> {
        let inner = self.inner();
        match &inner.sessions.get(&session)?.role {
            Role::Elsewhere {
                said: Some((renewed, until)),
                ended: false,
                ..
            } => {
                let left = until.saturating_sub(boot);
                (left >= renewed.valid_for / 3 * 2).then_some(Renewed {
                    valid_for: left,
                    ..*renewed
                })
            }
            Role::Elsewhere { .. } | Role::Kept { .. } => None,
        }
    }

    /// Whether a renewal is to be passed on to the keeper now: of what it said, less than two thirds are left. From
    /// here on it counts as passed on.
    pub fn is_due(&self, session: SessionId, boot: Duration) -> bool {
        let mut inner = self.inner();
        let Some(known) = inner.sessions.get_mut(&session) else {
            return false;
        };
        let Role::Elsewhere {
            keeper: Some(keeper),
            renewed_at,
            ended: false,
            ..
        } = &mut known.role
        else {
            return false;
        };
        let pause = keeper.ttl / 3;
        let is_due = renewed_at.is_none_or(|at| boot.saturating_sub(at) >= pause);
        if is_due {
            *renewed_at = Some(boot);
        }
        is_due
    }

    /// What the keeper of a session answered to a renewal that was sent at `sent`.
    pub fn heard(&self, session: SessionId, renewed: Renewed, sent: Duration) {
        if let Some(known) = self.inner().sessions.get_mut(&session)
            && let Role::Elsewhere {
                said, renewed_at, ..
            } = &mut known.role
        {
            *said = Some((renewed, sent.saturating_add(renewed.valid_for)));
            *renewed_at = (*renewed_at).max(Some(sent));
        }
    }

    /// Who keeps a session, as far as it is known here.
    pub fn keeper(&self, session: SessionId) -> Option<Keeper> {
        match &self.inner().sessions.get(&session)?.role {
            Role::Elsewhere { keeper, .. } => *keeper,
            Role::Kept { .. } => None,
        }
    }

    /// The row of a session that this replica does not keep.
    pub fn read(&self, row: &SessionRow, boot: Duration) {
        let mut inner = self.inner();
        let known = inner
            .sessions
            .entry(row.id)
            .or_insert_with(|| Known::elsewhere(boot));
        if let Role::Elsewhere {
            keeper,
            read_at,
            said,
            ended,
            ..
        } = &mut known.role
        {
            let new = Keeper {
                replica: row.replica,
                epoch: row.epoch,
                ttl: row.ttl(),
            };
            if keeper.is_some_and(|old| old.epoch > row.epoch) {
                return;
            }
            if keeper.is_none_or(|old| old.replica != new.replica) {
                *said = None;
            }
            *keeper = Some(new);
            *read_at = Some(boot);
            *ended |= !row.open;
        }
    }

    /// A session that this replica does not keep has ended.
    pub fn ended_elsewhere(&self, session: SessionId, boot: Duration) {
        let mut inner = self.inner();
        if let Some(known) = inner.sessions.get_mut(&session)
            && let Role::Elsewhere { ended, read_at, .. } = &mut known.role
        {
            *ended = true;
            *read_at = Some(boot);
        }
    }

    /// Another replica keeps a session that this one kept.
    pub fn moved(&self, row: &SessionRow, boot: Duration) {
        {
            let mut inner = self.inner();
            let Inner {
                sessions,
                alarms,
                kept,
            } = &mut *inner;
            if let Some(known) = sessions.get_mut(&row.id)
                && let Role::Kept { alarm, .. } = &known.role
            {
                alarms.remove(&(*alarm, row.id));
                *kept -= 1;
                known.role = Known::elsewhere(boot).role;
            }
        }
        self.read(row, boot);
    }

    /// Its row is to be read at once.
    pub fn forget_keeper(&self, session: SessionId) {
        if let Some(known) = self.inner().sessions.get_mut(&session)
            && let Role::Elsewhere {
                keeper,
                read_at,
                said,
                ..
            } = &mut known.role
        {
            (*keeper, *read_at, *said) = (None, None, None);
        }
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
            Role::Elsewhere { keeper: None, .. } => Attached::Unknown,
            Role::Elsewhere { .. } | Role::Kept { .. } => Attached::Ok,
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
        if known.entries.len().saturating_add(known.creating) >= self.entries_max {
            return Err(NoRoom::Full);
        }
        known.creating += 1;
        Ok(())
    }

    /// The entry was made, or was not.
    pub fn end_create(&self, session: SessionId) {
        if let Some(known) = self.inner().sessions.get_mut(&session) {
            known.creating = known.creating.saturating_sub(1);
        }
    }

    /// A call that keeps a session alive opens.
    pub fn open_call(&self, session: SessionId, now: Observed, boot: Duration) {
        let mut inner = self.inner();
        let known = inner
            .sessions
            .entry(session)
            .or_insert_with(|| Known::elsewhere(boot));
        known.open_calls = known.open_calls.saturating_add(1);
        if let Role::Kept { lease, .. } = &mut known.role {
            lease.open_call(now);
        }
    }

    /// It closes.
    pub fn close_call(&self, session: SessionId, now: Observed) {
        let mut inner = self.inner();
        if let Some(known) = inner.sessions.get_mut(&session) {
            known.open_calls = known.open_calls.saturating_sub(1);
            if let Role::Kept { lease, .. } = &mut known.role {
                lease.close_call(now);
            }
        }
        // Its client may be disconnected, which did not matter meanwhile.
        inner.fire_sooner(session, now);
    }

    /// A stream ended that the client of a session sent renewals on.
    pub fn disconnected(&self, session: SessionId, now: Observed) {
        let mut inner = self.inner();
        if let Some(known) = inner.sessions.get_mut(&session)
            && let Role::Kept { lease, .. } = &mut known.role
        {
            lease.disconnect(now);
        }
        inner.fire_sooner(session, now);
    }

    /// Ends the leases whose time has come, `most` at most.
    pub fn expire(&self, now: Observed, most: usize) -> Vec<SessionId> {
        let mut inner = self.inner();
        let mut expired = Vec::new();
        while expired.len() < most
            && let Some(first) = inner.alarms.first_entry()
            && first.key().0 <= now
        {
            let ((_, session), ()) = first.remove_entry();
            let Some(known) = inner.sessions.get_mut(&session) else {
                continue;
            };
            let Role::Kept { lease, alarm, .. } = &mut known.role else {
                continue;
            };
            if lease.expire(now) {
                expired.push(session);
            } else {
                let again = lease.expires(now);
                *alarm = again;
                inner.alarms.insert((again, session), ());
            }
        }
        expired
    }

    /// Ends a session that is kept here: nothing renews it, and nothing more can live by it. False if it is not kept
    /// here.
    pub fn end(&self, session: SessionId) -> bool {
        let mut inner = self.inner();
        let Some(known) = inner.sessions.get_mut(&session) else {
            return false;
        };
        match &mut known.role {
            Role::Kept { lease, .. } => {
                lease.end();
                true
            }
            Role::Elsewhere { .. } => false,
        }
    }

    /// Its row says that it has ended.
    pub fn note_closed(&self, session: SessionId) {
        if let Some(known) = self.inner().sessions.get_mut(&session)
            && let Role::Kept { closed, .. } = &mut known.role
        {
            *closed = true;
        }
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

    /// Forgets a session that has ended, and that nothing lives by. True if this replica kept it: then its row is to be
    /// forgotten, too.
    pub fn forget_if_done(&self, session: SessionId) -> bool {
        let mut inner = self.inner();
        let Some(known) = inner.sessions.get(&session) else {
            return false;
        };
        let is_unused = known.entries.is_empty() && known.creating == 0 && known.open_calls == 0;
        let (is_done, was_kept) = match &known.role {
            Role::Kept { lease, closed, .. } => (lease.has_ended() && *closed, true),
            Role::Elsewhere { ended, .. } => (*ended, false),
        };
        if !is_unused || !is_done {
            return false;
        }
        inner.forget(session);
        was_kept
    }

    /// What is to be done about sessions that other replicas keep. Those that nobody cares for are forgotten.
    pub fn due(&self, boot: Duration) -> Vec<Due> {
        let mut inner = self.inner();
        let unwanted: Vec<SessionId> = inner
            .sessions
            .iter()
            .filter(|(_, known)| {
                let is_unused =
                    known.entries.is_empty() && known.creating == 0 && known.open_calls == 0;
                let is_elsewhere = matches!(known.role, Role::Elsewhere { .. });
                is_unused && is_elsewhere && known.wanted_until <= boot
            })
            .map(|(id, _)| *id)
            .collect();
        for session in unwanted {
            inner.forget(session);
        }
        let sessions = inner.sessions.iter();
        let due = sessions.filter_map(|(session, known)| {
            let Role::Elsewhere {
                keeper,
                read_at,
                renewed_at,
                ended,
                ..
            } = &known.role
            else {
                return None;
            };
            let is_used = !known.entries.is_empty() || known.open_calls > 0;
            let ttl = keeper.map_or(READ_AGAIN, |keeper| keeper.ttl);
            let due = |at: &Option<Duration>, pause: Duration| {
                at.is_none_or(|at| boot.saturating_sub(at) >= pause)
            };
            Some(Due {
                session: *session,
                keeper: *keeper,
                read: is_used && !ended && due(read_at, READ_AGAIN.max(ttl)),
                renew: known.open_calls > 0 && !ended && due(renewed_at, ttl / 3),
                ended: *ended && !known.entries.is_empty(),
            })
        });
        due.filter(|due| due.read || due.renew || due.ended || due.keeper.is_some())
            .collect()
    }

    /// What is left of a session that is kept here.
    pub fn left(&self, session: SessionId, now: Observed) -> Option<(Duration, Duration)> {
        match &self.inner().sessions.get(&session)?.role {
            Role::Kept { lease, .. } => Some((lease.ttl(), lease.left(now))),
            Role::Elsewhere { .. } => None,
        }
    }

    /// How many entries live by a session, as far as this replica knows.
    pub fn entries_of(&self, session: SessionId) -> usize {
        let inner = self.inner();
        let known = inner.sessions.get(&session);
        known.map_or(0, |known| known.entries.len())
    }

    /// The TTL of a session, as far as it is known here.
    pub fn ttl_of(&self, session: SessionId) -> Option<Duration> {
        match &self.inner().sessions.get(&session)?.role {
            Role::Kept { lease, .. } => Some(lease.ttl()),
            Role::Elsewhere { keeper, .. } => keeper.map(|keeper| keeper.ttl),
        }
    }

    /// Whether this replica keeps it.
    pub fn is_kept(&self, session: SessionId) -> bool {
        let inner = self.inner();
        let known = inner.sessions.get(&session);
        matches!(known.map(|known| &known.role), Some(Role::Kept { .. }))
    }
}

impl Inner {
    /// Moves the alarm of a session that may end sooner than that fires. (Later is no matter: it is set again.)
    fn fire_sooner(&mut self, session: SessionId, now: Observed) {
        let Some(known) = self.sessions.get_mut(&session) else {
            return;
        };
        let Role::Kept { lease, alarm, .. } = &mut known.role else {
            return;
        };
        let expires = lease.expires(now);
        if lease.has_ended() || expires >= *alarm {
            return;
        }
        let older = std::mem::replace(alarm, expires);
        self.alarms.remove(&(older, session));
        self.alarms.insert((expires, session), ());
    }

    fn forget(&mut self, session: SessionId) {
        let Some(known) = self.sessions.remove(&session) else {
            return;
        };
        if let Role::Kept { alarm, .. } = known.role {
            self.alarms.remove(&(alarm, session));
            self.kept -= 1;
        }
        if self.sessions.capacity() > 64 && self.sessions.len() < self.sessions.capacity() / 8 {
            self.sessions.shrink_to_fit();
        }
    }
}
