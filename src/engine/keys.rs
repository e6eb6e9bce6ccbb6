//! The keys that have a machine on this replica. An event of a key is given to its machine in place (shell.rs); no key has a task.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use prometheus_client::metrics::counter::Counter;

use super::key_shares::KeyShares;
use super::slot::{KeyCell, Slot};
use crate::lock::KeyId;
use fermata_guard::shares::NoShare;

const SHARDS_MIN: usize = 64;
const SHARDS_MAX: usize = 1 << 16;
/// Keys in a shard. Few, because all idle keys of a shard are compared to find the longest idle one.
const KEYS_A_SHARD: usize = 64;
/// Idle keys of a shard that are compared, at most. Only chance, or very many keys, put more into a shard.
const COMPARED_MAX: usize = 256;
/// The pause per key after a search for room found all keys in use. The search takes about a tenth of it.
const FULL_FOR_EACH: Duration = Duration::from_micros(1);

type Shard = HashMap<Arc<KeyId>, Arc<KeyCell>>;

fn cells(shard: &Mutex<Shard>) -> Vec<Arc<KeyCell>> {
    let shard = shard.lock();
    shard.values().cloned().collect()
}

/// The cells of a replica.
pub(super) struct Keys {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    count: AtomicUsize,
    most: usize,
    /// The start of the next search for room.
    looked_at: AtomicUsize,
    /// The next part for [`Keys::some`].
    packed_at: AtomicUsize,
    /// The end of the pause after all keys were found in use, in microseconds of CLOCK_BOOTTIME.
    full_until_us: AtomicU64,
    shares: KeyShares,
    forgotten: Counter,
}

impl Keys {
    /// For `most` keys; above that the longest idle ones are forgotten and counted (H11).
    pub fn new(most: usize, forgotten: Counter) -> Self {
        let shards = most.div_ceil(KEYS_A_SHARD).clamp(SHARDS_MIN, SHARDS_MAX);
        Keys {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            count: AtomicUsize::new(0),
            most,
            looked_at: AtomicUsize::new(0),
            packed_at: AtomicUsize::new(0),
            full_until_us: AtomicU64::new(0),
            shares: KeyShares::new(most),
            forgotten,
        }
    }

