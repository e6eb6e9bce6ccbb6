//! What was granted lately: for operators, and for how long a waiter may expect to
//! wait. Nothing is decided by it.
//!
//! Bounded: of each replica one [`Minute`], and of [`KEYS_MAX`] keys one more.

mod minute;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(super) use minute::Minute;
pub use minute::Turns;

use super::api::Counts;
use crate::lock::KeyId;
use crate::store::{ReplicaRow, StoreCounts};

/// Of so many keys at most it is known what was granted lately. Where there are more, the half whose last grant is
/// longest ago is forgotten.
const KEYS_MAX: usize = 1_024;

/// What showed a replica that an entry of it holds its key now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The entry was made when nobody was ahead of it.
    AtOnce,
    /// A change of the queue: most of all the release of the one ahead.
    Change,
}

/// How many entries of a replica came to hold their key, since its process started, by what showed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// By [`Cause::AtOnce`].
    pub at_once: u64,
    /// By [`Cause::Change`].
    pub change: u64,
}

impl Grants {
    fn add(&mut self, cause: Cause) {
        *match cause {
            Cause::AtOnce => &mut self.at_once,
            Cause::Change => &mut self.change,
        } += 1;
    }
}

/// What a key did lately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusyKey {
    /// Which.
    pub id: Arc<KeyId>,
    /// What this replica granted of it in the last minute.
    pub last_minute: Turns,
    /// How many waited behind the holder when this replica looked last.
    pub waiters: usize,
    /// The label of the latest holder that this replica granted the lock to.
    pub owner: Box<str>,
}

/// What a replica did.
#[derive(Clone, Debug)]
pub struct ReplicaActivity {
    /// The replica.
    pub row: ReplicaRow,
    /// What it has at the moment, and what it counted.
    pub counts: Counts,
    /// Its grants.
    pub grants: Grants,
    /// Those of the last minute.
    pub last_minute: Turns,
    /// What it asked of the store.
    pub store: StoreCounts,
    /// Its busiest keys.
    pub busiest: Vec<BusyKey>,
}

/// A grant.
#[derive(Clone, Debug)]
pub(super) struct GrantNoted {
    pub cause: Cause,
    /// The label of the holder.
    pub owner: Box<str>,
    /// From when its entry was made.
    pub waited: Duration,
    /// How many wait behind it.
    pub waiters: usize,
}

/// What a replica granted lately.
#[derive(Debug, Default)]
pub(super) struct Activity(Mutex<Lately>);

#[derive(Debug, Default)]
struct Lately {
    grants: Grants,
    all: Minute,
    keys: BTreeMap<Arc<KeyId>, KeyLately>,
}

#[derive(Debug)]
struct KeyLately {
    turns: Minute,
    granted_at: Duration,
    waiters: usize,
    owner: Box<str>,
}

impl Activity {
    fn lately(&self) -> std::sync::MutexGuard<'_, Lately> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An entry came to hold its key, at `now`, CLOCK_BOOTTIME.
    pub fn granted(&self, id: &Arc<KeyId>, now: Duration, grant: GrantNoted) {
        let mut lately = self.lately();
        lately.grants.add(grant.cause);
        lately.all.turn(now, grant.waited);
        let keys = &mut lately.keys;
        if keys.len() >= KEYS_MAX && !keys.contains_key(id) {
            let mut at: Vec<Duration> = keys.values().map(|key| key.granted_at).collect();
            let (_, median, _) = at.select_nth_unstable(KEYS_MAX / 2);
            let median = *median;
            keys.retain(|_, key| key.granted_at > median);
        }
        let key = keys.entry(Arc::clone(id)).or_insert_with(|| KeyLately {
            turns: Minute::default(),
            granted_at: now,
            waiters: 0,
            owner: Box::default(),
        });
        key.turns.turn(now, grant.waited);
        key.granted_at = now;
        key.waiters = grant.waiters;
        key.owner = grant.owner;
    }

    /// So many wait for a key now, behind its holder.
    pub fn waiting(&self, id: &KeyId, waiters: usize) {
        if let Some(key) = self.lately().keys.get_mut(id) {
            key.waiters = waiters;
        }
    }

    /// How long one may wait that has so many ahead, by the turns of the last minute; `None` where there were none, or
    /// too many keys are busier.
    pub fn estimate(&self, id: &KeyId, now: Duration, position: usize) -> Option<Duration> {
        let between = self.lately().keys.get(id)?.turns.between_turns(now)?;
        let ahead = u32::try_from(position).unwrap_or(u32::MAX);
        Some(between.saturating_mul(ahead))
    }

    /// What was granted since the process started, and in the last minute.
    pub fn grants(&self, now: Duration) -> (Grants, Turns) {
        let lately = self.lately();
        (lately.grants, lately.all.turns(now))
    }

    /// The keys that gave out most grants in the last minute, most of all first, then in the order of their names.
    pub fn busiest(&self, now: Duration, most: usize) -> Vec<BusyKey> {
        let mut lately = self.lately();
        lately.keys.retain(|_, key| key.turns.turns(now).count > 0);
        let mut keys: Vec<BusyKey> = lately
            .keys
            .iter()
            .map(|(id, key)| BusyKey {
                id: Arc::clone(id),
                last_minute: key.turns.turns(now),
                waiters: key.waiters,
                owner: key.owner.clone(),
            })
            .collect();
        drop(lately);
        keys.sort_by(|a, b| {
            let more = b.last_minute.count.cmp(&a.last_minute.count);
            more.then_with(|| a.id.cmp(&b.id))
        });
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

    fn grant(cause: Cause) -> GrantNoted {
        GrantNoted {
            cause,
            owner: "o".into(),
            waited: s(1),
            waiters: 2,
        }
    }

    #[test]
    fn grants_are_counted_by_what_showed_them_and_keys_by_how_busy_they_are() {
        let activity = Activity::default();
        for (key, cause) in [
            ("b", Cause::Change),
            ("a", Cause::AtOnce),
            ("c", Cause::Change),
            ("b", Cause::Change),
            ("b", Cause::AtOnce),
        ] {
            activity.granted(&id(key), s(100), grant(cause));
        }
        let (grants, lately) = activity.grants(s(101));
        let counted = Grants {
            at_once: 2,
            change: 3,
        };
        assert_eq!(grants, counted);
        assert_eq!(lately.count, 5);
        let names = |most| -> Vec<String> {
            let busiest = activity.busiest(s(101), most);
            busiest.iter().map(|key| key.id.key.to_string()).collect()
        };
        assert_eq!(names(9), ["b", "a", "c"]);
        assert_eq!(names(2), ["b", "a"]);
        activity.waiting(&id("b"), 7);
        assert_eq!(activity.busiest(s(101), 1)[0].waiters, 7);
        // What has ended for a minute is no longer busy; the grants stay counted.
        assert_eq!(activity.busiest(s(200), 9), []);
        assert_eq!(activity.grants(s(200)).0, counted);
    }

    #[test]
    fn no_more_keys_are_kept_than_the_bound_and_the_busy_ones_stay() {
        let activity = Activity::default();
        for at in 0..2 * KEYS_MAX {
            let now = Duration::from_millis(at as u64);
            activity.granted(&id("busy"), now, grant(Cause::AtOnce));
            activity.granted(&id(&format!("k{at}")), now, grant(Cause::AtOnce));
        }
        assert!(activity.lately().keys.len() <= KEYS_MAX);
        let busiest = activity.busiest(s(3), 1);
        assert_eq!(busiest[0].id, id("busy"));
        assert_eq!(busiest[0].last_minute.count as usize, 2 * KEYS_MAX);
    }
}
