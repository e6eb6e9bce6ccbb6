//! The end of a session: its entries on this replica end, then its memory goes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;

use super::registry::Sessions;
use super::table::RowOfDone;
use crate::engine::limits::STORE_OPS_AT_ONCE;
use crate::key::machine::Event;
use crate::lock::SessionId;

impl Sessions {
    /// Tells the keys with entries of a session that it has ended.
    pub fn end_entries(&self, session: SessionId) {
        self.notify_keys(session, &Event::SessionEnded(session));
        self.forget_if_done(session);
    }

    /// Tells the keys with entries of a session its TTL.
    pub(super) fn note_ttl(&self, session: SessionId, ttl: Duration) {
        self.notify_keys(session, &Event::SessionTtl { session, ttl });
    }

    fn notify_keys(&self, session: SessionId, event: &Event) {
        // The shell owns the cells: once it is gone, no key has entries.
        let Some(keys) = self.keys.upgrade() else {
            return;
        };
        for id in self.table.keys_of(session) {
            Arc::clone(&keys).notify(&id, event.clone());
        }
    }

    /// Forgets an ended session without entries, and its row a TTL after that.
    pub fn forget_if_done(&self, session: SessionId) {
        let ttl = self.table.ttl_of(session).unwrap_or_default();
        match self.table.remove_if_done(session) {
            RowOfDone::Goes => {}
            // Its entries must not join a new session of the same id: the row stays until all keys are taken over.
            RowOfDone::GoesOnceRecovered if *self.local.recovered.borrow() => {}
            RowOfDone::Stays | RowOfDone::GoesOnceRecovered => return,
        }
        self.keep_closed(session, ttl);
    }

    /// Keeps the row of an ended session without entries for a TTL.
    pub fn keep_closed(&self, session: SessionId, ttl: Duration) {
        let until = self.local.clock.boot().saturating_add(ttl);
        self.closed_rows.add(session, until);
    }

    /// Deletes the rows that are due.
    pub fn delete_closed(&self) {
        let due = self.closed_rows.take_due(self.local.clock.boot());
        if due.is_empty() {
            return;
        }
        let rows = Arc::clone(&self.rows);
        tokio::spawn(async move {
            let rows = &rows;
            futures_util::stream::iter(due)
                .for_each_concurrent(STORE_OPS_AT_ONCE, |session| async move {
                    // A row that stays is closed, and is found like one left by a crash.
                    if let Err(error) = rows.forget_session(session).await {
                        tracing::debug!(%session, %error, "could not delete the row of a closed session");
                    }
                })
                .await;
        });
    }

    /// Returns once an ended session has no entries here, however long the store takes, or this replica stops. Safe to drop.
    pub async fn until_emptied(&self, session: SessionId) {
        let mut stopping = self.local.stopping();
        while let Some(emptied) = self.table.emptied(session) {
            tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => return,
                () = emptied.notified() => {}
                // It may have become empty between the look and the wait.
                () = self.local.clock.sleep(Duration::from_millis(20)) => {}
            }
        }
        // An entry may have been in the making when the last one ended.
        self.forget_if_done(session);
    }
}
