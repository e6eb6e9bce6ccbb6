//! The parts of a replica. Each part has only its own needs; a task takes the parts that it works with.

use std::sync::Arc;

use super::hand_over::KeyHandOvers;
use super::local::Local;
use super::request_sent::KeyRequests;
use super::sessions::Sessions;
use super::shell::KeyShell;
use crate::store::{ReplicaRow, Store};

/// All that serves under one id.
pub(super) struct Replica {
    pub local: Arc<Local>,
    /// Its row, as it announced itself.
    pub row: ReplicaRow,
    /// Runs the machines of keys.
    pub shell: Arc<KeyShell>,
    pub sessions: Arc<Sessions>,
    /// Keys that go to other replicas.
    pub hand_overs: Arc<KeyHandOvers>,
    /// Keys that come from there.
    pub requests: Arc<KeyRequests>,
    /// What operators look at, and reads without a lock.
    pub store: Store,
}
