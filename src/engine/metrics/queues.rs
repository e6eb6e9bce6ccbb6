//! Gauges of the queues of a replica.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::lock::{Seq, TableName};

/// A queue as it was noted for operators.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct QueueNoted {
    /// The holder, and the moment of its grant by this replica, by CLOCK_BOOTTIME.
    pub held: Option<(Seq, Option<Duration>)>,
    /// The number of waiters.
    pub waiters: usize,
}

impl QueueNoted {
    pub fn holder(&self) -> Option<Seq> {
        self.held.map(|(seq, _)| seq)
    }
}

/// How many locks of each table are held here, and how many entries wait behind them.
///
/// Of one replica: with it go the queues of its memory.
#[derive(Debug)]
pub(in crate::engine) struct QueueGauges(BTreeMap<TableName, QueueGauge>);

#[derive(Debug, Default)]
struct QueueGauge {
    held: AtomicI64,
    waiters: AtomicI64,
}

impl QueueGauges {
    pub fn new(tables: &BTreeSet<TableName>) -> QueueGauges {
        let gauges = tables
            .iter()
            .map(|name| (name.clone(), QueueGauge::default()));
        QueueGauges(gauges.collect())
    }

    /// Notes the change of one queue.
    pub fn add(&self, table: &TableName, held: i64, waiters: i64) {
        if let Some(gauge) = self.0.get(table) {
            gauge.held.fetch_add(held, Ordering::Relaxed);
            gauge.waiters.fetch_add(waiters, Ordering::Relaxed);
        }
    }

    /// For each table: its name, the number of locks that are held, and the number of waiters.
    pub fn all(&self) -> Vec<(&TableName, i64, i64)> {
        let each = self.0.iter();
        each.map(|(table, gauge)| {
            let held = gauge.held.load(Ordering::Relaxed);
            (table, held, gauge.waiters.load(Ordering::Relaxed))
        })
        .collect()
    }
}
