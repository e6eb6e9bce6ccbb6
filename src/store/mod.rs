//! Where states and data are kept: one trait, spoken in states and not in any store's language.
//!
//! Nothing here knows the rules of the lock; those are in [`crate::lock`]. A store only compares and
//! swaps, and keeps one value a key with the timestamp it was written at.

pub mod cassandra;
#[cfg(test)]
mod chance;
pub mod embedded;
mod ends;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use uuid::Uuid;

use crate::lock::{Fence, Key, KeyId, ReplicaId, Seq, SessionId, State, TableName};

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

/// What came of a compare-and-swap.
#[derive(Clone, Debug)]
pub enum Swap {
    /// It took effect, durably.
    Applied,
    /// The state in the store is another one (`None`: the key has no row). Nothing was changed.
    Conflict(Option<State>),
    /// It may have taken effect, or may yet. Load, and decide again on what that shows.
    Unknown(StoreError),
    /// It certainly did not take effect and never will.
    NotStarted(StoreError),
}

/// What came of a write of data.
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
    #[error("the store cannot be reached: {0}")]
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

/// What came of a compare-and-swap of a session row.
#[derive(Clone, Debug)]
pub enum SessionSwap {
    /// It took effect, durably.
    Applied,
    /// The row is another one (`None`: there is none). Nothing was changed.
    Conflict(Option<SessionRow>),
    /// It may have taken effect, or may yet. Load, and decide again on what that shows.
    Unknown(StoreError),
    /// It certainly did not take effect and never will.
    NotStarted(StoreError),
}

/// A replica as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaRow {
    /// Its id, new at every start.
    pub id: ReplicaId,
    /// Where it serves gRPC.
    pub address: String,
    /// Where other replicas call it, as `host:port`; empty where there are no others.
    pub peer_address: String,
    /// Its version.
    pub version: String,
    /// When it started by its own clock, in milliseconds since 1970.
    pub started_at_ms: i64,
    /// Its replica TTL, in milliseconds: without an acknowledged heartbeat it ends itself within this, and others wait
    /// for so long at least before they take it for down (I10).
    pub ttl_ms: u32,
    /// How many heartbeats it sent: the latest one that the store has.
    pub heartbeat: u64,
    /// It stopped in an orderly way: that heartbeat was its last.
    pub stopped: bool,
}

/// How long a hand-over request and the agreement to it are kept. Who asks gives up after some seconds, and an
/// agreement that comes later costs the holder a pause and a new grant for nobody; but the two writes and the read that
/// have to meet within this are stamped by nodes whose clocks may be some seconds apart.
pub const HAND_OVER_REQUEST_KEPT: Duration = Duration::from_secs(20);

/// What a replica asks, or tells, the home of an entry, or the replica of a session, where it cannot be called:
/// through the store (I10). Each is asked once, under an id of its own, and forgotten by the store
/// after [`HAND_OVER_REQUEST_KEPT`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOverRequest {
    /// Its id.
    pub id: Uuid,
    /// Who is asked.
    pub home: ReplicaId,
    /// What is asked for.
    pub target: HandOverTarget,
}

/// What is to be handed over by the replica that has it, or looked at by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandOverTarget {
    /// A key of which another replica ended an entry: nothing is to be handed over, and who agrees has learned of it.
    Key {
        /// The key.
        key: KeyId,
        /// A version that it has, or had.
        version: u64,
    },
    /// An entry.
    Entry {
        /// Its key.
        key: KeyId,
        /// The entry.
        seq: Seq,
        /// The fence in force, for the holder; [`Fence::NONE`] for a waiter.
        fence: Fence,
        /// The epoch of the entry.
        epoch: u32,
    },
    /// A session.
    Session {
        /// The session.
        session: SessionId,
        /// The epoch of its row.
        epoch: u32,
    },
}

/// One key of a listing.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The key.
    pub key: Key,
    /// Its state.
    pub state: State,
}

/// Statements that were sent, also those that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Reads.
    pub reads: u64,
    /// Plain writes.
    pub writes: u64,
    /// Lightweight transactions.
    pub transactions: u64,
}

/// How many replicas may be listed, those included that ended and were not forgotten yet.
pub const REPLICAS_MAX: usize = 10_000;

/// Why replicas cannot be listed: there are too many.
fn too_many_replicas() -> StoreError {
    StoreError::Damaged(format!(
        "more than {REPLICAS_MAX} replicas are listed; delete the rows of those that ended"
    ))
}

/// How many are read at once where all are looked at.
const PAGE: usize = 500;

