//! The open database, or the reason why it is closed. Readers and the writer share it.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use redb::{Database, ReadTransaction, ReadableDatabase};

use super::fault::Fault;
use super::isolate::isolated;
use crate::store::StoreError;
use crate::store::metrics::StoreMetrics;

/// Readers hold the lock of `database` as long as they read, the writer as long as it commits, and
/// neither across an await. Only the writer's thread puts a database in or takes it out.
#[derive(Debug)]
pub(super) struct Gate {
    database: RwLock<Option<Database>>,
    /// Why nothing may be asked of the database, even while it is still there.
    closed: Mutex<Option<String>>,
    /// How many transactions were committed since the store was opened.
    commits: AtomicU64,
    pub(super) metrics: StoreMetrics,
}

impl Gate {
    pub(super) fn open(database: Database, metrics: StoreMetrics) -> Gate {
        Gate {
            database: RwLock::new(Some(database)),
            closed: Mutex::new(None),
            commits: AtomicU64::new(0),
            metrics,
        }
    }

    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    pub(super) fn count_commit(&self) {
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    /// `Ok` while the database may be asked.
    pub(super) fn ready(&self) -> Result<(), StoreError> {
        let closed = self.closed.lock();
        match &*closed {
            None => Ok(()),
            Some(reason) => Err(StoreError::Closed(reason.clone())),
        }
    }

    /// From now on nothing is asked of the database. The first reason stays until it is reopened.
    pub(super) fn close(&self, reason: &str) {
        let mut closed = self.closed.lock();
        if closed.is_none() {
            *closed = Some(reason.to_owned());
            tracing::error!(reason, "the store is closed; trying to open it again");
        }
    }

    /// As [`Gate::close`], because somebody asked for it; this reason replaces any other.
    pub(super) fn shut(&self, reason: &str) {
        let mut closed = self.closed.lock();
        *closed = Some(reason.to_owned());
    }

    /// Reads from one snapshot. A fault of the file closes the store, so that no later read of a
    /// database that has failed is believed.
    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(ReadTransaction) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        // Held until the fault was noted: the database cannot be another one by then.
        let database = self.database.read();
        self.ready()?;
        let Some(database) = &*database else {
            return Err(StoreError::Closed("it is being opened".to_owned()));
        };
        match isolated(|| work(database.begin_read()?)) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(Fault::Row(what))) => Err(StoreError::Damaged(what)),
            Ok(Err(Fault::File(reason))) | Err(reason) => {
                self.close(&reason);
                Err(StoreError::Closed(reason))
            }
        }
    }

    /// As [`Gate::read`], for a long read: it delays neither commits nor the closing of the store. A fault that it meets closes
    /// nothing: it may be of a page that nobody else needs, or of a database that was closed since.
    pub(super) fn read_aside<T>(
        &self,
        work: impl FnOnce(&ReadTransaction) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        let snapshot = self.read(Ok)?;
        match isolated(|| work(&snapshot)) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(Fault::Row(what) | Fault::File(what))) | Err(what) => {
                Err(StoreError::Damaged(what))
            }
        }
    }

    /// Writes. What a fault means is the caller's to say.
    pub(super) fn write<T>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let database = self.database.read();
        match &*database {
            Some(database) => isolated(|| work(database)).unwrap_or_else(|p| Err(Fault::File(p))),
            None => Err(Fault::File("it is not open".to_owned())),
        }
    }

    /// Puts a database in and lets everybody ask it, unless the store was shut.
    pub(super) fn reopen(&self, database: Database) {
        *self.database.write() = Some(database);
        *self.closed.lock() = None;
    }

    /// Takes the database out, once nobody reads any more, and closes its file.
    pub(super) fn close_file(&self) {
        let database = self.database.write().take();
        // redb writes a little when it closes; if that fails, the next open makes up for it.
        if let Err(panic) = isolated(|| drop(database)) {
            tracing::debug!(panic, "the file did not close cleanly");
        }
    }
}
