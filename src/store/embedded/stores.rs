//! The traits of a store. Each change is work for the writer, each read comes from a snapshot.

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::work::{Met, SwapRows, Work};
use super::writer::{JobOutcome, Message};
use super::{EmbeddedStore, read, writer_gone};
use crate::key::KeyState;
use crate::lock::{Key, KeyId, ReplicaId, SessionId, TableName};
use crate::store::{
    Cell, DataStore, KeyStore, Listed, PAGE, SessionRow, SessionStore, SessionSwap, StoreCounts,
    StoreError, StoreHealth, Swap, Written,
};

impl EmbeddedStore {
    /// Hands work to the writer. It is in the queue or it is not: dropping this future cuts nothing in
    /// half.
    pub(super) async fn submit(&self, work: Work) -> JobOutcome {
        if let Err(error) = self.ready() {
            return JobOutcome::NotStarted(error);
        }
        let (answer, done) = oneshot::channel();
        if self.queue.send(Message::Job(work, answer)).await.is_err() {
            return JobOutcome::NotStarted(writer_gone());
        }
        done.await
            .unwrap_or_else(|_| JobOutcome::Unknown(writer_gone()))
    }

    /// Waits for changes whose callers left: they may still be in the queue, which is in order.
    pub(super) async fn settle(&self) -> Result<(), StoreError> {
        done(self.submit(Work::Settle).await)
    }
}

impl StoreHealth for EmbeddedStore {
    fn ready(&self) -> Result<(), StoreError> {
        self.gate.ready()?;
        if self.queue.is_closed() {
            return Err(writer_gone());
        }
        Ok(())
    }

    /// None: there are no statements, only commits.
    fn counts(&self) -> StoreCounts {
        self.gate.metrics.counts()
    }
}

#[async_trait]
impl KeyStore for EmbeddedStore {
    async fn fence_floor(&self) -> Result<u64, StoreError> {
        Ok(self.fence_floor)
    }

    async fn load(&self, id: &KeyId) -> Result<Option<KeyState>, StoreError> {
        let id = id.clone();
        self.read(move |snapshot| read::load(snapshot, &id)).await
    }

    async fn load_settled(&self, id: &KeyId) -> Result<Option<KeyState>, StoreError> {
        self.settle().await?;
        self.load(id).await
    }

    async fn compare_and_swap(&self, id: &KeyId, old: &KeyState, new: &KeyState) -> Swap {
        debug_assert_eq!(new.version, old.version + 1, "one version a change");
        debug_assert_eq!(new.check(), Ok(()), "what is written must read back");
        let rows = SwapRows::between(id, old, new);
        swapped(self.submit(Work::Swap(rows)).await, |met| match met {
            Met::State(state) => Some(state),
            Met::Session(_) | Met::Cell(_) => None,
        })
    }

    async fn list_live(
        &self,
        table: &TableName,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Listed>, StoreError> {
        let table = table.clone();
        let (prefix, after) = (prefix.to_owned(), after.cloned());
        self.list(move |snapshot| read::live(snapshot, &table, &prefix, after.as_ref(), limit))
            .await
    }

    async fn each_live(
        &self,
        table: &TableName,
        visit: &(dyn Fn(Key, Option<ReplicaId>) + Sync),
    ) -> Result<(), StoreError> {
        let mut after: Option<Key> = None;
        loop {
            let listed = self.list_live(table, "", after.as_ref(), PAGE).await?;
            let last_page = listed.len() < PAGE;
            after = listed.last().map(|one| one.key.clone());
            for one in listed {
                visit(one.key, one.state.home.map(|home| home.replica));
            }
            if last_page {
                return Ok(());
            }
        }
    }
}

#[async_trait]
impl DataStore for EmbeddedStore {
    async fn read_data(&self, id: &KeyId) -> Result<Option<Cell>, StoreError> {
        let id = id.clone();
        self.read(move |snapshot| read::data(snapshot, &id)).await
    }

    async fn write_data(&self, id: &KeyId, cell: Cell) -> Written {
        let id = id.clone();
        written(self.submit(Work::Data { id, cell }).await)
    }

    fn ahead_us_max(&self) -> Option<u64> {
        None
    }
}

#[async_trait]
impl SessionStore for EmbeddedStore {
    async fn load_session(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        self.read(move |snapshot| read::session(snapshot, id)).await
    }

    async fn swap_session(&self, expected: u32, row: &SessionRow) -> SessionSwap {
        let row = row.clone();
        let work = Work::Session { expected, row };
        swapped(self.submit(work).await, |met| match met {
            Met::Session(session) => Some(session),
            Met::State(_) | Met::Cell(_) => None,
        })
    }

    async fn forget_session(&self, id: SessionId) -> Result<(), StoreError> {
        done(self.submit(Work::Forget(id)).await)
    }

    async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<Vec<SessionRow>, StoreError> {
        self.list(move |snapshot| read::sessions(snapshot, after, limit))
            .await
    }

    async fn each_session(&self, visit: &(dyn Fn(SessionRow) + Sync)) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let rows = self.list_sessions(after, PAGE).await?;
            let last_page = rows.len() < PAGE;
            after = rows.last().map(|row| row.id);
            rows.into_iter().for_each(visit);
            if last_page {
                return Ok(());
            }
        }
    }
}

/// The outcome of a write.
pub(super) fn written(done: JobOutcome) -> Written {
    match done {
        JobOutcome::Applied => Written::Done,
        JobOutcome::Unknown(error) => Written::Unknown(error),
        JobOutcome::NotStarted(error) => Written::NotStarted(error),
        JobOutcome::Conflict(_) => Written::Unknown(wrong_answer()),
    }
}

/// The outcome of a compare-and-swap. `row` takes the row of its kind.
pub(super) fn swapped<T>(done: JobOutcome, row: impl FnOnce(Met) -> Option<Option<T>>) -> Swap<T> {
    match done {
        JobOutcome::Applied => Swap::Applied,
        JobOutcome::Conflict(met) => match row(met) {
            Some(row) => Swap::Conflict(row),
            None => Swap::Unknown(wrong_answer()),
        },
        JobOutcome::Unknown(error) => Swap::Unknown(error),
        JobOutcome::NotStarted(error) => Swap::NotStarted(error),
    }
}

/// The outcome of something that may simply be repeated.
fn done(done: JobOutcome) -> Result<(), StoreError> {
    match done {
        JobOutcome::Applied => Ok(()),
        JobOutcome::Unknown(error) | JobOutcome::NotStarted(error) => Err(error),
        JobOutcome::Conflict(_) => Err(wrong_answer()),
    }
}

/// The writer answers each kind of work with its own kind of outcome, so this is never seen.
fn wrong_answer() -> StoreError {
    StoreError::Unavailable("the writer gave the answer to another request".to_owned())
}
