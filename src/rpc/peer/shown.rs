//! The keys that another replica serves, for operators.

use std::time::Duration;

use fermata_proto::{DescribeLockRequest, DescribeLockResponse};
use prost::Message as _;
use tokio::time::Instant;

use super::{PeerClient, id_bytes};
use crate::engine::{KeyFilter, Peer};
use crate::lock::Key;
use crate::rpc::peer_proto::{DescribeKeyRequest, ListKeysRequest, ListKeysResponse};

impl PeerClient {
    /// The queue of a key, from the memory of another replica; `None` if that replica does not serve the key. An error if no
    /// answer comes in time.
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

    /// The keys that another replica serves, from its memory, and which of `rows` it serves and does not list. `None` if no
    /// answer comes in time.
    pub async fn list_keys(
        &self,
        to: &Peer,
        filter: &KeyFilter,
        limit: usize,
        rows: &[Key],
        within: Duration,
    ) -> Option<ListKeysResponse> {
        let after = filter.after.as_ref();
        let message = ListKeysRequest {
            to: id_bytes(to.id.0),
            table: filter.table.to_string(),
            after: after.map_or_else(String::new, Key::to_string),
            key_prefix: filter.prefix.clone(),
            contended: filter.contended,
            page_size: u32::try_from(limit).unwrap_or(u32::MAX),
            rows: rows.iter().map(Key::to_string).collect(),
        };
        let mut client = self.client(to, false).ok()?;
        let request = self.request(message, Some(Instant::now() + within));
        match client.list_keys(request).await {
            Ok(answer) => Some(answer.into_inner()),
            Err(status) => {
                tracing::debug!(replica = %to.id, %status, "another replica did not list its keys");
                None
            }
        }
    }
}
