//! The leases that this replica keeps: sessions, and places that live by themselves (design §6).
//!
//! One table under one mutex that is never held across an await. Each lease has one alarm, whether
//! anybody waits behind it or not (I8); a renewal does not move it: when it rings early it is set again.
//! So a sign of life costs a look-up.

mod disconnect;
mod open;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::api::{LeaseLeft, Renewed};
use super::clock::Clock;
use crate::lock::{Fence, KeyId, Seq, SessionId, Tag};
use crate::session::{Lease, Observed, Observer, Vouch};
use crate::store::SessionRow;
pub(super) use open::OpenCall;

/// The table is looked at least this often; a longer gap means that the process was not running.
pub(super) const TICK: Duration = Duration::from_millis(50);
const GAP_MAX: Duration = Duration::from_millis(1_000);

/// A place of a key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct PlaceId {
    pub id: Arc<KeyId>,
    pub seq: Seq,
}

/// What an alarm is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Alarm {
    /// A session expired.
    Session(SessionId),
    /// A place that lives by itself expired.
    Place(PlaceId),
    /// A place has been the holder with this grant for one TTL.
    Claim(PlaceId, Fence),
}

/// What a call renews: the lease that a place lives by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum LeaseKey {
    Session(SessionId),
    Place(PlaceId),
}

/// Why a lease could not be renewed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoLease {
    /// It is over.
    Over,
    /// This replica keeps no such lease.
    Unknown,
    /// As many sessions are open, or as many places live by this one, as may be.
    TooMany,
    /// It goes to another replica, which was promised that it is not renewed here any more.
    Ceded,
    /// Others may have seen no beat for its TTL: it needs a new epoch before it is renewed (design §6).
    Doubted,
}

type AlarmAt = (Observed, u64);

struct PlaceLease {
    lease: Lease,
    alarm: AlarmAt,
    tag: Tag,
    /// When the swap was sent that gave it its present epoch, by CLOCK_BOOTTIME.
    since: Duration,
    ceded: bool,
}

struct SessionLease {
    lease: Lease,
    alarm: AlarmAt,
    /// As of a place.
    since: Duration,
    /// When it was promised to another replica.
    ceded: Option<Duration>,
    places: BTreeSet<PlaceId>,
    /// Places that are being made.
    creating: usize,
    /// That it is over stands in its row.
    closed: bool,
}

struct Table {
    observer: Observer,
    sessions: HashMap<SessionId, SessionLease>,
    places: HashMap<PlaceId, PlaceLease>,
    alarms: BTreeMap<AlarmAt, Alarm>,
    claims: HashMap<PlaceId, AlarmAt>,
    /// Calls open here that keep a session alive, wherever that is kept.
    open: HashMap<SessionId, u32>,
    next_alarm: u64,
    sessions_max: usize,
    vouch: Vouch,
    /// How many leases have which TTL.
    ttls: BTreeMap<Duration, usize>,
}

/// The leases of this replica.
pub(super) struct Leases {
    clock: Arc<dyn Clock>,
    /// Until when this replica is alive, by CLOCK_BOOTTIME, unless another beat is acknowledged.
    alive_until_ns: AtomicU64,
    table: Mutex<Table>,
}

/// As a number; the largest for what is more than 500 years.
fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Room for one more place of a session, until the place is made or is not.
pub(super) struct Room {
    leases: Arc<Leases>,
    session: SessionId,
}

impl Drop for Room {
    fn drop(&mut self) {
        let (mut table, _) = self.leases.look();
        if let Some(known) = table.sessions.get_mut(&self.session) {
            known.creating = known.creating.saturating_sub(1);
        }
    }
}

impl Leases {
    pub fn new(clock: Arc<dyn Clock>, sessions_max: usize, vouch: Vouch) -> Self {
        Leases {
            clock,
            alive_until_ns: AtomicU64::new(nanoseconds(vouch.alive_until())),
            table: Mutex::new(Table {
                observer: Observer::new(GAP_MAX),
                sessions: HashMap::new(),
                places: HashMap::new(),
                alarms: BTreeMap::new(),
                claims: HashMap::new(),
                open: HashMap::new(),
                next_alarm: 0,
                sessions_max,
                vouch,
                ttls: BTreeMap::new(),
            }),
        }
    }

