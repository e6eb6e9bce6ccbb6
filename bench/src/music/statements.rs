//! The statements of MUSIC, whose design Fermata follows. They go through the service's driver, with its settings, and use tables
//! of their own.
//!
//! A queue is a partition: a row for each lockRef, and a shared `guard`, the latest lockRef. A section needs at least
//! these statements. The published implementation sends more: another transaction with the time of the acquisition, a
//! read at QUORUM of whether the value must be synchronised first, and a read at ONE of the head of the queue before
//! each get and put. Here every value is bound.

use bytes::Bytes;
use fermata_cassandra::{
    CassandraOptions, ColumnError, Driver, Fault, Keyspace, Row, Statement, Use, Value,
};

/// The distance between the timestamps of two lockRefs that follow each other, as in MUSIC. A key has room for 9.2 million.
const TIMESTAMPS_PER_LOCK_REF: i64 = 1_000_000_000_000;
/// The zero of timestamps, as in MUSIC: 2018-08-01, in milliseconds since 1970.
const EPOCH_MS: i64 = 1_533_081_600_000;
/// The columns of a lockRef that no section changes.
const NOT_ACQUIRED: &str = "0";
const EXCLUSIVE: &str = "WRITE";
const OWNER: &str = "fermata-bench";

/// Two tables made for one benchmark, and the prepared statements on them.
#[derive(Debug)]
pub struct Music {
    driver: Driver,
    tables: Tables,
    guard: Statement,
    first: Statement,
    next: Statement,
    peek: Statement,
    get: Statement,
    put: Statement,
    release: Statement,
}

/// The names of the tables.
#[derive(Debug)]
struct Tables {
    lock: String,
    data: String,
}

impl Tables {
    fn new(keyspace: &Keyspace, tag: u32) -> Tables {
        Tables {
            lock: format!("\"{keyspace}\".\"music_lock_{tag:08x}\""),
            data: format!("\"{keyspace}\".\"music_data_{tag:08x}\""),
        }
    }

    fn make(&self) -> [String; 2] {
        let (lock, data) = (&self.lock, &self.data);
        [
            format!(
                "CREATE TABLE {lock} (\"key\" text, \"lockreference\" bigint, \"createtime\" text, \
                 \"acquiretime\" text, \"guard\" bigint static, \"locktype\" text, \"owner\" text, \
                 PRIMARY KEY ((\"key\"), \"lockreference\")) WITH CLUSTERING ORDER BY (\"lockreference\" ASC)"
            ),
            format!("CREATE TABLE {data} (\"key\" text PRIMARY KEY, \"value\" blob)"),
        ]
    }

    /// The next lockRef, if the guard is still the one that was read.
    fn enqueue(&self, guard: &str) -> String {
        let lock = &self.lock;
        format!(
            "BEGIN BATCH UPDATE {lock} SET \"guard\" = ? WHERE \"key\" = ? IF \"guard\" = {guard}; \
             INSERT INTO {lock} (\"key\", \"lockreference\", \"createtime\", \"acquiretime\", \"locktype\", \
             \"owner\") VALUES (?, ?, ?, ?, ?, ?) IF NOT EXISTS; APPLY BATCH"
        )
    }

    fn drop(&self) -> [String; 2] {
        [&self.lock, &self.data].map(|table| format!("DROP TABLE IF EXISTS {table}"))
    }
}

impl Music {
    /// Connects and makes the tables `music_lock_…` and `music_data_…`, with the tag at the end. A table that is there already is
    /// an error, and stays.
    pub async fn make(options: &CassandraOptions, tag: u32) -> Result<Music, Fault> {
        let driver = Driver::connect(options).await?;
        let tables = Tables::new(&options.keyspace, tag);
        let [lock, data] = tables.make();
        driver.change_schema(&lock).await?;
        let prepared = prepare(&driver, &tables, &data).await;
        if prepared.is_err() {
            // The first error says why.
            let _ = drop_tables(&driver, &tables).await;
        }
        let [guard, first, next, peek, get, put, release] = prepared?;
        Ok(Music {
            driver,
            tables,
            guard,
            first,
            next,
            peek,
            get,
            put,
            release,
        })
    }

    /// Drops the tables.
    pub async fn drop_tables(&self) -> Result<(), Fault> {
        drop_tables(&self.driver, &self.tables).await
    }

    /// Reads the latest lockRef at ONE, 0 where there is none. The answer may be old.
    pub async fn guard(&self, key: &str) -> Result<i64, Fault> {
        let rows = self.driver.execute(&self.guard, &[Value::text(key)]).await;
        Ok(number(rows?, "guard")?.unwrap_or(0))
    }

    /// Puts the lockRef after `guard` into the queue, by a transaction. False if the guard has changed.
    pub async fn enqueue(&self, key: &str, guard: i64, now_ms: i64) -> Result<bool, Fault> {
        let lock_ref = guard.saturating_add(1);
        let mut values = vec![Value::BigInt(lock_ref), Value::text(key)];
        if guard != 0 {
            values.push(Value::BigInt(guard));
        }
        values.extend([
            Value::text(key),
            Value::BigInt(lock_ref),
            Value::Text(now_ms.to_string()),
            Value::text(NOT_ACQUIRED),
            Value::text(EXCLUSIVE),
            Value::text(OWNER),
        ]);
        let enqueue = if guard == 0 { &self.first } else { &self.next };
        applied(self.driver.execute(enqueue, &values).await?)
    }

