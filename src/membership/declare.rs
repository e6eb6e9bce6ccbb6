//! Declares another replica down, for good: swaps its state to Down (H2).

use std::sync::Arc;
use std::time::Duration;

use super::peer::Presence;
use super::shell::MembershipShared;
use super::within::{GIVEN_UP_AFTER, within};
use crate::lock::ReplicaId;
use crate::store::{ReplicaState, StateSwap, StoreError};

/// Tries of a swap to a final state.
const TRIES: u32 = 4;
/// The first pause between two tries; each later one is twice the one before.
const PAUSE: Duration = Duration::from_millis(200);
/// Replicas that observation alone declares down at once.
pub(super) const DECLARED_AT_ONCE: usize = 16;

/// The only declaration of a replica in progress. Other callers wait for it.
struct Declaring<'a> {
    shared: &'a MembershipShared,
    id: ReplicaId,
}

impl<'a> Declaring<'a> {
    fn begin(shared: &'a MembershipShared, id: ReplicaId) -> Option<Self> {
        let mut is_first = false;
        shared.declaring.send_if_modified(|open| {
            is_first = open.insert(id);
            is_first
        });
        // Made only for the first caller: the drop of another one would end the first one's.
        is_first.then(|| Declaring { shared, id })
    }
}

impl Drop for Declaring<'_> {
    fn drop(&mut self) {
        self.shared.declaring.send_modify(|open| {
            open.remove(&self.id);
        });
    }
}

impl MembershipShared {
    /// Swaps the state of a replica, within the bound of all requests.
    pub async fn swap_state(
        &self,
        id: ReplicaId,
        expected: ReplicaState,
        next: ReplicaState,
    ) -> StateSwap {
        tokio::select! {
            biased;
            came = self.store.swap_state(id, expected, next) => came,
            () = self.clock.sleep(GIVEN_UP_AFTER) => {
                StateSwap::Unknown(StoreError::Unavailable("no answer in time".to_owned()))
            }
        }
    }

    /// Declares a replica down, before a first take-over from it (H3): see [`super::Membership::declare_down`].
    pub async fn declare_down(&self, id: ReplicaId) -> Result<bool, StoreError> {
        if let Presence::Unsure = self.presence_after_read(id).await {
            return Err(StoreError::Unavailable(
                "the rows of the replicas could not be read".to_owned(),
            ));
        }
        let Some(_declaring) = Declaring::begin(self, id) else {
            let mut open = self.declaring.subscribe();
            // Bounded, like the work of the first caller. The sender lives as long as `self`.
            let _ = open.wait_for(|open| !open.contains(&id)).await;
            return match self.observation().presence(id) {
                Presence::Down => Ok(true),
                Presence::Live(_) | Presence::Local => Ok(false),
                Presence::Suspected | Presence::Unsure => Err(StoreError::Unavailable(
                    "the suspected replica could not be declared down".to_owned(),
                )),
            };
        };
        let mut failed = None;
        for pause in pauses() {
            let expected = self.observation().suspected_state(id);
            let Some(expected) = expected else { break };
            if failed.is_some() {
                self.clock.sleep(pause).await;
            }
            let came = self.swap_state(id, expected, ReplicaState::Down).await;
            self.observation().declared(id, &came, self.clock.boot());
            match came {
                StateSwap::Applied => {
                    tracing::warn!(replica = %id, "declared a replica down: no heartbeat of it was observed for its replica TTL");
                    return Ok(true);
                }
                StateSwap::Conflict(_) => {
                    failed = None;
                    break;
                }
                StateSwap::Unknown(error) | StateSwap::NotStarted(error) => failed = Some(error),
            }
        }
        match (self.observation().presence(id), failed) {
            (Presence::Down, _) => Ok(true),
            (Presence::Suspected, Some(error)) => Err(error),
            (Presence::Suspected | Presence::Unsure | Presence::Live(_) | Presence::Local, _) => {
                Ok(false)
            }
        }
    }

    /// Declares suspected replicas down, in tasks of their own.
    pub fn declare_suspected(self: &Arc<Self>) {
        let suspected: Vec<ReplicaId> = {
            let observation = self.observation();
            let open = self.declaring.borrow();
            let room = DECLARED_AT_ONCE.saturating_sub(open.len());
            let ids = observation.suspected().filter(|id| !open.contains(id));
            ids.take(room).collect()
        };
        for id in suspected {
            let shared = Arc::clone(self);
            tokio::spawn(async move {
                let mut ended = shared.ended.subscribe();
                let came = tokio::select! {
                    biased;
                    _ = ended.wait_for(|ended| *ended) => return,
                    came = shared.declare_down(id) => came,
                };
                if let Err(error) = came {
                    let throttle = &shared.log_throttles.declare;
                    if let Some(times) = throttle.met(shared.clock.boot(), &error.to_string()) {
                        tracing::warn!(%error, times, replica = %id, "could not declare a suspected replica down; retrying");
                    }
                }
            });
        }
    }

    /// Deletes the row of a replica that is no longer needed.
    pub async fn forget(&self, id: ReplicaId) {
        if let Err(error) = within(&*self.clock, self.store.forget_replica(id)).await {
            let throttle = &self.log_throttles.forget;
            if let Some(times) = throttle.met(self.clock.boot(), &error.to_string()) {
                tracing::warn!(%error, times, replica = %id, "could not delete the row of a replica that is down; retrying");
            }
        }
    }
}

/// The pauses before the tries: none before the first.
pub(super) fn pauses() -> impl Iterator<Item = Duration> {
    let between = (1..TRIES).map(|n| PAUSE * (1 << (n - 1)));
    std::iter::once(Duration::ZERO).chain(between)
}
