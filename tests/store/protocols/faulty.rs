//! A way to a store on which requests fail, as they do between a replica and a cluster: not sent, done without an answer, or done late.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use fermata::lock::{Key, KeyId, TableName};
use fermata::store::{
    CellChange, CellStore, CellSwap, Columns, Currency, StoreError, StoredCell, Swap, Written,
};
use parking_lot::Mutex;
use tokio::time::sleep;

use super::rng::Rng;

pub struct FaultyCells {
    inner: Arc<dyn CellStore>,
    rng: Mutex<Rng>,
    /// How many of a hundred requests fail.
    pub percent: AtomicU64,
    /// How long the write with this number takes, counted down from it.
    slow: (AtomicU64, Duration),
}

/// What becomes of a request.
enum Fate {
    Answered,
    NotSent,
    Unanswered,
    /// Done after the error.
    Late(Duration),
}

fn lost() -> StoreError {
    StoreError::Unavailable("injected fault".to_owned())
}

impl FaultyCells {
    pub fn new(inner: Arc<dyn CellStore>, rng: Rng, percent: u64) -> Arc<FaultyCells> {
        Arc::new(FaultyCells {
            inner,
            rng: Mutex::new(rng),
            percent: AtomicU64::new(percent),
            slow: (AtomicU64::new(u64::MAX), Duration::ZERO),
        })
    }

    /// On which one write takes long: the one with this number, from 0 on.
    pub fn slow(inner: Arc<dyn CellStore>, number: u64, takes: Duration) -> Arc<FaultyCells> {
        Arc::new(FaultyCells {
            inner,
            rng: Mutex::new(Rng::new(0)),
            percent: AtomicU64::new(0),
            slow: (AtomicU64::new(number), takes),
        })
    }

    fn fate(&self) -> Fate {
        let mut rng = self.rng.lock();
        if rng.below(100) >= self.percent.load(Ordering::Relaxed) {
            return Fate::Answered;
        }
        match rng.below(3) {
            0 => Fate::NotSent,
            1 => Fate::Unanswered,
            _ => Fate::Late(rng.ms(1, 200)),
        }
    }
}

#[async_trait]
impl CellStore for FaultyCells {
    async fn read_cells(
        &self,
        id: &KeyId,
        columns: &Columns,
        currency: Currency,
    ) -> Result<Vec<StoredCell>, StoreError> {
        match self.fate() {
            Fate::Answered => self.inner.read_cells(id, columns, currency).await,
            Fate::NotSent | Fate::Unanswered | Fate::Late(_) => Err(lost()),
        }
    }

    async fn write_cells(&self, id: &KeyId, changes: &[CellChange], timestamp: u64) -> Written {
        let (number, takes) = &self.slow;
        if number.fetch_sub(1, Ordering::Relaxed) == 0 {
            sleep(*takes).await;
        }
        match self.fate() {
            Fate::Answered => self.inner.write_cells(id, changes, timestamp).await,
            Fate::NotSent => Written::NotStarted(lost()),
            Fate::Unanswered => {
                self.inner.write_cells(id, changes, timestamp).await;
                Written::Unknown(lost())
            }
            Fate::Late(after) => {
                let (inner, id, changes) = (Arc::clone(&self.inner), id.clone(), changes.to_vec());
                tokio::spawn(async move {
                    sleep(after).await;
                    inner.write_cells(&id, &changes, timestamp).await;
                });
                Written::Unknown(lost())
            }
        }
    }

    /// A transaction in doubt is settled by the next one, or by a settled read: it is never late.
    async fn swap_cells(&self, id: &KeyId, swap: &CellSwap) -> Swap<Bytes> {
        match self.fate() {
            Fate::Answered => self.inner.swap_cells(id, swap).await,
            Fate::NotSent => Swap::NotStarted(lost()),
            Fate::Unanswered => {
                self.inner.swap_cells(id, swap).await;
                Swap::Unknown(lost())
            }
            Fate::Late(_) => Swap::Unknown(lost()),
        }
    }

    async fn list_partitions(
        &self,
        table: &TableName,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Key>, StoreError> {
        self.inner
            .list_partitions(table, prefix, after, limit)
            .await
    }
}
