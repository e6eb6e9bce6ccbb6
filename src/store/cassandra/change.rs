//! The rows that a compare-and-swap writes: the difference between two states.

use fermata_cassandra::Value;

use super::codec::{self, bigint};
use super::skip::{self, long_runs};
use super::statements::Shape;
use crate::key::KeyState;
use crate::lock::Seq;
use crate::store::StoreError;
use crate::store::diff::Diff;

/// Rows below head are left where they are, and deleted by range whenever head passes a multiple of this.
const DELETE_EVERY: u64 = 16;
/// How many rows one compare-and-swap may write: it is one request.
const ROWS_MAX: usize = 4_096;

/// A compare-and-swap, as values.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    shared: Vec<Value>,
    /// The version it depends on; `None` for a new key.
    version: Option<i64>,
    rows: Vec<Vec<Value>>,
    /// Deleted: above the first, below the second.
    ranges: Vec<(i64, i64)>,
}

impl Change {
    /// What makes the second state of the first. An error where it is more than one request may write.
    pub fn between(old: &KeyState, new: &KeyState) -> Result<Change, StoreError> {
        let is_new = old.version == 0;
        let diff = Diff::between(old, new);
        let runs = (long_runs(old), long_runs(new));
        let deleted = skip::to_delete(&runs.0, &runs.1);
        let (old_head, head) = (old.head(), new.head());
        let mut rows = Vec::new();
        let mut ranges = Vec::new();
        if is_new || old.ended != new.ended || runs.0 != runs.1 {
            rows.push(codec::below(&new.ended, &runs.1));
        }
        if is_new {
            rows.push(codec::above());
        }
        // Entries that came and went within one change were in no state, and have their rows all the same:
        // a load accounts for every seq from head to next.
        let passed = (old.next.0..new.next.0).map(Seq);
        let passed = passed.filter(|seq| new.position(*seq).is_none());
        for seq in diff.ended.iter().copied().chain(passed) {
            let is_deleted = deleted.iter().any(|run| run.contains(seq.0));
            if seq > head && !is_deleted {
                rows.push(codec::ended(seq)?);
            }
        }
        for entry in &diff.written {
            rows.push(codec::live(entry)?);
        }
        if old_head.0 / DELETE_EVERY < head.0 / DELETE_EVERY {
            ranges.push((codec::SEQ_BELOW, bigint(head.0)?));
        }
        for run in deleted {
            ranges.push((bigint(run.first - 1)?, bigint(run.last + 1)?));
        }
        if rows.len() > ROWS_MAX {
            return Err(StoreError::Unavailable(format!(
                "a change has {} entries; the limit is {ROWS_MAX}",
                rows.len()
            )));
        }
        Ok(Change {
            shared: codec::shared(new)?,
            version: (!is_new).then(|| bigint(old.version)).transpose()?,
            rows,
            ranges,
        })
    }

    /// The batch that holds it.
    pub fn shape(&self) -> Shape {
        Shape::holding(self.version.is_none(), self.rows.len(), self.ranges.len())
    }

    /// The values of the batch of this shape; what is left of it is filled with repetitions, which change
    /// nothing.
    pub fn values(&self, key: &str, shape: Shape) -> Vec<Value> {
        let mut values = self.shared.clone();
        values.push(Value::text(key));
        values.extend(self.version.map(Value::BigInt));
        for row in filled(&self.rows, shape.rows) {
            values.push(Value::text(key));
            values.extend(row.iter().cloned());
        }
        for (above, below) in filled(&self.ranges, shape.ranges) {
            values.push(Value::text(key));
            values.push(Value::BigInt(*above));
            values.push(Value::BigInt(*below));
        }
        values
    }
}

fn filled<T>(items: &[T], count: usize) -> impl Iterator<Item = &T> {
    let last = items.last();
    items
        .iter()
        .chain(std::iter::repeat(last).flatten())
        .take(count)
}

#[cfg(test)]
mod tests;