    /// Every look at the table is a look at the clock, so that time asleep is noticed by the first.
    fn look(&self) -> (MutexGuard<'_, Table>, Observed) {
        // Nothing below panics between two dependent changes, so a poisoned table is still whole.
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let now = table.observer.observe(self.clock.boot());
        (table, now)
    }

    /// Begins the lease of a place that lives by itself, with a full TTL; goes on with the one it has,
    /// unless that is over.
    ///
    /// `since` is when the swap was sent that gave it its epoch, by CLOCK_BOOTTIME.
    pub fn add_place(
        &self,
        place: PlaceId,
        tag: Tag,
        ttl: Duration,
        since: Duration,
    ) -> Result<(), NoLease> {
        let (mut table, now) = self.look();
        if let Some(known) = table.places.get_mut(&place) {
            if known.lease.is_over() {
                return Err(NoLease::Over);
            }
            known.since = known.since.max(since);
            known.ceded = false;
            return Ok(());
        }
        let alarm = table.set_alarm(now.plus(ttl), Alarm::Place(place.clone()));
        table.count_ttl(ttl);
        let known = PlaceLease {
            lease: Lease::new(ttl, now),
            alarm,
            tag,
            since,
            ceded: false,
        };
        table.places.insert(place, known);
        Ok(())
    }

    /// Whether a place that lives by itself has its lease here.
    pub fn has_place(&self, place: &PlaceId) -> bool {
        self.look().0.places.contains_key(place)
    }

    /// Renews a place no more: another replica was promised so. It expires in its time. True if it lives by
    /// itself, here.
    pub fn cede_place(&self, place: &PlaceId) -> bool {
        let (mut table, _) = self.look();
        let Some(known) = table.places.get_mut(place) else {
            return false;
        };
        known.ceded = true;
        true
    }

    /// As [`Leases::cede_place`], for a session.
    pub fn cede_session(&self, session: SessionId) -> bool {
        let (mut table, _) = self.look();
        let Some(known) = table.sessions.get_mut(&session) else {
            return false;
        };
        known.ceded = Some(self.clock.boot());
        true
    }

    /// For how long a session has been promised to another replica.
    pub fn ceded_for(&self, session: SessionId) -> Option<Duration> {
        let (table, _) = self.look();
        let at = table.sessions.get(&session)?.ceded?;
        Some(self.clock.boot().saturating_sub(at))
    }

    /// Forgets a place, whatever it lived by.
    pub fn remove_place(&self, place: &PlaceId) {
        let (mut table, _) = self.look();
        if let Some(gone) = table.places.remove(place) {
            table.alarms.remove(&gone.alarm);
            table.uncount_ttl(gone.lease.ttl());
        }
        if let Some(alarm) = table.claims.remove(place) {
            table.alarms.remove(&alarm);
        }
    }

    /// Begins the lease of a session, with a full TTL, as of one whose client is connected; goes on with the one it
    /// has. `since` as for a place.
    pub fn add_session(&self, row: &SessionRow, since: Duration) -> Result<(), NoLease> {
        let (session, ttl) = (row.id, row.ttl());
        let (mut table, now) = self.look();
        if let Some(known) = table.sessions.get_mut(&session) {
            if known.lease.is_over() {
                return Err(NoLease::Over);
            }
            known.since = known.since.max(since);
            known.ceded = None;
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
            ceded: None,
            places: BTreeSet::new(),
            creating: 0,
            closed: false,
        };
        table.count_ttl(ttl);
        table.sessions.insert(session, known);
        Ok(())
    }

    /// Ends a session: nothing renews it and nothing more can live by it. What lives by it until now.
    pub fn end_session(&self, session: SessionId) -> Option<Vec<PlaceId>> {
        let (mut table, _) = self.look();
        let known = table.sessions.get_mut(&session)?;
        known.lease.end();
        let alarm = known.alarm;
        let places = known.places.iter().cloned().collect();
        table.alarms.remove(&alarm);
        Some(places)
    }

    /// Notes that the row of a session says that it is over.
    pub fn note_closed(&self, session: SessionId) {
        let (mut table, _) = self.look();
        if let Some(known) = table.sessions.get_mut(&session) {
            known.closed = true;
        }
    }

