//! The metrics of the engine: locks, sessions, commits and changes of home. No rule depends on them.
//!
//! Counters and histograms count for as long as the process runs, under all its replica ids. `gauges.rs` reads the
//! others at each scrape.

mod queues;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

pub(super) use queues::{QueueGauges, QueueNoted};

use super::activity::{Cause, Grants};
use crate::lock::{EndReason, EndedAs, TableName};

/// The bounds of waits and holds, in seconds.
const LONG_SECONDS: [f64; 12] = [
    0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 7_200.0,
];
/// The bounds of commits, in seconds.
const SHORT_SECONDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];
/// A fence this far ahead of the clock is counted: the clock was set back, or a backup was restored.
const FENCE_AHEAD: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TableLabels {
    table: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct GrantLabels {
    table: String,
    cause: &'static str,
    durability: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EvictionLabels {
    table: String,
    role: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DirectionLabels {
    direction: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

/// See the module.
#[derive(Debug)]
pub(super) struct EngineMetrics {
    tables: BTreeMap<TableName, TableMetrics>,
    grants: Family<GrantLabels, Counter>,
    waits: Family<TableLabels, Histogram>,
    holds: Family<TableLabels, Histogram>,
    evictions: Family<EvictionLabels, Counter>,
    /// Grants with a fence ahead of the clock.
    fences_ahead: Counter,
    /// Keys whose row differed from the last write of their home.
    pub contradicted_keys: Counter,
    commits: Family<OutcomeLabels, Counter>,
    /// Compare-and-swaps that took effect.
    pub committed: Counter,
    /// Compare-and-swaps that met another state.
    pub conflicts: Counter,
    /// Compare-and-swaps of unknown outcome.
    pub in_doubt: Counter,
    /// Compare-and-swaps with write-back that took effect and changed no home.
    pub background_commits: Counter,
    commit_durations: Histogram,
    /// Keys that were taken over.
    pub take_overs: Counter,
    hand_overs: Family<DirectionLabels, Counter>,
    /// Keys that another replica gave to this one.
    pub received_keys: Counter,
    /// Keys that were given to another replica.
    pub given_keys: Counter,
    /// Idle keys that were forgotten to make room.
    pub forgotten_keys: Counter,
    /// Packings of unused keys.
    pub packed_keys: Counter,
    /// Sessions that were opened here.
    pub opened_sessions: Counter,
    session_ends: Family<ReasonLabels, Counter>,
    /// Sessions that were closed by their clients.
    pub closed_sessions: Counter,
    /// Sessions that expired.
    pub expired_sessions: Counter,
    refused: Family<KindLabels, Counter>,
    /// Replicas that this process started: one, and one more after each fencing.
    pub replica_starts: Counter,
}

/// The metrics of one table.
#[derive(Debug)]
struct TableMetrics {
    /// By cause, then by durability.
    grants: [[Counter; 2]; 2],
    wait: Histogram,
    hold: Histogram,
}

/// A grant.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrantCounted {
    pub cause: Cause,
    pub is_durable: bool,
    /// The wait since the entry was made.
    pub waited: Duration,
    /// How far its fence lies ahead of the clock.
    pub fence_ahead: Duration,
}

fn label(cause: Cause) -> &'static str {
    match cause {
        Cause::AtOnce => "at_once",
        Cause::Change => "after_wait",
    }
}

const CAUSES: [Cause; 2] = [Cause::AtOnce, Cause::Change];
const DURABILITIES: [&str; 2] = ["volatile", "durable"];
const ROLES: [&str; 2] = ["waiter", "holder"];

impl EngineMetrics {
    pub fn new(tables: &BTreeSet<TableName>) -> EngineMetrics {
        let grants = Family::<GrantLabels, Counter>::default();
        let long = || Histogram::new(LONG_SECONDS);
        let waits = Family::new_with_constructor(long as fn() -> Histogram);
        let holds = Family::new_with_constructor(long as fn() -> Histogram);
        let evictions = Family::<EvictionLabels, Counter>::default();
        let by_table = |table: &TableName| {
            let table = table.to_string();
            for role in ROLES {
                for reason in ["expired", "session_closed", "unclaimed", "forced"] {
                    let table = table.clone();
                    drop(evictions.get_or_create(&EvictionLabels {
                        table,
                        role,
                        reason,
                    }));
                }
            }
            let grants = CAUSES.map(|cause| {
                DURABILITIES.map(|durability| {
                    grants.get_or_create_owned(&GrantLabels {
                        table: table.clone(),
                        cause: label(cause),
                        durability,
                    })
                })
            });
            let labels = TableLabels { table };
            TableMetrics {
                grants,
                wait: waits.get_or_create_owned(&labels),
                hold: holds.get_or_create_owned(&labels),
            }
        };
        let tables = tables.iter().map(|name| (name.clone(), by_table(name)));
        let tables = tables.collect();
        let commits = Family::<OutcomeLabels, Counter>::default();
        let commit = |outcome| commits.get_or_create_owned(&OutcomeLabels { outcome });
        let (committed, conflicts, in_doubt) =
            (commit("applied"), commit("conflict"), commit("unknown"));
        let hand_overs = Family::<DirectionLabels, Counter>::default();
        let hand_over = |direction| hand_overs.get_or_create_owned(&DirectionLabels { direction });
        let (received_keys, given_keys) = (hand_over("in"), hand_over("out"));
        let session_ends = Family::<ReasonLabels, Counter>::default();
        let session_end = |reason| session_ends.get_or_create_owned(&ReasonLabels { reason });
        let (closed_sessions, expired_sessions) = (session_end("closed"), session_end("expired"));
        EngineMetrics {
            tables,
            grants,
            waits,
            holds,
            evictions,
            fences_ahead: Counter::default(),
            contradicted_keys: Counter::default(),
            commits,
            committed,
            conflicts,
            in_doubt,
            background_commits: Counter::default(),
            commit_durations: Histogram::new(SHORT_SECONDS),
            take_overs: Counter::default(),
            hand_overs,
            received_keys,
            given_keys,
            forgotten_keys: Counter::default(),
            packed_keys: Counter::default(),
            opened_sessions: Counter::default(),
            session_ends,
            closed_sessions,
            expired_sessions,
            refused: Family::default(),
            replica_starts: Counter::default(),
        }
    }

    /// Counts a grant.
    pub fn granted(&self, table: &TableName, grant: GrantCounted) {
        if let Some(of_table) = self.tables.get(table) {
            let at = usize::from(grant.cause == Cause::Change);
            of_table.grants[at][usize::from(grant.is_durable)].inc();
            of_table.wait.observe(grant.waited.as_secs_f64());
        }
        if grant.fence_ahead >= FENCE_AHEAD {
            self.fences_ahead.inc();
        }
    }

    /// Counts the end of a hold.
    pub fn held(&self, table: &TableName, held_for: Duration) {
        if let Some(of_table) = self.tables.get(table) {
            of_table.hold.observe(held_for.as_secs_f64());
        }
    }

    /// Counts the end of an entry otherwise than by its release.
    pub fn evicted(&self, table: &TableName, end: &EndedAs, was_holder: bool) {
        let reason = match end {
            EndedAs::Lost(EndReason::Expired) => "expired",
            EndedAs::Lost(EndReason::SessionClosed) => "session_closed",
            EndedAs::Lost(EndReason::Unclaimed) => "unclaimed",
            EndedAs::Lost(EndReason::Forced { .. }) => "forced",
            EndedAs::Released | EndedAs::NoLongerKept => return,
        };
        let labels = EvictionLabels {
            table: table.to_string(),
            role: ROLES[usize::from(was_holder)],
            reason,
        };
        self.evictions.get_or_create(&labels).inc();
    }

    /// Counts a compare-and-swap that took effect.
    pub fn committed(&self, took: Duration) {
        self.committed.inc();
        self.commit_durations.observe(took.as_secs_f64());
    }

    /// The counter of refused calls under overload.
    pub fn refused(&self, kind: &'static str) -> Counter {
        self.refused.get_or_create_owned(&KindLabels { kind })
    }

    /// The grants by cause.
    pub fn grants(&self) -> Grants {
        let by_cause = |at: usize| {
            let of_tables = self.tables.values().flat_map(|table| &table.grants[at]);
            of_tables.map(Counter::get).sum()
        };
        Grants {
            at_once: by_cause(0),
            change: by_cause(1),
        }
    }

    /// The grants of this durability.
    pub fn grants_that_were(&self, durable: bool) -> u64 {
        let of_tables = self.tables.values().flat_map(|table| &table.grants);
        of_tables
            .map(|by_durability| by_durability[usize::from(durable)].get())
            .sum()
    }

    /// Adds all to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "grants",
            "Grants of locks, by table, by cause (at once with an empty queue, or after a wait), and by whether the grant was \
             durable from the start",
            self.grants.clone(),
        );
        registry.register_with_unit(
            "lock_wait",
            "Time from the creation of a lockRef to its grant",
            Unit::Seconds,
            self.waits.clone(),
        );
        registry.register_with_unit(
            "lock_hold",
            "Time from a grant to its end, of the holds that ended at the replica that granted them",
            Unit::Seconds,
            self.holds.clone(),
        );
        registry.register(
            "evictions",
            "LockRefs that ended otherwise than by their release, by table, role and reason",
            self.evictions.clone(),
        );
        registry.register(
            "fences_ahead",
            "Grants with a fencing token more than 1 s ahead of the clock: a clock was set back, a backup was restored, or a replica \
             crashed (write-back)",
            self.fences_ahead.clone(),
        );
        registry.register(
            "contradicted_keys",
            "Keys whose row in the store differed from the last write of this home: the store lost a write, a table was restored, or \
             somebody else changed it",
            self.contradicted_keys.clone(),
        );
        registry.register(
            "commits",
            "Commits of the state of a lock, by outcome",
            self.commits.clone(),
        );
        registry.register(
            "background_commits",
            "Commits that no call waited for (write-back)",
            self.background_commits.clone(),
        );
        registry.register_with_unit(
            "commit_duration",
            "Time of a commit that took effect",
            Unit::Seconds,
            self.commit_durations.clone(),
        );
        registry.register(
            "take_overs",
            "Locks taken over from replicas that were gone, or from an earlier process",
            self.take_overs.clone(),
        );
        registry.register(
            "hand_overs",
            "Locks handed over between running replicas, by direction",
            self.hand_overs.clone(),
        );
        registry.register(
            "forgotten_keys",
            "Idle keys removed from memory to make room for others",
            self.forgotten_keys.clone(),
        );
        registry.register(
            "sessions_opened",
            "Sessions opened at this replica",
            self.opened_sessions.clone(),
        );
        registry.register(
            "session_ends",
            "Sessions of this replica that ended, by reason",
            self.session_ends.clone(),
        );
        registry.register(
            "calls_shed",
            "Calls refused with OVERLOADED by the concurrency limit, by kind of call",
            self.refused.clone(),
        );
        registry.register(
            "replica_starts",
            "Starts of a replica by this process: more than one means that it was fenced and started again",
            self.replica_starts.clone(),
        );
    }
}
