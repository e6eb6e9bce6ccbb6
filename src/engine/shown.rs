//! Keys as operators see them: from the memory of this replica if it is their home, and from their rows.
//!
//! The caller merges both. Nothing here asks another replica or changes a home.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::api::{
    Described, DescribedEntry, EngineError, KeyFilter, KeyHome, LeaseLeft, Page, ServedKeys,
};
use super::calls::Engine;
use super::peers::Presence;
use super::replica::Replica;
use super::slot::{KeyCell, Slot};
use crate::key::{CommitMode, Entry, Home, KeyState};
use crate::lock::{Key, KeyId, Liveness, SessionId, TableName};

/// Rows that one call reads to fill its page, at most.
const ROWS_READ_MAX: usize = 10_000;
/// Rows of one read if the page leaves some out …
const ROWS_AT_ONCE: usize = 1_000;
/// … and of the first read: queues may be long.
const ROWS_AT_FIRST: usize = 64;
/// Entries that one call reads, at most: a page of long queues is short.
const ENTRIES_MAX: usize = 100_000;
/// Entries in one read above which the next one has fewer rows.
const ENTRIES_AT_ONCE: usize = 10_000;
/// Keys in memory between two yields to other tasks.
const KEYS_AT_ONCE: usize = 1_024;

impl KeyFilter {
    fn fits_name(&self, table: &TableName, key: &Key) -> bool {
        *table == self.table
            && self.after.as_ref().is_none_or(|after| key > after)
            && key.as_str().starts_with(&self.prefix)
    }

    fn fits_queue(&self, state: &KeyState) -> bool {
        state.entries.len() > usize::from(self.contended)
    }
}

impl Engine {
    /// Whether homes of this table's keys know more than their rows.
    pub fn is_write_back(&self, table: &TableName) -> bool {
        self.current()
            .is_ok_and(|replica| replica.shell.commits.is_write_back(table))
    }

    /// Shows one key from its row, even if it was never locked.
    pub async fn describe_row(&self, id: &KeyId) -> Result<Described, EngineError> {
        let replica = self.current()?;
        let id = self.id_of(id.clone())?;
        let state = replica.store.keys.load(&id).await;
        let state = state.map_err(EngineError::of_store)?;
        Ok(replica.described_row(KeyId::clone(&id), state.unwrap_or_default()))
    }

    /// Shows one key from the memory of this replica; `None` if it does not serve the key.
    pub fn describe_here(&self, id: &KeyId) -> Result<Option<Described>, EngineError> {
        let replica = self.current()?;
        let id = self.id_of(id.clone())?;
        let described = replica.shell.keys.find(&id);
        let described = described.and_then(|cell| replica.described_here(&cell, &cell.slot()));
        replica.local.sure()?;
        Ok(described)
    }

    /// The rest of a session's lease, if this replica keeps it.
    pub fn session_left(&self, session: SessionId) -> Option<LeaseLeft> {
        self.current().ok()?.session_left(session)
    }

    /// Lists rows with live entries, `limit` at most. A page before the last one may be short or empty: reading ends at a bound
    /// of rows and entries, and once `within` has passed.
    pub async fn list_rows(
        &self,
        filter: &KeyFilter,
        limit: usize,
        within: Duration,
    ) -> Result<Page<Described, Key>, EngineError> {
        let replica = self.current()?;
        let limit = self.page_of(filter, limit)?;
        // One read may pass over the whole table, however few rows it asks for.
        let most_at_once = match filter.contended {
            true => limit.max(ROWS_AT_ONCE),
            false => limit,
        };
        let mut at_once = most_at_once.min(ROWS_AT_FIRST);
        let until = replica.local.clock.boot().saturating_add(within);
        let mut after = filter.after.clone();
        let mut items = Vec::new();
        let (mut rows_read, mut entries_read) = (0, 0);
        loop {
            let listed = replica
                .store
                .keys
                .list_live(&filter.table, &filter.prefix, after.as_ref(), at_once)
                .await
                .map_err(EngineError::of_store)?;
            let is_last = listed.len() < at_once;
            rows_read += listed.len();
            let entries = listed.iter().map(|one| one.state.entries.len());
            let entries: usize = entries.sum();
            entries_read += entries;
            at_once = match entries >= ENTRIES_AT_ONCE {
                true => (at_once / 2).max(1),
                false => (at_once * 2).min(most_at_once),
            };
            for one in listed {
                if items.len() == limit {
                    return Ok(Page { items, next: after });
                }
                after = Some(one.key.clone());
                if filter.fits_queue(&one.state) {
                    let id = KeyId {
                        table: filter.table.clone(),
                        key: one.key,
                    };
                    items.push(replica.described_row(id, one.state));
                }
            }
            if is_last {
                return Ok(Page { items, next: None });
            }
            let is_late = replica.local.clock.boot() >= until;
            let is_enough = rows_read >= ROWS_READ_MAX || entries_read >= ENTRIES_MAX;
            if items.len() == limit || is_enough || is_late {
                return Ok(Page { items, next: after });
            }
        }
    }

