//! All replicas of a keyspace serve a table by one protocol: two protocols do not know of each other's holders.
//!
//! The first replica writes the protocol of each of its tables into the table of the replicas, each in a partition of its own. Each later
//! replica compares.

use fermata_cassandra::Value;
use uuid::Uuid;

use super::statements::Cql;
use super::{CassandraError, CassandraStore, rows};
use crate::lock::TableName;

impl CassandraStore {
    /// Compares the protocol of a table with that of all replicas, and makes it theirs where there is none.
    pub async fn agree_on_protocol(
        &self,
        table: &TableName,
        protocol: &str,
    ) -> Result<(), CassandraError> {
        let key = [
            Value::Text(format!("protocol/{table}")),
            Value::Uuid(Uuid::nil()),
        ];
        let mut stored = self.ask(Cql::Majority, &key).await?;
        if stored.is_empty() {
            let [part, id] = key;
            let values = [part, id, Value::text(protocol), Value::text("")];
            let rows = self.ask(Cql::AgreeOnMajority, &values).await?;
            if rows::applied(rows.clone())? {
                return Ok(());
            }
            stored = rows;
        }
        let name = stored.first_mut().and_then(|row| row.text("name").ok()?);
        match name {
            Some(name) if name == protocol => Ok(()),
            name => Err(CassandraError::OtherProtocol {
                keyspace: self.keyspace.clone(),
                table: table.clone(),
                stored: name.unwrap_or_else(|| "unreadable".to_owned()),
                configured: protocol.to_owned(),
            }),
        }
    }
}