    /// Forgets a session that is over, once its row says so and nothing lives by it.
    pub fn forget_session(&self, session: SessionId) -> bool {
        let (mut table, _) = self.look();
        let done = table
            .sessions
            .get(&session)
            .is_some_and(|s| s.lease.is_over() && s.closed && s.places.is_empty());
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

    /// Notes that a place lives by a session.
    pub fn attach(&self, session: SessionId, place: PlaceId) -> Result<(), NoLease> {
        let (mut table, _) = self.look();
        let known = table.sessions.get_mut(&session).ok_or(NoLease::Unknown)?;
        if known.lease.is_over() {
            // One that was promised to another replica may be alive there.
            return Err(match known.ceded {
                Some(_) => NoLease::Unknown,
                None => NoLease::Over,
            });
        }
        known.places.insert(place);
        Ok(())
    }

    /// Notes that a place lives by a session no longer.
    pub fn detach(&self, session: SessionId, place: &PlaceId) {
        self.remove_place(place);
        let (mut table, _) = self.look();
        if let Some(known) = table.sessions.get_mut(&session) {
            known.places.remove(place);
        }
    }

    /// Keeps room for one more place of an open session, of which `most` may live by it.
    pub fn room(self: &Arc<Self>, session: SessionId, most: usize) -> Result<Room, NoLease> {
        let (mut table, _) = self.look();
        let known = table.sessions.get_mut(&session).ok_or(NoLease::Unknown)?;
        if known.lease.is_over() {
            return Err(NoLease::Over);
        }
        if known.places.len().saturating_add(known.creating) >= most {
            return Err(NoLease::TooMany);
        }
        known.creating += 1;
        drop(table);
        Ok(Room {
            leases: Arc::clone(self),
            session,
        })
    }

    /// A sign of life: what the client may be told.
    pub fn renew(&self, key: &LeaseKey) -> Result<Renewed, NoLease> {
        let (mut table, now) = self.look();
        table.renew(key, now, self.clock.boot())
    }

    /// A sign of life of a place that lives by itself, from whoever knows its tag.
    pub fn renew_place(&self, place: PlaceId, tag: Tag) -> Result<Renewed, NoLease> {
        let (mut table, now) = self.look();
        match table.places.get(&place) {
            Some(known) if known.tag == tag => {
                table.renew(&LeaseKey::Place(place), now, self.clock.boot())
            }
            Some(_) | None => Err(NoLease::Unknown),
        }
    }

    /// A beat that was sent then was acknowledged.
    pub fn acknowledged(&self, sent: Duration) {
        let (mut table, _) = self.look();
        let now = self.clock.boot();
        table.vouch.acknowledged(sent, now);
        let until = nanoseconds(table.vouch.alive_until());
        self.alive_until_ns.store(until, Ordering::Release);
    }

    /// Whether this replica is over for good. Asked before each answer, so without the table where the last
    /// acknowledged beat says enough; once it is over no beat is taken in any more, so that stays as it is.
    pub fn is_dead(&self) -> bool {
        let now = self.clock.boot();
        if nanoseconds(now) <= self.alive_until_ns.load(Ordering::Acquire) {
            return false;
        }
        let (mut table, _) = self.look();
        table.vouch.is_dead(now)
    }

    /// The shortest TTL that is kept here.
    pub fn shortest_ttl(&self) -> Option<Duration> {
        let (table, _) = self.look();
        table.ttls.first_key_value().map(|(ttl, _)| *ttl)
    }

    /// Forgets a session that another replica keeps now, and says what lives by it here.
    pub fn drop_session(&self, session: SessionId) -> Vec<PlaceId> {
        let (mut table, _) = self.look();
        let Some(gone) = table.sessions.remove(&session) else {
            return Vec::new();
        };
        table.alarms.remove(&gone.alarm);
        table.uncount_ttl(gone.lease.ttl());
        gone.places.into_iter().collect()
    }

    /// The TTL of a lease, where it is kept here.
    pub fn ttl(&self, key: &LeaseKey) -> Option<Duration> {
        let (mut table, _) = self.look();
        table.lease(key).map(|lease| lease.ttl())
    }

    /// What is left of a lease, where it is kept here.
    pub fn left(&self, key: &LeaseKey) -> Option<LeaseLeft> {
        let (mut table, now) = self.look();
        let lease = table.lease(key)?;
        Some(LeaseLeft {
            ttl: lease.ttl(),
            left: lease.left(now),
        })
    }

    /// Rings `Alarm::Claim` after one TTL, unless the place is removed before.
    pub fn watch_claim(&self, place: &PlaceId, grant: Fence, ttl: Duration) {
        let (mut table, now) = self.look();
        let alarm = table.set_alarm(now.plus(ttl), Alarm::Claim(place.clone(), grant));
        if let Some(older) = table.claims.insert(place.clone(), alarm) {
            table.alarms.remove(&older);
        }
    }

    /// Ends the leases whose time has come and returns what rang, `most` at most. To be called every
    /// [`TICK`].
    pub fn ring(&self, most: usize) -> Vec<Alarm> {
        let (mut table, now) = self.look();
        let mut rang = Vec::new();
        while rang.len() < most
            && let Some(first) = table.alarms.first_entry()
            && first.key().0 <= now
        {
            let alarm = first.remove();
            match &alarm {
                Alarm::Claim(place, _) => {
                    table.claims.remove(place);
                    rang.push(alarm);
                }
                Alarm::Session(session) => {
                    let key = LeaseKey::Session(*session);
                    if let Some(again) = table.expire(&key, now) {
                        let at = table.set_alarm(again, alarm.clone());
                        if let Some(known) = table.sessions.get_mut(session) {
                            known.alarm = at;
                        }
                    } else {
                        rang.push(alarm);
                    }
                }
                Alarm::Place(place) => {
                    let key = LeaseKey::Place(place.clone());
                    if let Some(again) = table.expire(&key, now) {
                        let at = table.set_alarm(again, alarm.clone());
                        if let Some(known) = table.places.get_mut(place) {
                            known.alarm = at;
                        }
                    } else {
                        rang.push(alarm);
                    }
                }
            }
        }
        if table.places.capacity() > 1_024 && table.places.len() < table.places.capacity() / 8 {
            table.places.shrink_to_fit();
        }
        if table.claims.capacity() > 1_024 && table.claims.len() < table.claims.capacity() / 8 {
            table.claims.shrink_to_fit();
        }
        rang
    }

    /// How many places live by a session, as far as this replica knows.
    pub fn places_of(&self, session: SessionId) -> usize {
        let (table, _) = self.look();
        table.sessions.get(&session).map_or(0, |s| s.places.len())
    }

    /// How much time the process was not running.
    pub fn missed(&self) -> Duration {
        self.look().0.observer.missed()
    }

    /// How many leases are kept: sessions, places.
    pub fn counts(&self) -> (usize, usize) {
        let (table, _) = self.look();
        (table.sessions.len(), table.places.len())
    }
}

impl Table {
    fn lease(&mut self, key: &LeaseKey) -> Option<&mut Lease> {
        match key {
            LeaseKey::Session(session) => self.sessions.get_mut(session).map(|s| &mut s.lease),
            LeaseKey::Place(place) => self.places.get_mut(place).map(|p| &mut p.lease),
        }
    }