    /// Lists keys with live entries from the memory of this replica, their home, `limit` at most. Names the `rows` that it
    /// serves and does not list.
    pub async fn list_here(
        &self,
        filter: &KeyFilter,
        limit: usize,
        rows: &[Key],
    ) -> Result<ServedKeys, EngineError> {
        let replica = self.current()?;
        let limit = self.page_of(filter, limit)?;
        let mut first: BTreeMap<Key, Arc<KeyCell>> = BTreeMap::new();
        for (looked_at, cell) in replica.shell.keys.all().enumerate() {
            if looked_at % KEYS_AT_ONCE == 0 {
                tokio::task::yield_now().await;
            }
            let key = &cell.id.key;
            let is_far = first.len() > limit && first.keys().next_back().is_some_and(|l| key > l);
            if is_far
                || !filter.fits_name(&cell.id.table, key)
                || cell.idle_since().is_some()
                || replica.is_listed(filter, &cell.slot()) != Some(true)
            {
                continue;
            }
            first.insert(key.clone(), Arc::clone(&cell));
            if first.len() > limit + 1 {
                first.pop_last();
            }
        }
        let has_more = first.len() > limit;
        if has_more {
            first.pop_last();
        }
        let mut next = match has_more {
            true => first.keys().next_back().cloned(),
            false => None,
        };
        let (mut items, mut entries) = (Vec::new(), 0);
        for (key, cell) in &first {
            tokio::task::consume_budget().await;
            let described = replica.described_here(cell, &cell.slot());
            entries += described.as_ref().map_or(0, |one| one.entries.len());
            items.extend(described);
            if entries >= ENTRIES_MAX && first.keys().next_back() != Some(key) {
                next = Some(key.clone());
                break;
            }
        }
        let is_left_out = |key: &Key| {
            let id = KeyId {
                table: filter.table.clone(),
                key: key.clone(),
            };
            let cell = replica.shell.keys.find(&id);
            cell.is_some_and(|cell| replica.is_listed(filter, &cell.slot()) == Some(false))
        };
        let left_out = rows.iter().enumerate();
        let left_out = left_out.filter_map(|(at, key)| is_left_out(key).then_some(at));
        let left_out = left_out.collect();
        replica.local.sure()?;
        let page = Page { items, next };
        Ok(ServedKeys { page, left_out })
    }

    /// The size of a page, after a check of the table.
    fn page_of(&self, filter: &KeyFilter, limit: usize) -> Result<usize, EngineError> {
        match self.shared.tables.contains(&filter.table) {
            true => Ok(limit.clamp(1, self.shared.limits.page_size_max)),
            false => Err(EngineError::UnknownTable(filter.table.to_string())),
        }
    }
}

impl Replica {
    /// Whether this replica lists a key; `None` if it does not serve it.
    fn is_listed(&self, filter: &KeyFilter, slot: &Slot) -> Option<bool> {
        let mode = self.shell.commits.mode(&filter.table);
        Some(filter.fits_queue(slot.machine.shown(mode)?))
    }

    fn described_here(&self, cell: &KeyCell, slot: &Slot) -> Option<Described> {
        let mode = self.shell.commits.mode(&cell.id.table);
        let state = slot.machine.shown(mode)?;
        let entry = |entry: &Arc<Entry>| DescribedEntry {
            durable: match mode {
                CommitMode::WriteThrough => state.keeps(entry.seq),
                CommitMode::WriteBack(_) => slot.machine.is_durable(entry.seq),
            },
            lease: self.lease_left(slot, entry),
        };
        Some(Described {
            has_fence: true,
            id: KeyId::clone(&cell.id),
            from_row: false,
            home: state.home.map(|home| self.key_home(home)),
            entries: state.entries.iter().map(entry).collect(),
            state: KeyState::clone(state),
        })
    }

    fn described_row(&self, id: KeyId, state: KeyState) -> Described {
        let cell = self.shell.keys.find(&id);
        let slot = cell.as_ref().map(|cell| cell.slot());
        let entry = |entry: &Arc<Entry>| DescribedEntry {
            durable: state.keeps(entry.seq),
            lease: match &slot {
                Some(slot) => self.lease_left(slot, entry),
                None => self.left_in_session(entry),
            },
        };
        let entries = state.entries.iter().map(entry).collect();
        Described {
            has_fence: true,
            id,
            from_row: true,
            home: state.home.map(|home| self.key_home(home)),
            entries,
            state,
        }
    }

    fn lease_left(&self, slot: &Slot, entry: &Entry) -> Option<LeaseLeft> {
        match entry.liveness {
            Liveness::Own { .. } => {
                let left = slot.machine.lease_left(entry.seq, self.shell.time.now());
                left.map(|(ttl, left)| LeaseLeft { ttl, left })
            }
            Liveness::Session(_) => self.left_in_session(entry),
        }
    }

    fn left_in_session(&self, entry: &Entry) -> Option<LeaseLeft> {
        match entry.liveness {
            Liveness::Own { .. } => None,
            Liveness::Session(session) => self.session_left(session),
        }
    }

    fn session_left(&self, session: SessionId) -> Option<LeaseLeft> {
        let left = self.sessions.table.left(session, self.shell.time.now());
        left.map(|(ttl, left)| LeaseLeft { ttl, left })
    }

    fn key_home(&self, home: Home) -> KeyHome {
        let address = match self.local.presence(home.replica) {
            Presence::Local => self.row.address.clone(),
            Presence::Live(peer) => peer.address.clone(),
            Presence::Suspected | Presence::Down | Presence::Unsure => String::new(),
        };
        KeyHome {
            id: home.replica,
            address,
            term: home.term,
        }
    }
}
