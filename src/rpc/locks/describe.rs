//! DescribeLock: the queue of one key.

use fermata_proto::{self as proto, DescribeLockRequest, DescribeLockResponse};
use tokio::time::Instant;
use uuid::Uuid;

use super::asked_within;
use crate::engine::{Described, Engine, EngineError, Presence};
use crate::limits::Limits;
use crate::lock::{Fence, KeyId, Seq, SessionId};
use crate::rpc::answer;
use crate::rpc::page::{self, Listing};
use crate::rpc::parse::{self, Invalid};
use crate::rpc::route::Router;

/// A DescribeLock, parsed.
#[derive(Debug)]
pub struct DescribeLock {
    ask: DescribeLockRequest,
    id: KeyId,
    size: usize,
    listing: Listing,
    after: Option<Seq>,
}

impl DescribeLock {
    /// Parses its request.
    pub fn parse(ask: DescribeLockRequest, limits: &Limits) -> Result<DescribeLock, Invalid> {
        let id = parse::key_id(&ask.key, &ask.table, limits)?;
        let size = page::size(ask.page_size, limits)?;
        let listing = Listing::new("DescribeLock", &[id.table.as_str(), id.key.as_str()]);
        let after = listing.after::<u64>(&ask.page_token)?.map(Seq);
        Ok(DescribeLock {
            ask,
            id,
            size,
            listing,
            after,
        })
    }

    /// What it asks about.
    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// Shows the key from the memory of its home, or from its row if the home does not answer in time.
    pub async fn answer(
        &self,
        router: &Router,
        answer_by: Instant,
    ) -> Result<DescribeLockResponse, EngineError> {
        if let Some(protocol) = router.leaderless().of(&self.id.table) {
            let described = protocol.describe(&self.id).await?;
            let kind = protocol.kind();
            return Ok(DescribeLockResponse {
                protocol: kind.name().to_owned(),
                unfenced: !kind.has_fence(),
                unordered: !kind.has_order(),
                ..self.shown(&described)
            });
        }
        if let Some(shown) = self.answer_here(router.engine())? {
            return Ok(shown);
        }
        let row = router.engine().describe_row(&self.id).await?;
        let home = row.home.as_ref();
        let home = home.map(|home| router.engine().presence(home.id));
        if let (Some(Presence::Live(peer)), Some(peers)) = (home, router.peers()) {
            let asking = peers.describe_key(&peer, &self.ask, asked_within(answer_by));
            match asking.await {
                Ok(Some(mut shown)) => {
                    fill_in_leases(router.engine(), &mut shown);
                    return Ok(shown);
                }
                // It has no memory of the key, or the key changed its home meanwhile.
                Ok(None) => {}
                Err(why) => {
                    tracing::debug!(replica = %peer.id, why, "the home of a key did not describe the key");
                }
            }
        }
        Ok(self.shown(&row))
    }

    /// Shows the key from the memory of this replica; `None` if it does not serve the key.
    pub fn answer_here(
        &self,
        engine: &Engine,
    ) -> Result<Option<DescribeLockResponse>, EngineError> {
        let described = engine.describe_here(&self.id)?;
        Ok(described.map(|described| self.shown(&described)))
    }

    fn shown(&self, described: &Described) -> DescribeLockResponse {
        let (waiters, more) = page::fill(answer::waiters(described, self.after), self.size);
        let last = waiters.last().filter(|_| more);
        let next_page_token = last.map_or_else(String::new, |last| {
            self.listing.token(&last.seq.to_string())
        });
        let state = &described.state;
        // The fence is the grant, or more after it was extended; without a holder only it is kept.
        let last_fencing_token = if state.grant == Fence::NONE {
            state.fence.0
        } else {
            state.grant.0
        };
        let ended = state.ended.entries.iter();
        DescribeLockResponse {
            table: self.id.table.to_string(),
            key: self.id.key.to_string(),
            holders: answer::holder(described).into_iter().collect(),
            waiters,
            waiter_count: answer::waiter_count(state),
            unsynced: state.unsynced,
            last_fencing_token: if described.has_fence {
                last_fencing_token
            } else {
                0
            },
            ended: ended.map(|entry| answer::ended(&self.id, entry)).collect(),
            next_page_token,
            from_row: described.from_row,
            home: described.home.as_ref().map(answer::key_home),
            protocol: "home".to_owned(),
            unfenced: false,
            unordered: false,
        }
    }
}

/// Of sessions the home may know less than this replica, which keeps some of them.
fn fill_in_leases(engine: &Engine, shown: &mut DescribeLockResponse) {
    let entries = shown.holders.iter_mut().chain(&mut shown.waiters);
    for entry in entries {
        fill_in_lease(engine, entry);
    }
}

pub(super) fn fill_in_lease(engine: &Engine, entry: &mut proto::QueueEntry) {
    if entry.lease_left.is_some() || entry.session_id.is_empty() {
        return;
    }
    let Ok(session) = Uuid::try_parse(&entry.session_id) else {
        return;
    };
    if let Some(lease) = engine.session_left(SessionId(session)) {
        entry.ttl = Some(answer::duration(lease.ttl));
        entry.lease_left = Some(answer::duration(lease.left));
    }
}
