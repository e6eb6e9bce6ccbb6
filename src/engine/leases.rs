//! The leases that this replica keeps: sessions, and entries that live by themselves.
//!
//! One table under one mutex that is never held across an await. Each lease has one alarm, whether
//! anybody waits behind it or not (I8); a renewal does not move it: when it fires early it is set again.
//! So a renewal costs a look-up.

mod disconnect;
mod open;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::api::{LeaseLeft, Renewed};
use super::clock::Clock;
use crate::lock::{Fence, KeyId, Seq, SessionId, Tag};
use crate::session::{Lease, Observed, Observer, Validity};
use crate::store::SessionRow;
pub(super) use open::OpenCall;

/// The table is looked at least this often; a longer gap means that the process was not running.
pub(super) const TICK: Duration = Duration::from_millis(50);
const GAP_MAX: Duration = Duration::from_millis(1_000);

/// An entry of a key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct EntryId {
    pub id: Arc<KeyId>,
    pub seq: Seq,
}

/// What an alarm is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Alarm {
    /// A session expired.
    Session(SessionId),
    /// An entry that lives by itself expired.
    Entry(EntryId),
    /// An entry has been the holder with this grant for one TTL.
    Claim(EntryId, Fence),
}

/// What a call renews: the lease that an entry lives by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum LeaseKey {
    Session(SessionId),
    Entry(EntryId),
}

/// Why a lease could not be renewed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoLease {
    /// It has ended.
    Ended,
    /// This replica keeps no such lease.
    Unknown,
    /// As many sessions are open, or as many entries live by this one, as may be.
    TooMany,
    /// It goes to another replica, which was promised that it is not renewed here any more.
    HandedOver,
    /// Others may have seen no heartbeat for its TTL: it needs a new epoch before it is renewed (docs/design.md, "Valid
    /// from the later of heartbeat and swap").
    InDoubt,
}

type AlarmAt = (Observed, u64);

struct EntryLease {
    lease: Lease,
    alarm: AlarmAt,
    tag: Tag,
    /// When the swap was sent that gave it its present epoch, by CLOCK_BOOTTIME.
    since: Duration,
    handed_over: bool,
}

struct SessionLease {
    lease: Lease,
    alarm: AlarmAt,
    /// As of an entry.
    since: Duration,
    /// When it was handed over to another replica.
    handed_over: Option<Duration>,
    entries: BTreeSet<EntryId>,
    /// Entries that are being made.
    creating: usize,
    /// That it has ended is in its row.
    closed: bool,
}

struct Table {
    observer: Observer,
    sessions: HashMap<SessionId, SessionLease>,
    entries: HashMap<EntryId, EntryLease>,
    alarms: BTreeMap<AlarmAt, Alarm>,
    claims: HashMap<EntryId, AlarmAt>,
    /// Calls open here that keep a session alive, wherever that is kept.
    open: HashMap<SessionId, u32>,
    next_alarm: u64,
    sessions_max: usize,
    validity: Validity,
    /// How many leases have which TTL.
    ttls: BTreeMap<Duration, usize>,
}

/// The leases of this replica.
pub(super) struct Leases {
    clock: Arc<dyn Clock>,
    /// Until when this replica is alive, by CLOCK_BOOTTIME, unless another heartbeat is acknowledged.
    alive_until_ns: AtomicU64,
    table: Mutex<Table>,
}

/// As a number; the largest for what is more than 500 years.
fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Room for one more entry of a session, until the entry is made or is not.
pub(super) struct Room {
    leases: Arc<Leases>,
    session: SessionId,
}

impl Drop for Room {
    fn drop(&mut self) {
        let (mut table, _) = self.leases.table_now();
        if let Some(known) = table.sessions.get_mut(&self.session) {
            known.creating = known.creating.saturating_sub(1);
        }
    }
}

