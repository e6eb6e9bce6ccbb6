//! Hand-over requests between replicas (H4): a partition for each home, a row for each request. All columns of a row are its key,
//! so a repeated request only lives longer.

use super::codec::{bigint, number};
use fermata_cassandra::{Row, Value, present};
use uuid::Uuid;

use crate::lock::{Key, KeyId, ReplicaId, SessionId, TableName};
use crate::store::{HandOverRequest, HandOverSubject, StoreError};

/// Stands where a request names a session and not a key; no table has this name.
const NO_TABLE: &str = "";
pub(super) fn values(request: &HandOverRequest) -> Result<[Value; 5], StoreError> {
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
