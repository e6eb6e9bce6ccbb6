//! Tables that were restored from a backup: fences go on above all that were given out before.

use std::time::Duration;

use fermata_cassandra::{CassandraOptions, Value};
use tokio::time::sleep;

use super::schema::FENCE_PART;
use super::statements::Cql;
use super::{CassandraOpenError, CassandraStore};
use crate::store::floor::fence_floor;
use crate::store::{ClusterStore as _, Life, ReplicaRow, StoreError};

/// How far above the clock a floor may be asked for: tokens are refused beyond that.
const ABOVE_US_MAX: u64 = 2 * 24 * 60 * 60 * 1_000_000;
/// A replica that lives writes a heartbeat within this.
const HEARTBEAT_WITHIN: Duration = Duration::from_secs(4);

/// Why a keyspace was not marked as restored. Repeat it once that is mended.
#[derive(Debug, thiserror::Error)]
pub enum RestoredError {
    /// It cannot be opened.
    #[error("{0}")]
    Open(#[from] CassandraOpenError),
    /// The cluster did not answer, or not as it must.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// A replica works on it.
    #[error(
        "the replica {} (at {}) is running: stop all replicas, restore the tables, and run this before one is started",
        .0.id, .0.address
    )]
    Running(Box<ReplicaRow>),
    /// No token can lie so high.
    #[error(
        "{above} is more than two days ahead of the clock, which is {now_us}: no token on Cassandra is"
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
    none_runs(&store).await?;
    let now_us = store.clock_us().await?;
    if let Some(above) = above.filter(|above| *above > now_us.saturating_add(ABOVE_US_MAX)) {
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
    // One that was about to start may have read the floor before: it is seen now, or reads it later.
    none_runs(&store).await?;
    Ok(floor)
}

/// Whether no replica works on the keyspace: none that is up writes heartbeats, or comes meanwhile.
async fn none_runs(store: &CassandraStore) -> Result<(), RestoredError> {
    let before = store.list_replicas().await?;
    sleep(HEARTBEAT_WITHIN).await;
    for row in store.list_replicas().await? {
        let same = before.iter().find(|one| one.id == row.id);
        let is_silent = same.is_some_and(|one| one.heartbeat == row.heartbeat);
        if !is_silent && matches!(row.life, Life::Up(_)) {
            return Err(RestoredError::Running(Box::new(row)));
        }
    }
    Ok(())
}

impl CassandraStore {
    pub(super) async fn fence_floor_of_keyspace(&self) -> Result<u64, StoreError> {
        let rows = self.ask(Cql::FenceFloor, &[Value::text(FENCE_PART)]).await;
        let row = rows.map_err(StoreError::from)?.into_iter().next();
        let floor = match row {
            Some(mut row) => row.bigint("fence_floor")?,
            None => None,
        };
        let floor = floor.unwrap_or(0);
        u64::try_from(floor)
            .map_err(|_| StoreError::Damaged(format!("the floor of fences is {floor}")))
    }
}
