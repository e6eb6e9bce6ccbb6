//! The sessions known to a replica, with guards for their users.

use std::sync::{Arc, Weak};

use super::announcements::Announcements;
use super::asks::KeeperAsks;
use super::closed_rows::ClosedRows;
use super::table::{Attached, NoRoom, SessionTable};
use crate::engine::local::Local;
use crate::engine::metrics::EngineMetrics;
use crate::engine::peers::Peers;
use crate::engine::time::Time;
use crate::key::machine::Event;
use crate::limits::Limits;
use crate::lock::{KeyId, Seq, SessionId};
use crate::log_throttle::LogThrottle;
use crate::store::{ClusterStore, SessionStore, Store};

/// The keys with entries in sessions.
pub(in crate::engine) trait AttachedKeys: Send + Sync {
    /// Gives a key an event of a session that has entries there.
    fn notify(self: Arc<Self>, id: &KeyId, event: Event);
}

/// The sessions known to a replica, and the means to keep them.
pub(in crate::engine) struct Sessions {
    pub local: Arc<Local>,
    pub time: Arc<Time>,
    pub table: SessionTable,
    /// The renewals on their way to keepers of other sessions.
    pub(super) asks: KeeperAsks,
    /// The rows of sessions.
    pub rows: Arc<dyn SessionStore>,
    /// The ends of sessions that other replicas are yet to be told.
    pub(super) announcements: Announcements,
    /// The rows of ended sessions, until they are deleted.
    pub closed_rows: ClosedRows,
    /// The way to request a session from a keeper that cannot be called.
    pub(super) cluster: Option<Arc<dyn ClusterStore>>,
    pub(super) peers: Arc<dyn Peers>,
    pub(super) keys: Weak<dyn AttachedKeys>,
    /// Throttles the log of failed closes.
    pub(super) not_closed: LogThrottle,
    pub(super) metrics: Arc<EngineMetrics>,
}

impl Sessions {
    pub fn new(
        local: Arc<Local>,
        time: Arc<Time>,
        store: &Store,
        peers: Arc<dyn Peers>,
        keys: Weak<dyn AttachedKeys>,
        limits: &Limits,
        metrics: Arc<EngineMetrics>,
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
            metrics,
        }
    }

    /// Attaches an entry to a session.
    pub fn attach(&self, session: SessionId, id: &Arc<KeyId>, seq: Seq) -> Attached {
        self.table.attach(session, id, seq, self.local.clock.boot())
    }

    /// Detaches an entry from a session.
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
