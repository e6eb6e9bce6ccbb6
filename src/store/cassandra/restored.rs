//! Tables that were restored from a backup: fences go on above all that were given out before.

use std::time::Duration;

use fermata_cassandra::{CassandraOptions, Value};
use tokio::time::sleep;

use super::schema::FENCE_PART;
use super::statements::Cql;
use super::{CassandraOpenError, CassandraStore};
use crate::store::{ClusterStore as _, Life, ReplicaRow, StoreError};

/// How far above the clock fences may have been when the tables were lost: 70 minutes, and a minute by which clocks may differ,
/// with some to spare.
const AHEAD_US: u64 = 2 * 60 * 60 * 1_000_000;
/// A replica that lives writes a heartbeat within this.
const HEARTBEAT_WITHIN: Duration = Duration::from_secs(4);

/// Why a keyspace was not marked as restored. Nothing was changed.
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
    /// No fence lies so high.
    #[error("{0} is too high for a fencing token")]
    TooHigh(u64),
}

/// Raises the floor of fences of a keyspace whose tables were restored: above the clock by more than fences can have been, and
/// above `above`. To be run while no replica does. The floor.
pub async fn restored(options: CassandraOptions, above: Option<u64>) -> Result<u64, RestoredError> {
    let store = CassandraStore::open(options).await?;
    let before = store.list_replicas().await?;
    sleep(HEARTBEAT_WITHIN).await;
    for row in store.list_replicas().await? {
        let same = before.iter().find(|one| one.id == row.id);
        let is_silent = same.is_some_and(|one| one.heartbeat == row.heartbeat);
        if !is_silent && matches!(row.life, Life::Up(_)) {
            return Err(RestoredError::Running(Box::new(row)));
        }
    }
    let floor = store.clock_us().await?.saturating_add(AHEAD_US);
    let floor = floor.max(above.unwrap_or(0).saturating_add(1));
    let floor = floor.max(store.fence_floor_of_keyspace().await?);
    let number = i64::try_from(floor).map_err(|_| RestoredError::TooHigh(floor))?;
    let values = [
        Value::text(FENCE_PART),
        Value::BigInt(number),
        Value::BigInt(number),
    ];
    let written = store.ask(Cql::RaiseFenceFloor, &values).await;
    written.map_err(StoreError::from)?;
    Ok(floor)
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
