//! A leaderless protocol, and the parts that it works with.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use super::{LockProtocol, ProtocolKind};
use crate::clock::{Clock, Ids};
use crate::engine::{Described, EngineError, KeyFilter, Page, Value, WatchEvent};
use crate::limits::Limits;
use crate::lock::{Key, KeyId, LockRef};
use crate::store::CellStore;

/// What a leaderless protocol serves beside the calls of clients.
#[async_trait]
pub trait Leaderless: LockProtocol {
    /// The protocol.
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
}

/// The parts that all leaderless protocols work with.
#[derive(Clone)]
pub struct Parts {
    /// The cells, once the store is open.
    pub cells: Arc<OnceLock<Arc<dyn CellStore>>>,
    /// The limits in force.
    pub limits: Arc<Limits>,
    /// The clocks of this machine. They decide nothing about locks.
    pub clock: Arc<dyn Clock>,
    /// Randomness for pauses.
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
}