impl Leases {
    pub fn new(clock: Arc<dyn Clock>, sessions_max: usize, validity: Validity) -> Self {
        Leases {
            clock,
            alive_until_ns: AtomicU64::new(nanoseconds(validity.alive_until())),
            table: Mutex::new(Table {
                observer: Observer::new(GAP_MAX),
                sessions: HashMap::new(),
                entries: HashMap::new(),
                alarms: BTreeMap::new(),
                claims: HashMap::new(),
                open: HashMap::new(),
                next_alarm: 0,
                sessions_max,
                validity,
                ttls: BTreeMap::new(),
            }),
        }
    }

    /// Every read of the table is a read of the clock, so that time asleep is noticed by the first.
    fn table_now(&self) -> (MutexGuard<'_, Table>, Observed) {
        // Nothing below panics between two dependent changes, so a poisoned table is still whole.
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let now = table.observer.observe(self.clock.boot());
        (table, now)
    }

    /// Begins the lease of an entry that lives by itself, with a full TTL; goes on with the one it has,
    /// unless that has ended.
    ///
    /// `since` is when the swap was sent that gave it its epoch, by CLOCK_BOOTTIME.
    pub fn add_entry(
        &self,
        entry_id: EntryId,
        tag: Tag,
        ttl: Duration,
        since: Duration,
    ) -> Result<(), NoLease> {
        let (mut table, now) = self.table_now();
        if let Some(known) = table.entries.get_mut(&entry_id) {
            if known.lease.has_ended() {
                return Err(NoLease::Ended);
            }
            known.since = known.since.max(since);
            known.handed_over = false;
            return Ok(());
        }
        let alarm = table.set_alarm(now.plus(ttl), Alarm::Entry(entry_id.clone()));
        table.count_ttl(ttl);
        let known = EntryLease {
            lease: Lease::new(ttl, now),
            alarm,
            tag,
            since,
            handed_over: false,
        };
        table.entries.insert(entry_id, known);
        Ok(())
    }

    /// Whether an entry that lives by itself has its lease here.
    pub fn has_entry(&self, entry_id: &EntryId) -> bool {
        self.table_now().0.entries.contains_key(entry_id)
    }

    /// Renews an entry no more: another replica was promised so. It expires in its time. True if it lives by
    /// itself, here.
    pub fn hand_over_entry(&self, entry_id: &EntryId) -> bool {
        let (mut table, _) = self.table_now();
        let Some(known) = table.entries.get_mut(entry_id) else {
            return false;
        };
        known.handed_over = true;
        true
    }

    /// As [`Leases::hand_over_entry`], for a session.
    pub fn hand_over_session(&self, session: SessionId) -> bool {
        let (mut table, _) = self.table_now();
        let Some(known) = table.sessions.get_mut(&session) else {
            return false;
        };
        known.handed_over = Some(self.clock.boot());
        true
    }

    /// For how long a session has been handed over to another replica.
    pub fn handed_over_for(&self, session: SessionId) -> Option<Duration> {
        let (table, _) = self.table_now();
        let at = table.sessions.get(&session)?.handed_over?;
        Some(self.clock.boot().saturating_sub(at))
    }

    /// Forgets an entry, whatever it lived by.
    pub fn remove_entry(&self, entry_id: &EntryId) {
        let (mut table, _) = self.table_now();
        if let Some(gone) = table.entries.remove(entry_id) {
            table.alarms.remove(&gone.alarm);
            table.uncount_ttl(gone.lease.ttl());
        }
        if let Some(alarm) = table.claims.remove(entry_id) {
            table.alarms.remove(&alarm);
        }
    }

