//! Sessions: opened, closed and taken over by compare-and-swap on their rows, kept alive in the memory of one replica,
//! their keeper.
//!
//! Whoever keeps a session judges whether it lives. Another replica becomes its keeper only once that one is down. Homes
//! of keys whose entries live by a session elsewhere pass renewals on to its keeper, and learn from it, or from the row,
//! that it ended.

mod elsewhere;
mod keeper;
mod table;

use std::sync::Arc;
use std::time::Duration;

pub(super) use elsewhere::watch;
pub(super) use keeper::{adopt_row, close, expired, give, open, take_over};
pub(super) use table::{Attached, Keeper, NoRoom, NotRenewed, Table};

use super::api::{EngineError, Renewed};
use super::replica::Replica;
use super::time::Time;
use crate::clock::Clock;
use crate::key::machine::Event;
use crate::lock::{KeyId, Seq, SessionId};
use crate::store::StoreError;

/// The sessions of a replica, with its clocks.
pub(super) struct Sessions {
    pub table: Table,
    time: Arc<Time>,
    clock: Arc<dyn Clock>,
}

impl Sessions {
    pub fn new(table: Table, time: Arc<Time>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Sessions { table, time, clock })
    }

    /// Notes that an entry lives by a session.
    pub fn attach(&self, session: SessionId, id: &Arc<KeyId>, seq: Seq) -> Attached {
        self.table.attach(session, id, seq, self.clock.boot())
    }

    /// Notes that an entry lives by a session no longer.
    pub fn detach(&self, session: SessionId, id: &Arc<KeyId>, seq: Seq) {
        self.table.detach(session, id, seq);
    }

    /// A call that keeps a session alive for as long as the guard lives, wherever the session is kept.
    pub fn open_call(self: &Arc<Self>, session: SessionId) -> OpenCall {
        self.table
            .open_call(session, self.time.now(), self.clock.boot());
        OpenCall {
            sessions: Arc::clone(self),
            session,
        }
    }

    /// Room for one more entry of a session, until the guard is dropped.
    pub fn room(self: &Arc<Self>, session: SessionId) -> Result<Room, NoRoom> {
        self.table.begin_create(session, self.clock.boot())?;
        Ok(Room {
            sessions: Arc::clone(self),
            session,
        })
    }
}

/// A call that keeps a session alive.
pub(super) struct OpenCall {
    sessions: Arc<Sessions>,
    session: SessionId,
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let now = self.sessions.time.now();
        self.sessions.table.close_call(self.session, now);
    }
}

/// Room for one more entry of a session.
pub(super) struct Room {
    sessions: Arc<Sessions>,
    session: SessionId,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.sessions.table.end_create(self.session);
    }
}

fn unavailable(error: StoreError) -> EngineError {
    EngineError::Unavailable(error.to_string())
}

fn changing() -> EngineError {
    EngineError::Unavailable("the session is changing its keeper".to_owned())
}

impl Replica {
    /// A renewal of a session by whoever wants to be told its validity: here, or at its keeper.
    pub async fn renew_session(
        self: &Arc<Self>,
        session: SessionId,
    ) -> Result<Renewed, EngineError> {
        match self.sessions.table.renew(session, self.time.now(), false) {
            Ok(renewed) => Ok(renewed),
            Err(NotRenewed::Ended) => Err(EngineError::SessionEnded),
            Err(NotRenewed::NotKept) => match self.store.cluster {
                Some(_) => elsewhere::renew(self, session).await,
                None => Err(EngineError::SessionEnded),
            },
        }
    }

    /// A renewal by a client, at the keeper only: `Elsewhere` where that is another replica.
    pub async fn renew_kept(
        self: &Arc<Self>,
        session: SessionId,
        on_stream: bool,
    ) -> Result<Renewed, EngineError> {
        for _ in 0..2 {
            let now = self.time.now();
            match self.sessions.table.renew(session, now, on_stream) {
                Ok(renewed) => return Ok(renewed),
                Err(NotRenewed::Ended) => return Err(EngineError::SessionEnded),
                Err(NotRenewed::NotKept) => keeper::find(self, session).await?,
            }
        }
        Err(changing())
    }

    /// As [`Replica::renew_session`], where what its keeper said lately is enough (H10).
    pub async fn session_validity(
        self: &Arc<Self>,
        session: SessionId,
    ) -> Result<Renewed, EngineError> {
        match self.sessions.table.said(session, self.clock.boot()) {
            Some(said) => Ok(said),
            None => self.renew_session(session).await,
        }
    }

    /// A renewal that nobody waits for, by a call about an entry that lives by the session.
    pub fn renew_behind(self: &Arc<Self>, session: SessionId) {
        let now = self.time.now();
        if self.sessions.table.renew(session, now, false) != Err(NotRenewed::NotKept)
            || !self.sessions.table.is_due(session, self.clock.boot())
        {
            return;
        }
        let replica = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = elsewhere::renew(&replica, session).await {
                tracing::debug!(%session, %error, "a renewal could not be passed on to the keeper of a session");
            }
        });
    }

    /// Reads the row of a session that entries here live by, in a task of its own.
    pub fn look_up_session(self: &Arc<Self>, session: SessionId) {
        let replica = Arc::clone(self);
        tokio::spawn(async move { elsewhere::read(&replica, session).await });
    }

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
    fn note_session_ttl(self: &Arc<Self>, session: SessionId, ttl: Duration) {
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

    /// Returns once nothing that is known here lives by a session, or this replica stops.
    pub async fn session_emptied(&self, session: SessionId) {
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
    }
}
