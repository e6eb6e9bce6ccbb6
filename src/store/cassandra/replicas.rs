//! Replicas and their heartbeats, and the clock of the cluster.
//!
//! A row has one writer at a time, and every write of it carries its timestamp: none is the time of a clock,
//! so that no coordinator's clock can put an earlier heartbeat over a later one.

use super::CassandraStore;
use super::codec::{bigint, number};
use super::scan::Smallest;
use super::statements::Ask;
use super::value::{Row, Value, present};
use crate::lock::ReplicaId;
use crate::store::{ReplicaRow, StoreError};

/// The timestamp of what announces a replica: below that of its first heartbeat, which is 1.
const ANNOUNCED_AT: i64 = 0;
/// The timestamp of what forgets one: above that of a heartbeat a millisecond for 30,000 years. (ScyllaDB refuses
/// timestamps that are days ahead of its clock.)
const FORGOTTEN_AT: i64 = 1 << 50;

impl CassandraStore {
    pub(super) async fn announce(&self, row: &ReplicaRow) -> Result<(), StoreError> {
        let values = [
            Value::Uuid(row.id.0),
            Value::text(&row.address),
            Value::text(&row.peer_address),
            Value::text(&row.version),
            Value::Timestamp(row.started_at_ms),
            Value::Int(row.ttl_ms.cast_signed()),
            Value::BigInt(0),
            Value::Boolean(false),
            Value::BigInt(ANNOUNCED_AT),
        ];
        self.ask(Ask::Announce, &values).await?;
        Ok(())
    }

    pub(super) async fn write_heartbeat(
        &self,
        id: ReplicaId,
        heartbeat: u64,
        stopped: bool,
    ) -> Result<(), StoreError> {
        let heartbeat = bigint(heartbeat)?;
        let values = [
            Value::BigInt(heartbeat),
            Value::BigInt(heartbeat),
            Value::Boolean(stopped),
            Value::Uuid(id.0),
        ];
        self.ask(Ask::Heartbeat, &values).await?;
        Ok(())
    }

    pub(super) async fn delete_replica(&self, id: ReplicaId) -> Result<(), StoreError> {
        let values = [Value::BigInt(FORGOTTEN_AT), Value::Uuid(id.0)];
        self.ask(Ask::ForgetReplica, &values).await?;
        Ok(())
    }

    pub(super) async fn replicas(
        &self,
        after: Option<ReplicaId>,
        limit: usize,
    ) -> Result<Vec<ReplicaRow>, StoreError> {
        let mut page = Smallest::new(limit);
        self.scan(Ask::Replicas, |row| {
            if let Some(replica) = decode(row)?
                && after.is_none_or(|after| replica.id > after)
            {
                page.offer(replica.id, replica);
            }
            Ok(())
        })
        .await?;
        Ok(page.into_items().into_iter().map(|(_, row)| row).collect())
    }

    /// The time by the clock of one node: each time another one is asked.
    pub(super) async fn clock(&self) -> Result<u64, StoreError> {
        let rows = self.ask(Ask::Clock, &[]).await?;
        let row = rows.into_iter().next();
        let now = row.map(|mut row| row.uuid("now")).transpose()?.flatten();
        let time = present(now, "now")?.get_timestamp();
        let unreadable = || StoreError::Damaged("the store's clock cannot be read".to_owned());
        let (seconds, nanoseconds) = time.ok_or_else(unreadable)?.to_unix();
        let whole = seconds.checked_mul(1_000_000).ok_or_else(unreadable)?;
        Ok(whole + u64::from(nanoseconds) / 1_000)
    }
}

/// `None` for a row that is not whole: one that was never announced, or not by this version.
pub(super) fn decode(mut row: Row) -> Result<Option<ReplicaRow>, StoreError> {
    let id = ReplicaId(present(row.uuid("id")?, "id")?);
    let ttl = row.int("ttl")?;
    let (
        Some(address),
        Some(peer_address),
        Some(version),
        Some(started_at_ms),
        Some(heartbeat),
        Some(stopped),
    ) = (
        row.text("address")?,
        row.text("peer_address")?,
        row.text("version")?,
        row.timestamp("started_at")?,
        row.bigint("heartbeat")?,
        row.boolean("stopped")?,
    )
    else {
        return Ok(None);
    };
    Ok(Some(ReplicaRow {
        id,
        address,
        peer_address,
        version,
        started_at_ms,
        // A replica of before there was such a column says none: the observer's own counts.
        ttl_ms: ttl.unwrap_or(0).cast_unsigned(),
        heartbeat: number(heartbeat)?,
        stopped,
    }))
}