    /// Begins the lease of a session, with a full TTL, as of one whose client is connected; goes on with the one it
    /// has. `since` as for an entry.
    pub fn add_session(&self, row: &SessionRow, since: Duration) -> Result<(), NoLease> {
        let (session, ttl) = (row.id, row.ttl());
        let (mut table, now) = self.table_now();
        if let Some(known) = table.sessions.get_mut(&session) {
            if known.lease.has_ended() {
                return Err(NoLease::Ended);
            }
            known.since = known.since.max(since);
            known.handed_over = None;
            return Ok(());
        }
        if table.sessions.len() >= table.sessions_max {
            return Err(NoLease::TooMany);
        }
        let alarm = table.set_alarm(now.plus(ttl), Alarm::Session(session));
        let open_calls = table.open_calls(session);
        let known = SessionLease {
            lease: Lease::with_open_calls(ttl, now, open_calls)
                .with_disconnect_grace(row.disconnect_grace()),
            alarm,
            since,
            handed_over: None,
            entries: BTreeSet::new(),
            creating: 0,
            closed: false,
        };
        table.count_ttl(ttl);
        table.sessions.insert(session, known);
        Ok(())
    }

    /// Ends a session: nothing renews it and nothing more can live by it. What lives by it until now.
    pub fn end_session(&self, session: SessionId) -> Option<Vec<EntryId>> {
        let (mut table, _) = self.table_now();
        let known = table.sessions.get_mut(&session)?;
        known.lease.end();
        let alarm = known.alarm;
        let entries = known.entries.iter().cloned().collect();
        table.alarms.remove(&alarm);
        Some(entries)
    }

    /// Notes that the row of a session says that it has ended.
    pub fn note_closed(&self, session: SessionId) {
        let (mut table, _) = self.table_now();
        if let Some(known) = table.sessions.get_mut(&session) {
            known.closed = true;
        }
    }

    /// Forgets a session that has ended, once its row says so and nothing lives by it.
    pub fn forget_session(&self, session: SessionId) -> bool {
        let (mut table, _) = self.table_now();
        let done = table
            .sessions
            .get(&session)
            .is_some_and(|s| s.lease.has_ended() && s.closed && s.entries.is_empty());
        if done {
            if let Some(gone) = table.sessions.remove(&session) {
                table.uncount_ttl(gone.lease.ttl());
            }
            if table.sessions.capacity() > 64
                && table.sessions.len() < table.sessions.capacity() / 8
            {
                table.sessions.shrink_to_fit();
            }
        }
        done
    }

    /// Notes that an entry lives by a session.
    pub fn attach(&self, session: SessionId, entry_id: EntryId) -> Result<(), NoLease> {
        let (mut table, _) = self.table_now();
        let known = table.sessions.get_mut(&session).ok_or(NoLease::Unknown)?;
        if known.lease.has_ended() {
            // One that was handed over to another replica may be alive there.
            return Err(match known.handed_over {
                Some(_) => NoLease::Unknown,
                None => NoLease::Ended,
            });
        }
        known.entries.insert(entry_id);
        Ok(())
    }

    /// Notes that an entry lives by a session no longer.
    pub fn detach(&self, session: SessionId, entry_id: &EntryId) {
        self.remove_entry(entry_id);
        let (mut table, _) = self.table_now();
        if let Some(known) = table.sessions.get_mut(&session) {
            known.entries.remove(entry_id);
        }
    }

    /// Keeps room for one more entry of an open session, of which `most` may live by it.
    pub fn room(self: &Arc<Self>, session: SessionId, most: usize) -> Result<Room, NoLease> {
        let (mut table, _) = self.table_now();
        let known = table.sessions.get_mut(&session).ok_or(NoLease::Unknown)?;
        if known.lease.has_ended() {
            return Err(NoLease::Ended);
        }
        if known.entries.len().saturating_add(known.creating) >= most {
            return Err(NoLease::TooMany);
        }
        known.creating += 1;
        drop(table);
        Ok(Room {
            leases: Arc::clone(self),
            session,
        })
    }

    /// A renewal: what the client may be told.
    pub fn renew(&self, key: &LeaseKey) -> Result<Renewed, NoLease> {
        let (mut table, now) = self.table_now();
        table.renew(key, now, self.clock.boot())
    }

