//! One replica's knowledge of another.

use std::sync::Arc;

use crate::lock::ReplicaId;
use crate::store::ReplicaRow;

/// Another replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its id, new at every start.
    pub id: ReplicaId,
    /// Its configured name.
    pub name: String,
    /// Its zone; empty where none is configured.
    pub zone: String,
    /// Where it serves clients.
    pub address: String,
    /// Where it takes calls of replicas, as `host:port`; empty where it takes none.
    pub peer_address: String,
}

impl From<&ReplicaRow> for Peer {
    fn from(row: &ReplicaRow) -> Self {
        Peer {
            id: row.id,
            name: row.name.clone(),
            zone: row.zone.clone(),
            address: row.address.clone(),
            peer_address: row.peer_address.clone(),
        }
    }
}

/// What is known of a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Presence {
    /// It is this one.
    Local,
    /// It sends heartbeats.
    Live(Arc<Peer>),
    /// No new heartbeat of it was observed for a replica TTL. Nobody declared it down yet, as far as was read: it may come
    /// back, and nothing of it may be taken over.
    Suspected,
    /// Its row says that it is down or stopped, or is gone. It never answers again: what it is home to may be taken over.
    Down,
    /// It is not known yet: no row of it was read. Ask again after a read.
    Unsure,
}

/// The replica that should be the home of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ranked {
    /// This one.
    Local,
    /// Another one.
    Remote(Arc<Peer>),
}
