//! The tables with a leaderless protocol.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use super::ProtocolKind;
use super::bakery::Bakery;
use super::column_prefix::ColumnPrefix;
use super::leaderless::{Leaderless, Parts, ProtocolOptions};
use super::music::Music;
use super::queue::OfQueue;
use crate::clock::{Clock, Ids};
use crate::limits::Limits;
use crate::lock::TableName;
use crate::store::CellStore;

/// The leaderless tables of this replica.
#[derive(Clone, Default)]
pub struct LeaderlessTables {
    tables: Arc<BTreeMap<TableName, Arc<dyn Leaderless>>>,
    rows: Arc<BTreeMap<TableName, ColumnPrefix>>,
    cells: Arc<OnceLock<Arc<dyn CellStore>>>,
}

impl LeaderlessTables {
    /// These tables, each by its protocol. They are served once the store is open.
    pub fn new(
        tables: BTreeMap<TableName, ProtocolOptions>,
        limits: Limits,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn Ids>,
    ) -> LeaderlessTables {
        let parts = Parts {
            cells: Arc::default(),
            limits: Arc::new(limits),
            clock,
            ids,
        };
        let mut rows = BTreeMap::new();
        let served = tables.into_iter().map(|(name, options)| {
            let protocol: Arc<dyn Leaderless> = match options.kind {
                ProtocolKind::Music => Arc::new(OfQueue::new(Music::new(parts.clone()))),
                ProtocolKind::Bakery => Arc::new(OfQueue::new(Bakery::new(parts.clone(), options))),
                ProtocolKind::ColumnPrefix => {
                    let row = ColumnPrefix::new(parts.clone(), options);
                    rows.insert(name.clone(), row.clone());
                    Arc::new(OfQueue::new(row))
                }
            };
            (name, protocol)
        });
        LeaderlessTables {
            tables: Arc::new(served.collect()),
            rows: Arc::new(rows),
            cells: parts.cells,
        }
    }

    /// The store is open: its cells.
    pub fn begin(&self, cells: Arc<dyn CellStore>) {
        // A replica opens its store once.
        let _ = self.cells.set(cells);
    }

    /// The protocol of a table; `None` if the engine serves it.
    pub fn of(&self, table: &TableName) -> Option<&Arc<dyn Leaderless>> {
        self.tables.get(table)
    }

    /// The table with this name, if it has lock columns.
    pub fn rows_of(&self, table: &TableName) -> Option<&ColumnPrefix> {
        self.rows.get(table)
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &TableName> {
        self.tables.keys()
    }
}
