//! Where a call is made (H1): at the home of its key, or the keeper of its session.
//!
//! The asked replica passes a call on: to the home that it remembers, else to the replica that is ranked first for the
//! key. Whoever is asked so serves, or says where else to ask; that is followed where it is newer than what was known,
//! three times at most (H10). A key whose home is gone is taken over; from one that cannot be called it is asked for through
//! the store. A write that may have been done is never sent once more.

use std::future::Future;

use tonic::Status;

use super::homes::{Homes, KnownHome};
use crate::engine::{Engine, EngineError, Peer, Presence};
use crate::lock::{NameHash, ReplicaId};
use crate::rpc::calls::Target;
use crate::rpc::peer::ForwardOutcome;
use crate::rpc::status;

/// How often a call is passed on.
const HOPS_MAX: usize = 3;
/// How often a call is tried, here or elsewhere, before its caller is told to come again.
const TRIES_MAX: usize = 10;

/// What routing asks of this replica.
pub trait RouteView: Sync {
    /// As [`Engine::ranked`].
    fn ranked(&self, key: NameHash) -> Presence;
    /// As [`Engine::presence`].
    fn presence(&self, id: ReplicaId) -> Presence;
    /// As [`Engine::take_over`] and [`Engine::take_session`].
    fn take_over(
        &self,
        target: &Target,
        from: ReplicaId,
    ) -> impl Future<Output = Result<(), EngineError>> + Send;
}

impl RouteView for Engine {
    fn ranked(&self, key: NameHash) -> Presence {
        Engine::ranked(self, key)
    }

    fn presence(&self, id: ReplicaId) -> Presence {
        Engine::presence(self, id)
    }

    async fn take_over(&self, target: &Target, from: ReplicaId) -> Result<(), EngineError> {
        match target {
            Target::Key(id) => Engine::take_over(self, id, from).await,
            Target::LockRef(lock_ref) => Engine::take_over(self, &lock_ref.key_id(), from).await,
            Target::Entry(name) => Engine::take_over(self, &name.key_id(), from).await,
            Target::Session(session) => self.take_session(*session, from).await,
        }
    }
}

/// One call, to be made where it belongs.
pub trait RoutedCall: Sync {
    /// What it brings.
    type Answer: Send;

    /// What it is about.
    fn target(&self) -> &Target;

    /// What may have been done is not done once more.
    fn is_write(&self) -> bool;

    /// As [`UnaryCall::changes`](crate::rpc::calls::UnaryCall::changes).
    fn changes(&self) -> bool;

    /// What its caller learns of what the engine did not do. May be an answer.
    fn failed(&self, error: EngineError) -> Result<Self::Answer, Status> {
        Err(status::of_engine(&error))
    }

    /// Makes it here.
    fn serve_locally(&self) -> impl Future<Output = Result<Self::Answer, EngineError>> + Send;

    /// Has another replica make it.
    fn forward(&self, peer: &Peer) -> impl Future<Output = ForwardOutcome<Self::Answer>> + Send;
}

/// The replica that ranks first.
pub fn ranked(membership: &impl RouteView, target: &Target) -> Presence {
    match target.name_hash() {
        Some(key) => membership.ranked(key),
        None => Presence::Local,
    }
}

/// Where a call is made first: at the home that is remembered, else where it ranks.
pub fn expected(
    membership: &impl RouteView,
    homes: &Homes,
    target: &Target,
    ranked: &Presence,
) -> Presence {
    let remembered = homes.of(target).map(|home| match home {
        KnownHome::Local => Presence::Local,
        KnownHome::Remote(id) => membership.presence(id),
    });
    match remembered {
        Some(known @ (Presence::Local | Presence::Live(_))) => known,
        Some(Presence::Suspected | Presence::Down | Presence::Unsure) | None => ranked.clone(),
    }
}

