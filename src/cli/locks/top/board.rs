//! What `locks top` tells, worked out of two answers of the service: pure, so it knows no clock and no terminal.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::cli::locks::short;
use crate::client::Moment;
use crate::proto;

/// One answer.
#[derive(Debug, Clone)]
pub struct Look {
    /// When it came.
    pub at: Moment,
    pub replicas: Vec<proto::ReplicaActivity>,
}

/// Which keys are told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// Only those of this table; of all tables where empty.
    pub table: String,
    /// Only those that start with this.
    pub prefix: String,
    /// So many at most.
    pub limit: usize,
}

/// The most keys that a replica tells of.
pub const KEYS_MAX: usize = 1000;

impl Choice {
    /// How many keys each replica is asked for: those that are not wanted are among its busiest too.
    pub fn keys_max(&self) -> usize {
        match self.table.is_empty() && self.prefix.is_empty() {
            true => self.limit.min(KEYS_MAX),
            false => KEYS_MAX,
        }
    }

    /// Leaves the other keys out of an answer.
    pub fn keep(&self, replicas: &mut [proto::ReplicaActivity]) {
        for replica in replicas {
            let keys = &mut replica.busiest_keys;
            keys.retain(|key| {
                key.key.starts_with(&self.prefix)
                    && (self.table.is_empty() || key.table == self.table)
            });
        }
    }
}

/// Grants in the last minute, and how long those who came to hold had waited.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Waits {
    pub count: u64,
    /// Of all of them together.
    waited: Duration,
    pub longest: Option<Duration>,
}

impl Waits {
    fn add(&mut self, turns: Option<&proto::Turns>) {
        let Some(turns) = turns else { return };
        let span = |told: Option<prost_types::Duration>| told.and_then(|span| span.try_into().ok());
        let mean: Duration = span(turns.mean_wait).unwrap_or_default();
        let times = u32::try_from(turns.count).unwrap_or(u32::MAX);
        self.waited = self.waited.saturating_add(mean.saturating_mul(times));
        self.count = self.count.saturating_add(turns.count);
        self.longest = self.longest.max(span(turns.longest_wait));
    }

    pub fn mean(&self) -> Option<Duration> {
        let count = u32::try_from(self.count).unwrap_or(u32::MAX);
        self.waited.checked_div(count)
    }
}

/// One key, over all replicas.
#[derive(Debug, Clone, PartialEq)]
pub struct BusyKey {
    pub table: String,
    pub key: String,
    /// Of the latest holders that the replicas let in, the one at the replica that granted most. Which of them is the
    /// latest of all no replica knows.
    pub owner: String,
    /// How many replicas name another one.
    pub other_owners: usize,
    pub waiters: u32,
    pub waits: Waits,
}

/// What a replica did since the answer before, each second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    pub grants: f64,
    pub reads: f64,
    pub writes: f64,
    pub transactions: f64,
}

/// A replica that answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    pub address: String,
    pub version: String,
    pub sessions: u64,
    pub keys: u64,
    /// Unknown until a second answer.
    pub rates: Option<Rates>,
    /// The share of its grants, since it started, that were found by polling; unknown before the first one.
    pub polled: Option<f64>,
    /// Since it started.
    pub conflicts: u64,
}

/// One replica.
#[derive(Debug, Clone, PartialEq)]
pub struct Replica {
    /// Enough of its UUID.
    pub short: String,
    /// Nothing where it does not answer.
    pub told: Option<Told>,
}

/// All that is told.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Board {
    /// The busiest keys first.
    pub keys: Vec<BusyKey>,
    /// In the order of their UUIDs, so that each keeps its line.
    pub replicas: Vec<Replica>,
    /// Of all replicas, of all keys.
    pub waits: Waits,
    /// Of all replicas that were asked twice; unknown where there is none.
    pub grants_per_second: Option<f64>,
    pub sessions: u64,
}

