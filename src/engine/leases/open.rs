//! Calls that keep a lease alive for as long as they are open.
//!
//! Those of a session are counted beside its lease: a session goes from replica to replica, and a call that is open
//! here keeps it alive wherever it is kept, for as long as it is open.

use std::sync::Arc;

use super::{LeaseKey, Leases, NoLease, Table};
use crate::lock::SessionId;

/// A call that keeps a lease alive for as long as this lives.
pub(in super::super) struct OpenCall {
    leases: Arc<Leases>,
    key: LeaseKey,
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let (mut table, now) = self.leases.table_now();
        if let Some(lease) = table.lease(&self.key) {
            lease.close_call(now);
        }
        if let LeaseKey::Session(session) = &self.key {
            table.close(*session);
            // Its client may be disconnected, which did not matter meanwhile.
            table.fire_sooner(*session, now);
        }
    }
}

impl Leases {
    /// A call that keeps a lease alive for as long as the guard lives; of a session that is not kept here only
    /// where it `may_be_elsewhere`.
    pub fn open_call(
        self: &Arc<Self>,
        key: &LeaseKey,
        may_be_elsewhere: bool,
    ) -> Result<OpenCall, NoLease> {
        let (mut table, now) = self.table_now();
        match (table.lease(key), key) {
            (Some(lease), _) => {
                if !lease.open_call(now) {
                    return Err(NoLease::Ended);
                }
            }
            (None, LeaseKey::Session(_)) if may_be_elsewhere => {}
            (None, _) => return Err(NoLease::Unknown),
        }
        if let LeaseKey::Session(session) = key {
            *table.open.entry(*session).or_insert(0) += 1;
        }
        drop(table);
        Ok(OpenCall {
            leases: Arc::clone(self),
            key: key.clone(),
        })
    }

    /// Whether a call is open here that keeps this session alive.
    pub fn has_open_call(&self, session: SessionId) -> bool {
        self.table_now().0.open_calls(session) > 0
    }
}

impl Table {
    pub(super) fn open_calls(&self, session: SessionId) -> u32 {
        self.open.get(&session).copied().unwrap_or(0)
    }

    fn close(&mut self, session: SessionId) {
        if let Some(calls) = self.open.get_mut(&session) {
            *calls = calls.saturating_sub(1);
            if *calls == 0 {
                self.open.remove(&session);
            }
        }
        if self.open.capacity() > 64 && self.open.len() < self.open.capacity() / 8 {
            self.open.shrink_to_fit();
        }
    }
}
