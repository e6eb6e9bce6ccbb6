//! Stores: a trait for each kind of record, in terms of states and not of any database.
//!
//! The rules of the lock are in [`crate::key`], not here. A store compares and swaps states, and keeps one value with its
//! timestamp for each key.

pub mod cassandra;
mod cells;
mod diff;
pub mod embedded;
mod ends;
mod floor;
pub mod metrics;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

pub use self::cells::{CellChange, CellStore, CellSwap, Columns, Currency, StoredCell, check_read};
use crate::key::KeyState;
use crate::lock::{Key, KeyId, ReplicaId, SessionId, TableName};

/// The value of a key as the data table holds it.
#[derive(Clone, PartialEq, Eq)]
pub struct Cell {
    /// The value; `None` for the marker of a deleted one.
    pub value: Option<Bytes>,
    /// When it was written: a fence and an op (I3), in microseconds. The cell with the highest one wins.
    pub timestamp: u64,
}

impl fmt::Debug for Cell {
    /// Values are never shown: they may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cell")
            .field("bytes", &self.value.as_ref().map(Bytes::len))
            .field("timestamp", &self.timestamp)
            .finish()
    }
}

/// The outcome of a compare-and-swap.
#[derive(Clone, Debug)]
pub enum Swap<T = KeyState> {
    /// It took effect, durably.
    Applied,
    /// The store holds another one (`None`: there is no row). Nothing was changed.
    Conflict(Option<T>),
    /// It may have taken effect, or may yet. Load, and decide again on what that shows.
    Unknown(StoreError),
    /// It certainly did not take effect and never will.
    NotStarted(StoreError),
}

/// The outcome of a compare-and-swap of a session row.
pub type SessionSwap = Swap<SessionRow>;

/// The outcome of a compare-and-swap of a replica's state.
pub type StateSwap = Swap<ReplicaState>;

/// The outcome of a write of data.
#[derive(Clone, Debug)]
pub enum Written {
    /// It is durable. (It shows only if no cell has a higher timestamp.)
    Done,
    /// It may have taken effect, or may yet.
    Unknown(StoreError),
    /// It certainly did not take effect and never will.
    NotStarted(StoreError),
}

/// Why a store did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store is closed after a fault, until it is opened again. Repeat later.
    #[error("the store is closed: {0}")]
    Closed(String),
    /// The store could not do it now. Repeat later.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// What the store holds cannot be read. An operator must look.
    #[error("the store holds damaged data: {0}")]
    Damaged(String),
}

/// A session as the store keeps it. Changed by compare-and-swap on `epoch` only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    /// Its id.
    pub id: SessionId,
    /// Its time to live, in milliseconds.
    pub ttl_ms: u32,
    /// How long it lives on after its client's stream ended, in milliseconds; 0 for none.
    pub disconnect_grace_ms: u32,
    /// The replica that renews it.
    pub replica: ReplicaId,
    /// Raised by every change; a new session starts at 1.
    pub epoch: u32,
    /// False once it was closed or has expired.
    pub open: bool,
    /// Who opened it, as far as the server knows.
    pub identity: String,
    /// A label for people.
    pub owner: String,
    /// When it was opened by the clock of the replica that opened it, in milliseconds since 1970.
    pub created_at_ms: i64,
}

impl SessionRow {
    /// Its time to live.
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(u64::from(self.ttl_ms))
    }

    /// How long it lives on after its client's stream ended; `None` where that does not matter.
    pub fn disconnect_grace(&self) -> Option<Duration> {
        match self.disconnect_grace_ms {
            0 => None,
            ms => Some(Duration::from_millis(u64::from(ms))),
        }
    }
}

/// Whether a replica may serve. One cell of its row, changed by compare-and-swap only (H2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReplicaState {
    /// It serves. From 1, raised by itself each time that it comes back after a silence.
    Up(u32),
    /// Another replica observed that it was silent for its TTL: what it was home to may be taken over, and it never comes
    /// back under this id.
    Down,
    /// It stopped by itself, after its last answer.
    Stopped,
}

