//! The states of keys: each load and swap is one of `rows`, each listing a scan.

use async_trait::async_trait;

use super::CassandraStore;
use crate::key::KeyState;
use crate::lock::{Key, KeyId, ReplicaId, TableName};
use crate::store::{KeyStore, Listed, StoreError, Swap};

#[async_trait]
impl KeyStore for CassandraStore {
    async fn fence_floor(&self) -> Result<u64, StoreError> {
        self.fence_floor_of_keyspace().await
    }

    async fn load(&self, id: &KeyId) -> Result<Option<KeyState>, StoreError> {
        self.rows(id).state().await
    }

    async fn load_settled(&self, id: &KeyId) -> Result<Option<KeyState>, StoreError> {
        self.rows(id).settled().await
    }

    async fn compare_and_swap(&self, id: &KeyId, old: &KeyState, new: &KeyState) -> Swap {
        debug_assert_eq!(new.version, old.version + 1, "one version a change");
        debug_assert_eq!(new.check(), Ok(()), "what is written must read back");
        self.rows(id).swap(old, new).await
    }

    async fn list_live(
        &self,
        table: &TableName,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Listed>, StoreError> {
        self.live(table, prefix, after, limit).await
    }

    async fn each_live(
        &self,
        table: &TableName,
        visit: &(dyn Fn(Key, Option<ReplicaId>) + Sync),
    ) -> Result<(), StoreError> {
        self.all_live(table, visit).await
    }
}
