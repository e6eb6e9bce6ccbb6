//! The ended sessions that other replicas have yet to hear of.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::lock::{ReplicaId, SessionId};

/// How many sessions go in one message, which is 20 KB then.
pub(super) const SESSIONS_MAX: usize = 1_000;
/// How many wait for the next message; of others the replica learns from their rows, within 30 s.
const WAITING_MAX: usize = 100_000;

/// The sessions that each replica is yet to be told of, for as long as a task tells it.
#[derive(Default)]
pub(super) struct Announcements {
    to: Mutex<BTreeMap<ReplicaId, Vec<Announcement>>>,
}

pub(super) struct Announcement {
    pub session: SessionId,
    /// Dropped where the replica did not say so.
    pub ended: oneshot::Sender<()>,
}

/// What other replicas say of the end of a session.
pub(in crate::engine) struct EndedElsewhere(pub(super) Vec<oneshot::Receiver<()>>);

impl Announcements {
    fn to(&self) -> MutexGuard<'_, BTreeMap<ReplicaId, Vec<Announcement>>> {
        // Nothing below panics between two dependent changes.
        self.to.lock()
    }

    /// One more for a replica. True if nobody tells it yet: the caller does so from here on.
    pub fn add(&self, replica: ReplicaId, announcement: Announcement) -> bool {
        match self.to().entry(replica) {
            Entry::Vacant(nobody) => {
                nobody.insert(vec![announcement]);
                true
            }
            Entry::Occupied(mut waiting) => {
                if waiting.get().len() < WAITING_MAX {
                    waiting.get_mut().push(announcement);
                }
                false
            }
        }
    }

    /// The next ones for a replica; `None` where there are none, and nobody tells it any more.
    pub fn next(&self, replica: ReplicaId) -> Option<Vec<Announcement>> {
        let mut to = self.to();
        let waiting = to.get_mut(&replica)?;
        if waiting.is_empty() {
            to.remove(&replica);
            return None;
        }
        let most = waiting.len().min(SESSIONS_MAX);
        Some(waiting.drain(..most).collect())
    }
}
