//! The states of keys: each load and swap is one of `rows`, each listing a scan.

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};

use super::scan::{ALL, Smallest, live_key, readable};
use super::statements::Cql;
use super::{AT_ONCE, CassandraStore};
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

    /// A key that is released while it is listed is left out, and the page is filled up with the next.
    async fn list_live(
        &self,
        table: &TableName,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Listed>, StoreError> {
        let mut listed = Vec::new();
        let mut from = after.cloned();
        while listed.len() < limit {
            let wanted = limit - listed.len();
            let mut keys = Smallest::new(wanted);
            let is_wanted = |key: &Key| {
                key.as_str().starts_with(prefix) && from.as_ref().is_none_or(|from| key > from)
            };
            let decode = |row| {
                let key = live_key(table, row)?.map(|(key, _)| key);
                Ok(key.filter(is_wanted))
            };
            self.each_readable(Cql::Keys(table.clone()), ALL, decode, |key| {
                keys.offer(key, ())
            })
            .await?;
            let keys = keys.kept;
            let last = keys.len() < wanted;
            from = keys.keys().next_back().cloned().or(from);
            let states = stream::iter(keys).map(|(key, ())| async move {
                let id = KeyId {
                    table: table.clone(),
                    key,
                };
                let state = readable(&self.unreadable, self.rows(&id).state().await)?;
                let state = state.filter(|state| !state.entries.is_empty());
                Ok::<_, StoreError>(state.map(|state| Listed { key: id.key, state }))
            });
            let mut states = states.buffered(AT_ONCE);
            while let Some(one) = states.next().await {
                listed.extend(one?);
            }
            if last {
                break;
            }
        }
        Ok(listed)
    }

    /// In the order in which Cassandra keeps them.
    async fn each_live(
        &self,
        table: &TableName,
        visit: &(dyn Fn(Key, Option<ReplicaId>) + Sync),
    ) -> Result<(), StoreError> {
        let ask = || Cql::Keys(table.clone());
        let decode = |row| live_key(table, row);
        let visit = |(key, home)| visit(key, home);
        self.each_range(|range| self.each_readable(ask(), range, decode, visit))
            .await
    }
}
