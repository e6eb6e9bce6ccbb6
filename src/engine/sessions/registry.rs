//! The sessions that a replica knows, and the guards of those who use them.

use std::sync::{Arc, Weak};

use super::asks::KeeperAsks;
use super::table::{Attached, NoRoom, SessionTable};
use crate::engine::local::Local;
use crate::engine::peers::Peers;
use crate::engine::time::Time;
use crate::key::machine::Event;
use crate::lock::{KeyId, Seq, SessionId};
use crate::log_throttle::LogThrottle;
use crate::store::{ClusterStore, SessionStore};

/// The keys with entries that live by sessions.
pub(in crate::engine) trait SessionUsers: Send + Sync {
    /// Something happened to a session that entries of this key live by.
    fn tell(self: Arc<Self>, id: &KeyId, event: Event);
}

/// The sessions that matter to a replica, and what keeping them takes.
pub(in crate::engine) struct Sessions {
    pub local: Arc<Local>,
    pub time: Arc<Time>,
    pub table: SessionTable,
    /// What the keepers of other sessions are being asked.
    pub asks: KeeperAsks,
    /// The rows of sessions.
    pub rows: Arc<dyn SessionStore>,
    /// Where other keepers are asked for a session that cannot be called.
    pub cluster: Option<Arc<dyn ClusterStore>>,
    pub peers: Arc<dyn Peers>,
    pub users: Weak<dyn SessionUsers>,
    /// Met again and again for as long as a store is in trouble.
    pub not_closed: LogThrottle,
}

impl Sessions {
    /// Notes that an entry lives by a session.
    pub fn attach(&self, session: SessionId, id: &Arc<KeyId>, seq: Seq) -> Attached {
        self.table.attach(session, id, seq, self.local.clock.boot())
    }

    /// Notes that an entry lives by a session no longer.
    pub fn detach(&self, session: SessionId, id: &Arc<KeyId>, seq: Seq) {
        self.table.detach(session, id, seq);
    }

    /// A call that keeps a session alive for as long as the guard lives, wherever the session is kept.
    pub fn open_call(self: &Arc<Self>, session: SessionId) -> OpenCall {
        self.table
            .open_call(session, self.time.now(), self.local.clock.boot());
        OpenCall {
            sessions: Arc::clone(self),
            session,
        }
    }

    /// Room for one more entry of a session, until the guard is dropped.
    pub fn room(self: &Arc<Self>, session: SessionId) -> Result<Room, NoRoom> {
        self.table.begin_create(session, self.local.clock.boot())?;
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
