//! Listings. Cassandra keeps partitions in the order of their hashes, so a page in the order of keys takes a read of
//! all of them; only the page itself is kept in memory.

use std::collections::BTreeMap;

use super::CassandraStore;
use super::statements::Ask;
use super::value::{Row, present};
use crate::lock::{Key, KeyId, TableName};
use crate::store::{Listed, StoreError};

/// The `limit` smallest keys that were offered.
pub(super) struct Smallest<K, T> {
    limit: usize,
    kept: BTreeMap<K, T>,
}

impl<K: Ord, T> Smallest<K, T> {
    pub(super) fn new(limit: usize) -> Smallest<K, T> {
        Smallest {
            limit,
            kept: BTreeMap::new(),
        }
    }

    pub(super) fn offer(&mut self, key: K, item: T) {
        self.kept.insert(key, item);
        if self.kept.len() > self.limit {
            self.kept.pop_last();
        }
    }

    pub(super) fn into_items(self) -> Vec<(K, T)> {
        self.kept.into_iter().collect()
    }
}

impl CassandraStore {
    /// Looks at every row that is asked for.
    pub(super) async fn scan(
        &self,
        ask: Ask,
        mut look: impl FnMut(Row) -> Result<(), StoreError> + Send,
    ) -> Result<(), StoreError> {
        let statement = self.statement(ask).await?;
        let page_rows = i32::from(self.page_rows);
        let mut next = None;
        loop {
            let (rows, more) = self.driver.page(&statement, &[], page_rows, next).await?;
            for row in rows {
                look(row)?;
            }
            match more {
                Some(more) => next = Some(more),
                None => return Ok(()),
            }
        }
    }

    /// Keys with live entries, in order. One that is given back while it is listed is left out, and the page is
    /// filled up with the next.
    pub(super) async fn live(
        &self,
        table: &TableName,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Listed>, StoreError> {
        let mut listed = Vec::new();
        let mut from = after.cloned();
        while listed.len() < limit {
            let wanted = limit - listed.len();
            let mut keys = Smallest::new(wanted);
            self.scan(Ask::Keys(table.clone()), |row| {
                if let Some(key) = live_key(table, row)?
                    && from.as_ref().is_none_or(|from| key > *from)
                {
                    keys.offer(key, ());
                }
                Ok(())
            })
            .await?;
            let keys = keys.into_items();
            let last = keys.len() < wanted;
            for (key, ()) in keys {
                from = Some(key.clone());
                let id = KeyId {
                    table: table.clone(),
                    key,
                };
                match self.state(&id).await? {
                    Some(state) if !state.entries.is_empty() => {
                        listed.push(Listed { key: id.key, state });
                    }
                    _ => {}
                }
            }
            if last {
                break;
            }
        }
        Ok(listed)
    }

    /// Keys with live entries, in the order in which Cassandra keeps them.
    pub(super) async fn all_live(
        &self,
        table: &TableName,
        look: &(dyn Fn(Listed) + Sync),
    ) -> Result<(), StoreError> {
        let statement = self.statement(Ask::Keys(table.clone())).await?;
        let page_rows = i32::from(self.page_rows);
        let mut next = None;
        loop {
            let (rows, more) = self.driver.page(&statement, &[], page_rows, next).await?;
            for row in rows {
                let Some(key) = live_key(table, row)? else {
                    continue;
                };
                let id = KeyId {
                    table: table.clone(),
                    key,
                };
                match self.state(&id).await {
                    Ok(Some(state)) if !state.entries.is_empty() => {
                        look(Listed { key: id.key, state });
                    }
                    Ok(_) => {}
                    // One key that cannot be read does not hide the others.
                    Err(error @ StoreError::Damaged(_)) => {
                        tracing::warn!(key = %id, %error, "a key cannot be read");
                    }
                    Err(error) => return Err(error),
                }
            }
            match more {
                Some(more) => next = Some(more),
                None => return Ok(()),
            }
        }
    }
}

/// The key of a row of [`Ask::Keys`]; `None` where nobody has an entry.
fn live_key(table: &TableName, mut row: Row) -> Result<Option<Key>, StoreError> {
    let head = present(row.bigint("head")?, "head")?;
    let next = present(row.bigint("next")?, "next")?;
    let key = present(row.text("key")?, "key")?;
    let key = Key::parse(&key, Key::BYTES_MAX).map_err(|error| {
        StoreError::Damaged(format!("the table {table} holds no key of ours: {error}"))
    })?;
    Ok((head < next).then_some(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_are_kept_in_order() {
        let mut smallest = Smallest::new(3);
        for number in [5, 1, 9, 3, 2] {
            smallest.offer(number, number * 10);
        }
        assert_eq!(smallest.into_items(), [(1, 10), (2, 20), (3, 30)]);
    }

    #[test]
    fn none_are_kept_where_none_are_wanted() {
        let mut smallest = Smallest::new(0);
        smallest.offer(1, ());
        assert!(smallest.into_items().is_empty());
    }
}
