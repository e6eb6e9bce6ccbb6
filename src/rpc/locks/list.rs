//! ListLocks: the keys that somebody holds or waits for.

use std::sync::Arc;

use fermata_proto::{ListLocksRequest, ListLocksResponse, LockSummary};
use futures_util::{StreamExt as _, stream};
use prost::Message as _;
use tokio::time::Instant;

use super::describe::fill_in_lease;
use super::merge::{ListedKey, ListedRow, OfHome, merge};
use super::{ASKED_AT_ONCE, asked_within};
use crate::access::Scope;
use crate::engine::{Described, EngineError, KeyFilter, Page, Peer, ServedKeys};
use crate::limits::Limits;
use crate::lock::{Key, ReplicaId};
use crate::rpc::answer;
use crate::rpc::page::{self, Listing};
use crate::rpc::parse::{self, Invalid};
use crate::rpc::peer_proto::{ListKeysResponse, ServedKey};
use crate::rpc::route::Router;
use crate::trace;

/// A ListLocks, parsed.
#[derive(Debug)]
pub struct ListLocks {
    filter: KeyFilter,
    size: usize,
    listing: Listing,
}

impl ListLocks {
    /// Parses its request.
    pub fn parse(ask: ListLocksRequest, limits: &Limits) -> Result<ListLocks, Invalid> {
        let table = parse::table(&ask.table)?;
        trace::record("table", &table);
        let size = page::size(ask.page_size, limits)?;
        let prefix = parse::key_prefix(ask.key_prefix, limits)?;
        let contended = if ask.contended { "contended" } else { "all" };
        let listing = Listing::new("ListLocks", &[table.as_str(), &prefix, contended]);
        let after = page::key_after(&listing, &ask.page_token)?;
        Ok(ListLocks {
            filter: KeyFilter {
                table,
                after,
                prefix,
                contended: ask.contended,
            },
            size,
            listing,
        })
    }

    /// The listed keys.
    pub fn scope(&self) -> Scope<'_> {
        Scope::Prefix(&self.filter.table, &self.filter.prefix)
    }

    /// Lists the keys: with write-back as the live replicas have them, as far as they answer in time.
    pub async fn answer(
        &self,
        router: &Router,
        answer_by: Instant,
    ) -> Result<ListLocksResponse, EngineError> {
        if let Some(protocol) = router.leaderless().of(&self.filter.table) {
            let rows = protocol.list(&self.filter, self.size).await?;
            let listed = Page {
                items: rows.items.iter().map(ListedKey::of).collect(),
                next: rows.next.map(|key| key.to_string()),
            };
            return Ok(self.listed(listed));
        }
        // The rest of the time is for the homes, and for the last look at the rows, which takes as long as it takes.
        let within = answer_by.saturating_duration_since(Instant::now()) / 4;
        let rows = router.engine().list_rows(&self.filter, self.size, within);
        let rows = rows.await?;
        let listed = match router.engine().is_write_back(&self.filter.table) {
            false => Page {
                items: rows.items.iter().map(ListedKey::of).collect(),
                next: rows.next.map(|key| key.to_string()),
            },
            true => {
                let homes = self.homes(router, &rows, answer_by).await?;
                let mut listed = merge(self.rows(rows), homes, self.size);
                for key in &mut listed.items {
                    if let Some(holder) = &mut key.summary.holder {
                        fill_in_lease(router.engine(), holder);
                    }
                }
                listed
            }
        };
        Ok(self.listed(listed))
    }

    fn listed(&self, listed: Page<ListedKey, String>) -> ListLocksResponse {
        let cursor = |key: &ListedKey| key.summary.key.clone();
        let (locks, next) = page::filled(listed, cursor, |key| key.summary);
        ListLocksResponse {
            locks,
            next_page_token: next.map_or_else(String::new, |key| self.listing.token(&key)),
        }
    }

    fn rows(&self, rows: Page<Described, Key>) -> Page<ListedRow, String> {
        let row = |described: &Described| ListedRow {
            home: described.home.as_ref().map(|home| home.id),
            key: ListedKey::of(described),
        };
        Page {
            items: rows.items.iter().map(row).collect(),
            next: rows.next.map(|key| key.to_string()),
        }
    }

    /// The memory of each live replica, read after the rows: no home lists a key whose entries ended before.
    async fn homes(
        &self,
        router: &Router,
        rows: &Page<Described, Key>,
        answer_by: Instant,
    ) -> Result<Vec<OfHome>, EngineError> {
        let here = router.engine().replica();
        let named = rows_of(here, rows);
        let served = router.engine().list_here(&self.filter, self.size, &named);
        let mut homes = vec![OfHome::of(here, &named, &served.await?)];
        let Some(peers) = router.peers() else {
            return Ok(homes);
        };
        let within = asked_within(answer_by);
        let asked = router.engine().live_peers()?.into_iter();
        let asked = asked.map(|peer: Arc<Peer>| async move {
            let named = rows_of(peer.id, rows);
            let answered = peers.list_keys(&peer, &self.filter, self.size, &named, within);
            OfHome::told(peer.id, &named, answered.await?)
        });
        let mut answered = stream::iter(asked).buffer_unordered(ASKED_AT_ONCE);
        while let Some(one) = answered.next().await {
            homes.extend(one);
        }
        Ok(homes)
    }
}

/// The keys whose rows name this home.
fn rows_of(home: ReplicaId, rows: &Page<Described, Key>) -> Vec<Key> {
    let names = |row: &&Described| row.home.as_ref().is_some_and(|of| of.id == home);
    let named = rows.items.iter().filter(names);
    named.map(|row| row.id.key.clone()).collect()
}

impl ListedKey {
    /// As its home has it, or as its row says.
    pub fn of(described: &Described) -> ListedKey {
        ListedKey {
            term: described.home.as_ref().map_or(0, |home| home.term),
            summary: answer::summary(described),
        }
    }
}

impl OfHome {
    /// The answer of a home about the keys whose rows name it; `None` if it cannot be read.
    fn told(home: ReplicaId, named: &[Key], told: ListKeysResponse) -> Option<OfHome> {
        let listed = |key: ServedKey| {
            let summary = LockSummary::decode(key.summary).ok()?;
            let term = key.term;
            Some(ListedKey { term, summary })
        };
        let items: Option<Vec<ListedKey>> = told.keys.into_iter().map(listed).collect();
        let left_out = told.left_out.into_iter();
        let left_out = left_out.filter_map(|at| named.get(usize::try_from(at).ok()?));
        Some(OfHome {
            home,
            keys: Page {
                items: items?,
                next: Some(told.next).filter(|next| !next.is_empty()),
            },
            left_out: left_out.map(Key::to_string).collect(),
        })
    }

    fn of(home: ReplicaId, named: &[Key], served: &ServedKeys) -> OfHome {
        let left_out = served.left_out.iter().filter_map(|at| named.get(*at));
        OfHome {
            home,
            keys: Page {
                items: served.page.items.iter().map(ListedKey::of).collect(),
                next: served.page.next.as_ref().map(Key::to_string),
            },
            left_out: left_out.map(Key::to_string).collect(),
        }
    }
}
