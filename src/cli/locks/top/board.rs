//! What `locks top` tells, worked out of two answers of the service: pure, so it knows no clock and no terminal.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use fermata_client::Moment;
use fermata_proto as proto;

use crate::cli::locks::short;

/// One answer.
#[derive(Debug, Clone)]
pub struct Snapshot {
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

fn span(span: Option<prost_types::Duration>) -> Option<Duration> {
    span.and_then(|span| span.try_into().ok())
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
pub struct BoardKey {
    pub table: String,
    pub key: String,
    /// Of the latest holders that the replicas know of, the one at the replica that granted most. Which of them is the latest
    /// of all no replica knows.
    pub owner: String,
    /// Who that is, as far as the server knows.
    pub identity: String,
    /// How many replicas name another one.
    pub other_owners: usize,
    pub waiters: u32,
    /// For how long its holder has had it while others wait.
    pub held_for: Option<Duration>,
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
pub struct AnsweredReplica {
    pub address: String,
    pub version: String,
    pub sessions: u64,
    pub keys: u64,
    /// Unknown until a second answer.
    pub rates: Option<Rates>,
    /// Since it started.
    pub conflicts: u64,
}

/// One replica.
#[derive(Debug, Clone, PartialEq)]
pub struct BoardReplica {
    /// Enough of its UUID.
    pub short: String,
    /// Nothing where it does not answer.
    pub activity: Option<AnsweredReplica>,
}

/// All that is told.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Board {
    /// The busiest keys first.
    pub keys: Vec<BoardKey>,
    /// In the order of their UUIDs, so that each keeps its line.
    pub replicas: Vec<BoardReplica>,
    /// Of all replicas, of all keys.
    pub waits: Waits,
    /// Of all replicas that were asked twice; unknown where there is none.
    pub grants_per_second: Option<f64>,
    pub sessions: u64,
}

impl Board {
    /// What an answer tells, and what it tells together with the one before.
    pub fn new(mut snapshot: Snapshot, before: Option<&Snapshot>, choice: &Choice) -> Board {
        // Before keys are left out: what is said of all keys is said of those as well.
        let mut waits = Waits::default();
        for replica in &snapshot.replicas {
            waits.add(replica.last_minute.as_ref());
        }
        choice.keep(&mut snapshot.replicas);
        let mut keys = busy_keys(&snapshot.replicas);
        keys.truncate(choice.limit);
        snapshot
            .replicas
            .sort_by(|a, b| id(a).cmp(id(b)).then_with(|| b.answered.cmp(&a.answered)));
        let replicas: Vec<BoardReplica> = snapshot
            .replicas
            .iter()
            .map(|replica| BoardReplica {
                short: short(id(replica)),
                activity: replica
                    .answered
                    .then(|| activity(replica, snapshot.at, before)),
            })
            .collect();
        let activity = || {
            replicas
                .iter()
                .filter_map(|replica| replica.activity.as_ref())
        };
        let grants = activity().filter_map(|activity| activity.rates.map(|rates| rates.grants));
        Board {
            grants_per_second: grants.reduce(|sum, more| sum + more),
            sessions: activity().map(|activity| activity.sessions).sum(),
            keys,
            waits,
            replicas,
        }
    }

    pub fn answered(&self) -> usize {
        let answered = self.replicas.iter().filter(|one| one.activity.is_some());
        answered.count()
    }
}

fn id(replica: &proto::ReplicaActivity) -> &str {
    replica.replica.as_ref().map_or("", |info| &info.replica)
}

fn activity(
    replica: &proto::ReplicaActivity,
    at: Moment,
    before: Option<&Snapshot>,
) -> AnsweredReplica {
    let info = replica.replica.clone().unwrap_or_default();
    let earlier = before.and_then(|snapshot| {
        let seconds = snapshot.at.until(at).as_secs_f64();
        let mut same = snapshot.replicas.iter();
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
    AnsweredReplica {
        address: info.address,
        version: info.version,
        sessions: replica.sessions,
        keys: replica.keys,
        rates,
        conflicts: replica.store.map_or(0, |store| store.conflicts),
    }
}

fn granted(grants: &proto::GrantCounts) -> u64 {
    grants.at_once + grants.after_change
}

/// A key while its replicas are put together.
struct Merged<'a> {
    key: BoardKey,
    /// The holders that they name, by label and identity, and how often those that name one granted the lock.
    holders: HashMap<(&'a str, &'a str), u64>,
}

impl<'a> Merged<'a> {
    fn new(activity: &'a proto::KeyActivity) -> Merged<'a> {
        Merged {
            key: BoardKey {
                table: activity.table.clone(),
                key: activity.key.clone(),
                owner: String::new(),
                identity: String::new(),
                other_owners: 0,
                waiters: 0,
                held_for: None,
                waits: Waits::default(),
            },
            holders: HashMap::new(),
        }
    }

    fn add(&mut self, activity: &'a proto::KeyActivity) {
        self.key.waits.add(activity.last_minute.as_ref());
        // Each replica counts the whole queue, as it saw it last.
        self.key.waiters = self.key.waiters.max(activity.waiters);
        self.key.held_for = self.key.held_for.max(span(activity.held_for));
        let granted = activity.last_minute.map_or(0, |turns| turns.count);
        let holder = (&*activity.owner, &*activity.identity);
        *self.holders.entry(holder).or_default() += granted;
    }

    fn done(mut self) -> BoardKey {
        let named = self.holders.iter();
        let busiest = named.max_by_key(|(holder, granted)| (**granted, Reverse(**holder)));
        if let Some(((owner, identity), _)) = busiest {
            (self.key.owner, self.key.identity) = ((*owner).to_owned(), (*identity).to_owned());
        }
        self.key.other_owners = self.holders.len().saturating_sub(1);
        self.key
    }
}

/// The keys of all replicas: those that are held longest while others wait are first, then those that changed hands most often,
/// then those that most wait for.
fn busy_keys(replicas: &[proto::ReplicaActivity]) -> Vec<BoardKey> {
    let mut merged: BTreeMap<(&str, &str), Merged<'_>> = BTreeMap::new();
    for activity in replicas.iter().flat_map(|replica| &replica.busiest_keys) {
        let merging = merged.entry((&activity.table, &activity.key));
        merging
            .or_insert_with(|| Merged::new(activity))
            .add(activity);
    }
    let mut keys: Vec<BoardKey> = merged.into_values().map(Merged::done).collect();
    // Stable: what is equal stays in the order of the names.
    let held_s = |key: &BoardKey| key.held_for.map_or(0, |held_for| held_for.as_secs());
    keys.sort_by_key(|key| Reverse((held_s(key), key.waits.count, key.waiters)));
    keys
}

#[cfg(test)]
#[path = "board_test.rs"]
pub mod tests;
