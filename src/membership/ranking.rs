//! The choice of the home of a key (H8): rendezvous hashing over configured names.
//!
//! Replicas of one zone that see the same others compute the same home, without asking anybody. A replica that comes or goes
//! moves only its own keys. The choice is advice: the home is the replica whose swap was applied.

use std::cmp::Ordering;

use crate::lock::{NameHash, ReplicaId};

/// A replica that may be chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Candidate {
    id: ReplicaId,
    zone: String,
    started_at_ms: i64,
    hash: NameHash,
}

impl Candidate {
    pub fn new(id: ReplicaId, name: &str, zone: &str, started_at_ms: i64) -> Self {
        Candidate {
            id,
            zone: zone.to_owned(),
            started_at_ms,
            hash: NameHash::of(name.bytes()),
        }
    }

    /// The higher the better. The last two decide between a replica and its predecessor of the same name.
    fn rank(&self, key: NameHash, zone: &str) -> impl Ord + use<> {
        let is_close = !zone.is_empty() && self.zone == zone;
        (
            is_close,
            mix(key.0 ^ self.hash.0),
            self.started_at_ms,
            self.id,
        )
    }
}

/// The best candidate for a key, with this zone first; `None` without candidates. No zone: empty.
pub(super) fn best<'a>(
    key: NameHash,
    zone: &str,
    candidates: impl Iterator<Item = &'a Candidate>,
) -> Option<ReplicaId> {
    let by_rank = |one: &&Candidate, other: &&Candidate| -> Ordering {
        one.rank(key, zone).cmp(&other.rank(key, zone))
    };
    candidates.max_by(by_rank).map(|best| best.id)
}

/// Spreads differences in a few bits over all of them (splitmix64's last steps).
fn mix(hash: u64) -> u64 {
    let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use uuid::Uuid;

    use super::*;
    use crate::lock::{Key, KeyId, TableName};

    fn candidate(id: u128, name: &str, zone: &str) -> Candidate {
        Candidate::new(ReplicaId(Uuid::from_u128(id)), name, zone, 0)
    }

    fn key(n: u32) -> KeyId {
        KeyId {
            table: TableName::default_table(),
            key: Key::parse(&format!("orders-{n}"), 99).unwrap(),
        }
    }

    fn chosen(n: u32, zone: &str, candidates: &[Candidate]) -> u128 {
        let best = best(key(n).name_hash(), zone, candidates.iter());
        best.unwrap().0.as_u128()
    }

    #[test]
    fn keys_are_spread_evenly_over_names_that_hardly_differ() {
        for replicas in [2_u32, 3, 5, 9] {
            let all: Vec<Candidate> = (0..replicas)
                .map(|n| candidate(u128::from(n), &format!("fermata-{n}"), ""))
                .collect();
            let mut keys = BTreeMap::<u128, u32>::new();
            for n in 0..replicas * 2_000 {
                *keys.entry(chosen(n, "", &all)).or_default() += 1;
            }
            assert_eq!(keys.len(), replicas as usize);
            assert!(
                keys.values().all(|n| (1_800..2_200).contains(n)),
                "{keys:?}"
            );
        }
    }

    #[test]
    fn a_restart_under_the_same_name_moves_nothing() {
        let before = [
            candidate(1, "a", ""),
            candidate(2, "b", ""),
            candidate(3, "c", ""),
        ];
        let after = [
            candidate(9, "a", ""),
            candidate(2, "b", ""),
            candidate(3, "c", ""),
        ];
        for n in 0..1_000 {
            let was = chosen(n, "", &before);
            let expected = if was == 1 { 9 } else { was };
            assert_eq!(chosen(n, "", &after), expected);
        }
    }

    #[test]
    fn one_that_goes_moves_its_own_keys_only() {
        let all = [
            candidate(1, "a", ""),
            candidate(2, "b", ""),
            candidate(3, "c", ""),
        ];
        let moved = (0..1_000).filter(|n| {
            let was = chosen(*n, "", &all);
            let is = chosen(*n, "", &all[..2]);
            assert!(was == 3 || was == is);
            was != is
        });
        assert!((250..420).contains(&moved.count()));
    }

    #[test]
    fn of_two_with_the_same_name_the_one_that_started_last_is_chosen() {
        let old = Candidate::new(ReplicaId(Uuid::from_u128(7)), "a", "", 1_000);
        let new = Candidate::new(ReplicaId(Uuid::from_u128(3)), "a", "", 2_000);
        for n in 0..20 {
            assert_eq!(chosen(n, "", &[old.clone(), new.clone()]), 3);
        }
    }

    #[test]
    fn a_zone_comes_first_where_it_has_a_replica() {
        let all = [
            candidate(1, "a", "east"),
            candidate(2, "b", "west"),
            candidate(3, "c", "west"),
            candidate(4, "d", ""),
        ];
        let mut west = BTreeMap::<u128, u32>::new();
        for n in 0..1_000 {
            assert_eq!(chosen(n, "east", &all), 1);
            *west.entry(chosen(n, "west", &all)).or_default() += 1;
            // No zone, or one without a replica: as if there were none.
            assert_eq!(chosen(n, "north", &all), chosen(n, "", &all));
        }
        assert_eq!(west.keys().copied().collect::<Vec<_>>(), [2, 3]);
        assert!(west.values().all(|n| (420..580).contains(n)), "{west:?}");
    }

    #[test]
    fn what_is_chosen_stays_the_same_over_versions() {
        let all: Vec<Candidate> = ["a", "b", "c"]
            .iter()
            .zip(1..)
            .map(|(name, n)| candidate(n, name, ""))
            .collect();
        let first: Vec<u128> = (0..12).map(|n| chosen(n, "", &all)).collect();
        assert_eq!(first, [1, 2, 2, 3, 2, 2, 3, 1, 2, 2, 3, 2]);
    }
}
