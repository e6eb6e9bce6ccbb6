//! Listings. Cassandra keeps partitions in the order of their hashes, so a page in the order of keys takes a read of
//! all of them; only the page itself is kept in memory.

use std::collections::BTreeMap;

use fermata_cassandra::{Row, TokenRange, Value, present};
use futures_util::{StreamExt as _, stream};

use super::CassandraStore;
use super::rows::Asks;
use super::statements::Cql;
use super::unreadable::Unreadable;
use crate::key::KeyState;
use crate::lock::{Key, KeyId, ReplicaId, TableName};
use crate::store::{Listed, StoreError};

/// How many rows of a page are read at once.
const LOADED_AT_ONCE: usize = 16;

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

/// All tokens. The lowest one is none of them.
pub(super) const ALL: TokenRange = TokenRange {
    above: i64::MIN,
    up_to: i64::MAX,
};

/// One page of what is in the rows of a listing, and where it goes on. A row that cannot be read hides no others.
pub(super) async fn readable<A: Asks, T>(
    asks: &A,
    unreadable: &Unreadable,
    (ask, page_rows): (Cql, i32),
    range: TokenRange,
    from: Option<A::More>,
    decode: impl Fn(Row) -> Result<Option<T>, StoreError>,
) -> Result<(Vec<T>, Option<A::More>), StoreError> {
    let values = [Value::BigInt(range.above), Value::BigInt(range.up_to)];
    let (rows, more) = asks.page(ask, &values, page_rows, from).await?;
    let mut items = Vec::new();
    for row in rows {
        match decode(row) {
            Ok(item) => items.extend(item),
            Err(StoreError::Damaged(what)) => unreadable.note(&what),
            Err(error) => return Err(error),
        }
    }
    Ok((items, more))
}

impl CassandraStore {
    /// Reads all at once; where that fails, what each set of nodes keeps by itself, so that one without a majority hides
    /// only what it keeps. What was read before the failure is read again.
    pub(super) async fn each_range<F>(
        &self,
        read: impl Fn(TokenRange) -> F,
    ) -> Result<(), StoreError>
    where
        F: Future<Output = Result<(), StoreError>>,
    {
        if read(ALL).await.is_ok() {
            return Ok(());
        }
        let ranges = self.driver.ranges();
        let (mut failed, mut last) = (0, None);
        for range in &ranges {
            if let Err(error) = read(*range).await {
                failed += 1;
                last = Some(error);
            }
        }
        match last {
            None => Ok(()),
            Some(last) => Err(StoreError::Unavailable(format!(
                "{failed} of {} ranges of tokens: {last}",
                ranges.len()
            ))),
        }
    }

    /// Looks at everything in a listing that can be read.
    pub(super) async fn scan_readable<T: Send>(
        &self,
        ask: Cql,
        range: TokenRange,
        decode: impl Fn(Row) -> Result<Option<T>, StoreError> + Send + Sync,
        mut look: impl FnMut(T) + Send,
    ) -> Result<(), StoreError> {
        let page = (ask, i32::from(self.page_rows));
        let mut next = None;
        loop {
            let (items, more) =
                readable(self, &self.unreadable, page.clone(), range, next, &decode).await?;
            items.into_iter().for_each(&mut look);
            match more {
                Some(more) => next = Some(more),
                None => return Ok(()),
            }
        }
    }

