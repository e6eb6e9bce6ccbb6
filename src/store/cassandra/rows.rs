//! Reading and swapping the state of a key: the row below all entries, and the entries from the head on.
//!
//! Both parts of a read, and every page of the second, must have one version and the stored digest. Reads may spread parts of a
//! change that reached one node only. Such a read is torn, and a read at SERIAL settles the transactions in flight. Rows that
//! are still torn after that are damaged.

use fermata_cassandra::{Fault, Order, Row, Value};

use super::change::Change;
use super::codec::{First, SEQ_BELOW, bigint};
use super::in_doubt::InDoubtSwaps;
use super::statements::Cql;
use crate::key::KeyState;
use crate::lock::KeyId;
use crate::store::{StoreError, Swap};

/// How often a load is made again before it is given up: a key that changes faster than it can be read.
const TRIES_MAX: usize = 64;

/// The rows of a key from some seq on, newest first.
struct EntryRows {
    rows: Vec<Row>,
    /// The version that all of them were read at; `None` if they were not of one.
    version: Option<i64>,
}

/// What one read of a key showed.
enum KeyRead {
    /// No row.
    Nothing,
    /// All of one state, and a committed one.
    State(KeyState),
    /// It changed between the reads. The entries of its first row: from `head` to below `next`.
    Changing { head: u64, next: u64 },
}

/// The answers to statements: from the cluster, or from a model of one.
pub trait Asks: Sync {
    /// Where a read of several pages goes on.
    type More: Send;

    /// Asks what has one page for an answer.
    fn ask(
        &self,
        ask: Cql,
        values: &[Value],
    ) -> impl Future<Output = Result<Vec<Row>, Fault>> + Send;

    /// Asks for one page, and where the next one begins.
    fn page(
        &self,
        ask: Cql,
        values: &[Value],
        page_rows: i32,
        from: Option<Self::More>,
    ) -> impl Future<Output = Result<(Vec<Row>, Option<Self::More>), Fault>> + Send;
}

/// The rows of one key.
pub struct Rows<'a, A> {
    /// The cluster.
    pub asks: &'a A,
    /// The swaps of this process whose outcome is unknown.
    pub in_doubt: &'a InDoubtSwaps,
    /// How many rows a page has.
    pub page_rows: u16,
    /// Which key.
    pub id: &'a KeyId,
}