/// A durable store of states and data.
///
/// Every future may be dropped at any time; what was asked may then have happened or not.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// What this store is, for logs: `embedded` or `cassandra`.
    fn kind(&self) -> &'static str;

    /// `Ok` while the store can do its work; else why it cannot. Drives readiness.
    fn ready(&self) -> Result<(), StoreError>;

    /// Whether opening the store proved every earlier replica down, so that their homes may be taken
    /// over at once. True for a store that only one process can have open.
    fn is_exclusive(&self) -> bool;

    /// Reads the committed state of a key; `None` if it never had one (I4: current, never stale).
    async fn load(&self, id: &KeyId) -> Result<Option<State>, StoreError>;

    /// The same for a key in doubt: whatever is in flight at it is settled first.
    async fn load_settled(&self, id: &KeyId) -> Result<Option<State>, StoreError> {
        self.load(id).await
    }

    /// Replaces `old` by `new` if the version in the store is still `old.version` (0: no row).
    /// `new.version` is `old.version + 1`.
    async fn compare_and_swap(&self, id: &KeyId, old: &State, new: &State) -> Swap;

    /// Reads the value of a key; `None` if it was never written.
    async fn read_data(&self, id: &KeyId) -> Result<Option<Cell>, StoreError>;

    /// Writes the value of a key with its timestamp. A cell with a higher timestamp stays; of two equal
    /// ones that with the larger value, a deletion being the largest (as in Cassandra).
    async fn write_data(&self, id: &KeyId, cell: Cell) -> Written;

    /// Lists keys with at least one live entry in the order of their bytes, from the first one above
    /// `after`, `limit` at most. A shorter answer is the last page.
    async fn list_live(
        &self,
        table: &TableName,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Listed>, StoreError>;

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

    /// Shows every key with at least one live entry, in any order: one look at the table, where pages in the order of
    /// keys may take one each. What changes meanwhile may be left out, and a key may be shown twice. Where a part of
    /// the table cannot be read, all the others are shown before the error.
    async fn each_live(
        &self,
        table: &TableName,
        look: &(dyn Fn(Listed) + Sync),
    ) -> Result<(), StoreError> {
        let mut after: Option<Key> = None;
        loop {
            let listed = self.list_live(table, after.as_ref(), PAGE).await?;
            let last_page = listed.len() < PAGE;
            after = listed.last().map(|one| one.key.clone());
            listed.into_iter().for_each(look);
            if last_page {
                return Ok(());
            }
        }
    }

    /// Shows every session row, as [`Store::each_live`] does keys.
    async fn each_session(&self, look: &(dyn Fn(SessionRow) + Sync)) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let rows = self.list_sessions(after, PAGE).await?;
            let last_page = rows.len() < PAGE;
            after = rows.last().map(|row| row.id);
            rows.into_iter().for_each(look);
            if last_page {
                return Ok(());
            }
        }
    }

    /// Announces this replica, which is its first heartbeat. In an exclusive store it replaces all earlier ones.
    async fn announce_replica(&self, row: &ReplicaRow) -> Result<(), StoreError>;

    /// All replicas, in the order of their ids. An error where there are more than [`REPLICAS_MAX`]: a replica that
    /// is missing from the list counts as down, so a part of the list is never given.
    async fn list_replicas(&self) -> Result<Vec<ReplicaRow>, StoreError>;

    /// What was asked of it so far, where it counts that.
    fn counts(&self) -> StoreCounts {
        StoreCounts::default()
    }

    // What follows is for stores that several replicas share; one process alone has nobody to tell.

    /// Writes a heartbeat into the row of an announced replica: `heartbeat` is above the last one, and orders the
    /// writes, whatever clocks say. `stopped` with the last one. An error leaves open whether it was written.
    async fn heartbeat(
        &self,
        _id: ReplicaId,
        _heartbeat: u64,
        _stopped: bool,
    ) -> Result<(), StoreError> {
        Ok(())
    }

    /// Forgets the row of a replica that was down for long.
    async fn forget_replica(&self, _id: ReplicaId) -> Result<(), StoreError> {
        Ok(())
    }

    /// Sends a hand-over request to a replica.
    async fn request_hand_over(&self, _request: &HandOverRequest) -> Result<(), StoreError> {
        Ok(())
    }

    /// The hand-over requests sent to a replica that it has not answered, some hundreds at most.
    async fn hand_over_requests(
        &self,
        _home: ReplicaId,
    ) -> Result<Vec<HandOverRequest>, StoreError> {
        Ok(Vec::new())
    }

    /// Agrees, for good, to what was asked.
    async fn agree_to_hand_over(&self, _request: &HandOverRequest) -> Result<(), StoreError> {
        Ok(())
    }

    /// Declines what was asked. Never after an agreement to it, nor before one.
    async fn decline_hand_over(&self, _request: &HandOverRequest) -> Result<(), StoreError> {
        Ok(())
    }

    /// Whether what was asked was agreed to; `None` while it is not answered.
    async fn hand_over_agreed(
        &self,
        _request: &HandOverRequest,
    ) -> Result<Option<bool>, StoreError> {
        Ok(None)
    }

    /// How far ahead of the clock it takes timestamps, in microseconds; `None`: as far as they fit (I3).
    fn ahead_us_max(&self) -> Option<u64> {
        None
    }

    /// The wall clock of the store in microseconds since 1970, where it has one of its own (I2).
    async fn clock_us(&self) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }
}