    /// The state of a key that is listed; none where it cannot be read.
    async fn listed(&self, id: &KeyId) -> Result<Option<KeyState>, StoreError> {
        match self.rows(id).state().await {
            Ok(state) => Ok(state.filter(|state| !state.entries.is_empty())),
            Err(StoreError::Damaged(what)) => {
                self.unreadable.note(&what);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Keys with live entries, in order. One that is given back while it is listed is left out, and the page is
    /// filled up with the next.
    pub(super) async fn live(
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
            self.scan_readable(Cql::Keys(table.clone()), ALL, decode, |key| {
                keys.offer(key, ())
            })
            .await?;
            let keys = keys.into_items();
            let last = keys.len() < wanted;
            from = keys.last().map(|(key, ())| key.clone()).or(from);
            let looked_at = stream::iter(keys).map(|(key, ())| async move {
                let id = KeyId {
                    table: table.clone(),
                    key,
                };
                let state = self.listed(&id).await?;
                Ok::<_, StoreError>(state.map(|state| Listed { key: id.key, state }))
            });
            let mut looked_at = looked_at.buffered(LOADED_AT_ONCE);
            while let Some(one) = looked_at.next().await {
                listed.extend(one?);
            }
            if last {
                break;
            }
        }
        Ok(listed)
    }

    /// Keys with live entries, in the order in which Cassandra keeps them. No key is loaded: of many thousands that nobody
    /// asks about that would be most of what an idle cluster does.
    pub(super) async fn all_live(
        &self,
        table: &TableName,
        visit: &(dyn Fn(Key, Option<ReplicaId>) + Sync),
    ) -> Result<(), StoreError> {
        self.each_range(|range| self.live_in(table, range, visit))
            .await
    }

    async fn live_in(
        &self,
        table: &TableName,
        range: TokenRange,
        visit: &(dyn Fn(Key, Option<ReplicaId>) + Sync),
    ) -> Result<(), StoreError> {
        let page = (Cql::Keys(table.clone()), i32::from(self.page_rows));
        let decode = |row| live_key(table, row);
        let mut next = None;
        loop {
            let listed = readable(self, &self.unreadable, page.clone(), range, next, decode);
            let (keys, more) = listed.await?;
            for (key, home) in keys {
                visit(key, home);
            }
            match more {
                Some(more) => next = Some(more),
                None => return Ok(()),
            }
        }
    }
}

/// The key of a row of [`Cql::Keys`] and its home; `None` where nobody has an entry.
fn live_key(
    table: &TableName,
    mut row: Row,
) -> Result<Option<(Key, Option<ReplicaId>)>, StoreError> {
    let home = row.uuid("home")?.map(ReplicaId);
    let head = present(row.bigint("head")?, "head")?;
    let next = present(row.bigint("next")?, "next")?;
    let key = present(row.text("key")?, "key")?;
    let key = Key::parse(&key, Key::BYTES_MAX).map_err(|error| {
        StoreError::Damaged(format!("the table {table} holds no key of ours: {error}"))
    })?;
    if head < 0 {
        return Err(StoreError::Damaged(format!("the head of {key} is {head}")));
    }
    Ok((head < next).then_some((key, home)))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use fermata_cassandra::{Fault, Value};

    const HOME: ReplicaId = ReplicaId(uuid::Uuid::from_u128(7));

    /// A cluster that has these keys, each with its head, next and home.
    struct Has(Vec<[Option<Value>; 4]>);

    impl Asks for Has {
        type More = ();

        async fn ask(&self, _: Cql, _: &[Value]) -> Result<Vec<Row>, Fault> {
            panic!("nothing is asked but pages");
        }

        async fn page(
            &self,
            _: Cql,
            _: &[Value],
            _: i32,
            _: Option<()>,
        ) -> Result<(Vec<Row>, Option<()>), Fault> {
            let columns = ["key", "head", "next", "home"].map(str::to_owned);
            let rows = self.0.iter().map(|values| Row {
                columns: columns.clone().into(),
                values: values.to_vec(),
            });
            Ok((rows.collect(), None))
        }
    }

    #[test]
    fn a_row_that_is_half_known_hides_no_others() {
        let row = |key: &str, head, next| {
            let number = |n: Option<i64>| n.map(Value::BigInt);
            let home = (key == "b").then_some(Value::Uuid(HOME.0));
            [Some(Value::text(key)), number(head), number(next), home]
        };
        let has = Has(vec![
            row("a", Some(1), Some(2)),
            row("half", None, Some(2)),
            row("below", Some(-1), Some(2)),
            row("no\nkey", Some(1), Some(2)),
            row("idle", Some(2), Some(2)),
            row("b", Some(1), Some(3)),
        ]);
        let table = TableName::default_table();
        let decode = |row| live_key(&table, row);
        let ask = (Cql::Keys(table.clone()), 10);
        let unreadable = Unreadable::default();
        let page = readable(&has, &unreadable, ask, ALL, None, decode).now_or_never();
        let (keys, _) = page.unwrap().unwrap();
        let keys: Vec<_> = keys
            .iter()
            .map(|(key, home)| (key.as_str(), *home))
            .collect();
        assert_eq!(keys, [("a", None), ("b", Some(HOME))]);
    }

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
