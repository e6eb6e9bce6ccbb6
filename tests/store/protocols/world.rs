//! Replicas with a leaderless table on one store, and short forms of their calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fermata::clock::{Ids as _, SystemClock, SystemIds};
use fermata::engine::{
    Acquired, CreateCall, CreatedLockRef, EngineError, LiveBy, LockStatus, Mutation,
};
use fermata::limits::Limits;
use fermata::lock::{Fence, Key, KeyId, LockRef, Mode, TableName, Tag};
use fermata::protocol::{
    ColumnPrefix, Leaderless, LeaderlessTables, ProtocolKind, ProtocolOptions,
};
use fermata::store::CellStore;

use crate::contract::CELLS;

pub const TTL: Duration = Duration::from_secs(20);

/// One store, and the keys of one test.
pub struct World {
    test: &'static str,
    options: ProtocolOptions,
    pub cells: Arc<dyn CellStore>,
}

/// One replica.
#[derive(Clone)]
pub struct Replica(pub Arc<dyn Leaderless>);

impl World {
    pub fn new(test: &'static str, kind: ProtocolKind, cells: Arc<dyn CellStore>) -> World {
        let allow_unfenced = kind != ProtocolKind::Music;
        World {
            test,
            options: ProtocolOptions {
                kind,
                allow_unfenced,
                lock_prefix: "_LOCK_".to_owned(),
            },
            cells,
        }
    }

    /// A replica on the store.
    pub fn replica(&self) -> Replica {
        self.replica_on(Arc::clone(&self.cells))
    }

    /// A replica that has this way to the store.
    pub fn replica_on(&self, cells: Arc<dyn CellStore>) -> Replica {
        let table = TableName::parse(CELLS).unwrap();
        Replica(Arc::clone(self.tables_on(cells).of(&table).unwrap()))
    }

    fn tables_on(&self, cells: Arc<dyn CellStore>) -> LeaderlessTables {
        let table = TableName::parse(CELLS).unwrap();
        let tables = BTreeMap::from([(table, self.options.clone())]);
        let (clock, ids) = (Arc::new(SystemClock), Arc::new(SystemIds));
        let tables = LeaderlessTables::new(tables, Limits::default(), clock, ids);
        tables.begin(cells);
        tables
    }

    /// A replica with rows.
    pub fn rows(&self) -> ColumnPrefix {
        let table = TableName::parse(CELLS).unwrap();
        let tables = self.tables_on(Arc::clone(&self.cells));
        tables.rows_of(&table).unwrap().clone()
    }

    /// Without the leave to guard values in a protocol without a fence.
    pub fn fenced_only(mut self) -> World {
        self.options.allow_unfenced = false;
        self
    }

    /// A key of this test.
    pub fn key(&self, name: &str) -> KeyId {
        KeyId {
            table: TableName::parse(CELLS).unwrap(),
            key: Key::parse(
                &format!("{}/{}/{name}", self.options.kind.name(), self.test),
                Key::BYTES_MAX,
            )
            .unwrap(),
        }
    }
}

pub fn call(id: &KeyId, ttl: Duration) -> CreateCall {
    CreateCall {
        id: id.clone(),
        tag: Tag::from_bits(SystemIds.uuid().as_u128()),
        live_by: LiveBy::Ttl(u32::try_from(ttl.as_millis()).unwrap()),
        mode: Mode::Exclusive,
        owner: "test".to_owned(),
        identity: String::new(),
        share_of: "".into(),
        read_value: false,
        waited: Duration::ZERO,
    }
}

/// The grant of an entry that holds its key.
pub fn grant(status: &LockStatus) -> Option<Fence> {
    match status {
        LockStatus::Held { grant, .. } => Some(*grant),
        LockStatus::Waiting { .. } => None,
    }
}

impl Replica {
    pub async fn create(&self, id: &KeyId, ttl: Duration) -> CreatedLockRef {
        self.0.create(call(id, ttl)).await.unwrap()
    }

    /// A new entry that holds the key.
    pub async fn hold(&self, id: &KeyId, ttl: Duration) -> LockRef {
        let created = self.create(id, ttl).await;
        let held = self
            .0
            .acquire(&created.lock_ref, ttl / 2, false)
            .await
            .unwrap();
        assert!(grant(&held.status).is_some(), "{:?}", held.status);
        held.lock_ref
    }

    pub async fn ask(&self, lock_ref: &LockRef) -> Result<Acquired, EngineError> {
        self.0.acquire(lock_ref, Duration::ZERO, false).await
    }

    pub async fn is_held(&self, lock_ref: &LockRef) -> bool {
        grant(&self.ask(lock_ref).await.unwrap().status).is_some()
    }

    pub async fn put(
        &self,
        lock_ref: &LockRef,
        value: u64,
        call_no: u64,
    ) -> Result<(), EngineError> {
        let value = Mutation::Put(value.to_string().into());
        self.0
            .critical_write(lock_ref, value, call_no)
            .await
            .map(drop)
    }

    pub async fn get(&self, lock_ref: &LockRef, call_no: u64) -> Result<Option<u64>, EngineError> {
        let got = self.0.critical_get(lock_ref, call_no).await?;
        let number = |bytes: bytes::Bytes| std::str::from_utf8(&bytes).unwrap().parse().unwrap();
        Ok(got.value.bytes.map(number))
    }

    pub async fn release(&self, lock_ref: &LockRef) -> Result<bool, EngineError> {
        self.0.release(lock_ref, None, 0).await
    }
}
