//! The sessions known to a replica, with guards for their users.

use std::sync::{Arc, Weak};

use super::announcements::Announcements;
use super::asks::KeeperAsks;
use super::closed_rows::ClosedRows;
use super::table::{Attached, NoRoom, SessionTable};
use crate::engine::local::Local;
use crate::engine::peers::Peers;
use crate::engine::time::Time;
use crate::key::machine::Event;
use crate::limits::Limits;
use crate::lock::{KeyId, Seq, SessionId};
use crate::log_throttle::LogThrottle;
use crate::store::{ClusterStore, SessionStore, Store};

/// The keys with entries that are attached to sessions.
pub(in crate::engine) trait AttachedKeys: Send + Sync {
    /// Something happened to a session that entries of this key live by.
    fn notify(self: Arc<Self>, id: &KeyId, event: Event);
}

/// The sessions that matter to a replica, and what keeping them takes.
pub(in crate::engine) struct Sessions {
    pub local: Arc<Local>,
    pub time: Arc<Time>,
    pub table: SessionTable,
    /// What the keepers of other sessions are being asked.
    pub(super) asks: KeeperAsks,
    /// The rows of sessions.
    pub rows: Arc<dyn SessionStore>,
    /// What other replicas are yet to be told.
    pub(super) announcements: Announcements,
    /// The rows of those that have ended, for a while.
    pub closed_rows: ClosedRows,
    /// Through it a keeper that cannot be called is asked for a session.
    pub(super) cluster: Option<Arc<dyn ClusterStore>>,
    pub(super) peers: Arc<dyn Peers>,
    pub(super) keys: Weak<dyn AttachedKeys>,
    /// Met again and again for as long as a store is in trouble.
    pub(super) not_closed: LogThrottle,
}

impl Sessions {
    pub fn new(
        local: Arc<Local>,
        time: Arc<Time>,
        store: &Store,
        peers: Arc<dyn Peers>,
        keys: Weak<dyn AttachedKeys>,
        limits: &Limits,
    ) -> Self {
        Sessions {
            local,
            time,
            table: SessionTable::new(limits.sessions_max, limits.lock_refs_per_session_max),
            asks: KeeperAsks::new(limits.sessions_max),
            rows: Arc::clone(&store.sessions),
            announcements: Announcements::default(),
            closed_rows: ClosedRows::new(limits.sessions_max),
            cluster: store.cluster.clone(),
            peers,
            keys,
            not_closed: LogThrottle::default(),
        }
    }

    /// Notes that an entry lives by a session.
    pub fn attach(&self, session: SessionId, id: &Arc<KeyId>, seq: Seq) -> Attached {
        self.table.attach(session, id, seq, self.local.clock.boot())
    }

    /// Notes that an entry lives by a session no longer.
    pub fn detach(&self, session: SessionId, id: &Arc<KeyId>, seq: Seq) {
        self.table.detach(session, id, seq);
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
