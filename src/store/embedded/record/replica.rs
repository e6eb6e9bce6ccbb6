//! A replica.

use super::{RecordError, decode, encode};
use crate::lock::ReplicaId;
use crate::store::ReplicaRow;

/// Its id is the row's key.
#[derive(Clone, PartialEq, prost::Message)]
struct Row {
    #[prost(string, tag = "1")]
    address: String,
    #[prost(string, tag = "2")]
    version: String,
    #[prost(sint64, tag = "3")]
    started_at_ms: i64,
    #[prost(string, tag = "4")]
    peer_address: String,
    #[prost(uint32, tag = "5")]
    ttl_ms: u32,
}

pub(in crate::store::embedded) fn encode_replica(replica: &ReplicaRow) -> Vec<u8> {
    encode(&Row {
        address: replica.address.clone(),
        version: replica.version.clone(),
        started_at_ms: replica.started_at_ms,
        peer_address: replica.peer_address.clone(),
        ttl_ms: replica.ttl_ms,
    })
}

pub(in crate::store::embedded) fn decode_replica(
    id: ReplicaId,
    row: &[u8],
) -> Result<ReplicaRow, RecordError> {
    let Row {
        address,
        version,
        started_at_ms,
        peer_address,
        ttl_ms,
    } = decode(row)?;
    Ok(ReplicaRow {
        id,
        address,
        peer_address,
        version,
        started_at_ms,
        ttl_ms,
        heartbeat: 0,
        stopped: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn a_replica_reads_back() {
        let replica = ReplicaRow {
            id: ReplicaId(Uuid::from_u128(1)),
            address: "[::1]:7400".to_owned(),
            peer_address: "replica-1:7451".to_owned(),
            version: "0.1.0".to_owned(),
            started_at_ms: 1,
            ttl_ms: 10_000,
            heartbeat: 0,
            stopped: false,
        };
        let row = encode_replica(&replica);
        assert_eq!(decode_replica(replica.id, &row), Ok(replica));
    }
}