    fn renew(&mut self, key: &LeaseKey, now: Observed, boot: Duration) -> Result<Renewed, NoLease> {
        let (lease, since, ceded) = match key {
            LeaseKey::Session(session) => {
                let known = self.sessions.get_mut(session).ok_or(NoLease::Unknown)?;
                (&mut known.lease, known.since, known.ceded.is_some())
            }
            LeaseKey::Place(place) => {
                let known = self.places.get_mut(place).ok_or(NoLease::Unknown)?;
                (&mut known.lease, known.since, known.ceded)
            }
        };
        // First: what it lives by may be alive at the other replica, whatever became of the lease here.
        if ceded {
            return Err(NoLease::Ceded);
        }
        if lease.is_over() {
            return Err(NoLease::Over);
        }
        let ttl = lease.ttl();
        // Also where nothing may be told: its client is there (I9).
        let most = lease.renew(now).ok_or(NoLease::Over)?;
        let valid_for = self.vouch.valid_for(ttl, since, boot);
        let valid_for = valid_for.ok_or(NoLease::Doubted)?;
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

    /// Ends a lease if its time has come; else when to look again.
    fn expire(&mut self, key: &LeaseKey, now: Observed) -> Option<Observed> {
        let lease = self.lease(key)?;
        (!lease.expire(now)).then(|| lease.expires(now))
    }
}
