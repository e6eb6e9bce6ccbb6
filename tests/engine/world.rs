//! One replica on a fresh embedded store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fermata::engine::{
    CreateCall, CreatedLockRef, Engine, EngineError, EngineOptions, LiveBy, Mutation, Standing,
    SystemClock, SystemIds,
};
use fermata::limits::Limits;
use fermata::lock::{Fence, Key, KeyId, LockRef, Mode, TableName};
use fermata::store::Store;
use fermata::store::embedded::{EmbeddedOptions, EmbeddedStore};
use tempfile::TempDir;
use uuid::Uuid;

pub struct World {
    pub engine: Engine,
    pub directory: TempDir,
}

pub fn key(text: &str) -> KeyId {
    KeyId {
        table: TableName::default_table(),
        key: Key::parse(text, Key::BYTES_MAX).unwrap(),
    }
}

/// A create that lives by its own TTL.
pub fn call(id: &str, ttl_ms: u32) -> CreateCall {
    CreateCall {
        id: key(id),
        request_id: Uuid::new_v4(),
        live_by: LiveBy::Ttl(ttl_ms),
        mode: Mode::Exclusive,
        owner: "a test".to_owned(),
        identity: String::new(),
        read_value: false,
    }
}

impl World {
    pub async fn new() -> World {
        Self::with(Limits::default()).await
    }

    pub async fn with(limits: Limits) -> World {
        Self::on(tempfile::tempdir().unwrap(), limits).await
    }

    pub async fn on(directory: TempDir, limits: Limits) -> World {
        let store = EmbeddedStore::open(EmbeddedOptions::new(directory.path())).unwrap();
        let engine = start(Arc::new(store), limits).await;
        World { engine, directory }
    }

    pub async fn create(&self, id: &str) -> CreatedLockRef {
        self.engine.create(call(id, 30_000)).await.unwrap()
    }

    pub async fn put(&self, held: &LockRef, value: &str) -> Result<(), EngineError> {
        let value = Mutation::Put(Bytes::copy_from_slice(value.as_bytes()));
        self.engine.critical_write(held, value, 0).await.map(|_| ())
    }

    pub async fn get(&self, held: &LockRef) -> Result<Option<String>, EngineError> {
        let done = self.engine.critical_get(held, 0).await?;
        Ok(done
            .value
            .bytes
            .map(|b| String::from_utf8(b.to_vec()).unwrap()))
    }

    /// Waits for the lock; the lockRef with its grant.
    pub async fn acquire(&self, lock_ref: &LockRef) -> LockRef {
        let acquired = self
            .engine
            .acquire(lock_ref, Duration::from_secs(60), false)
            .await
            .unwrap();
        assert!(matches!(acquired.standing, Standing::Held { .. }));
        acquired.lock_ref
    }
}

pub async fn start(store: Arc<dyn Store>, limits: Limits) -> Engine {
    Engine::start(EngineOptions {
        store,
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        tables: Vec::new(),
        limits,
        address: "test".to_owned(),
    })
    .await
    .unwrap()
}

pub fn grant(standing: &Standing) -> Fence {
    match standing {
        Standing::Held { grant, .. } => *grant,
        Standing::Waiting { position } => panic!("not held, at position {position}"),
    }
}
