//! The engine: one actor a key, group commit, waiting, sync, leases (design §4, §6, §7).
//! (Placeholder bodies; the signatures are what the edge builds on.)

mod api;

use std::time::Duration;

use uuid::Uuid;

pub use api::*;

use crate::limits::Limits;
use crate::lock::{Key, KeyId, LockRef, ReplicaId, SessionId, TableName};
use crate::store::ReplicaRow;

/// The engine of one replica. Cheap to clone.
#[derive(Clone)]
pub struct Engine {}

/// A watched lockRef. Dropping it ends the watch. While it lives the lockRef is kept alive.
pub struct Watch {}

impl Watch {
    /// The next thing worth telling: the present standing first, then each change (changes that come
    /// faster than they are asked for are merged). `None` after `Lost`.
    pub async fn next(&mut self) -> Option<Watched> {
        todo!()
    }
    /// How long the lockRef is safe from expiry, from now.
    pub fn valid_for(&self) -> Duration {
        todo!()
    }
}

#[allow(unused_variables, clippy::unused_async)]
impl Engine {
    /// This replica.
    pub fn replica(&self) -> ReplicaId {
        todo!()
    }
    /// The limits in force.
    pub fn limits(&self) -> &Limits {
        todo!()
    }
    /// `Ok` while calls can be served. Drives the readiness of the health service.
    pub fn ready(&self) -> Result<(), EngineError> {
        todo!()
    }
    /// The tables, by name.
    pub fn tables(&self) -> Vec<TableName> {
        todo!()
    }
    /// Takes a place in the queue of a key.
    pub async fn create(&self, call: CreateCall) -> Result<CreatedLockRef, EngineError> {
        todo!()
    }
    /// Asks for the lock, waiting for it at most `wait` (zero: one try). Times out with `Waiting`.
    pub async fn acquire(
        &self,
        lock_ref: &LockRef,
        wait: Duration,
        read_value: bool,
    ) -> Result<Acquired, EngineError> {
        todo!()
    }
    /// Gives a place back, after writing `put`. True if it had been given back before.
    pub async fn release(
        &self,
        lock_ref: &LockRef,
        put: Option<Mutation>,
        call_no: u64,
    ) -> Result<bool, EngineError> {
        todo!()
    }
    /// Reads as the holder.
    pub async fn critical_get(
        &self,
        lock_ref: &LockRef,
        call_no: u64,
    ) -> Result<Done<Value>, EngineError> {
        todo!()
    }
    /// Writes as the holder.
    pub async fn critical_write(
        &self,
        lock_ref: &LockRef,
        mutation: Mutation,
        call_no: u64,
    ) -> Result<Done<()>, EngineError> {
        todo!()
    }
    /// Watches a lockRef.
    pub async fn watch(&self, lock_ref: &LockRef) -> Result<Watch, EngineError> {
        todo!()
    }
    /// Opens a session whose id is `request_id`; finds it if it is open already.
    pub async fn open_session(
        &self,
        request_id: Uuid,
        ttl_ms: u32,
        owner: String,
        identity: String,
    ) -> Result<(SessionId, Renewed), EngineError> {
        todo!()
    }
    /// A sign of life.
    pub async fn renew(&self, lease: &LeaseId) -> Result<Renewed, EngineError> {
        todo!()
    }
    /// Closes a session and ends what lives by it. True if it was over before.
    pub async fn close_session(&self, session: SessionId) -> Result<bool, EngineError> {
        todo!()
    }
    /// Reads without a lock.
    pub async fn read(&self, id: &KeyId) -> Result<Value, EngineError> {
        todo!()
    }
    /// Lists keys with live places, `limit` at most, from the first above `after`.
    pub async fn list_locks(
        &self,
        table: &TableName,
        after: Option<&Key>,
        key_prefix: &str,
        contended: bool,
        limit: usize,
    ) -> Result<Page<Described, Key>, EngineError> {
        todo!()
    }
    /// Shows one key, also one that was never locked.
    pub async fn describe(&self, id: &KeyId) -> Result<Described, EngineError> {
        todo!()
    }
    /// Ends a place whatever its holder thinks.
    pub async fn force_release(
        &self,
        lock_ref: &LockRef,
        by: &str,
        why: &str,
    ) -> Result<ForceReleased, EngineError> {
        todo!()
    }
    /// Lists open sessions, `limit` at most, from the first above `after`.
    pub async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<Page<DescribedSession, SessionId>, EngineError> {
        todo!()
    }
    /// Lists replicas, `limit` at most, from the first above `after`.
    pub async fn list_replicas(
        &self,
        after: Option<ReplicaId>,
        limit: usize,
    ) -> Result<Page<ReplicaRow, ReplicaId>, EngineError> {
        todo!()
    }
    /// Ends all waits and watches and takes no more calls (they fail with `Stopping`); returns when what
    /// was under way is settled.
    pub async fn stop(&self) {
        todo!()
    }
}
