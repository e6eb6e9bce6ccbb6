//! Whose majority decides about a keyspace. LOCAL_SERIAL and SERIAL do not exclude each other: with one replica of each, a key
//! could have two homes.
//!
//! The first replica writes its setting into the table of the replicas, in a partition of its own, by a transaction of all
//! datacenters: `name` is the consistency, `zone` the datacenter of a local one. Each later replica compares.

use std::fmt;

use fermata_cassandra::{CassandraOptions, Fault, Majority, Value, present};
use uuid::Uuid;

use super::statements::Cql;
use super::{CassandraOpenError, CassandraStore, rows};
use crate::store::StoreError;

/// The partition.
const PART: &str = "majority";
const QUORUM: &str = "quorum";
const LOCAL_QUORUM: &str = "local_quorum";

/// A consistency, and the datacenter of a local one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MajoritySetting {
    consistency: String,
    datacenter: String,
}

impl fmt::Display for MajoritySetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.consistency)?;
        match self.datacenter.as_str() {
            "" => Ok(()),
            datacenter => write!(f, " in the datacenter {datacenter}"),
        }
    }
}

impl MajoritySetting {
    pub(super) fn of(options: &CassandraOptions) -> MajoritySetting {
        let (consistency, datacenter) = match options.majority {
            Majority::Everywhere => (QUORUM, None),
            Majority::OneDatacenter => (LOCAL_QUORUM, options.datacenter.clone()),
        };
        MajoritySetting {
            consistency: consistency.to_owned(),
            datacenter: datacenter.unwrap_or_default(),
        }
    }
}

impl CassandraStore {
    /// Compares the setting with that of all replicas, and makes it theirs where there is none. To be called once the
    /// setting is known to fit the keyspace, and before anything is changed by it.
    pub async fn agree_on_majority(&self) -> Result<(), CassandraOpenError> {
        let stored = self.stored_majority().await.map_err(|fault| match fault {
            Fault::Refused(what) => CassandraOpenError::Refused(what),
            Fault::NotStarted(what) | Fault::Unknown(what) => CassandraOpenError::Unreachable(what),
        })?;
        match stored == self.majority {
            true => Ok(()),
            false => Err(CassandraOpenError::OtherMajority {
                keyspace: self.keyspace.clone(),
                stored,
                configured: self.majority.clone(),
            }),
        }
    }

    async fn stored_majority(&self) -> Result<MajoritySetting, Fault> {
        let values = [
            Value::text(PART),
            Value::Uuid(Uuid::nil()),
            Value::text(&self.majority.consistency),
            Value::text(&self.majority.datacenter),
        ];
        let rows = self.ask(Cql::AgreeOnMajority, &values).await?;
        let found = rows.first().cloned();
        if rows::applied(rows)? {
            return Ok(self.majority.clone());
        }
        let found = found.map(|mut row| {
            Ok::<_, StoreError>(MajoritySetting {
                consistency: present(row.text("name")?, "name")?,
                datacenter: present(row.text("zone")?, "zone")?,
            })
        });
        let unreadable = |error: StoreError| Fault::Refused(error.to_string());
        found
            .transpose()
            .map_err(unreadable)?
            .ok_or_else(|| Fault::Unknown("the setting of the majority was not shown".to_owned()))
    }
}
