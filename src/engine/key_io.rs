//! The store operations of the machines of keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::commits::Commits;
use super::local::Local;
use super::metrics::EngineMetrics;
use crate::key::KeyState;
use crate::key::machine::{Datum, Loaded, SwapOutcome, WriteOutcome};
use crate::lock::KeyId;
use crate::store::{Cell, DataStore, KeyStore, Store, StoreError, Swap, Written};

/// Reads and writes the rows and the values of keys.
pub(super) struct KeyIo {
    local: Arc<Local>,
    commits: Arc<Commits>,
    keys: Arc<dyn KeyStore>,
    data: Arc<dyn DataStore>,
    metrics: Arc<EngineMetrics>,
    /// Bytes of values in flight to the store, and their limit. Counted here, because the caller may be gone.
    writing: AtomicU64,
    writing_max: u64,
}

/// The bytes of a write beside its value.
const WRITE_BYTES: u64 = 1024;

/// A value in flight to the store, until this is dropped.
struct Writing<'a> {
    all: &'a AtomicU64,
    bytes: u64,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl KeyIo {
    pub fn new(
        local: Arc<Local>,
        commits: Arc<Commits>,
        store: &Store,
        metrics: Arc<EngineMetrics>,
        writing_max: u64,
    ) -> Self {
        KeyIo {
            local,
            commits,
            keys: Arc::clone(&store.keys),
            data: Arc::clone(&store.data),
            metrics,
            writing: AtomicU64::new(0),
            writing_max,
        }
    }

    /// Counts a value for the store; `None` if more than `most` bytes would be in flight.
    fn begin_write(&self, datum: &Datum, most: u64) -> Option<Writing<'_>> {
        let value = datum.value.as_ref().map_or(0, Bytes::len) as u64;
        let bytes = value.saturating_add(WRITE_BYTES);
        let counted = |all: u64| all.checked_add(bytes).filter(|all| *all <= most);
        let counted = self
            .writing
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted);
        let all = &self.writing;
        counted.ok().map(|_| Writing { all, bytes })
    }

    /// The row of a key; with `settle`, after swaps in flight to it are decided.
    pub async fn load(&self, id: &KeyId, settle: bool) -> Result<Loaded, Arc<str>> {
        let loaded = match settle {
            true => self.keys.load_settled(id).await,
            false => self.keys.load(id).await,
        };
        let (state, past) = match loaded.map_err(reason)? {
            Some(state) => {
                if state.may_be_behind() {
                    let left = self.local.left_of_the_one_before();
                    self.local.clock.sleep(left).await;
                }
                (state, None)
            }
            // A key without a row may have a value, from a table made anew or from other writers (I2).
            None => {
                let cell = self.data.read_data(id).await.map_err(reason)?;
                (KeyState::default(), cell.map(|cell| cell.timestamp))
            }
        };
        Ok(Loaded {
            state: Arc::new(state),
            past,
        })
    }

    pub async fn swap(&self, id: &KeyId, old: &KeyState, new: &KeyState) -> SwapOutcome {
        let metrics = &self.metrics;
        let clock = &self.local.clock;
        let pace = self.commits.pace();
        let _open = pace.open_commit();
        let sent = clock.boot();
        match self.keys.compare_and_swap(id, old, new).await {
            Swap::Applied => {
                let took = clock.boot().saturating_sub(sent);
                pace.note_commit(took);
                metrics.committed(took);
                // A change of home is always waited for.
                let is_behind = old.home == new.home && self.commits.is_write_back(&id.table);
                metrics.background_commits.inc_by(is_behind.into());
                SwapOutcome::Applied
            }
            Swap::Conflict(state) => {
                metrics.conflicts.inc();
                SwapOutcome::Conflict(Arc::new(state.unwrap_or_default()))
            }
            Swap::Unknown(error) => {
                metrics.in_doubt.inc();
                SwapOutcome::Unknown(reason(error))
            }
            Swap::NotStarted(error) => SwapOutcome::NotStarted(reason(error)),
        }
    }

    pub async fn read(&self, id: &KeyId) -> Result<Option<Datum>, Arc<str>> {
        let cell = self.data.read_data(id).await.map_err(reason)?;
        Ok(cell.map(|cell| Datum {
            value: cell.value,
            timestamp: cell.timestamp,
        }))
    }

    /// Writes the value of a client, unless too many bytes are in flight.
    pub async fn write_within_bounds(&self, id: &KeyId, datum: Datum) -> WriteOutcome {
        match self.begin_write(&datum, self.writing_max) {
            Some(_writing) => self.write(id, datum).await,
            None => WriteOutcome::NotStarted(
                format!(
                    "the store does not keep up: more than {} bytes of values (limits.bytes_in_flight_max) are being written",
                    self.writing_max
                )
                .into(),
            ),
        }
    }

    /// Rewrites a read value under a higher fence (I7). It counts, but the limit does not stop it.
    pub async fn write_again(&self, id: &KeyId, datum: Datum) -> WriteOutcome {
        let _writing = self.begin_write(&datum, u64::MAX);
        self.write(id, datum).await
    }

    async fn write(&self, id: &KeyId, datum: Datum) -> WriteOutcome {
        let cell = Cell {
            value: datum.value,
            timestamp: datum.timestamp,
        };
        match self.data.write_data(id, cell).await {
            Written::Done => WriteOutcome::Done,
            Written::Unknown(error) => WriteOutcome::Unknown(reason(error)),
            Written::NotStarted(error) => WriteOutcome::NotStarted(reason(error)),
        }
    }
}

fn reason(error: StoreError) -> Arc<str> {
    error.to_string().into()
}