    /// A renewal of an entry that lives by itself, from whoever knows its tag.
    pub fn renew_entry(&self, entry_id: EntryId, tag: Tag) -> Result<Renewed, NoLease> {
        let (mut table, now) = self.table_now();
        match table.entries.get(&entry_id) {
            Some(known) if known.tag == tag => {
                table.renew(&LeaseKey::Entry(entry_id), now, self.clock.boot())
            }
            Some(_) | None => Err(NoLease::Unknown),
        }
    }

    /// A heartbeat that was sent then was acknowledged.
    pub fn acknowledged(&self, sent: Duration) {
        let (mut table, _) = self.table_now();
        let now = self.clock.boot();
        table.validity.acknowledged(sent, now);
        let until = nanoseconds(table.validity.alive_until());
        self.alive_until_ns.store(until, Ordering::Release);
    }

    /// Whether this replica is fenced for good. Asked before each answer, so without the table where the last
    /// acknowledged heartbeat says enough; once it has ended no heartbeat is taken in any more, so that stays as it is.
    pub fn is_fenced(&self) -> bool {
        let now = self.clock.boot();
        if nanoseconds(now) <= self.alive_until_ns.load(Ordering::Acquire) {
            return false;
        }
        let (mut table, _) = self.table_now();
        table.validity.is_fenced(now)
    }

    /// The shortest TTL that is kept here.
    pub fn shortest_ttl(&self) -> Option<Duration> {
        let (table, _) = self.table_now();
        table.ttls.first_key_value().map(|(ttl, _)| *ttl)
    }

    /// Forgets a session that another replica keeps now, and says what lives by it here.
    pub fn drop_session(&self, session: SessionId) -> Vec<EntryId> {
        let (mut table, _) = self.table_now();
        let Some(gone) = table.sessions.remove(&session) else {
            return Vec::new();
        };
        table.alarms.remove(&gone.alarm);
        table.uncount_ttl(gone.lease.ttl());
        gone.entries.into_iter().collect()
    }

    /// The TTL of a lease, where it is kept here.
    pub fn ttl(&self, key: &LeaseKey) -> Option<Duration> {
        let (mut table, _) = self.table_now();
        table.lease(key).map(|lease| lease.ttl())
    }

    /// What is left of a lease, where it is kept here.
    pub fn left(&self, key: &LeaseKey) -> Option<LeaseLeft> {
        let (mut table, now) = self.table_now();
        let lease = table.lease(key)?;
        Some(LeaseLeft {
            ttl: lease.ttl(),
            left: lease.left(now),
        })
    }

    /// Rings `Alarm::Claim` after one TTL, unless the entry is removed before.
    pub fn watch_claim(&self, entry_id: &EntryId, grant: Fence, ttl: Duration) {
        let (mut table, now) = self.table_now();
        let alarm = table.set_alarm(now.plus(ttl), Alarm::Claim(entry_id.clone(), grant));
        if let Some(older) = table.claims.insert(entry_id.clone(), alarm) {
            table.alarms.remove(&older);
        }
    }

    /// Ends the leases whose time has come and returns what fired, `most` at most. To be called every
    /// [`TICK`].
    pub fn fire(&self, most: usize) -> Vec<Alarm> {
        let (mut table, now) = self.table_now();
        let mut fired = Vec::new();
        while fired.len() < most
            && let Some(first) = table.alarms.first_entry()
            && first.key().0 <= now
        {
            let alarm = first.remove();
            match &alarm {
                Alarm::Claim(entry_id, _) => {
                    table.claims.remove(entry_id);
                    fired.push(alarm);
                }
                Alarm::Session(session) => {
                    let key = LeaseKey::Session(*session);
                    if let Some(again) = table.expire(&key, now) {
                        let at = table.set_alarm(again, alarm.clone());
                        if let Some(known) = table.sessions.get_mut(session) {
                            known.alarm = at;
                        }
                    } else {
                        fired.push(alarm);
                    }
                }
                Alarm::Entry(entry_id) => {
                    let key = LeaseKey::Entry(entry_id.clone());
                    if let Some(again) = table.expire(&key, now) {
                        let at = table.set_alarm(again, alarm.clone());
                        if let Some(known) = table.entries.get_mut(entry_id) {
                            known.alarm = at;
                        }
                    } else {
                        fired.push(alarm);
                    }
                }
            }
        }
        if table.entries.capacity() > 1_024 && table.entries.len() < table.entries.capacity() / 8 {
            table.entries.shrink_to_fit();
        }
        if table.claims.capacity() > 1_024 && table.claims.len() < table.claims.capacity() / 8 {
            table.claims.shrink_to_fit();
        }
        fired
    }