    fn shard(&self, id: &KeyId) -> MutexGuard<'_, Shard> {
        let at = self.hasher.hash_one(id) as usize % self.shards.len();
        self.shards[at].lock()
    }

    /// The limit of keys.
    pub fn keys_max(&self) -> usize {
        self.most
    }

    /// Whether the client of this share may make an entry. For a key that has entries it always may.
    pub fn admit(&self, id: &KeyId, share_of: &str) -> Result<(), NoShare> {
        let has_some = |cell: Arc<KeyCell>| cell.owner().is_some();
        match self.shares.is_scarce() && !self.find(id).is_some_and(has_some) {
            true => self.shares.admit(share_of),
            false => Ok(()),
        }
    }

    /// As [`Slot::note_owner`].
    pub fn note_owner(&self, cell: &KeyCell, slot: &mut Slot) {
        slot.note_owner(cell, &self.shares);
    }

    /// The number of known keys.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub fn find(&self, id: &KeyId) -> Option<Arc<KeyCell>> {
        self.shard(id).get(id).cloned()
    }

    /// The cell of a key, made if there is none; `None` without room, when all known keys are in use.
    ///
    /// That takes a look at all keys, so it is not repeated for a while.
    pub fn cell(&self, id: &Arc<KeyId>, now: impl FnOnce() -> Duration) -> Option<Arc<KeyCell>> {
        let mut shard = self.shard(id);
        if let Some(cell) = shard.get(id) {
            return Some(Arc::clone(cell));
        }
        if self.count() >= self.most {
            let now = now();
            if now < Duration::from_micros(self.full_until_us.load(Ordering::Relaxed)) {
                return None;
            }
            if !self.forget_one(&mut shard) {
                drop(shard);
                // This shard has no idle key. No two shards are locked at once.
                if !self.forget_elsewhere() {
                    self.note_full(now);
                    return None;
                }
                shard = self.shard(id);
                if let Some(cell) = shard.get(id) {
                    return Some(Arc::clone(cell));
                }
            }
        }
        let cell = Arc::new(KeyCell::new(Arc::clone(id)));
        shard.insert(Arc::clone(id), Arc::clone(&cell));
        self.count.fetch_add(1, Ordering::Relaxed);
        Some(cell)
    }

    /// Notes that all keys are in use.
    fn note_full(&self, now: Duration) {
        let count = u32::try_from(self.count()).unwrap_or(u32::MAX);
        let until = now.saturating_add(FULL_FOR_EACH.saturating_mul(count));
        let until = u64::try_from(until.as_micros()).unwrap_or(u64::MAX);
        self.full_until_us.store(until, Ordering::Relaxed);
    }

    /// Forgets the longest idle key of a shard.
    fn forget_one(&self, shard: &mut Shard) -> bool {
        let found = shard
            .iter()
            .filter_map(|(id, cell)| Some((cell.idle_since()?, Arc::clone(id))))
            .take(COMPARED_MAX)
            .min();
        let Some((_, id)) = found else {
            return false;
        };
        let Some(cell) = shard.get(&id) else {
            return false;
        };
        {
            let mut slot = cell.slot();
            if !slot.is_idle() {
                return false;
            }
            slot.removed = true;
            self.note_owner(cell, &mut slot);
        }
        shard.remove(&id);
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.forgotten.inc();
        true
    }

    /// Forgets an idle key of any shard.
    fn forget_elsewhere(&self) -> bool {
        // Begins at another shard each time, so that none keeps its keys for good.
        let from = self.looked_at.fetch_add(1, Ordering::Relaxed) % self.shards.len();
        let (before, after) = self.shards.split_at(from);
        after.iter().chain(before).any(|shard| {
            let mut shard = shard.lock();
            self.forget_one(&mut shard)
        })
    }

    /// Forgets a key if nothing is lost by that.
    pub fn forget(&self, cell: &KeyCell) {
        let mut shard = self.shard(&cell.id);
        {
            let mut slot = cell.slot();
            if slot.removed || !slot.is_forgettable() {
                return;
            }
            slot.removed = true;
            self.note_owner(cell, &mut slot);
        }
        shard.remove(&cell.id);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// All cells, one shard after the other.
    pub fn all(&self) -> impl Iterator<Item = Arc<KeyCell>> + '_ {
        self.shards.iter().flat_map(cells)
    }

    /// The cells of the next of `parts` parts of the keys; a part has at least one shard.
    pub fn some(&self, parts: usize) -> Vec<Arc<KeyCell>> {
        let parts = parts.clamp(1, self.shards.len());
        let at = self.packed_at.fetch_add(1, Ordering::Relaxed) % parts;
        let shards = self.shards.iter().skip(at).step_by(parts);
        shards.flat_map(cells).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Key, TableName};

    fn id(n: usize) -> Arc<KeyId> {
        Arc::new(KeyId {
            table: TableName::default_table(),
            key: Key::parse(&format!("k{n}"), 64).unwrap(),
        })
    }

    #[test]
    fn idle_keys_make_room_in_whichever_shard_they_are() {
        let forgotten = Counter::default();
        let keys = Keys::new(2, forgotten.clone());
        for n in 0..200 {
            let cell = keys.cell(&id(n), || Duration::ZERO);
            assert!(cell.is_some(), "no room for key {n}");
            assert!(keys.count() <= 2);
        }
        assert_eq!(forgotten.get(), 198);
    }

    #[test]
    fn keys_that_are_used_again_and_again_stay_while_others_come_and_go() {
        const MOST: usize = 8_192;
        let keys = Keys::new(MOST, Counter::default());
        let mut seconds = 0;
        let mut is_made = 0;
        let mut touch = |n: usize| {
            seconds += 1;
            is_made += usize::from(keys.find(&id(n)).is_none());
            let now = Duration::from_secs(seconds);
            let cell = keys.cell(&id(n), || now).unwrap();
            cell.slot().used = now;
            is_made
        };
        // Old keys in all shards, then keys used each round beside as many used once.
        let mut made = (0..MOST).map(&mut touch).last();
        let (used, once) = (MOST / 4, MOST / 4);
        for round in 1..=8 {
            let from = MOST * (1 + round);
            for n in from..from + once {
                touch(n);
            }
            made = (MOST..MOST + used).map(&mut touch).last();
        }
        let made_once = MOST + 8 * once + used;
        let again = made.unwrap() - made_once;
        // The keys of a shard vary by chance: 162 were seen once.
        assert!(again < used / 5, "{again} of {used} were made again");
    }

    #[test]
    fn where_all_keys_are_in_use_room_is_not_looked_for_by_each_call() {
        let keys = Keys::new(1_000, Counter::default());
        let now = Duration::from_secs(1);
        let cells: Vec<_> = (0..1_000)
            .map(|n| keys.cell(&id(n), || now).unwrap())
            .collect();
        let in_use: Vec<_> = cells.iter().map(|cell| cell.slot()).collect();
        assert!(keys.cell(&id(1_000), || now).is_none());
        drop(in_use);
        // There is room again, but the last search was just now.
        assert!(keys.cell(&id(1_000), || now + FULL_FOR_EACH).is_none());
        assert!(
            keys.cell(&id(1_000), || now + 1_000 * FULL_FOR_EACH)
                .is_some()
        );
    }
}
