//! The keys that this replica serves, from its memory, for other replicas.

use fermata_proto::DescribeLockRequest;
use prost::Message as _;
use tonic::Status;

use super::{DescribeLock, ListedKey};
use crate::engine::{Described, Engine, KeyFilter};
use crate::limits::Limits;
use crate::lock::Key;
use crate::rpc::page::filled;
use crate::rpc::parse::{self, Invalid};
use crate::rpc::peer_proto::{
    DescribeKeyRequest, DescribeKeyResponse, ListKeysRequest, ListKeysResponse, ServedKey,
};
use crate::rpc::status;

/// The queue of a key, by the memory of this replica.
pub fn describe_served(
    engine: &Engine,
    limits: &Limits,
    ask: DescribeKeyRequest,
) -> Result<DescribeKeyResponse, Status> {
    let describe = DescribeLockRequest::decode(ask.request)
        .map_err(|error| fermata_proto::codec::of_undecodable(&error))?;
    let describe = DescribeLock::parse(describe, limits)?;
    let shown = describe.answer_here(engine);
    let shown = shown.map_err(|error| status::of_engine(&error))?;
    let answer = shown.map_or_else(Vec::new, |shown| shown.encode_to_vec());
    Ok(DescribeKeyResponse {
        answer: answer.into(),
    })
}

/// The keys that this replica serves, by its memory.
pub async fn list_served(
    engine: &Engine,
    limits: &Limits,
    ask: ListKeysRequest,
) -> Result<ListKeysResponse, Status> {
    let filter = KeyFilter {
        table: parse::table(&ask.table)?,
        after: match ask.after.is_empty() {
            true => None,
            false => Some(parse::key_in("after", &ask.after, limits)?),
        },
        prefix: parse::key_prefix(ask.key_prefix, limits)?,
        contended: ask.contended,
    };
    let rows = ask.rows.iter().take(limits.page_size_max);
    let rows: Result<Vec<Key>, Invalid> =
        rows.map(|row| parse::key_in("rows", row, limits)).collect();
    let limit = usize::try_from(ask.page_size).unwrap_or(usize::MAX);
    let served = engine.list_here(&filter, limit, &rows?).await;
    let served = served.map_err(|error| status::of_engine(&error))?;
    let cursor = |described: &Described| described.id.key.clone();
    let (keys, next) = filled(served.page, cursor, |described| {
        let listed = ListedKey::of(&described);
        ServedKey {
            term: listed.term,
            summary: listed.summary.encode_to_vec().into(),
        }
    });
    let left_out = served.left_out.into_iter();
    Ok(ListKeysResponse {
        keys,
        next: next.map_or_else(String::new, |next| next.to_string()),
        left_out: left_out.filter_map(|at| u32::try_from(at).ok()).collect(),
    })
}
