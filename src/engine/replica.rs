//! The parts of a replica. Each part holds only its own dependencies; a task takes only the parts that it works with.

use std::sync::Arc;

use super::hand_over::KeyHandOvers;
use super::local::Local;
use super::request_sent::KeyRequests;
use super::sessions::Sessions;
use super::shell::KeyShell;
use crate::store::{ReplicaRow, Store};

/// The parts that serve under one id.
pub(super) struct Replica {
    pub local: Arc<Local>,
    /// Its announced row.
    pub row: ReplicaRow,
    /// Runs the machines of keys.
    pub shell: Arc<KeyShell>,
    pub sessions: Arc<Sessions>,
    /// Hands keys over to other replicas.
    pub hand_overs: Arc<KeyHandOvers>,
    /// Requests keys from other replicas.
    pub requests: Arc<KeyRequests>,
    /// For operators, and for reads without a lock.
    pub store: Store,
}
