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
    /// Its zone; empty if none is configured.
    pub zone: String,
    /// Its address for clients.
    pub address: String,
    /// Its address for other replicas, as `host:port`; empty if it takes no calls of them.
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

/// The known presence of a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Presence {
    /// This replica.
    Local,
    /// It sends heartbeats.
    Live(Arc<Peer>),
    /// No new heartbeat of it was observed for a replica TTL, and no read showed it as down. It may come back: nothing may be
    /// taken over from it.
    Suspected,
    /// Its row is down, stopped or gone. It never answers again: its keys and sessions may be taken over.
    Down,
    /// Unknown: no row of it was read. Ask again after a read.
    Unsure,
}

/// The replica that should be the home of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ranked {
    /// This replica.
    Local,
    /// Another one.
    Remote(Arc<Peer>),
}
