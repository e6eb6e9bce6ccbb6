//! Recent grants, for operators and for estimates of waits. No rule depends on them.
//!
//! Bounded: one [`Minute`] for each replica, and one more for each of [`KEYS_MAX`] keys.

mod minute;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

pub(super) use minute::Minute;
pub use minute::Turns;

use super::api::Counts;
use crate::lock::KeyId;
use crate::store::{ReplicaRow, StoreCounts};

/// Keys with known recent grants, at most. Above that half of them are forgotten: first keys without a waiter, the oldest
/// grant first, then keys with waiters, the latest grant first, because operators look for long holders with waiters.
const KEYS_MAX: usize = 1_024;

/// The cause of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The entry was made with none ahead.
    AtOnce,
    /// A change of the queue, such as a release of the entry ahead.
    Change,
}

/// The grants of a replica since its process started, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// By [`Cause::AtOnce`].
    pub at_once: u64,
    /// By [`Cause::Change`].
    pub change: u64,
}

/// The recent activity of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusyKey {
    /// The key.
    pub id: Arc<KeyId>,
    /// Its grants by this replica in the last minute.
    pub last_minute: Turns,
    /// The number of waiters behind the holder at the last look.
    pub waiters: usize,
    /// The label of its latest known holder.
    pub owner: Box<str>,
    /// The identity of the holder; empty without one.
    pub identity: Box<str>,
    /// The time since the grant; if another replica or process granted it, since the holder's entry was made. `None` without a
    /// waiter.
    pub held_for: Option<Duration>,
}

impl BusyKey {
    /// The longest held keys with waiters come first, then those with the most grants.
    fn rank(&self) -> impl Ord + use<> {
        let held_s = self.held_for.map_or(0, |held_for| held_for.as_secs());
        (Reverse(held_s), Reverse(self.last_minute.count))
    }
}

/// The activity of a replica.
#[derive(Clone, Debug)]
pub struct ReplicaActivity {
    /// The replica.
    pub row: ReplicaRow,
    /// Its gauges and counters.
    pub counts: Counts,
    /// Its grants.
    pub grants: Grants,
    /// Its turns in the last minute.
    pub last_minute: Turns,
    /// Its operations on the store.
    pub store: StoreCounts,
    /// Its busiest keys.
    pub busiest: Vec<BusyKey>,
}

/// A grant.
#[derive(Clone, Debug)]
pub(super) struct GrantNoted {
    /// The label of the holder.
    pub owner: Box<str>,
    /// The identity of the holder; empty without one.
    pub identity: Box<str>,
    /// The wait since its entry was made.
    pub waited: Duration,
    /// The number of waiters behind it.
    pub waiters: usize,
}

/// The holder of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct HolderNoted<'a> {
    /// Its label.
    pub owner: &'a str,
    /// The identity of the holder; empty without one.
    pub identity: &'a str,
    /// The time since its grant.
    pub held_for: Duration,
}

/// The recent grants of a replica.
#[derive(Debug, Default)]
pub(super) struct Activity(Mutex<Lately>);

#[derive(Debug, Default)]
struct Lately {
    all: Minute,
    keys: BTreeMap<Arc<KeyId>, KeyLately>,
}

#[derive(Debug)]
struct KeyLately {
    turns: Minute,
    /// The time of the grant, in milliseconds of CLOCK_BOOTTIME; negative if the machine started later.
    held_since_ms: i64,
    waiters: usize,
    owner: Box<str>,
    identity: Box<str>,
}

/// The milliseconds of a boot time.
fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

impl KeyLately {
    fn new(now: Duration) -> KeyLately {
        KeyLately {
            turns: Minute::default(),
            held_since_ms: millis(now),
            waiters: 0,
            owner: Box::default(),
            identity: Box::default(),
        }
    }

    fn note_holder(&mut self, holder: HolderNoted<'_>, now: Duration) {
        self.held_since_ms = millis(now).saturating_sub(millis(holder.held_for));
        self.owner = holder.owner.into();
        self.identity = holder.identity.into();
    }

    fn held_for(&self, now: Duration) -> Duration {
        let held_ms = millis(now).saturating_sub(self.held_since_ms);
        Duration::from_millis(held_ms.max(0).unsigned_abs())
    }

    /// The least is forgotten first.
    fn worth(&self) -> (bool, i64) {
        match self.waiters {
            0 => (false, self.held_since_ms),
            _ => (true, self.held_since_ms.saturating_neg()),
        }
    }
}