    /// How many entries live by a session, as far as this replica knows.
    pub fn entries_of(&self, session: SessionId) -> usize {
        let (table, _) = self.table_now();
        table.sessions.get(&session).map_or(0, |s| s.entries.len())
    }

    /// How much time the process was not running.
    pub fn missed(&self) -> Duration {
        self.table_now().0.observer.missed()
    }

    /// How many leases are kept: sessions, entries.
    pub fn counts(&self) -> (usize, usize) {
        let (table, _) = self.table_now();
        (table.sessions.len(), table.entries.len())
    }
}

impl Table {
    fn lease(&mut self, key: &LeaseKey) -> Option<&mut Lease> {
        match key {
            LeaseKey::Session(session) => self.sessions.get_mut(session).map(|s| &mut s.lease),
            LeaseKey::Entry(entry_id) => self.entries.get_mut(entry_id).map(|p| &mut p.lease),
        }
    }

    fn renew(&mut self, key: &LeaseKey, now: Observed, boot: Duration) -> Result<Renewed, NoLease> {
        let (lease, since, handed_over) = match key {
            LeaseKey::Session(session) => {
                let known = self.sessions.get_mut(session).ok_or(NoLease::Unknown)?;
                (&mut known.lease, known.since, known.handed_over.is_some())
            }
            LeaseKey::Entry(entry_id) => {
                let known = self.entries.get_mut(entry_id).ok_or(NoLease::Unknown)?;
                (&mut known.lease, known.since, known.handed_over)
            }
        };
        // First: what it lives by may be alive at the other replica, whatever became of the lease here.
        if handed_over {
            return Err(NoLease::HandedOver);
        }
        if lease.has_ended() {
            return Err(NoLease::Ended);
        }
        let ttl = lease.ttl();
        // Also where nothing may be told: its client is there (I9).
        let most = lease.renew(now).ok_or(NoLease::Ended)?;
        let valid_for = self.validity.valid_for(ttl, since, boot);
        let valid_for = valid_for.ok_or(NoLease::InDoubt)?;
        Ok(Renewed {
            ttl,
            disconnect_grace: lease.disconnect_grace(),
            valid_for: valid_for.min(most),
        })
    }

    fn count_ttl(&mut self, ttl: Duration) {
        *self.ttls.entry(ttl).or_insert(0) += 1;
    }

    fn uncount_ttl(&mut self, ttl: Duration) {
        if let Some(count) = self.ttls.get_mut(&ttl) {
            *count -= 1;
            if *count == 0 {
                self.ttls.remove(&ttl);
            }
        }
    }

    fn set_alarm(&mut self, at: Observed, alarm: Alarm) -> AlarmAt {
        self.next_alarm = self.next_alarm.wrapping_add(1);
        let key = (at, self.next_alarm);
        self.alarms.insert(key, alarm);
        key
    }

    /// Ends a lease if its time has come; else when to check again.
    fn expire(&mut self, key: &LeaseKey, now: Observed) -> Option<Observed> {
        let lease = self.lease(key)?;
        (!lease.expire(now)).then(|| lease.expires(now))
    }
}