impl Board {
    /// What an answer tells, and what it tells together with the one before.
    pub fn new(mut look: Look, before: Option<&Look>, choice: &Choice) -> Board {
        // Before keys are left out: what is said of all keys is said of those as well.
        let mut waits = Waits::default();
        for replica in &look.replicas {
            waits.add(replica.last_minute.as_ref());
        }
        choice.keep(&mut look.replicas);
        let mut keys = busy_keys(&look.replicas);
        keys.truncate(choice.limit);
        look.replicas
            .sort_by(|a, b| id(a).cmp(id(b)).then_with(|| b.answered.cmp(&a.answered)));
        let replicas: Vec<Replica> = look
            .replicas
            .iter()
            .map(|replica| Replica {
                short: short(id(replica)),
                told: replica.answered.then(|| told(replica, look.at, before)),
            })
            .collect();
        let told = || replicas.iter().filter_map(|replica| replica.told.as_ref());
        let grants = told().filter_map(|told| told.rates.map(|rates| rates.grants));
        Board {
            grants_per_second: grants.reduce(|sum, more| sum + more),
            sessions: told().map(|told| told.sessions).sum(),
            keys,
            waits,
            replicas,
        }
    }

    pub fn answered(&self) -> usize {
        let answered = self.replicas.iter().filter(|one| one.told.is_some());
        answered.count()
    }
}

fn id(replica: &proto::ReplicaActivity) -> &str {
    replica.replica.as_ref().map_or("", |info| &info.replica)
}

fn told(replica: &proto::ReplicaActivity, at: Moment, before: Option<&Look>) -> Told {
    let info = replica.replica.clone().unwrap_or_default();
    let earlier = before.and_then(|look| {
        let seconds = look.at.until(at).as_secs_f64();
        let mut same = look.replicas.iter();
        let same = same.find(|one| one.answered && id(one) == info.replica)?;
        (seconds > 0.0).then_some((same, seconds))
    });
    let rates = earlier.map(|(earlier, seconds)| {
        let rate = |count: fn(&proto::ReplicaActivity) -> u64| {
            count(replica).saturating_sub(count(earlier)) as f64 / seconds
        };
        Rates {
            grants: rate(|one| one.grants.as_ref().map_or(0, granted)),
            reads: rate(|one| one.store.map_or(0, |store| store.reads)),
            writes: rate(|one| one.store.map_or(0, |store| store.writes)),
            transactions: rate(|one| one.store.map_or(0, |store| store.transactions)),
        }
    });
    let grants = replica.grants.unwrap_or_default();
    let granted = granted(&grants);
    Told {
        address: info.address,
        version: info.version,
        sessions: replica.sessions,
        keys: replica.keys,
        rates,
        polled: (granted > 0).then(|| grants.after_poll as f64 / granted as f64),
        conflicts: replica.store.map_or(0, |store| store.conflicts),
    }
}

fn granted(grants: &proto::GrantCounts) -> u64 {
    grants.at_once + grants.after_change + grants.after_hint + grants.after_poll + grants.after_call
}

