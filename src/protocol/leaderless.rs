//! A leaderless protocol, and the parts that it works with.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tokio::time::sleep;

use super::cells::unavailable;
use super::entry::{StoredRequest, request_column};
use super::value::{VALUE, value_in};
use super::{LockProtocol, ProtocolKind};
use crate::clock::{Clock, Ids};
use crate::engine::{Described, EngineError, KeyFilter, Page, Value, WatchEvent};
use crate::limits::Limits;
use crate::lock::{Key, KeyId, LockRef, Tag};
use crate::store::{CellChange, CellStore, Columns, Currency, StoredCell, Written};

/// What a leaderless protocol serves beside the calls of clients.
#[async_trait]
pub trait Leaderless: LockProtocol {
    /// Its protocol.
    fn kind(&self) -> ProtocolKind;

    /// Get: the value, read without a lock.
    async fn read(&self, id: &KeyId) -> Result<Value, EngineError>;

    /// WatchLock.
    async fn watch(&self, lock_ref: &LockRef) -> Result<LeaderlessWatch, EngineError>;

    /// DescribeLock.
    async fn describe(&self, id: &KeyId) -> Result<Described, EngineError>;

    /// ListLocks: one page.
    async fn list(
        &self,
        filter: &KeyFilter,
        limit: usize,
    ) -> Result<Page<Described, Key>, EngineError>;
}

/// A watched lockRef.
pub struct LeaderlessWatch {
    /// Its events, each with the span without expiry.
    pub events: BoxStream<'static, (WatchEvent, Duration)>,
    /// That of the latest event.
    pub valid_for: Duration,
}

/// The protocol of a table, with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtocolOptions {
    /// The protocol.
    pub kind: ProtocolKind,
    /// Values may be read and written in a protocol without a fence.
    pub allow_unfenced: bool,
    /// The begin of the names of lock columns.
    pub lock_prefix: String,
}

/// The pause before a failed write is repeated, and how often it is: for longer than any call takes.
const WRITE_PAUSE: Duration = Duration::from_millis(20);
const WRITES_MAX: u32 = 1_000;

impl ProtocolOptions {
    /// Fails unless values may be guarded.
    pub fn may_guard(&self) -> Result<(), EngineError> {
        if self.kind.has_fence() || self.allow_unfenced {
            return Ok(());
        }
        Err(EngineError::NotInProtocol {
            protocol: self.kind.name(),
            what: "fence, so a value is not safe in it; to use it all the same set allow_unfenced for the table",
        })
    }
}

/// The parts that all leaderless protocols work with.
#[derive(Clone)]
pub struct Parts {
    /// The cells, once the store is open.
    pub cells: Arc<OnceLock<Arc<dyn CellStore>>>,
    /// The limits in force.
    pub limits: Arc<Limits>,
    /// The clocks of this machine.
    pub clock: Arc<dyn Clock>,
    /// Random numbers.
    pub ids: Arc<dyn Ids>,
}

impl Parts {
    /// The cells; an error before the store is open.
    pub fn cells(&self) -> Result<&dyn CellStore, EngineError> {
        match self.cells.get() {
            Some(cells) => Ok(&**cells),
            None => Err(EngineError::Unavailable(
                "this replica waits for its store; its log has the reason".to_owned(),
            )),
        }
    }

    /// Reads cells of a key.
    pub async fn read(
        &self,
        id: &KeyId,
        columns: &Columns,
        currency: Currency,
    ) -> Result<Vec<StoredCell>, EngineError> {
        let read = self.cells()?.read_cells(id, columns, currency).await;
        read.map_err(|error| unavailable(&error))
    }

    /// Reads cells of a key, as acknowledged writes left them.
    pub async fn acknowledged(
        &self,
        id: &KeyId,
        columns: &Columns,
    ) -> Result<Vec<StoredCell>, EngineError> {
        self.read(id, columns, Currency::Acknowledged).await
    }

    /// Reads one cell of a key.
    pub async fn read_one(
        &self,
        id: &KeyId,
        column: &str,
    ) -> Result<Option<StoredCell>, EngineError> {
        let columns = Columns::Named(vec![column.to_owned()]);
        let cells = self.acknowledged(id, &columns).await?;
        Ok(cells.into_iter().next())
    }

    /// Writes one cell of a key. The error says whether it may have been written.
    pub async fn write_one(
        &self,
        id: &KeyId,
        change: CellChange,
        timestamp: u64,
    ) -> Result<(), EngineError> {
        match self.cells()?.write_cells(id, &[change], timestamp).await {
            Written::Done => Ok(()),
            Written::Unknown(error) => Err(EngineError::WriteUnknown(error.to_string())),
            Written::NotStarted(error) => Err(unavailable(&error)),
        }
    }

    /// Writes until it is acknowledged: a write in doubt may be repeated.
    pub async fn write_out(
        &self,
        id: &KeyId,
        changes: &[CellChange],
        timestamp: u64,
    ) -> Result<(), EngineError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.cells()?.write_cells(id, changes, timestamp).await {
                Written::Done => return Ok(()),
                Written::Unknown(error) | Written::NotStarted(error) if tries >= WRITES_MAX => {
                    return Err(unavailable(&error));
                }
                Written::Unknown(error) | Written::NotStarted(error) => {
                    tracing::debug!(%id, %error, "a write failed; repeating it");
                    sleep(WRITE_PAUSE).await;
                }
            }
        }
    }

    /// A timestamp above that of an earlier write.
    pub fn timestamp_after(&self, before: u64) -> u64 {
        self.clock.wall_us().max(before + 1)
    }

    /// The record of a request.
    pub async fn request(
        &self,
        id: &KeyId,
        tag: Tag,
    ) -> Result<Option<StoredRequest>, EngineError> {
        let request = self.read_one(id, &request_column(tag)).await?;
        request
            .map(|cell| StoredRequest::decoded(&cell.value))
            .transpose()
    }

    /// The value.
    pub async fn value(&self, id: &KeyId) -> Result<Value, EngineError> {
        let value = self.read_one(id, VALUE).await?;
        Ok(value_in(value.as_ref().map(|cell| &cell.value)))
    }
}