impl Lately {
    /// The record of a key, made if there is none.
    fn key(&mut self, id: &Arc<KeyId>, now: Duration) -> &mut KeyLately {
        let keys = &mut self.keys;
        if keys.len() >= KEYS_MAX && !keys.contains_key(id) {
            let mut worth: Vec<_> = keys.values().map(KeyLately::worth).collect();
            let (_, median, _) = worth.select_nth_unstable(KEYS_MAX / 2);
            let median = *median;
            keys.retain(|_, key| key.worth() > median);
        }
        keys.entry(Arc::clone(id))
            .or_insert_with(|| KeyLately::new(now))
    }
}

impl Activity {
    fn lately(&self) -> MutexGuard<'_, Lately> {
        self.0.lock()
    }

    /// Notes a grant at `now`, by CLOCK_BOOTTIME.
    pub fn granted(&self, id: &Arc<KeyId>, now: Duration, grant: GrantNoted) {
        let mut lately = self.lately();
        lately.all.turn(now, grant.waited);
        let key = lately.key(id, now);
        key.turns.turn(now, grant.waited);
        key.held_since_ms = millis(now);
        key.waiters = grant.waiters;
        key.owner = grant.owner;
        key.identity = grant.identity;
    }

    /// Notes the holder and the waiters of a key that was held before this replica became its home.
    pub fn kept_on(&self, id: &Arc<KeyId>, now: Duration, waiters: usize, holder: HolderNoted<'_>) {
        let mut lately = self.lately();
        if waiters > 0 || lately.keys.contains_key(id) {
            let key = lately.key(id, now);
            key.waiters = waiters;
            key.note_holder(holder, now);
        }
    }

    /// Notes the number of waiters behind the holder of a key.
    pub fn waiting(
        &self,
        id: &Arc<KeyId>,
        now: Duration,
        waiters: usize,
        holder: Option<HolderNoted<'_>>,
    ) {
        let mut lately = self.lately();
        if let Some(key) = lately.keys.get_mut(id) {
            key.waiters = waiters;
        } else if waiters > 0 {
            // Another replica or process granted the lock, or the key is forgotten here.
            let key = lately.key(id, now);
            key.waiters = waiters;
            if let Some(holder) = holder {
                key.note_holder(holder, now);
            }
        }
    }

    /// The expected wait behind `position` entries, by the turns of the last minute; `None` without a turn, or if too many keys
    /// are busier.
    pub fn estimate(&self, id: &KeyId, now: Duration, position: usize) -> Option<Duration> {
        let between = self.lately().keys.get(id)?.turns.between_turns(now)?;
        let ahead = u32::try_from(position).unwrap_or(u32::MAX);
        Some(between.saturating_mul(ahead))
    }

    /// The grants in the last minute.
    pub fn last_minute(&self, now: Duration) -> Turns {
        self.lately().all.turns(now)
    }

    /// The keys with waiters, the longest held first, then those with the most grants in the last minute, then by name.
    pub fn busiest(&self, now: Duration, most: usize) -> Vec<BusyKey> {
        let mut lately = self.lately();
        lately
            .keys
            .retain(|_, key| key.waiters > 0 || key.turns.turns(now).count > 0);
        let mut keys: Vec<BusyKey> = lately
            .keys
            .iter()
            .map(|(id, key)| BusyKey {
                id: Arc::clone(id),
                last_minute: key.turns.turns(now),
                waiters: key.waiters,
                owner: key.owner.clone(),
                identity: key.identity.clone(),
                held_for: (key.waiters > 0).then(|| key.held_for(now)),
            })
            .collect();
        drop(lately);
        keys.sort_by(|a, b| a.rank().cmp(&b.rank()).then_with(|| a.id.cmp(&b.id)));
        keys.truncate(most);
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Key, TableName};

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn id(key: &str) -> Arc<KeyId> {
        Arc::new(KeyId {
            table: TableName::default_table(),
            key: Key::parse(key, 99).unwrap(),
        })
    }

    fn grant() -> GrantNoted {
        GrantNoted {
            owner: "o".into(),
            identity: "i".into(),
            waited: s(1),
            waiters: 0,
        }
    }

    fn holder(owner: &str, held_for: u64) -> HolderNoted<'_> {
        HolderNoted {
            owner,
            identity: "somebody",
            held_for: s(held_for),
        }
    }

    /// The owner and the identity of the busiest key's holder, and the time since its grant.
    fn busiest(activity: &Activity, now: u64) -> (String, String, Option<Duration>) {
        let first = activity.busiest(s(now), 1).remove(0);
        (first.owner.into(), first.identity.into(), first.held_for)
    }

    fn names(activity: &Activity, now: Duration, most: usize) -> Vec<String> {
        let busiest = activity.busiest(now, most);
        busiest.iter().map(|key| key.id.key.to_string()).collect()
    }

    #[test]
    fn keys_are_listed_by_how_busy_they_are() {
        let activity = Activity::default();
        for key in ["b", "a", "c", "b", "b"] {
            activity.granted(&id(key), s(100), grant());
        }
        assert_eq!(activity.last_minute(s(101)).count, 5);
        assert_eq!(names(&activity, s(101), 9), ["b", "a", "c"]);
        assert_eq!(names(&activity, s(101), 2), ["b", "a"]);
        // After a minute the keys are no longer busy.
        assert_eq!(activity.busiest(s(200), 9), []);
    }

    #[test]
    fn what_is_held_while_others_wait_stays_and_comes_first() {
        let activity = Activity::default();
        activity.granted(&id("hot"), s(100), grant());
        activity.granted(&id("stuck"), s(100), grant());
        activity.waiting(&id("stuck"), s(110), 3, Some(holder("other", 7)));
        // A key that was not granted here.
        activity.waiting(&id("taken"), s(120), 1, Some(holder("before", 0)));
        activity.waiting(&id("idle"), s(120), 0, None);
        activity.granted(&id("hot"), s(177), grant());
        assert_eq!(names(&activity, s(177), 9), ["stuck", "taken", "hot"]);
        let busiest = activity.busiest(s(177), 9);
        let shown = |at: usize| {
            let key = &busiest[at];
            (key.held_for, key.waiters, &*key.owner)
        };
        assert_eq!(shown(0), (Some(s(77)), 3, "o"));
        assert_eq!(shown(1), (Some(s(57)), 1, "before"));
        assert_eq!(shown(2), (None, 0, "o"));
        activity.waiting(&id("stuck"), s(200), 0, None);
        activity.waiting(&id("taken"), s(200), 0, None);
        assert_eq!(names(&activity, s(200), 9), ["hot"]);
    }

    #[test]
    fn a_holder_may_be_older_than_the_machine_is_up() {
        let activity = Activity::default();
        activity.waiting(&id("k"), s(10), 1, Some(holder("o", 3_600)));
        assert_eq!(busiest(&activity, 20).2, Some(s(3_610)));
        // It is worth more than a key that is held for less.
        activity.waiting(&id("a"), s(20), 1, Some(holder("o", 5)));
        let lately = activity.lately();
        assert!(lately.keys[&id("k")].worth() > lately.keys[&id("a")].worth());
    }

    #[test]
    fn a_key_that_comes_back_has_the_holder_that_it_came_with() {
        let activity = Activity::default();
        activity.granted(&id("k"), s(100), grant());
        activity.waiting(&id("k"), s(110), 1, None);
        activity.kept_on(&id("k"), s(130), 2, holder("another", 500));
        let expected = ("another".to_owned(), "somebody".to_owned(), Some(s(510)));
        assert_eq!(busiest(&activity, 140), expected);
        // A key without waiters is not noted.
        activity.kept_on(&id("idle"), s(140), 0, holder("o", 9));
        assert_eq!(names(&activity, s(140), 9), ["k"]);
    }

    #[test]
    fn no_more_keys_are_kept_than_the_bound_and_the_busy_ones_stay() {
        let activity = Activity::default();
        for at in 0..2 * KEYS_MAX {
            let now = Duration::from_millis(at as u64);
            activity.granted(&id("busy"), now, grant());
            activity.granted(&id(&format!("k{at}")), now, grant());
            if at == 0 {
                activity.waiting(&id("k0"), now, 1, None);
            }
        }
        assert!(activity.lately().keys.len() <= KEYS_MAX);
        let busiest = activity.busiest(s(3), 2);
        assert_eq!(busiest[0].id, id("k0"));
        assert_eq!(busiest[1].id, id("busy"));
        assert_eq!(busiest[1].last_minute.count as usize, 2 * KEYS_MAX);
    }
}
