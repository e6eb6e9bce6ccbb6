//! What the end of a session means to the keys of this replica, and what is forgotten then.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::replica::Replica;
use crate::key::machine::Event;
use crate::lock::SessionId;

impl Replica {
    /// Tells the keys with entries that live by a session that it has ended.
    pub fn end_entries(self: &Arc<Self>, session: SessionId) {
        for id in self.sessions.table.keys_of(session) {
            if let Some(cell) = self.keys.find(&id) {
                self.happen(&cell, Event::SessionEnded(session));
            }
        }
        self.forget_session_if_done(session);
    }

    /// Tells the keys with entries that live by a session what its TTL is.
    pub(super) fn note_session_ttl(self: &Arc<Self>, session: SessionId, ttl: Duration) {
        for id in self.sessions.table.keys_of(session) {
            if let Some(cell) = self.keys.find(&id) {
                self.happen(&cell, Event::SessionTtl { session, ttl });
            }
        }
    }

    /// Forgets a session that has ended, and its row, once nothing lives by it any longer.
    pub fn forget_session_if_done(self: &Arc<Self>, session: SessionId) {
        if !self.sessions.table.forget_if_done(session) {
            return;
        }
        let store = Arc::clone(&self.store.sessions);
        tokio::spawn(async move {
            // A row that stays is closed, and is forgotten by a sweep or at the next start.
            if let Err(error) = store.forget_session(session).await {
                tracing::debug!(%session, %error, "could not delete the row of a closed session yet");
            }
        });
    }

    /// Returns once nothing that is known here lives by a session that has ended, however long the store takes, or this
    /// replica stops. Nothing is cut in half where it is dropped.
    pub async fn session_emptied(self: &Arc<Self>, session: SessionId) {
        let mut stopping = self.stopping.subscribe();
        while let Some(emptied) = self.sessions.table.emptied(session) {
            tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => return,
                () = emptied.notified() => {}
                // It may have become empty between the look and the wait.
                () = self.clock.sleep(Duration::from_millis(20)) => {}
            }
        }
        // A call may have been open when the last entry ended.
        self.forget_session_if_done(session);
    }
}