/// Makes a call where it belongs. Goes on for as long as it is polled, so its caller sets the time.
pub async fn route<C: RoutedCall>(
    membership: &impl RouteView,
    homes: &Homes,
    call: &C,
) -> Result<C::Answer, Status> {
    let mut attempt = RouteAttempt {
        hops: 0,
        newest: None,
        lost: Vec::new(),
        is_in_doubt: false,
    };
    let made = routed(membership, homes, call, &mut attempt).await;
    match made {
        // That this try did nothing says nothing of the one before.
        Err(_) if attempt.is_in_doubt => Err(status::not_heard()),
        made => made,
    }
}

async fn routed<C: RoutedCall>(
    membership: &impl RouteView,
    homes: &Homes,
    call: &C,
    attempt: &mut RouteAttempt,
) -> Result<C::Answer, Status> {
    let target = call.target();
    let ranked = ranked(membership, target);
    let mut next = expected(membership, homes, target, &ranked);
    for _ in 0..TRIES_MAX {
        let Presence::Live(peer) = next else {
            let (home, version) = match call.serve_locally().await {
                Ok(answer) => {
                    homes.note(target, &ranked, &Presence::Local);
                    return Ok(answer);
                }
                Err(EngineError::Elsewhere { home, version }) => (home, version),
                Err(error) => return call.failed(error),
            };
            next = match membership.presence(home) {
                Presence::Live(peer) if !attempt.lost.contains(&home) => {
                    if !attempt.follows(version) {
                        // Who has it says that it has it not: one of them will learn of it soon.
                        return call.failed(EngineError::Elsewhere { home, version });
                    }
                    Presence::Live(peer)
                }
                // Known to this process already, and to this call of it not yet.
                Presence::Local => Presence::Local,
                Presence::Live(_) | Presence::Suspected | Presence::Down | Presence::Unsure => {
                    match membership.take_over(target, home).await {
                        // Somebody else was quicker: the next try here says who.
                        Ok(()) | Err(EngineError::Elsewhere { .. }) => {}
                        Err(error) => return call.failed(error),
                    }
                    Presence::Local
                }
            };
            continue;
        };
        next = match call.forward(&peer).await {
            ForwardOutcome::Answered(answer) => {
                homes.note(target, &ranked, &Presence::Live(peer));
                return Ok(answer);
            }
            ForwardOutcome::Refused(refusal) => return Err(refusal),
            ForwardOutcome::Elsewhere { home, version } => {
                let is_newer = attempt.follows(version);
                match membership.presence(home) {
                    live @ Presence::Live(_) if is_newer && !attempt.lost.contains(&home) => live,
                    Presence::Live(_)
                    | Presence::Local
                    | Presence::Suspected
                    | Presence::Down
                    | Presence::Unsure => Presence::Local,
                }
            }
            ForwardOutcome::NotAsked(why) => {
                tracing::debug!(replica = %peer.id, why, "a call was not forwarded");
                attempt.lose(peer.id)
            }
            ForwardOutcome::Unknown(why) => {
                tracing::debug!(replica = %peer.id, why, "a forwarded call got no answer");
                if call.is_write() {
                    return Err(status::write_unknown());
                }
                attempt.is_in_doubt |= call.changes();
                attempt.lose(peer.id)
            }
        };
    }
    Err(status::unsettled())
}

/// What one call has learned on its way.
struct RouteAttempt {
    hops: usize,
    /// The highest version that said where to ask.
    newest: Option<u64>,
    /// Who could not be called.
    lost: Vec<ReplicaId>,
    /// One of them may have made or ended what the call is about.
    is_in_doubt: bool,
}

impl RouteAttempt {
    /// Whether to follow what has this version.
    fn follows(&mut self, version: u64) -> bool {
        let is_newer = self.newest.is_none_or(|newest| version > newest);
        if !is_newer || self.hops == HOPS_MAX {
            return false;
        }
        self.newest = Some(version);
        self.hops += 1;
        true
    }

    fn lose(&mut self, id: ReplicaId) -> Presence {
        self.lost.push(id);
        Presence::Local
    }
}

#[cfg(test)]
#[path = "hops_test.rs"]
mod tests;
