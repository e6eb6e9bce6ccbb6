//! What replicas ask each other through the store (I10). A hand-over request and the agreement to it are written once
//! each, by different replicas into different cells, so that nothing depends on which write is the later one.

use super::CassandraStore;
use super::codec::{bigint, number};
use super::statements::Ask;
use super::value::{Row, Value, present};
use crate::lock::{Fence, Key, KeyId, ReplicaId, Seq, SessionId, TableName};
use crate::store::{HandOverRequest, HandOverTarget, StoreError};

/// How many hand-over requests are answered with at once.
const HAND_OVER_REQUESTS_MAX: usize = 500;

impl CassandraStore {
    pub(super) async fn put_hand_over_request(
        &self,
        request: &HandOverRequest,
    ) -> Result<(), StoreError> {
        let mut values = vec![Value::Uuid(request.home.0), Value::Uuid(request.id)];
        values.extend(match &request.target {
            // Without an epoch: a version of this program that does not know it passes over it in silence.
            HandOverTarget::Key { key, version } => [
                Value::text(key.table.as_str()),
                Value::text(key.key.as_str()),
                Value::BigInt(bigint(*version)?),
                Value::Unset,
                Value::Unset,
                Value::Unset,
            ],
            HandOverTarget::Entry {
                key,
                seq,
                fence,
                epoch,
            } => [
                Value::text(key.table.as_str()),
                Value::text(key.key.as_str()),
                Value::BigInt(bigint(seq.0)?),
                Value::BigInt(bigint(fence.0)?),
                Value::Int(epoch.cast_signed()),
                Value::Unset,
            ],
            HandOverTarget::Session { session, epoch } => [
                Value::Unset,
                Value::Unset,
                Value::Unset,
                Value::Unset,
                Value::Int(epoch.cast_signed()),
                Value::Uuid(session.0),
            ],
        });
        self.ask(Ask::PutHandOverRequest, &values).await?;
        Ok(())
    }

    /// Those that were not answered. Answered ones stand among them for as long as they are kept, so all pages are
    /// looked at until enough are found.
    pub(super) async fn open_hand_over_requests(
        &self,
        home: ReplicaId,
    ) -> Result<Vec<HandOverRequest>, StoreError> {
        let statement = self.statement(Ask::HandOverRequests).await?;
        let values = [Value::Uuid(home.0)];
        let page_rows = i32::from(self.page_rows);
        let mut hand_over_requests = Vec::new();
        let mut next = None;
        loop {
            let page = self.driver.page(&statement, &values, page_rows, next);
            let (rows, more) = page.await?;
            for row in rows {
                if hand_over_requests.len() == HAND_OVER_REQUESTS_MAX {
                    return Ok(hand_over_requests);
                }
                hand_over_requests.extend(decode(home, row)?);
            }
            match more {
                Some(more) => next = Some(more),
                None => return Ok(hand_over_requests),
            }
        }
    }

    pub(super) async fn write_hand_over(
        &self,
        request: &HandOverRequest,
        agreed: bool,
    ) -> Result<(), StoreError> {
        let values = [
            Value::Boolean(agreed),
            Value::Uuid(request.home.0),
            Value::Uuid(request.id),
        ];
        self.ask(Ask::HandOver, &values).await?;
        Ok(())
    }

    pub(super) async fn read_hand_over(
        &self,
        request: &HandOverRequest,
    ) -> Result<Option<bool>, StoreError> {
        let values = [Value::Uuid(request.home.0), Value::Uuid(request.id)];
        let rows = self.ask(Ask::HandOverAgreed, &values).await?;
        let Some(mut row) = rows.into_iter().next() else {
            return Ok(None);
        };
        row.boolean("agreed")
    }
}

/// `None` for one that was answered, for what is left of one whose cells expire, and for one that this
/// version does not understand: it must not keep the others from being answered.
pub(super) fn decode(home: ReplicaId, mut row: Row) -> Result<Option<HandOverRequest>, StoreError> {
    let id = present(row.uuid("id")?, "id")?;
    if row.boolean("agreed")?.is_some() {
        return Ok(None);
    }
    let Some(epoch) = row.int("epoch")?.map(i32::cast_unsigned) else {
        let target = looked_at(row)?;
        return Ok(target.map(|target| HandOverRequest { id, home, target }));
    };
    let target = match row.uuid("session")? {
        Some(session) => {
            let session = SessionId(session);
            Some(HandOverTarget::Session { session, epoch })
        }
        None => entry(row, epoch)?,
    };
    if target.is_none() {
        tracing::warn!(%id, "ignoring a hand-over request that cannot be read");
    }
    Ok(target.map(|target| HandOverRequest { id, home, target }))
}

/// Its version stands where an entry has its seq.
fn looked_at(mut row: Row) -> Result<Option<HandOverTarget>, StoreError> {
    let version = row.bigint("seq")?.and_then(|version| number(version).ok());
    let key = key_of(&mut row)?;
    let target = key.zip(version);
    Ok(target.map(|(key, version)| HandOverTarget::Key { key, version }))
}

fn key_of(row: &mut Row) -> Result<Option<KeyId>, StoreError> {
    let table = row.text("table_name")?;
    let table = table.and_then(|table| TableName::parse(&table).ok());
    let key = row.text("key")?;
    let key = key.and_then(|key| Key::parse(&key, Key::BYTES_MAX).ok());
    Ok(table.zip(key).map(|(table, key)| KeyId { table, key }))
}

fn entry(mut row: Row, epoch: u32) -> Result<Option<HandOverTarget>, StoreError> {
    let seq = row.bigint("seq")?.and_then(|seq| number(seq).ok());
    let fence = row.bigint("fence")?.and_then(|fence| number(fence).ok());
    let (Some(key), Some(seq), Some(fence)) = (key_of(&mut row)?, seq, fence) else {
        return Ok(None);
    };
    Ok(Some(HandOverTarget::Entry {
        key,
        seq: Seq(seq),
        fence: Fence(fence),
        epoch,
    }))
}