/// A replica as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaRow {
    /// Its id, new at every start.
    pub id: ReplicaId,
    /// Its configured name, which stays over restarts: the homes of keys are ranked by it (H8).
    pub name: String,
    /// Where it runs; replicas of one zone are close to each other. Empty where none is configured.
    pub zone: String,
    /// Where it serves gRPC.
    pub address: String,
    /// Where other replicas call it, as `host:port`; empty where there are no others.
    pub peer_address: String,
    /// Its version.
    pub version: String,
    /// When it started by its own clock, in milliseconds since 1970.
    pub started_at_ms: i64,
    /// Its replica TTL, in milliseconds: without an acknowledged heartbeat it falls silent within this, and others wait
    /// for so long at least before they declare it down.
    pub ttl_ms: u32,
    /// The number of its latest heartbeat that the store has. Rises with each one, by random steps of 1 to 16, so that two processes with one id are told apart.
    pub heartbeat: u64,
    /// Whether it may serve.
    pub state: ReplicaState,
}

/// How long a hand-over request is kept by the store. Who sent it gives up after some seconds.
pub const HAND_OVER_REQUEST_KEPT: Duration = Duration::from_secs(20);

/// What a replica asks of another one that it cannot call, through the store (H4).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HandOverRequest {
    /// Who is asked: the home of the key, or the keeper of the session.
    pub home: ReplicaId,
    /// What it is to hand over.
    pub subject: HandOverSubject,
    /// Who asks.
    pub to: ReplicaId,
}

/// What is to be handed over.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HandOverSubject {
    /// A key.
    Key {
        /// Which.
        key: KeyId,
        /// The term in which it is the home: an older request means nothing.
        term: u64,
    },
    /// A session.
    Session {
        /// Which.
        session: SessionId,
        /// The epoch of its row: an older request means nothing.
        epoch: u32,
    },
}

/// One key of a listing.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The key.
    pub key: Key,
    /// Its state.
    pub state: KeyState,
}

/// Statements that were sent, failed ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Reads.
    pub reads: u64,
    /// Plain writes.
    pub writes: u64,
    /// Lightweight transactions.
    pub transactions: u64,
}

/// How many replicas may be up: their rows are read together.
pub const REPLICAS_MAX: usize = 10_000;
/// How many replicas that are down or stopped are listed.
pub const ENDED_REPLICAS_MAX: usize = 1_000;

/// How many rows are read at once in a pass over all.
const PAGE: usize = 500;

/// The store of one replica, by what is kept. Cheap to clone.
///
/// Every future of its parts may be dropped at any time; what was asked may then have happened or not.
#[derive(Clone)]
pub struct Store {
    /// What this store is, for logs: `embedded` or `cassandra`.
    pub kind: &'static str,
    /// Whether it works, and how much it was asked.
    pub health: Arc<dyn StoreHealth>,
    /// The states of keys.
    pub keys: Arc<dyn KeyStore>,
    /// The values of keys.
    pub data: Arc<dyn DataStore>,
    /// Sessions.
    pub sessions: Arc<dyn SessionStore>,
    /// What makes backups while the store goes on; `None` where others do.
    pub backups: Option<Arc<dyn BackupStore>>,
    /// What several replicas share; `None` of a store that one process has for itself: opening it proved that every
    /// earlier replica is gone.
    pub cluster: Option<Arc<dyn ClusterStore>>,
}

/// Backups of all that a store has.
#[async_trait]
pub trait BackupStore: Send + Sync + 'static {
    /// All of one moment, in chunks, while the store goes on. It lasts for as long as they are taken; the last one is followed
    /// by the end of the channel.
    async fn back_up(&self) -> Result<mpsc::Receiver<Result<Bytes, StoreError>>, StoreError>;
}

/// Whether a store works.
pub trait StoreHealth: Send + Sync + 'static {
    /// `Ok` while the store can do its work; else why it cannot. Drives readiness.
    fn ready(&self) -> Result<(), StoreError>;

    /// What was asked of it so far.
    fn counts(&self) -> StoreCounts;
}

/// The states of keys.
#[async_trait]
pub trait KeyStore: Send + Sync + 'static {
    /// No fence is to be below this, whatever a clock says: a store that was restored from a backup may have given out any below
    /// it (I2). 0 where it was not.
    async fn fence_floor(&self) -> Result<u64, StoreError> {
        Ok(0)
    }

    /// Reads the committed state of a key; `None` if it never had one (I4: current, never stale).
    async fn load(&self, id: &KeyId) -> Result<Option<KeyState>, StoreError>;

    /// The same for a key in doubt: whatever is in flight at it is settled first.
    async fn load_settled(&self, id: &KeyId) -> Result<Option<KeyState>, StoreError>;

    /// Replaces `old` by `new` if the version in the store is still `old.version` (0: no row).
    /// `new.version` is `old.version + 1`.
    async fn compare_and_swap(&self, id: &KeyId, old: &KeyState, new: &KeyState) -> Swap;

    /// Lists keys with at least one live entry that begin with `prefix`, in the order of their bytes, from the first one
    /// above `after`, `limit` at most. A shorter answer is the last page.
    async fn list_live(
        &self,
        table: &TableName,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Listed>, StoreError>;

    /// Shows every key with at least one live entry, and the replica that is its home, in any order: one pass over the
    /// table that loads no key, where pages in the order of keys may take one each. What changes meanwhile may be left
    /// out, or shown with a home that it had; a key may be shown twice. Where a part of the table cannot be read, all the
    /// others are shown before the error.
    async fn each_live(
        &self,
        table: &TableName,
        visit: &(dyn Fn(Key, Option<ReplicaId>) + Sync),
    ) -> Result<(), StoreError>;
}