    /// Reads the head of the queue at ONE.
    pub async fn peek(&self, key: &str) -> Result<Option<i64>, Fault> {
        let rows = self.driver.execute(&self.peek, &[Value::text(key)]).await;
        number(rows?, "lockreference")
    }

    /// Reads the value of a key at QUORUM.
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Fault> {
        let rows = self.driver.execute(&self.get, &[Value::text(key)]).await;
        let row = rows?.into_iter().next();
        let value = row.map_or(Ok(None), |mut row| row.blob("value"));
        Ok(value.map_err(unreadable)?.map(Vec::from))
    }

    /// Writes the value of a key at QUORUM, with a timestamp that no earlier lockRef can have.
    pub async fn put(
        &self,
        key: &str,
        lock_ref: i64,
        value: Bytes,
        now_ms: i64,
    ) -> Result<(), Fault> {
        let values = [
            Value::text(key),
            Value::Blob(value),
            Value::BigInt(timestamp(lock_ref, now_ms)?),
        ];
        self.driver.execute(&self.put, &values).await.map(drop)
    }

    /// Takes a lockRef out of the queue, by a transaction. False if it was not there.
    pub async fn release(&self, key: &str, lock_ref: i64) -> Result<bool, Fault> {
        let values = [Value::text(key), Value::BigInt(lock_ref)];
        applied(self.driver.execute(&self.release, &values).await?)
    }
}

async fn prepare(
    driver: &Driver,
    tables: &Tables,
    make_data: &str,
) -> Result<[Statement; 7], Fault> {
    driver.change_schema(make_data).await?;
    driver.agree_on_schema().await?;
    let Tables { lock, data } = tables;
    let select =
        |what, table, limit| format!("SELECT {what} FROM {table} WHERE \"key\" = ?{limit}");
    let put = format!("INSERT INTO {data} (\"key\", \"value\") VALUES (?, ?) USING TIMESTAMP ?");
    let release =
        format!("DELETE FROM {lock} WHERE \"key\" = ? AND \"lockreference\" = ? IF EXISTS");
    Ok([
        driver
            .prepare(Use::AnyRead, &select("\"guard\"", lock, ""))
            .await?,
        driver.prepare(Use::Cas, &tables.enqueue("null")).await?,
        driver.prepare(Use::Cas, &tables.enqueue("?")).await?,
        driver
            .prepare(Use::AnyRead, &select("*", lock, " LIMIT 1"))
            .await?,
        driver
            .prepare(Use::Read, &select("\"value\"", data, ""))
            .await?,
        driver.prepare(Use::Write, &put).await?,
        driver.prepare(Use::Cas, &release).await?,
    ])
}

async fn drop_tables(driver: &Driver, tables: &Tables) -> Result<(), Fault> {
    for statement in tables.drop() {
        driver.change_schema(&statement).await?;
    }
    driver.agree_on_schema().await
}

/// A number in the first row; `None` where there is no row, or no number in it.
fn number(rows: Vec<Row>, column: &str) -> Result<Option<i64>, Fault> {
    let row = rows.into_iter().next();
    row.map_or(Ok(None), |mut row| row.bigint(column).map_err(unreadable))
}

/// Whether the condition of a transaction held.
fn applied(rows: Vec<Row>) -> Result<bool, Fault> {
    let row = rows.into_iter().next();
    let answered = row.map(|mut row| row.boolean("[applied]"));
    match answered {
        Some(Ok(Some(applied))) => Ok(applied),
        Some(Err(error)) => Err(unreadable(error)),
        Some(Ok(None)) | None => Err(Fault::Unknown(
            "the answer to a transaction does not say whether it was applied".to_owned(),
        )),
    }
}

fn unreadable(error: ColumnError) -> Fault {
    Fault::Unknown(error.to_string())
}

/// The timestamp of a write.
fn timestamp(lock_ref: i64, now_ms: i64) -> Result<i64, Fault> {
    let base = lock_ref.checked_mul(TIMESTAMPS_PER_LOCK_REF);
    let since = now_ms.saturating_sub(EPOCH_MS);
    base.and_then(|base| base.checked_add(since))
        .ok_or_else(|| Fault::NotStarted(format!("there is no timestamp for lockRef {lock_ref}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_lock_ref_has_later_timestamps_until_they_run_out() {
        let now_ms = EPOCH_MS + 260_000_000_000;
        let day_ms = 86_400_000;
        let late = timestamp(7, now_ms + day_ms).unwrap();
        assert!(late < timestamp(8, now_ms).unwrap());
        assert!(timestamp(9_223_372, now_ms).is_err());
    }

    #[test]
    fn no_statement_carries_a_value() {
        let tables = Tables::new(&Keyspace::parse("k").unwrap(), 0xab);
        assert_eq!(tables.lock, "\"k\".\"music_lock_000000ab\"");
        for guard in ["null", "?"] {
            let text = tables.enqueue(guard);
            assert!(!text.contains('\''), "{text}");
        }
        assert_eq!(tables.enqueue("?").matches('?').count(), 9);
    }
}
