//! The contents of `locks top`, worked out from two answers of the service. This file knows no clock and no terminal.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use fermata_client::Moment;
use fermata_proto as proto;

use crate::cli::cells::short;

/// One answer of the service.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Its arrival.
    pub at: Moment,
    pub replicas: Vec<proto::ReplicaActivity>,
}

/// The selection of keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// Only keys of this table; empty for all tables.
    pub table: String,
    /// Only keys with this prefix.
    pub prefix: String,
    /// The maximum number of keys.
    pub limit: usize,
}

/// The maximum number of keys in the answer of one replica, a limit of the service.
pub const KEYS_MAX: usize = 1000;

impl Choice {
    /// The number of keys to request from each replica. A selection needs all: unwanted keys are among the busiest too.
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

/// Grants of the last minute, and the waits before them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Waits {
    pub count: u64,
    /// The sum of all waits.
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
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BoardKey {
    pub table: String,
    pub key: String,
    /// The label of the latest holder at the replica with the most grants.
    pub owner: String,
    /// The authenticated client of that holder.
    pub identity: String,
    pub waiters: u32,
    /// How long the holder has had the key while others wait.
    pub held_for: Option<Duration>,
    pub waits: Waits,
}

/// The work of a replica per second, since its answer before.
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
    /// Unknown before the second answer.
    pub rates: Option<Rates>,
    /// Since its start.
    pub conflicts: u64,
}

/// One replica.
#[derive(Debug, Clone, PartialEq)]
pub struct BoardReplica {
    /// The first part of its UUID.
    pub short: String,
    /// None if it does not answer.
    pub activity: Option<AnsweredReplica>,
}

/// All contents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Board {
    /// Sorted, see [`busy_keys`].
    pub keys: Vec<BoardKey>,
    /// Sorted by UUID, so that each keeps its line.
    pub replicas: Vec<BoardReplica>,
    /// Of all keys at all replicas.
    pub waits: Waits,
    /// Of all replicas with two answers; unknown without any.
    pub grants_per_second: Option<f64>,
    pub sessions: u64,
}

impl Board {
    /// The contents of an answer; rates need the answer before.
    pub fn new(mut snapshot: Snapshot, before: Option<&Snapshot>, choice: &Choice) -> Board {
        // Before keys are left out: the totals cover all keys.
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

/// The keys of all replicas. First come those with the longest holder that others wait for, then those with the most grants, then
/// those with the most waiters.
fn busy_keys(replicas: &[proto::ReplicaActivity]) -> Vec<BoardKey> {
    // With the grants of the replica that named the holder.
    let mut merged: BTreeMap<(&str, &str), (u64, BoardKey)> = BTreeMap::new();
    for activity in replicas.iter().flat_map(|replica| &replica.busiest_keys) {
        let granted = activity.last_minute.map_or(0, |turns| turns.count);
        let name = (&*activity.table, &*activity.key);
        let (most, key) = merged.entry(name).or_insert_with(|| {
            let key = BoardKey {
                table: activity.table.clone(),
                key: activity.key.clone(),
                ..BoardKey::default()
            };
            (0, key)
        });
        if granted >= *most {
            *most = granted;
            key.owner.clone_from(&activity.owner);
            key.identity.clone_from(&activity.identity);
        }
        key.waits.add(activity.last_minute.as_ref());
        // Each replica counts the whole queue, as it saw it last.
        key.waiters = key.waiters.max(activity.waiters);
        key.held_for = key.held_for.max(span(activity.held_for));
    }
    let mut keys: Vec<BoardKey> = merged.into_values().map(|(_, key)| key).collect();
    // Stable: equal keys stay in the order of their names.
    let held_s = |key: &BoardKey| key.held_for.map_or(0, |held_for| held_for.as_secs());
    keys.sort_by_key(|key| Reverse((held_s(key), key.waits.count, key.waiters)));
    keys
}

#[cfg(test)]
#[path = "board_test.rs"]
pub mod tests;
