//! The cells of the tables that list locks and sessions.

use std::time::{Duration, SystemTime};

use fermata_command::Span;
use fermata_command::output::Table;
use fermata_proto as proto;

/// The column of authenticated clients.
pub const IDENTITY: &str = "IDENTITY";
/// The column of tables.
pub const TABLE: &str = "TABLE";

/// Parses the maximum length of a list. Zero is refused: its empty list would read as "no locks".
pub fn parse_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("1 is the least".to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(format!("{error}")),
    }
}

/// The first part of a UUID, enough to tell a few replicas apart.
pub fn short(uuid: &str) -> String {
    uuid.split('-').next().unwrap_or_default().to_owned()
}

/// A table of these rows. The columns [`IDENTITY`] and [`TABLE`] are left out if all their cells are empty.
pub fn table_of(columns: &[&str], mut rows: Vec<Vec<String>>) -> Table {
    let mut columns = columns.to_vec();
    for optional in [IDENTITY, TABLE] {
        let at = columns.iter().position(|column| *column == optional);
        if let Some(at) = at.filter(|at| rows.iter().all(|row| row[*at].is_empty())) {
            columns.remove(at);
            for row in &mut rows {
                row.remove(at);
            }
        }
    }
    let mut table = Table::new(&columns);
    rows.into_iter().for_each(|row| table.row(row));
    table
}

/// The time since `create_time`, by the clocks of two machines.
pub fn age(create_time: Option<prost_types::Timestamp>, now: SystemTime) -> String {
    let created = create_time.and_then(|time| SystemTime::try_from(time).ok());
    let Some(created) = created else {
        return String::new();
    };
    let age = now.duration_since(created).unwrap_or(Duration::ZERO);
    Span::from_secs(age.as_secs()).to_string()
}

/// Whether an entry survives a crash of the replica that serves its key.
pub fn durability(entry: &proto::QueueEntry) -> String {
    match (entry.name.is_empty(), entry.durable) {
        (true, _) => String::new(),
        (false, true) => "durable".to_owned(),
        (false, false) => "volatile".to_owned(),
    }
}

/// The rest of a lease.
pub fn lease_left(left: Option<prost_types::Duration>) -> String {
    let left = left.and_then(|left| Duration::try_from(left).ok());
    left.map_or_else(String::new, |left| format!("{:.1}s", left.as_secs_f64()))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn holder() -> proto::QueueEntry {
        proto::QueueEntry {
            name: "default/a#1".to_owned(),
            state: proto::LockState::Held.into(),
            fencing_token: 7,
            owner: "billing".to_owned(),
            lease_left: Some(prost_types::Duration {
                seconds: 27,
                nanos: 210_000_000,
            }),
            create_time: Some(prost_types::Timestamp {
                seconds: 100,
                nanos: 0,
            }),
            home: "00000001-0000-4000-8000-000000000000".to_owned(),
            durable: true,
            ..proto::QueueEntry::default()
        }
    }
}