/// The values of keys.
#[async_trait]
pub trait DataStore: Send + Sync + 'static {
    /// Reads the value of a key; `None` if it was never written.
    async fn read_data(&self, id: &KeyId) -> Result<Option<Cell>, StoreError>;

    /// Writes the value of a key with its timestamp. A cell with a higher timestamp stays; of two equal
    /// ones that with the larger value, a deletion being the largest (as in Cassandra).
    async fn write_data(&self, id: &KeyId, cell: Cell) -> Written;

    /// How far ahead of the clock it takes timestamps, in microseconds; `None`: as far as they fit (I3).
    fn ahead_us_max(&self) -> Option<u64>;
}

/// Sessions.
#[async_trait]
pub trait SessionStore: Send + Sync + 'static {
    /// Reads a session row.
    async fn load_session(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError>;

    /// Writes a session row if the epoch in the store is still `expected` (0: no row).
    async fn swap_session(&self, expected: u32, row: &SessionRow) -> SessionSwap;

    /// Forgets a session row that is closed, once nothing lives by it. Without effect on an open one.
    async fn forget_session(&self, id: SessionId) -> Result<(), StoreError>;

    /// Lists session rows, closed ones included, in the order of their ids, from the first above
    /// `after`, `limit` at most. A shorter answer is the last page.
    async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<Vec<SessionRow>, StoreError>;

    /// Shows every session row, as [`KeyStore::each_live`] does keys.
    async fn each_session(&self, visit: &(dyn Fn(SessionRow) + Sync)) -> Result<(), StoreError>;
}

/// What several replicas share.
#[async_trait]
pub trait ClusterStore: Send + Sync + 'static {
    /// Adds the row of a replica, which is its first heartbeat. Its id is new; writing it again with a higher heartbeat,
    /// as a start that is tried again does, is allowed until its state changes.
    async fn announce_replica(&self, row: &ReplicaRow) -> Result<(), StoreError>;

    /// All replicas, in the order of their ids. A replica that is missing counts as down. So of those that are down or
    /// stopped [`ENDED_REPLICAS_MAX`] are listed at most, and more than [`REPLICAS_MAX`] that are up are an error.
    async fn list_replicas(&self) -> Result<Vec<ReplicaRow>, StoreError>;

    /// Writes a heartbeat into the row of an announced replica: `heartbeat` is above the last one, and orders the
    /// writes, whatever clocks say. An error leaves open whether it was written. A row that was forgotten stays so.
    async fn heartbeat(&self, id: ReplicaId, heartbeat: u64) -> Result<(), StoreError>;

    /// Replaces the state of a replica, if it is `expected`.
    async fn swap_state(
        &self,
        id: ReplicaId,
        expected: ReplicaState,
        next: ReplicaState,
    ) -> StateSwap;

    /// Forgets the row of a replica that is down or stopped. Without effect on one that is up.
    async fn forget_replica(&self, id: ReplicaId) -> Result<(), StoreError>;

    /// Sends a hand-over request. The store forgets it after [`HAND_OVER_REQUEST_KEPT`].
    async fn request_hand_over(&self, request: &HandOverRequest) -> Result<(), StoreError>;

    /// The hand-over requests sent to a replica, one page at most.
    async fn hand_over_requests(&self, home: ReplicaId)
    -> Result<Vec<HandOverRequest>, StoreError>;

    /// Forgets a request that was answered by a hand-over, or that means nothing any more.
    async fn forget_hand_over_request(&self, request: &HandOverRequest) -> Result<(), StoreError>;

    /// The wall clock of the store in microseconds since 1970 (I2).
    async fn clock_us(&self) -> Result<u64, StoreError>;
}
