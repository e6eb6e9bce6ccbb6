//! Routing (H1): a call is made at the home of its key, or at the keeper of its session.
//!
//! The asked replica forwards a call to the remembered home, else to the replica that ranks first for the key. That one serves
//! it, or names another home; a newer home is followed, three times at most (H10). A key whose home is gone is taken over; a home
//! that cannot be called is asked for the key through the store. A write that may have been done is never sent again.

use std::future::Future;

use tonic::Status;

use super::homes::{Homes, KnownHome};
use crate::engine::{Engine, EngineError, Peer, Presence};
use crate::lock::{NameHash, ReplicaId};
use crate::rpc::calls::Target;
use crate::rpc::peer::ForwardOutcome;
use crate::rpc::status;

/// How often a call is forwarded.
const HOPS_MAX: usize = 3;
/// How often a call is tried, here or elsewhere, before it is refused.
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

/// A call that is routed to its home.
pub trait RoutedCall: Sync {
    /// Its answer.
    type Answer: Send;

    /// What it is about.
    fn target(&self) -> &Target;

    /// It may not be made twice.
    fn is_write(&self) -> bool {
        false
    }

    /// As [`UnaryCall::CHANGES`](crate::rpc::calls::UnaryCall::CHANGES).
    fn changes(&self) -> bool {
        false
    }

    /// The answer or status for an error of the engine.
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

/// The first replica to try: the remembered home, else the replica that ranks first.
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

/// Makes a call at its home, for as long as it is polled.
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
        // This try did nothing, but an earlier one may have.
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
                        // The named home denies it: one of the two will learn of the other soon.
                        return call.failed(EngineError::Elsewhere { home, version });
                    }
                    Presence::Live(peer)
                }
                // This process became the home meanwhile.
                Presence::Local => Presence::Local,
                Presence::Live(_) | Presence::Suspected | Presence::Down | Presence::Unsure => {
                    match membership.take_over(target, home).await {
                        // Another replica was quicker: the next try here names it.
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

/// The state of one call on its way.
struct RouteAttempt {
    hops: usize,
    /// The highest version of a named home.
    newest: Option<u64>,
    /// The replicas that could not be called.
    lost: Vec<ReplicaId>,
    /// One of them may have done the call.
    is_in_doubt: bool,
}

impl RouteAttempt {
    /// Whether to follow a home of this version.
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
