//! What this replica remembers of homes that are not where they are looked for first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::calls::Target;
use crate::engine::{LeaseId, Presence};
use crate::lock::ReplicaId;

/// How many are remembered. Past that all are forgotten: the cost is one more call for each.
const HOMES_MAX: usize = 16 * 1024;

/// The replicas of entries and sessions that are elsewhere than usual. New entries have none: they go to the
/// affinity replica, so that all who ask stay agreed on one as replicas come and go.
#[derive(Debug, Default)]
pub struct Homes {
    /// Spares the lock where there are none, as on one replica.
    any: AtomicBool,
    homes: Mutex<HashMap<LeaseId, Home>>,
}

/// Where something is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// By this replica.
    Local,
    /// By another one.
    Remote(ReplicaId),
}

fn name(target: &Target) -> Option<LeaseId> {
    match target {
        Target::Key(..) => None,
        Target::LockRef(lock_ref) => Some(LeaseId::LockRef(lock_ref.without_grant())),
        Target::Session(session) => Some(LeaseId::Session(*session)),
    }
}

impl Homes {
    /// The replica that had it last; `None` where that is the usual one.
    pub fn of(&self, target: &Target) -> Option<Home> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
        homes.get(&name(target)?).copied()
    }

    /// It was served there.
    pub fn note(&self, target: &Target, usual: &Presence, served: &Presence) {
        let home = match served {
            Presence::Local => Home::Local,
            Presence::Live(peer) => Home::Remote(peer.id),
            Presence::Down | Presence::Unsure => return,
        };
        let is_usual = served == usual;
        if is_usual && !self.any.load(Ordering::Relaxed) {
            return;
        }
        let Some(name) = name(target) else {
            return;
        };
        let mut homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
        if is_usual {
            homes.remove(&name);
        } else {
            if homes.len() >= HOMES_MAX {
                homes.clear();
            }
            homes.insert(name, home);
        }
        self.any.store(!homes.is_empty(), Ordering::Relaxed);
    }
}
