//! The ended sessions that are not yet announced to other replicas.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::lock::{ReplicaId, SessionId};

/// Sessions in one message, which then has 20 KB.
pub(super) const SESSIONS_MAX: usize = 1_000;
/// Sessions that wait for the next message. Of others the replica learns from their rows, within 30 s.
const WAITING_MAX: usize = 100_000;

/// The unsent announcements to each replica, for as long as a task sends them.
#[derive(Default)]
pub(super) struct Announcements {
    to: Mutex<BTreeMap<ReplicaId, Vec<Announcement>>>,
}

pub(super) struct Announcement {
    pub session: SessionId,
    /// Dropped unless the replica confirmed the end.
    pub ended: oneshot::Sender<()>,
}

/// The answers of other replicas to the end of a session.
pub(in crate::engine) struct EndedElsewhere(pub(super) Vec<oneshot::Receiver<()>>);

impl Announcements {
    fn to(&self) -> MutexGuard<'_, BTreeMap<ReplicaId, Vec<Announcement>>> {
        // Nothing below panics between two dependent changes.
        self.to.lock()
    }

    /// Adds an announcement to a replica. True if no task sends to it yet: the caller starts one.
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

    /// The next announcements to a replica; `None` if there are none, which ends the task.
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

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn sessions_that_end_at_once_share_a_message_and_a_task() {
        let (announcements, replica) = (Announcements::default(), ReplicaId(Uuid::nil()));
        let ended = [1, 2].map(|n| SessionId(Uuid::from_u128(n)));
        let is_first = ended.map(|session| {
            let (ended, _) = oneshot::channel();
            announcements.add(replica, Announcement { session, ended })
        });
        assert_eq!(is_first, [true, false]);
        let message = announcements.next(replica).unwrap();
        let told: Vec<_> = message.iter().map(|one| one.session).collect();
        assert_eq!(told, ended);
        assert!(announcements.next(replica).is_none());
    }
}
