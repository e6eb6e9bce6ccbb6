//! What the statements of a lock table mean, read off their own text.

use std::sync::LazyLock;

use fermata::lock::TableName;
use fermata::store::cassandra::Keyspace;
use fermata::store::cassandra::schema::Schema;
use fermata_cassandra::Value;

use super::partition::{Partition, Slice};

/// The names in quotes between two words of a text, in order.
fn names(text: &str, after: &str, before: &str) -> Vec<String> {
    let text = text.split_once(after).unwrap().1;
    let text = text.split_once(before).map_or(text, |parts| parts.0);
    text.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// The columns of a lock table that all rows of a key share, as the schema says.
static STATICS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let schema = Schema {
        keyspace: Keyspace::parse("k").unwrap(),
        replication: None,
        cell_tables: Vec::new(),
        row_tables: fermata::store::cassandra::RowTables::new(),
        tables: vec![TableName::default_table()],
    };
    let statements = schema.statements();
    let text = statements.iter().find(|text| text.contains("\"lock_"));
    let lines = text.unwrap().split(',');
    let shared = lines.filter(|line| line.trim_end().ends_with(" static"));
    shared.map(|line| names(line, "", "\0").remove(0)).collect()
});

/// The columns that a query reads.
fn columns(select: &str) -> Vec<String> {
    let after = match select.contains("DISTINCT ") {
        true => "DISTINCT ",
        false => "SELECT ",
    };
    names(select, after, " FROM ")
}

/// What a query reads, with these values.
pub fn slice(select: &str, values: &[Value]) -> Slice {
    let (from, to) = match values {
        // Of a `DISTINCT` only what is shared.
        [] => (1, 0),
        [_, Value::BigInt(seq)] if select.contains("\"seq\" >= ?") => (*seq, i64::MAX),
        [_, Value::BigInt(seq)] if select.contains("\"seq\" = ?") => (*seq, *seq),
        _ => panic!("{select}: {values:?}"),
    };
    Slice {
        columns: columns(select),
        from,
        to,
    }
}

/// The condition of a batch, and what it writes at this time.
pub fn batch(text: &str, values: &[Value], at: u64) -> (Option<i64>, Partition) {
    let mut values = values.iter().cloned();
    let mut change = Partition::default();
    let mut condition = None;
    let text = text.strip_prefix("BEGIN BATCH ").unwrap();
    for part in text.strip_suffix(" APPLY BATCH").unwrap().split(';') {
        let part = part.trim();
        if part.starts_with("UPDATE") {
            for column in names(part, " SET ", " WHERE ") {
                assert!(STATICS.contains(&column), "{column} is not shared");
                change.set_static(&column, values.next().unwrap(), at);
            }
            values.next().unwrap();
            if part.ends_with("IF \"version\" = ?") {
                condition = Some(bigint(values.next()));
            }
        } else if part.starts_with("INSERT") {
            let columns = names(part, " (", " VALUES ");
            let row: Vec<_> = columns.into_iter().zip(values.by_ref()).collect();
            let seq = row.iter().find(|(column, _)| column == "seq").unwrap();
            let seq = bigint(Some(seq.1.clone()));
            let is_cell = |(column, value): &(String, Value)| {
                !["key", "seq"].contains(&column.as_str()) && *value != Value::Unset
            };
            change.insert(seq, row.into_iter().filter(is_cell).collect(), at);
        } else if part.starts_with("DELETE") {
            values.next().unwrap();
            let (above, below) = (bigint(values.next()), bigint(values.next()));
            // A deletion is older than what is written with it.
            change.delete(above, below, at - 1);
        } else {
            assert_eq!(part, "");
        }
    }
    assert_eq!(values.next(), None, "{text}");
    (condition, change)
}

fn bigint(value: Option<Value>) -> i64 {
    match value {
        Some(Value::BigInt(number)) => number,
        other => panic!("{other:?}"),
    }
}
