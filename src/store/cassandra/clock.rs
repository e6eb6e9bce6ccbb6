//! The clock of the cluster.

use fermata_cassandra::present;

use super::CassandraStore;
use super::statements::Cql;
use crate::store::StoreError;

impl CassandraStore {
    /// The time by the clock of one node, in microseconds since 1970: each time another one is asked.
    pub(super) async fn clock(&self) -> Result<u64, StoreError> {
        let rows = self.ask(Cql::Clock, &[]).await?;
        let row = rows.into_iter().next();
        let now = row.map(|mut row| row.uuid("now")).transpose()?.flatten();
        let time = present(now, "now")?.get_timestamp();
        let unreadable = || StoreError::Damaged("the store's clock cannot be read".to_owned());
        let (seconds, nanoseconds) = time.ok_or_else(unreadable)?.to_unix();
        let whole = seconds.checked_mul(1_000_000).ok_or_else(unreadable)?;
        Ok(whole + u64::from(nanoseconds) / 1_000)
    }
}
