//! Lock protocols: what serves the keys of a table.
//!
//! A table with the protocol `home` is served by the engine: one replica at a time decides for a key. The other protocols are
//! leaderless. Whichever replica is asked does the work on the cells of the store, and keeps nothing after the call. They have no homes,
//! no hand-overs and nothing to take over.

mod bakery;
mod cells;
mod column_prefix;
mod entry;
mod leaderless;
mod music;
mod polls;
mod queue;
mod tables;
mod value;

use std::time::Duration;

use async_trait::async_trait;

use crate::engine::{
    Acquired, ClosedSession, CreateCall, CreatedLockRef, Done, Engine, EngineError, ForceReleased,
    LeaseId, Mutation, Renewed, SessionCall, Value,
};
use crate::lock::{EntryName, LockRef, SessionId};

pub use column_prefix::{AcquireRow, AcquiredRow, Backoff, ColumnPrefix, LockColumn};
pub use leaderless::{Leaderless, LeaderlessWatch, ProtocolOptions};
pub use tables::LeaderlessTables;

/// A change of a column of a row.
pub use crate::store::CellChange as RowChange;

/// The protocol of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolKind {
    /// MUSIC on lightweight transactions.
    Music,
    /// Lamport's bakery.
    Bakery,
    /// Lock columns beside the data of a row.
    ColumnPrefix,
}

impl ProtocolKind {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            ProtocolKind::Music => "music",
            ProtocolKind::Bakery => "bakery",
            ProtocolKind::ColumnPrefix => "column-prefix",
        }
    }

    /// Whether the lock of an earlier holder cannot hurt: its writes lose.
    pub fn has_fence(self) -> bool {
        match self {
            ProtocolKind::Music => true,
            ProtocolKind::Bakery | ProtocolKind::ColumnPrefix => false,
        }
    }

    /// Whether waiters follow each other in an order.
    pub fn has_order(self) -> bool {
        match self {
            ProtocolKind::Music | ProtocolKind::Bakery => true,
            ProtocolKind::ColumnPrefix => false,
        }
    }
}

/// The calls that a protocol serves. All may be repeated.
#[async_trait]
pub trait LockProtocol: Send + Sync {
    /// CreateLockRef.
    async fn create(&self, call: CreateCall) -> Result<CreatedLockRef, EngineError>;

    /// AcquireLock, for at most this wait.
    async fn acquire(
        &self,
        lock_ref: &LockRef,
        wait: Duration,
        read_value: bool,
    ) -> Result<Acquired, EngineError>;

    /// ReleaseLock, after an optional last write. Answers whether it had been released before.
    async fn release(
        &self,
        lock_ref: &LockRef,
        put: Option<Mutation>,
        call_no: u64,
    ) -> Result<bool, EngineError>;

    /// CriticalGet.
    async fn critical_get(
        &self,
        lock_ref: &LockRef,
        call_no: u64,
    ) -> Result<Done<Value>, EngineError>;

    /// CriticalPut and CriticalDelete.
    async fn critical_write(
        &self,
        lock_ref: &LockRef,
        mutation: Mutation,
        call_no: u64,
    ) -> Result<Done<()>, EngineError>;

    /// RenewSession.
    async fn renew(&self, lease: &LeaseId) -> Result<Renewed, EngineError>;

    /// One renewal of a KeepAlive.
    async fn renew_on_stream(&self, lease: &LeaseId) -> Result<Renewed, EngineError> {
        self.renew(lease).await
    }

    /// ForceRelease, by this operator for this reason.
    async fn force_release(
        &self,
        name: &EntryName,
        by: &str,
        why: &str,
    ) -> Result<ForceReleased, EngineError>;

    /// OpenSession. Sessions are of no table: the engine keeps them.
    async fn open_session(&self, _call: SessionCall) -> Result<Renewed, EngineError> {
        Err(EngineError::SessionEnded)
    }

    /// CloseSession and EndSession.
    async fn close_session(&self, _session: SessionId) -> Result<ClosedSession, EngineError> {
        Err(EngineError::SessionEnded)
    }
}

#[async_trait]
impl LockProtocol for Engine {
    async fn create(&self, call: CreateCall) -> Result<CreatedLockRef, EngineError> {
        Engine::create(self, call).await
    }

    async fn acquire(
        &self,
        lock_ref: &LockRef,
        wait: Duration,
        read_value: bool,
    ) -> Result<Acquired, EngineError> {
        Engine::acquire(self, lock_ref, wait, read_value).await
    }

    async fn release(
        &self,
        lock_ref: &LockRef,
        put: Option<Mutation>,
        call_no: u64,
    ) -> Result<bool, EngineError> {
        Engine::release(self, lock_ref, put, call_no).await
    }

    async fn critical_get(
        &self,
        lock_ref: &LockRef,
        call_no: u64,
    ) -> Result<Done<Value>, EngineError> {
        Engine::critical_get(self, lock_ref, call_no).await
    }

    async fn critical_write(
        &self,
        lock_ref: &LockRef,
        mutation: Mutation,
        call_no: u64,
    ) -> Result<Done<()>, EngineError> {
        Engine::critical_write(self, lock_ref, mutation, call_no).await
    }

    async fn renew(&self, lease: &LeaseId) -> Result<Renewed, EngineError> {
        Engine::renew(self, lease).await
    }

    async fn renew_on_stream(&self, lease: &LeaseId) -> Result<Renewed, EngineError> {
        Engine::renew_on_stream(self, lease).await
    }

    async fn force_release(
        &self,
        name: &EntryName,
        by: &str,
        why: &str,
    ) -> Result<ForceReleased, EngineError> {
        Engine::force_release(self, name, by, why).await
    }

    async fn open_session(&self, call: SessionCall) -> Result<Renewed, EngineError> {
        Engine::open_session(self, call).await
    }

    async fn close_session(&self, session: SessionId) -> Result<ClosedSession, EngineError> {
        Engine::close_session(self, session).await
    }
}
