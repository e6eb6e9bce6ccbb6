//! Which client library reaches Cassandra: the one that these tests are run for.

use fermata::store::cassandra::{CassandraOptions, DriverKind, Keyspace};

/// Its name.
pub fn name() -> String {
    let variable = std::env::var("FERMATA_CFG_STORE__CASSANDRA__DRIVER");
    variable.unwrap_or_else(|_| "scylla".to_owned())
}

/// The usual options, with that library. Processes that tests start take it from the same variable.
pub fn options(contact_points: Vec<String>, keyspace: Keyspace) -> CassandraOptions {
    let driver = match name().as_str() {
        "scylla" => DriverKind::Scylla,
        "cassandra-cpp" => DriverKind::CassandraCpp,
        other => panic!("{other:?} is no driver"),
    };
    assert!(
        driver.is_built_in(),
        "these tests are to be built with --features cassandra-cpp"
    );
    CassandraOptions {
        driver,
        ..CassandraOptions::new(contact_points, keyspace)
    }
}
