//! Tables that were restored from a backup: new fences are above all fences from before the restore.

use std::time::Duration;

use fermata_cassandra::{CassandraOptions, Value};
use tokio::time::sleep;

use super::data::AHEAD_US_MAX;
use super::schema::FENCE_PART;
use super::statements::Cql;
use super::{CassandraError, CassandraStore};
use crate::clock::{Clock as _, SystemClock};
use crate::store::floor::fence_floor;
use crate::store::{ClusterStore as _, ReplicaRow, ReplicaState, StateSwap, StoreError};

/// How often the rows of the replicas are read.
const READ_EVERY: Duration = Duration::from_millis(500);
/// By how much the clocks of this machine and of the store may differ, in microseconds.
const APART_US_MAX: u64 = 60_000_000;

/// Why a keyspace was not marked as restored. Repeat it once that is mended.
#[derive(Debug, thiserror::Error)]
pub enum RestoredError {
    /// It cannot be opened.
    #[error("{0}")]
    Open(#[from] CassandraError),
    /// The cluster did not answer, or not as it must.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// A replica works on it.
    #[error(
        "the replica {} (at {}) is running: stop all replicas, restore the tables, and run this command before you start a \
         replica",
        .0.id, .0.address
    )]
    Running(Box<ReplicaRow>),
    /// One of two clocks is wrong: the floor would be, too.
    #[error(
        "the clock of this machine and that of a Cassandra node differ by {seconds} s: correct the wrong clock, then run this again"
    )]
    ClocksDiffer {
        /// By how much.
        seconds: u64,
    },
    /// No token can lie so high.
    #[error(
        "{above} is more than two days ahead of the clock ({now_us}), the limit of fencing tokens on Cassandra"
    )]
    TooHigh {
        /// What is to be exceeded.
        above: u64,
        /// The clock, in microseconds since 1970.
        now_us: u64,
    },
}

/// Raises the floor of fences of a keyspace whose tables were restored: above the clock by more than fences can have been, and
/// above `above`. To be run while no replica does. The floor.
pub async fn restored(options: CassandraOptions, above: Option<u64>) -> Result<u64, RestoredError> {
    let store = CassandraStore::open(options).await?;
    store.check_majority().await?;
    let ended = declare_all_down(&store).await?;
    let now_us = store.clock_us().await?;
    let apart_us = now_us.abs_diff(SystemClock.wall_us());
    if apart_us > APART_US_MAX {
        let seconds = apart_us / 1_000_000;
        return Err(RestoredError::ClocksDiffer { seconds });
    }
    if let Some(above) = above.filter(|above| *above > now_us.saturating_add(AHEAD_US_MAX)) {
        return Err(RestoredError::TooHigh { above, now_us });
    }
    // Fences ran ahead of a floor as they do of a clock.
    let floor = fence_floor(now_us, store.fence_floor_of_keyspace().await?, above);
    let number = i64::try_from(floor).map_err(|_| RestoredError::TooHigh {
        above: floor,
        now_us,
    })?;
    let values = [
        Value::text(FENCE_PART),
        Value::BigInt(number),
        Value::BigInt(number),
    ];
    let written = store.ask(Cql::RaiseFenceFloor, &values).await;
    written.map_err(StoreError::from)?;
    // A replica that was about to start may have read the floor before: it is listed by now, or reads it later.
    none_runs(&ended, &store.list_replicas().await?)?;
    Ok(floor)
}

/// Declares each replica down that is listed as up, once no row changed for the longest TTL (H2): one that only hangs would
/// else come back with the floor that it knows. The rows, as they were first read.
async fn declare_all_down(store: &CassandraStore) -> Result<Vec<ReplicaRow>, RestoredError> {
    let rows = up(store.list_replicas().await?);
    let ttl_ms = rows.iter().map(|row| row.ttl_ms).max().unwrap_or(0);
    let begun = SystemClock.boot();
    while SystemClock.boot().saturating_sub(begun) < Duration::from_millis(ttl_ms.into()) {
        sleep(READ_EVERY).await;
        none_runs(&rows, &up(store.list_replicas().await?))?;
    }
    for row in &rows {
        declare_down(store, row).await?;
    }
    Ok(rows)
}

fn up(mut rows: Vec<ReplicaRow>) -> Vec<ReplicaRow> {
    rows.retain(|row| matches!(row.state, ReplicaState::Up(_)));
    rows
}

async fn declare_down(store: &CassandraStore, row: &ReplicaRow) -> Result<(), RestoredError> {
    match store
        .swap_state(row.id, row.state, ReplicaState::Down)
        .await
    {
        StateSwap::Applied
        | StateSwap::Conflict(Some(ReplicaState::Down | ReplicaState::Stopped) | None) => Ok(()),
        StateSwap::Conflict(Some(ReplicaState::Up(_))) => {
            Err(RestoredError::Running(Box::new(row.clone())))
        }
        StateSwap::Unknown(error) | StateSwap::NotStarted(error) => Err(error.into()),
    }
}

/// That no replica sent a heartbeat or came since these rows were read.
fn none_runs(before: &[ReplicaRow], now: &[ReplicaRow]) -> Result<(), RestoredError> {
    let runs = |row: &&ReplicaRow| match before.iter().find(|one| one.id == row.id) {
        Some(same) => row.heartbeat != same.heartbeat,
        None => matches!(row.state, ReplicaState::Up(_)),
    };
    match now.iter().find(runs) {
        Some(row) => Err(RestoredError::Running(Box::new(row.clone()))),
        None => Ok(()),
    }
}

impl CassandraStore {
    pub(super) async fn fence_floor_of_keyspace(&self) -> Result<u64, StoreError> {
        let rows = self.ask(Cql::FenceFloor, &[Value::text(FENCE_PART)]).await;
        let row = rows.map_err(StoreError::from)?.into_iter().next();
        let floor = row.map(|mut row| row.bigint("fence_floor")).transpose()?;
        let floor = floor.flatten().unwrap_or(0);
        u64::try_from(floor)
            .map_err(|_| StoreError::Damaged(format!("the fence floor is {floor}, below 0")))
    }
}