/// The keys of all replicas, those that changed hands most often first, then those that most wait for.
fn busy_keys(replicas: &[proto::ReplicaActivity]) -> Vec<BusyKey> {
    let mut merged: BTreeMap<(&str, &str), (BusyKey, HashMap<&str, u64>)> = BTreeMap::new();
    for told in replicas.iter().flat_map(|replica| &replica.busiest_keys) {
        let (key, owners) = merged.entry((&told.table, &told.key)).or_insert_with(|| {
            let key = BusyKey {
                table: told.table.clone(),
                key: told.key.clone(),
                owner: String::new(),
                other_owners: 0,
                waiters: 0,
                waits: Waits::default(),
            };
            (key, HashMap::new())
        });
        key.waits.add(told.last_minute.as_ref());
        // Each replica counts the whole queue, as it saw it last.
        key.waiters = key.waiters.max(told.waiters);
        let granted = told.last_minute.map_or(0, |turns| turns.count);
        *owners.entry(&told.owner).or_default() += granted;
    }
    let with_owners = |(mut key, owners): (BusyKey, HashMap<&str, u64>)| {
        let busiest = owners
            .iter()
            .max_by_key(|(owner, granted)| (**granted, std::cmp::Reverse(**owner)));
        key.owner = busiest.map_or_else(String::new, |(owner, _)| (*owner).to_owned());
        key.other_owners = owners.len().saturating_sub(1);
        key
    };
    let mut keys: Vec<BusyKey> = merged.into_values().map(with_owners).collect();
    // Stable: what is equal stays in the order of the names.
    keys.sort_by_key(|key| std::cmp::Reverse((key.waits.count, key.waiters)));
    keys
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn at(seconds: u64) -> Moment {
        Moment::from_zero(Duration::from_secs(seconds))
    }

    fn turns(count: u64, mean_s: i64, longest_s: i64) -> Option<proto::Turns> {
        let span = |seconds| prost_types::Duration { seconds, nanos: 0 };
        Some(proto::Turns {
            count,
            mean_wait: Some(span(mean_s)),
            longest_wait: Some(span(longest_s)),
        })
    }

    pub fn key(key: &str, owner: &str, count: u64, waiters: u32) -> proto::KeyActivity {
        proto::KeyActivity {
            table: "default".to_owned(),
            key: key.to_owned(),
            owner: owner.to_owned(),
            waiters,
            last_minute: turns(count, 2, 5),
        }
    }

    /// A replica with this number, that granted and read so often since it started.
    pub fn replica(
        number: u8,
        granted: u64,
        keys: Vec<proto::KeyActivity>,
    ) -> proto::ReplicaActivity {
        let count = keys
            .iter()
            .map(|key| key.last_minute.map_or(0, |turns| turns.count));
        proto::ReplicaActivity {
            replica: Some(proto::ReplicaInfo {
                replica: format!("0000000{number}-0000-4000-8000-000000000000"),
                address: format!("10.0.0.{number}:7450"),
                version: "0.1.0".to_owned(),
                ..proto::ReplicaInfo::default()
            }),
            answered: true,
            sessions: 3,
            keys: keys.len() as u64,
            grants: Some(proto::GrantCounts {
                at_once: granted / 2,
                after_poll: granted - granted / 2,
                ..proto::GrantCounts::default()
            }),
            last_minute: turns(count.sum(), 2, 5),
            store: Some(proto::StoreCounts {
                reads: 10 * granted,
                writes: 2,
                transactions: granted,
                changes: granted,
                conflicts: 1,
            }),
            busiest_keys: keys,
        }
    }

    pub fn silent(number: u8) -> proto::ReplicaActivity {
        proto::ReplicaActivity {
            replica: Some(proto::ReplicaInfo {
                replica: format!("0000000{number}-0000-4000-8000-000000000000"),
                ..proto::ReplicaInfo::default()
            }),
            ..proto::ReplicaActivity::default()
        }
    }

    pub fn look(seconds: u64, replicas: Vec<proto::ReplicaActivity>) -> Look {
        Look {
            at: at(seconds),
            replicas,
        }
    }

    fn choice(prefix: &str, limit: usize) -> Choice {
        Choice {
            prefix: prefix.to_owned(),
            limit,
            ..Choice::default()
        }
    }

    fn names(board: &Board) -> Vec<&str> {
        board.keys.iter().map(|key| key.key.as_str()).collect()
    }

    #[test]
    fn a_key_of_several_replicas_is_one_key_and_the_busiest_is_first() {
        let mut lone = key("a", "x", 4, 1);
        lone.last_minute = turns(4, 8, 9);
        let replicas = vec![
            replica(1, 9, vec![lone, key("b", "few", 3, 6)]),
            replica(2, 9, vec![key("b", "many", 6, 2), key("c", "x", 4, 2)]),
        ];
        let board = Board::new(look(1, replicas), None, &choice("", 9));
        assert_eq!(names(&board), ["b", "c", "a"]);
        let busiest = &board.keys[0];
        // Nine grants in all; the longer one of the two views of the queue; the owner where most was granted.
        assert_eq!((busiest.waits.count, busiest.waiters), (9, 6));
        assert_eq!((busiest.owner.as_str(), busiest.other_owners), ("many", 1));
        let longest = busiest.waits.longest;
        assert_eq!(longest, Some(Duration::from_secs(5)));
        assert_eq!(board.waits.count, 17);
        assert_eq!(board.sessions, 6);
    }

    #[test]
    fn the_mean_wait_counts_each_grant_once() {
        let mut waits = Waits::default();
        assert_eq!(waits.mean(), None);
        waits.add(turns(3, 2, 4).as_ref());
        waits.add(turns(1, 10, 10).as_ref());
        waits.add(None);
        assert_eq!(waits.mean(), Some(Duration::from_secs(4)));
        assert_eq!(waits.longest, Some(Duration::from_secs(10)));
    }

    #[test]
    fn rates_are_the_difference_of_two_answers_of_the_same_replica() {
        let before = look(10, vec![replica(1, 100, Vec::new()), silent(2)]);
        let replicas = vec![
            replica(3, 7, Vec::new()),
            replica(2, 7, Vec::new()),
            replica(1, 150, Vec::new()),
        ];
        let board = Board::new(look(20, replicas), Some(&before), &choice("", 9));
        let rates = |at: usize| board.replicas[at].told.as_ref().unwrap().rates;
        let expected = Rates {
            grants: 5.0,
            reads: 50.0,
            writes: 0.0,
            transactions: 5.0,
        };
        assert_eq!(rates(0), Some(expected));
        // One did not answer the time before, and one was not there: a counter is no rate.
        assert_eq!((rates(1), rates(2)), (None, None));
        assert_eq!(board.grants_per_second, Some(5.0));
        let first = board.replicas[0].told.as_ref().unwrap();
        assert_eq!((first.polled, first.conflicts), (Some(0.5), 1));
    }

    #[test]
    fn two_answers_at_the_same_moment_have_no_rate() {
        let before = look(10, vec![replica(1, 100, Vec::new())]);
        let now = look(10, vec![replica(1, 150, Vec::new())]);
        let board = Board::new(now, Some(&before), &choice("", 9));
        assert_eq!(board.grants_per_second, None);
    }

    #[test]
    fn a_replica_that_does_not_answer_keeps_its_line_and_tells_nothing() {
        let board = Board::new(
            look(1, vec![replica(2, 1, Vec::new()), silent(1)]),
            None,
            &choice("", 9),
        );
        let replicas: Vec<(&str, bool)> = board
            .replicas
            .iter()
            .map(|one| (one.short.as_str(), one.told.is_some()))
            .collect();
        assert_eq!(replicas, [("00000001", false), ("00000002", true)]);
        assert_eq!((board.answered(), board.replicas.len()), (1, 2));
    }

    #[test]
    fn only_the_keys_that_are_wanted_are_told_and_no_more_than_the_limit() {
        let mut foreign = key("a/3", "x", 9, 0);
        foreign.table = "other".to_owned();
        let keys = vec![
            key("b", "x", 8, 0),
            foreign,
            key("a/1", "x", 2, 0),
            key("a/2", "x", 3, 0),
        ];
        let board = |choice: &Choice| {
            let replicas = vec![replica(1, 1, keys.clone())];
            Board::new(look(1, replicas), None, choice)
        };
        assert_eq!(names(&board(&choice("a/", 9))), ["a/3", "a/2", "a/1"]);
        let mut table = choice("a/", 9);
        table.table = "default".to_owned();
        assert_eq!(names(&board(&table)), ["a/2", "a/1"]);
        assert_eq!(names(&board(&choice("", 1))), ["a/3"]);
        // Of the whole service, whatever is left out.
        assert_eq!(board(&table).waits.count, 22);
        assert_eq!((table.keys_max(), choice("", 7).keys_max()), (KEYS_MAX, 7));
    }
}
