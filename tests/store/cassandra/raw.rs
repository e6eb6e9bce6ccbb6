//! The tables as they are, past the store.

use fermata::store::ReplicaRow;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;

use super::World;
use crate::world::replica;

pub struct Raw {
    session: Session,
    keyspace: String,
}

impl Raw {
    pub async fn of(world: &World) -> Raw {
        let session = SessionBuilder::new()
            .known_nodes(world.cluster.contact_points())
            .build()
            .await
            .unwrap();
        Raw {
            session,
            keyspace: world.keyspace.to_string(),
        }
    }

    /// The seqs of all rows of a key in the default table, in order.
    pub async fn seqs(&self, key: &str) -> Vec<i64> {
        let text = format!(
            "SELECT seq FROM \"{}\".\"lock_default\" WHERE key = ?",
            self.keyspace
        );
        let answer = self.session.query_unpaged(text, (key,)).await.unwrap();
        let rows = answer.into_rows_result().unwrap();
        let seqs = rows.rows::<(i64,)>().unwrap().map(|row| row.unwrap().0);
        seqs.collect()
    }

    /// The names of all tables, in order.
    pub async fn tables(&self) -> Vec<String> {
        let text = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?";
        let answer = self.session.query_unpaged(text, (&self.keyspace,)).await;
        let rows = answer.unwrap().into_rows_result().unwrap();
        let names = rows.rows::<(String,)>().unwrap().map(|row| row.unwrap().0);
        names.collect()
    }

    /// Writes a row where there was one, as an old node might that comes back.
    pub async fn bring_back(&self, key: &str, seq: i64) {
        let text = format!(
            "INSERT INTO \"{}\".\"lock_default\" (key, seq, mode) VALUES (?, ?, 1)",
            self.keyspace
        );
        self.session.query_unpaged(text, (key, seq)).await.unwrap();
    }

    /// Executes statements in the keyspace, which is written as `@KEYSPACE@` in them.
    pub async fn run(&self, statements: &str) {
        let _one = super::MAKING.lock().await;
        for statement in statements.split(';').map(str::trim) {
            if !statement.is_empty() {
                let text = statement.replace("@KEYSPACE@", &self.keyspace);
                let answer = self.session.query_unpaged(text, &[]).await;
                answer.unwrap_or_else(|error| panic!("{statement}: {error}"));
            }
        }
    }

    /// A replica's row, past the transactions, for tests that need many.
    pub async fn put_replica(&self, row: ReplicaRow) {
        let text = format!(
            "INSERT INTO \"{}\".\"membership\" (part, id, name, zone, address, peer_address, version, started_at, ttl, \
             state, heartbeat) VALUES ('replicas', {}, '{}', '{}', '{}', '{}', '{}', {}, {}, 1, 0)",
            self.keyspace,
            row.id,
            row.name,
            row.zone,
            row.address,
            row.peer_address,
            row.version,
            row.started_at_ms,
            row.ttl_ms,
        );
        self.session.query_unpaged(text, &[]).await.unwrap();
    }

    /// The rows of these replicas, all of them down.
    pub async fn put_ended(&self, numbers: std::ops::Range<u128>) {
        let ids: Vec<String> = numbers.map(|number| replica(number).to_string()).collect();
        for ids in ids.chunks(100) {
            self.run(&format!(
                "UPDATE \"@KEYSPACE@\".\"membership\" SET name = '', zone = '', address = '', peer_address = '', version = '', \
                 started_at = 1, ttl = 1000, state = -1 WHERE part = 'replicas' AND id IN ({})",
                ids.join(", ")
            ))
            .await;
        }
    }

    /// How many rows there are.
    pub async fn count(&self, statement: &str) -> usize {
        let text = statement.replace("@KEYSPACE@", &self.keyspace);
        let answer = self.session.query_unpaged(text, &[]).await.unwrap();
        answer.into_rows_result().unwrap().rows_num()
    }
}
