//! An actor with nothing in flight, packed for an idle time that may be long: locks are held by the hundred thousand,
//! and most of an actor is room for what it does.

use std::sync::Arc;
use std::time::Duration;

use super::super::activity::Cause;
use super::Actor;
use super::holding::HolderState;
use super::remote_entries::RemoteEntries;
use crate::limits::Limits;
use crate::lock::{KeyId, State};

/// What such an actor remembers, all of it.
pub(in super::super) struct IdleSnapshot {
    id: Arc<KeyId>,
    state: Option<Arc<State>>,
    holding: Option<HolderState>,
    past: Option<u64>,
    read_at: Duration,
    quiet: u32,
    read_cause: Cause,
    stale: bool,
    just_read: bool,
    has_own_entry: bool,
    behind: bool,
    waits: bool,
}

impl Actor {
    /// Packs it; gives it back if there is something in it that a [`IdleSnapshot`] has no room for.
    pub fn into_idle(self: Box<Self>) -> Result<IdleSnapshot, Box<Actor>> {
        if !self.is_idle() {
            return Err(self);
        }
        let RemoteEntries {
            has_own_entry,
            behind,
            waits,
            read_at,
            quiet,
            ..
        } = self.remote_entries;
        Ok(IdleSnapshot {
            id: self.id,
            state: self.state,
            holding: self.holding,
            past: self.past,
            read_at,
            quiet,
            read_cause: self.read_cause,
            stale: self.stale,
            just_read: self.just_read,
            has_own_entry,
            behind,
            waits,
        })
    }

    /// Whether everything that a [`IdleSnapshot`] does not keep is as in a new actor. What is added to an actor is to
    /// be named here.
    fn is_idle(&self) -> bool {
        let Actor {
            id: _,
            state: _,
            stale: _,
            disputed,
            read_cause: _,
            just_read: _,
            backlog,
            awaiting,
            past: _,
            holding: _,
            latest,
            pending,
            grant_waiters,
            wakers,
            watches,
            turns,
            tries,
            conflicts,
            remote_entries,
            take_over_requests,
        } = self;
        backlog.is_empty()
            && *awaiting == 0
            && !latest.is_known()
            && pending.is_empty()
            && grant_waiters.is_empty()
            && wakers.is_empty()
            && watches.is_empty()
            && turns.is_none()
            && *tries == 0
            && *conflicts == 0
            && !*disputed
            && remote_entries.are_idle()
            && take_over_requests.is_empty()
    }
}

impl RemoteEntries {
    /// The same of what is known of others.
    fn are_idle(&self) -> bool {
        let RemoteEntries {
            has_own_entry: _,
            behind: _,
            waits: _,
            ungranted,
            seen,
            handed_over,
            hand_overs,
            read_at: _,
            sent_at,
            pace,
            quiet: _,
            due_at,
            swept_until,
            unnotified,
        } = self;
        seen.is_empty()
            && !ungranted
            && handed_over.is_empty()
            && hand_overs.is_empty()
            && sent_at.is_none()
            && *pace == (false, false)
            && due_at.is_none()
            && swept_until.is_zero()
            && unnotified.is_none()
    }
}

impl IdleSnapshot {
    /// The actor that was packed.
    pub fn unpack(self, limits: &Limits) -> Box<Actor> {
        Box::new(Actor {
            state: self.state,
            stale: self.stale,
            read_cause: self.read_cause,
            just_read: self.just_read,
            past: self.past,
            holding: self.holding,
            remote_entries: RemoteEntries {
                has_own_entry: self.has_own_entry,
                behind: self.behind,
                waits: self.waits,
                read_at: self.read_at,
                quiet: self.quiet,
                ..RemoteEntries::default()
            },
            ..Actor::new(self.id, limits)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::api::WatchEvent;
    use super::*;
    use crate::lock::{Key, Seq, TableName};

    /// Of a key that is held and that nobody asks for.
    fn idle() -> Box<Actor> {
        let id = KeyId {
            table: TableName::default_table(),
            key: Key::parse("a", 10).unwrap(),
        };
        let mut actor = Box::new(Actor::new(Arc::new(id), &Limits::default()));
        actor.state = Some(Arc::default());
        actor.past = Some(7);
        actor.remote_entries.has_own_entry = true;
        actor.remote_entries.read_at = Duration::from_secs(3);
        actor
    }

    #[test]
    fn an_idle_actor_is_packed_and_woken_as_it_was() {
        let packed = idle().into_idle().ok().unwrap();
        assert!(
            size_of::<IdleSnapshot>() * 10 <= size_of::<Actor>() * 6,
            "{} bytes of {}",
            size_of::<IdleSnapshot>(),
            size_of::<Actor>()
        );
        let woken = packed.unpack(&Limits::default());
        assert_eq!(woken.state, Some(Arc::default()));
        assert_eq!(woken.past, Some(7));
        assert!(woken.must_stay());
        assert_eq!(woken.remote_entries.read_at, Duration::from_secs(3));
    }

    #[test]
    fn an_actor_that_has_something_on_its_hands_is_not_packed() {
        let changes: [fn(&mut Actor); 5] = [
            |actor| actor.tries = 1,
            |actor| drop(actor.wakers.insert(Seq(1), Vec::new())),
            |actor| actor.remote_entries.swept_until = Duration::from_secs(1),
            |actor| actor.remote_entries.unnotified = actor.state.clone(),
            |actor| {
                let (watch, _) = tokio::sync::watch::channel(WatchEvent::Waiting {
                    position: 1,
                    estimate: None,
                });
                actor.watches.insert(Seq(1), watch);
            },
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut actor = idle();
            change(&mut actor);
            assert!(actor.into_idle().is_err(), "change {number}");
        }
    }
}
