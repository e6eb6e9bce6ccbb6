//! What replicas ask each other through the store (H4): one partition a home, a row a request. All of a row is its key, so
//! sending a request again changes nothing but how long it is kept.

use super::CassandraStore;
use super::codec::{bigint, number};
use super::statements::Cql;
use fermata_cassandra::{Row, Value, present};
use uuid::Uuid;

use crate::lock::{Key, KeyId, ReplicaId, SessionId, TableName};
use crate::store::{HandOverRequest, HandOverSubject, StoreError};

/// Stands where a request names a session and not a key; no table has this name.
const NO_TABLE: &str = "";
/// How many hand-over requests are answered with at once.
const HAND_OVER_REQUESTS_MAX: usize = 500;

fn values(request: &HandOverRequest) -> Result<[Value; 5], StoreError> {
    let (table, name, number) = match &request.subject {
        HandOverSubject::Key { key, term } => {
            (key.table.as_str(), key.key.to_string(), bigint(*term)?)
        }
        HandOverSubject::Session { session, epoch } => {
            (NO_TABLE, session.to_string(), i64::from(*epoch))
        }
    };
    Ok([
        Value::Uuid(request.home.0),
        Value::text(table),
        Value::text(&name),
        Value::BigInt(number),
        Value::Uuid(request.to.0),
    ])
}

impl CassandraStore {
    pub(super) async fn put_hand_over_request(
        &self,
        request: &HandOverRequest,
    ) -> Result<(), StoreError> {
        self.ask(Cql::RequestHandOver, &values(request)?).await?;
        Ok(())
    }

    /// Some of those that are there: who answers and forgets these comes to the others.
    pub(super) async fn hand_over_requests_of(
        &self,
        home: ReplicaId,
    ) -> Result<Vec<HandOverRequest>, StoreError> {
        let statement = self.statement(Cql::HandOverRequests).await?;
        let values = [Value::Uuid(home.0)];
        let page_rows = i32::from(self.page_rows);
        let mut requests = Vec::new();
        let mut next = None;
        loop {
            let page = self.cluster.page(&statement, &values, page_rows, next);
            let (rows, more) = page.await?;
            for row in rows {
                if requests.len() == HAND_OVER_REQUESTS_MAX {
                    return Ok(requests);
                }
                requests.extend(decode(home, row)?);
            }
            match more {
                Some(more) => next = Some(more),
                None => return Ok(requests),
            }
        }
    }

    pub(super) async fn delete_hand_over_request(
        &self,
        request: &HandOverRequest,
    ) -> Result<(), StoreError> {
        self.ask(Cql::ForgetHandOverRequest, &values(request)?)
            .await?;
        Ok(())
    }
}

/// `None` for one that names no key of ours: it must not keep the others from being answered.
pub(super) fn decode(home: ReplicaId, mut row: Row) -> Result<Option<HandOverRequest>, StoreError> {
    let table = present(row.text("table_name")?, "table_name")?;
    let key = present(row.text("key")?, "key")?;
    let term = present(row.bigint("term")?, "term")?;
    let to = ReplicaId(present(row.uuid("to")?, "to")?);
    let subject = match table.as_str() {
        NO_TABLE => session_of(&key, term),
        table => key_of(table, &key, term),
    };
    let Some(subject) = subject else {
        tracing::warn!(%home, %to, "ignoring a hand-over request that cannot be read");
        return Ok(None);
    };
    Ok(Some(HandOverRequest { home, subject, to }))
}

fn key_of(table: &str, key: &str, term: i64) -> Option<HandOverSubject> {
    let table = TableName::parse(table).ok()?;
    let key = Key::parse(key, Key::BYTES_MAX).ok()?;
    Some(HandOverSubject::Key {
        key: KeyId { table, key },
        term: number(term).ok()?,
    })
}

fn session_of(session: &str, epoch: i64) -> Option<HandOverSubject> {
    Some(HandOverSubject::Session {
        session: SessionId(Uuid::parse_str(session).ok()?),
        epoch: u32::try_from(epoch).ok()?,
    })
}
