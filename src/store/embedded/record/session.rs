//! A session.

use super::{RecordError, decode, encode, uuid};
use crate::lock::{ReplicaId, SessionId};
use crate::store::SessionRow;

/// Its id is the row's key.
#[derive(Clone, PartialEq, prost::Message)]
struct Row {
    #[prost(uint32, tag = "1")]
    ttl_ms: u32,
    #[prost(bytes = "vec", tag = "2")]
    replica: Vec<u8>,
    #[prost(uint32, tag = "3")]
    epoch: u32,
    #[prost(bool, tag = "4")]
    open: bool,
    #[prost(string, tag = "5")]
    identity: String,
    #[prost(string, tag = "6")]
    owner: String,
    #[prost(sint64, tag = "7")]
    created_at_ms: i64,
    #[prost(uint32, tag = "8")]
    disconnect_grace_ms: u32,
}

pub(in crate::store::embedded) fn encode_session(session: &SessionRow) -> Vec<u8> {
    encode(&Row {
        ttl_ms: session.ttl_ms,
        replica: session.replica.0.as_bytes().to_vec(),
        epoch: session.epoch,
        open: session.open,
        identity: session.identity.clone(),
        owner: session.owner.clone(),
        created_at_ms: session.created_at_ms,
        disconnect_grace_ms: session.disconnect_grace_ms,
    })
}

pub(in crate::store::embedded) fn decode_session(
    id: SessionId,
    row: &[u8],
) -> Result<SessionRow, RecordError> {
    let row: Row = decode(row)?;
    if row.epoch == 0 {
        return Err(RecordError::new("its epoch is 0"));
    }
    Ok(SessionRow {
        id,
        ttl_ms: row.ttl_ms,
        disconnect_grace_ms: row.disconnect_grace_ms,
        replica: ReplicaId(uuid(&row.replica, "replica")?),
        epoch: row.epoch,
        open: row.open,
        identity: row.identity,
        owner: row.owner,
        created_at_ms: row.created_at_ms,
    })
}
