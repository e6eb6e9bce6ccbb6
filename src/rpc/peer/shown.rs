//! What replicas show each other of the keys that they serve, for operators: both sides.

use std::time::Duration;

use fermata_proto::{DescribeLockRequest, DescribeLockResponse, LockSummary};
use prost::Message as _;
use tokio::time::Instant;
use tonic::Status;

use super::proto::{
    DescribeKeyRequest, DescribeKeyResponse, ListKeysRequest, ListKeysResponse, ServedKey,
};
use super::{PeerClient, id_bytes};
use crate::engine::{Engine, KeyFilter, Page, Peer};
use crate::limits::Limits;
use crate::lock::Key;
use crate::rpc::locks::{DescribeLock, ListedKey, OfHome};
use crate::rpc::page::filled;
use crate::rpc::parse::{self, Invalid};
use crate::rpc::status;

impl PeerClient {
    /// The queue of a key, as another replica has it in memory; `None` where that does not serve the key. An error where
    /// it does not say so soon.
    pub async fn describe_key(
        &self,
        to: &Peer,
        ask: &DescribeLockRequest,
        within: Duration,
    ) -> Result<Option<DescribeLockResponse>, String> {
        let message = DescribeKeyRequest {
            to: id_bytes(to.id.0),
            request: ask.encode_to_vec().into(),
        };
        let mut client = self.client(to, false)?;
        let request = self.request(message, Some(Instant::now() + within));
        let answered = client.describe_key(request).await;
        let answer = answered.map_err(|status| status.to_string())?;
        let answer = answer.into_inner().answer;
        if answer.is_empty() {
            return Ok(None);
        }
        let shown = DescribeLockResponse::decode(answer);
        shown.map(Some).map_err(|error| error.to_string())
    }

    /// The keys that another replica serves, by its memory; and which of `rows` it serves and does not list. `None` where
    /// it does not say so soon.
    pub async fn list_keys(
        &self,
        to: &Peer,
        filter: &KeyFilter,
        limit: usize,
        rows: &[Key],
        within: Duration,
    ) -> Option<OfHome> {
        let message = ListKeysRequest {
            to: id_bytes(to.id.0),
            table: filter.table.to_string(),
            after: filter
                .after
                .as_ref()
                .map_or_else(String::new, Key::to_string),
            key_prefix: filter.prefix.clone(),
            contended: filter.contended,
            page_size: u32::try_from(limit).unwrap_or(u32::MAX),
            rows: rows.iter().map(Key::to_string).collect(),
        };
        let mut client = self.client(to, false).ok()?;
        let request = self.request(message, Some(Instant::now() + within));
        let answer = match client.list_keys(request).await {
            Ok(answer) => answer.into_inner(),
            Err(status) => {
                tracing::debug!(replica = %to.id, %status, "another replica did not list its keys");
                return None;
            }
        };
        let listed = |key: ServedKey| {
            let summary = LockSummary::decode(key.summary).ok()?;
            let term = key.term;
            Some(ListedKey { term, summary })
        };
        let items: Option<Vec<ListedKey>> = answer.keys.into_iter().map(listed).collect();
        let items = items?;
        let left_out = answer.left_out.into_iter();
        let left_out = left_out.filter_map(|at| rows.get(usize::try_from(at).ok()?));
        Some(OfHome {
            home: to.id,
            keys: Page {
                items,
                next: Some(answer.next).filter(|next| !next.is_empty()),
            },
            left_out: left_out.map(Key::to_string).collect(),
        })
    }
}

/// The queue of a key, by the memory of this replica.
pub(super) fn describe_key(
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
pub(super) async fn list_keys(
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
    let cursor = |described: &crate::engine::Described| described.id.key.clone();
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
