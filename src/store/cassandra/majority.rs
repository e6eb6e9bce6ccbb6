//! All replicas of a keyspace use one consistency. LOCAL_SERIAL and SERIAL do not exclude each other: if two replicas used
//! different ones, a key could have two homes.
//!
//! The first replica writes its setting into the table of the replicas, in a partition of its own, by a transaction of all
//! datacenters: `name` is the consistency, `zone` the datacenter of a local one. Each later replica compares.

use fermata_cassandra::{Majority, Row, Value};
use uuid::Uuid;

use super::statements::Cql;
use super::{CassandraError, CassandraStore, rows};

/// The partition.
const PART: &str = "majority";

fn in_words([consistency, datacenter]: &[String; 2]) -> String {
    match datacenter.as_str() {
        "" => consistency.clone(),
        datacenter => format!("{consistency} in the datacenter {datacenter}"),
    }
}

impl CassandraStore {
    /// The consistency of this replica, and the datacenter of a local one.
    fn majority_setting(&self) -> [String; 2] {
        let (consistency, datacenter) = match self.majority {
            Majority::Everywhere => ("quorum", None),
            Majority::OneDatacenter => ("local_quorum", self.datacenter.clone()),
        };
        [consistency.to_owned(), datacenter.unwrap_or_default()]
    }

    /// Compares the setting with that of all replicas, and makes it theirs where there is none. To be called once the
    /// setting is known to fit the keyspace, and before anything is changed by it.
    pub async fn agree_on_majority(&self) -> Result<(), CassandraError> {
        let [consistency, datacenter] = self.majority_setting();
        let values = [
            Value::text(PART),
            Value::Uuid(Uuid::nil()),
            Value::Text(consistency),
            Value::Text(datacenter),
        ];
        let rows = self.ask(Cql::AgreeOnMajority, &values).await?;
        let found = rows.first().cloned();
        match rows::applied(rows)? {
            true => Ok(()),
            false => self.compare_majority(found),
        }
    }

    /// Compares the setting with that of all replicas, if they have one.
    pub(super) async fn check_majority(&self) -> Result<(), CassandraError> {
        let values = [Value::text(PART), Value::Uuid(Uuid::nil())];
        match self.ask(Cql::Majority, &values).await?.into_iter().next() {
            None => Ok(()),
            found => self.compare_majority(found),
        }
    }

    fn compare_majority(&self, found: Option<Row>) -> Result<(), CassandraError> {
        let stored = found.and_then(|mut row| {
            let (name, zone) = (row.text("name").ok()??, row.text("zone").ok()??);
            Some([name, zone])
        });
        let own = self.majority_setting();
        match stored {
            Some(stored) if stored == own => Ok(()),
            Some(stored) => Err(CassandraError::OtherMajority {
                keyspace: self.keyspace.clone(),
                stored: in_words(&stored),
                configured: in_words(&own),
            }),
            None => Err(CassandraError::Refused(
                "the stored consistency cannot be read".to_owned(),
            )),
        }
    }
}