impl<A: Asks> Rows<'_, A> {
    /// The committed state of a key (I4). Where an open proposal may still apply, that is settled first (I6); and so it
    /// is where what was read is not of one state: after that it is.
    pub async fn state(&self) -> Result<Option<KeyState>, StoreError> {
        self.state_after(self.in_doubt.contains(self.id)).await
    }

    /// The same, after what is in flight was settled.
    pub async fn settled(&self) -> Result<Option<KeyState>, StoreError> {
        self.state_after(true).await
    }

    async fn state_after(&self, mut settles: bool) -> Result<Option<KeyState>, StoreError> {
        let mut page_rows = i32::from(self.page_rows);
        let mut from = None;
        for _ in 0..TRIES_MAX {
            match self.read(settles, from, page_rows).await {
                Ok(KeyRead::Nothing) => return Ok(None),
                Ok(KeyRead::State(state)) => {
                    self.in_doubt.saw(self.id, state.version);
                    return Ok(Some(state));
                }
                Ok(KeyRead::Changing { head, next }) => {
                    // Both parts at once now, since a busy key changes between two reads. The entries, with the row above
                    // them, come in one page that is not full: it is of one version.
                    from = Some(head);
                    page_rows = i32::try_from(next - head + 2)
                        .unwrap_or(i32::MAX)
                        .max(page_rows);
                }
                Err(StoreError::Damaged(what)) if !settles => {
                    tracing::debug!(key = %self.id, what, "a read is torn; settling it");
                    settles = true;
                }
                Err(error) => return Err(naming(self.id, error)),
            }
        }
        Err(StoreError::Unavailable(format!(
            "{} changed during each of {TRIES_MAX} reads",
            self.id
        )))
    }

    /// One read of all rows, the first of them at SERIAL or not; with a head to begin `from`, both parts at once.
    async fn read(
        &self,
        settles: bool,
        from: Option<u64>,
        page_rows: i32,
    ) -> Result<KeyRead, StoreError> {
        let entries = async {
            match from {
                // A settled change shows only in a read that begins after it.
                Some(head) if !settles => self.entries(head, page_rows).await.map(Some),
                Some(_) | None => Ok(None),
            }
        };
        let (first, entries) = tokio::join!(self.first(settles), entries);
        let Some(first) = first? else {
            return Ok(KeyRead::Nothing);
        };
        let (head, next) = (first.head.0, first.state.next.0);
        if head == next {
            return first.with_entries(Vec::new()).map(KeyRead::State);
        }
        let entries = match entries? {
            Some(entries) => entries,
            None => self.entries(head, page_rows).await?,
        };
        match entries.version == Some(bigint(first.state.version)?) {
            true => first.with_entries(entries.rows).map(KeyRead::State),
            false => Ok(KeyRead::Changing { head, next }),
        }
    }

    /// Replaces a state, if it is still the one in the store.
    pub async fn swap(&self, old: &KeyState, new: &KeyState) -> Swap {
        let open = self.in_doubt.open(self.id, old.version);
        match self.ask_swap(old, new).await {
            Ok(true) => {
                open.close();
                self.in_doubt.saw(self.id, new.version);
                Swap::Applied
            }
            Ok(false) => {
                open.close();
                match self.met(old.version).await {
                    Ok(state) => Swap::Conflict(state),
                    // What it met is not known, and the caller must not decide by what it knew before.
                    Err(error) => Swap::Unknown(error),
                }
            }
            Err(fault) => {
                if !fault.is_unknown() {
                    open.close();
                }
                fault.into()
            }
        }
    }

    async fn ask_swap(&self, old: &KeyState, new: &KeyState) -> Result<bool, Fault> {
        let change = Change::between(old, new);
        let change = change.map_err(|error| Fault::NotStarted(error.to_string()))?;
        let shape = change.shape();
        let values = change.values(self.id.key.as_str(), shape);
        let ask = Cql::Swap(self.id.table.clone(), shape, order(old, new));
        applied(self.asks.ask(ask, &values).await?)
    }

    /// The state that a swap met instead of the one it named.
    async fn met(&self, named: u64) -> Result<Option<KeyState>, StoreError> {
        let found = self.state().await?;
        if found.as_ref().map_or(0, |state| state.version) != named {
            return Ok(found);
        }
        // A majority does not show yet what the transaction saw.
        self.in_doubt.note(self.id, named);
        self.state().await
    }

    async fn first(&self, settles: bool) -> Result<Option<First>, StoreError> {
        let ask = match settles {
            true => Cql::FirstSettled(self.id.table.clone()),
            false => Cql::First(self.id.table.clone()),
        };
        let values = [Value::text(self.id.key.as_str()), Value::BigInt(SEQ_BELOW)];
        let rows = self.asks.ask(ask, &values).await?;
        rows.into_iter().next().map(First::decode).transpose()
    }

    async fn entries(&self, head: u64, page_rows: i32) -> Result<EntryRows, StoreError> {
        let values = [
            Value::text(self.id.key.as_str()),
            Value::BigInt(bigint(head)?),
        ];
        let mut entries = EntryRows {
            rows: Vec::new(),
            version: None,
        };
        let mut next = None;
        loop {
            let ask = Cql::EntryRows(self.id.table.clone());
            let (rows, more) = self.asks.page(ask, &values, page_rows, next).await?;
            if rows.is_empty() {
                // Of a version that it does not tell: what was there may have been deleted since the page before.
                entries.version = None;
            }
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

/// Whether the condition of a lightweight transaction held, by the answer to it.
pub(super) fn applied(rows: Vec<Row>) -> Result<bool, Fault> {
    let row = rows.into_iter().next();
    match row.map(|mut row| row.boolean("[applied]")) {
        Some(Ok(Some(applied))) => Ok(applied),
        _ => Err(Fault::Unknown(
            "the answer to a transaction does not say whether it was applied".to_owned(),
        )),
    }
}

/// Says which key something damaged belongs to.
fn naming(id: &KeyId, error: StoreError) -> StoreError {
    match error {
        StoreError::Damaged(what) => StoreError::Damaged(format!("the lock of {id}: {what}")),
        other @ (StoreError::Closed(_) | StoreError::Unavailable(_)) => other,
    }
}

/// All calls of a key wait for its home; a home that serves writes down what it decided, and may have thousands of keys.
fn order(old: &KeyState, new: &KeyState) -> Order {
    match old.term() == new.term() {
        true => Order::Later,
        false => Order::First,
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::key::Home;
    use crate::lock::ReplicaId;

    #[test]
    fn who_becomes_the_home_goes_before_the_commits_of_homes() {
        let of_term = |term| KeyState {
            home: Some(Home {
                replica: ReplicaId(Uuid::from_u128(1)),
                term,
            }),
            ..KeyState::default()
        };
        assert_eq!(order(&KeyState::default(), &of_term(1)), Order::First);
        assert_eq!(order(&of_term(1), &of_term(2)), Order::First);
        assert_eq!(order(&of_term(2), &of_term(2)), Order::Later);
    }
}
