//! Remembers the homes of keys, and the keepers of sessions, that are not at the replica that ranks first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::engine::Presence;
use crate::lock::{KeyId, ReplicaId, SessionId};
use crate::rpc::calls::Target;

/// How many are remembered. Beyond that all are forgotten, at the cost of one more call each.
const HOMES_MAX: usize = 16 * 1024;

/// The homes of keys, and the keepers of sessions, that are elsewhere than at the replica that ranks first.
#[derive(Debug, Default)]
pub struct Homes {
    /// Spares the lock where there are none, as on one replica.
    any: AtomicBool,
    homes: Mutex<HashMap<Name, KnownHome>>,
}

/// The replica that serves a key or a session, as far as this replica knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KnownHome {
    /// By this replica.
    Local,
    /// By another one.
    Remote(ReplicaId),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Name {
    Key(KeyId),
    Session(SessionId),
}

fn name(target: &Target) -> Name {
    match target {
        Target::Key(id) => Name::Key(id.clone()),
        Target::LockRef(lock_ref) => Name::Key(lock_ref.key_id()),
        Target::Entry(name) => Name::Key(name.key_id()),
        Target::Session(session) => Name::Session(*session),
    }
}

impl Homes {
    /// The last known home; `None` if it is the one that ranks first.
    pub fn of(&self, target: &Target) -> Option<KnownHome> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let homes = self.homes.lock();
        homes.get(&name(target)).copied()
    }

    /// Notes the replica that served it.
    pub fn note(&self, target: &Target, ranked: &Presence, served: &Presence) {
        let home = match served {
            Presence::Local => KnownHome::Local,
            Presence::Live(peer) => KnownHome::Remote(peer.id),
            Presence::Suspected | Presence::Down | Presence::Unsure => return,
        };
        let is_ranked = served == ranked;
        if is_ranked && !self.any.load(Ordering::Relaxed) {
            return;
        }
        let name = name(target);
        let mut homes = self.homes.lock();
        if is_ranked {
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
