//! The sessions that a replica knows, and the guards of those who use them.

use std::sync::Arc;

use super::asks::KeeperAsks;
use super::table::{Attached, NoRoom, SessionTable};
use crate::clock::Clock;
use crate::engine::time::Time;
use crate::lock::{KeyId, Seq, SessionId};

/// The sessions of a replica, with its clocks.
pub(in crate::engine) struct Sessions {
    pub table: SessionTable,
    /// What the keepers of other sessions are being asked.
    pub asks: KeeperAsks,
    time: Arc<Time>,
    clock: Arc<dyn Clock>,
}

impl Sessions {
    pub fn new(table: SessionTable, time: Arc<Time>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Sessions {
            table,
            asks: KeeperAsks::default(),
            time,
            clock,
        })
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
pub(in crate::engine) struct OpenCall {
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
pub(in crate::engine) struct Room {
    sessions: Arc<Sessions>,
    session: SessionId,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.sessions.table.end_create(self.session);
    }
}
