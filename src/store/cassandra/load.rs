//! Reading the state of a key: the row below all entries, and the entries from the head on.
//!
//! The two, and every page of the second, must be of one version; a read that is torn is made again.

use super::CassandraStore;
use super::codec::{First, SEQ_BELOW, bigint};
use super::in_doubt::Before;
use super::statements::Ask;
use super::value::{Row, Value};
use crate::lock::{KeyId, State};
use crate::store::StoreError;

/// How often a load is made again before it is given up: a key that changes faster than it can be read.
const TRIES_MAX: usize = 64;

/// The rows of a key from some seq on, newest first.
struct EntryRows {
    rows: Vec<Row>,
    /// The version that all of them were read at; `None` if they were not of one.
    version: Option<i64>,
}

impl CassandraStore {
    /// The committed state of a key (I4). Where an open proposal may still apply, that is settled first (I6).
    pub(super) async fn state(&self, id: &KeyId) -> Result<Option<State>, StoreError> {
        let before = self.in_doubt.before(id);
        let mut guess = before.head;
        let mut page_rows = i32::from(self.page_rows);
        for _ in 0..TRIES_MAX {
            let (first, entries) = if before.in_doubt {
                (self.first(id, before).await?, None)
            } else {
                // With a head to begin at, both at once.
                let entries = async {
                    match guess {
                        Some(head) => self.entries(id, head, page_rows).await.map(Some),
                        None => Ok(None),
                    }
                };
                let (first, entries) = tokio::join!(self.first(id, before), entries);
                (first?, entries?)
            };
            let Some(first) = first else {
                return Ok(None);
            };
            let (head, next) = (first.state.head.0, first.state.next.0);
            let entries = match entries {
                _ if head == next => EntryRows {
                    rows: Vec::new(),
                    version: Some(bigint(first.state.version)?),
                },
                Some(entries) => entries,
                None => self.entries(id, head, page_rows).await?,
            };
            if entries.version == Some(bigint(first.state.version)?) {
                let state = first
                    .with_entries(entries.rows)
                    .map_err(|error| naming(id, error))?;
                self.in_doubt.saw(id, state.version, head);
                return Ok(Some(state));
            }
            // Torn: again, and the entries in one page, which is of one version.
            guess = Some(head);
            page_rows = i32::try_from(next - head + 1)
                .unwrap_or(i32::MAX)
                .max(page_rows);
        }
        Err(StoreError::Unavailable(format!(
            "{id} changed during each of {TRIES_MAX} reads"
        )))
    }

    async fn first(&self, id: &KeyId, before: Before) -> Result<Option<First>, StoreError> {
        let ask = match before.in_doubt {
            true => Ask::FirstSettled(id.table.clone()),
            false => Ask::First(id.table.clone()),
        };
        let statement = self.statement(ask).await?;
        let values = [Value::text(id.key.as_str()), Value::BigInt(SEQ_BELOW)];
        let rows = self.driver.execute(&statement, &values).await?;
        let Some(row) = rows.into_iter().next() else {
            return Ok(None);
        };
        First::decode(row)
            .map(Some)
            .map_err(|error| naming(id, error))
    }

    async fn entries(
        &self,
        id: &KeyId,
        head: u64,
        page_rows: i32,
    ) -> Result<EntryRows, StoreError> {
        let statement = self.statement(Ask::EntryRows(id.table.clone())).await?;
        let values = [Value::text(id.key.as_str()), Value::BigInt(bigint(head)?)];
        let mut entries = EntryRows {
            rows: Vec::new(),
            version: None,
        };
        let mut next = None;
        loop {
            let page = self.driver.page(&statement, &values, page_rows, next);
            let (rows, more) = page.await?;
            for mut row in rows {
                let version = row.bigint("version")?;
                if entries.rows.is_empty() {
                    entries.version = version;
                } else if entries.version != version {
                    entries.version = None;
                }
                entries.rows.push(row);
            }
            match more {
                Some(_) if entries.version.is_none() => return Ok(entries),
                Some(more) => next = Some(more),
                None => return Ok(entries),
            }
        }
    }
}

/// Says which key something damaged belongs to.
fn naming(id: &KeyId, error: StoreError) -> StoreError {
    match error {
        StoreError::Damaged(what) => StoreError::Damaged(format!("the lock of {id}: {what}")),
        other @ (StoreError::Closed(_) | StoreError::Unavailable(_)) => other,
    }
}
