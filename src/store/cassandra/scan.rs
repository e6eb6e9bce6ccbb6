//! Listings. Cassandra keeps partitions in the order of their hashes, so a page in the order of keys takes a read of
//! all of them. Only the page itself is kept in memory.

use std::collections::BTreeMap;

use fermata_cassandra::{Row, TokenRange, Value, present};

use super::CassandraStore;
use super::rows::Asks as _;
use super::statements::Cql;
use crate::clock::{Clock as _, SystemClock};
use crate::lock::{Key, ReplicaId, TableName};
use crate::log_throttle::LogThrottle;
use crate::store::StoreError;

/// The `limit` smallest keys that were offered.
pub(super) struct Smallest<K, T> {
    limit: usize,
    pub(super) kept: BTreeMap<K, T>,
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
}

/// All tokens. The lowest one is none of them.
pub(super) const ALL: TokenRange = TokenRange {
    above: i64::MIN,
    up_to: i64::MAX,
};

/// What was decoded; nothing where it is damaged. A row that cannot be read hides no others.
pub(super) fn readable<T>(
    unreadable: &LogThrottle,
    decoded: Result<Option<T>, StoreError>,
) -> Result<Option<T>, StoreError> {
    let Err(StoreError::Damaged(what)) = decoded else {
        return decoded;
    };
    if let Some(times) = unreadable.met(SystemClock.boot(), &what) {
        tracing::warn!(
            what,
            times,
            "a row cannot be read; it is left out of listings"
        );
    }
    Ok(None)
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
                "{failed} of {} token ranges could not be read: {last}",
                ranges.len()
            ))),
        }
    }

    /// Reads all pages of an answer.
    pub(super) async fn each_row(
        &self,
        ask: Cql,
        values: &[Value],
        mut visit: impl FnMut(Row) -> Result<(), StoreError> + Send,
    ) -> Result<(), StoreError> {
        let mut next = None;
        loop {
            let page = self.page(ask.clone(), values, i32::from(self.page_rows), next);
            let (rows, more) = page.await?;
            rows.into_iter().try_for_each(&mut visit)?;
            match more {
                Some(more) => next = Some(more),
                None => return Ok(()),
            }
        }
    }

    /// Visits everything in a listing that can be read.
    pub(super) async fn each_readable<T: Send>(
        &self,
        ask: Cql,
        range: TokenRange,
        decode: impl Fn(Row) -> Result<Option<T>, StoreError> + Send + Sync,
        mut visit: impl FnMut(T) + Send,
    ) -> Result<(), StoreError> {
        let values = [Value::BigInt(range.above), Value::BigInt(range.up_to)];
        self.each_row(ask, &values, |row| {
            let item = readable(&self.unreadable, decode(row))?;
            item.into_iter().for_each(&mut visit);
            Ok(())
        })
        .await
    }
}

/// The key of a row of [`Cql::Keys`] and its home; `None` where nobody has an entry.
pub(super) fn live_key(
    table: &TableName,
    mut row: Row,
) -> Result<Option<(Key, Option<ReplicaId>)>, StoreError> {
    let home = row.uuid("home")?.map(ReplicaId);
    let head = present(row.bigint("head")?, "head")?;
    let next = present(row.bigint("next")?, "next")?;
    let key = present(row.text("key")?, "key")?;
    let key = Key::parse(&key, Key::BYTES_MAX).map_err(|error| {
        StoreError::Damaged(format!("the table {table} holds a malformed key: {error}"))
    })?;
    if head < 0 {
        return Err(StoreError::Damaged(format!(
            "the head of {key} is {head}, below 0"
        )));
    }
    Ok((head < next).then_some((key, home)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: ReplicaId = ReplicaId(uuid::Uuid::from_u128(7));

    #[test]
    fn a_row_that_is_half_known_hides_no_others() {
        let row = |key: &str, head: Option<i64>, next| Row {
            columns: ["key", "head", "next", "home"].map(str::to_owned).into(),
            values: vec![
                Some(Value::text(key)),
                head.map(Value::BigInt),
                Some(Value::BigInt(next)),
                (key == "b").then_some(Value::Uuid(HOME.0)),
            ],
        };
        let rows = [
            row("a", Some(1), 2),
            row("half", None, 2),
            row("below", Some(-1), 2),
            row("no\nkey", Some(1), 2),
            row("idle", Some(2), 2),
            row("b", Some(1), 3),
        ];
        let (table, unreadable) = (TableName::default_table(), LogThrottle::default());
        let found = rows.map(|row| readable(&unreadable, live_key(&table, row)).unwrap());
        let found = found.iter().flatten();
        let keys: Vec<_> = found.map(|(key, home)| (key.as_str(), *home)).collect();
        assert_eq!(keys, [("a", None), ("b", Some(HOME))]);
    }

    #[test]
    fn the_smallest_are_kept_in_order() {
        let mut smallest = Smallest::new(3);
        for number in [5, 1, 9, 3, 2] {
            smallest.offer(number, number * 10);
        }
        let kept: Vec<_> = smallest.kept.into_iter().collect();
        assert_eq!(kept, [(1, 10), (2, 20), (3, 30)]);
        let mut none = Smallest::new(0);
        none.offer(1, ());
        assert!(none.kept.is_empty());
    }
}
