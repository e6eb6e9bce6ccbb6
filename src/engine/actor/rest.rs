//! An actor with nothing under way, packed for a rest that may be long: locks are held by the hundred thousand, and
//! most of an actor is room for what it does.

use std::sync::Arc;
use std::time::Duration;

use super::super::activity::Cause;
use super::Actor;
use super::holding::Holding;
use super::others::Others;
use crate::limits::Limits;
use crate::lock::{KeyId, State};

/// What such an actor remembers, all of it.
pub(in super::super) struct Rest {
    id: Arc<KeyId>,
    state: Option<Arc<State>>,
    holding: Option<Holding>,
    past: Option<u64>,
    looked_at: Duration,
    quiet: u32,
    looks_for: Cause,
    stale: bool,
    just_read: bool,
    has_own_place: bool,
    behind: bool,
    waits: bool,
}

impl Actor {
    /// Packs it; gives it back if there is something in it that a [`Rest`] has no room for.
    pub fn rest(self: Box<Self>) -> Result<Rest, Box<Actor>> {
        if !self.is_at_rest() {
            return Err(self);
        }
        let Others {
            has_own_place,
            behind,
            waits,
            looked_at,
            quiet,
            ..
        } = self.others;
        Ok(Rest {
            id: self.id,
            state: self.state,
            holding: self.holding,
            past: self.past,
            looked_at,
            quiet,
            looks_for: self.looks_for,
            stale: self.stale,
            just_read: self.just_read,
            has_own_place,
            behind,
            waits,
        })
    }

    /// Whether everything that a [`Rest`] does not keep is as in a new actor. What is added to an actor is to be
    /// named here.
    fn is_at_rest(&self) -> bool {
        let Actor {
            id: _,
            state: _,
            stale: _,
            disputed,
            looks_for: _,
            just_read: _,
            backlog,
            awaiting,
            past: _,
            holding: _,
            latest,
            pending,
            let_ins,
            wakes,
            watches,
            turns,
            tries,
            conflicts,
            others,
            asked,
        } = self;
        backlog.is_empty()
            && *awaiting == 0
            && !latest.is_known()
            && pending.is_empty()
            && let_ins.is_empty()
            && wakes.is_empty()
            && watches.is_empty()
            && turns.is_none()
            && *tries == 0
            && *conflicts == 0
            && !*disputed
            && others.are_at_rest()
            && asked.is_empty()
    }
}

impl Others {
    /// The same of what is known of others.
    fn are_at_rest(&self) -> bool {
        let Others {
            has_own_place: _,
            behind: _,
            waits: _,
            ungranted,
            seen,
            ceded,
            consents,
            looked_at: _,
            sent_at,
            pace,
            quiet: _,
            due_at,
            swept_until,
            untold,
        } = self;
        seen.is_empty()
            && !ungranted
            && ceded.is_empty()
            && consents.is_empty()
            && sent_at.is_none()
            && *pace == (false, false)
            && due_at.is_none()
            && swept_until.is_zero()
            && untold.is_none()
    }
}

impl Rest {
    /// The actor that was packed.
    pub fn wake(self, limits: &Limits) -> Box<Actor> {
        Box::new(Actor {
            state: self.state,
            stale: self.stale,
            looks_for: self.looks_for,
            just_read: self.just_read,
            past: self.past,
            holding: self.holding,
            others: Others {
                has_own_place: self.has_own_place,
                behind: self.behind,
                waits: self.waits,
                looked_at: self.looked_at,
                quiet: self.quiet,
                ..Others::default()
            },
            ..Actor::new(self.id, limits)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::api::Watched;
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
        actor.others.has_own_place = true;
        actor.others.looked_at = Duration::from_secs(3);
        actor
    }

    #[test]
    fn an_idle_actor_is_packed_and_woken_as_it_was() {
        let packed = idle().rest().ok().unwrap();
        assert!(
            size_of::<Rest>() * 10 <= size_of::<Actor>() * 6,
            "{} bytes of {}",
            size_of::<Rest>(),
            size_of::<Actor>()
        );
        let woken = packed.wake(&Limits::default());
        assert_eq!(woken.state, Some(Arc::default()));
        assert_eq!(woken.past, Some(7));
        assert!(woken.must_stay());
        assert_eq!(woken.others.looked_at, Duration::from_secs(3));
    }

    #[test]
    fn an_actor_that_has_something_on_its_hands_is_not_packed() {
        let changes: [fn(&mut Actor); 5] = [
            |actor| actor.tries = 1,
            |actor| drop(actor.wakes.insert(Seq(1), Vec::new())),
            |actor| actor.others.swept_until = Duration::from_secs(1),
            |actor| actor.others.untold = actor.state.clone(),
            |actor| {
                let (watch, _) = tokio::sync::watch::channel(Watched::Waiting {
                    position: 1,
                    estimate: None,
                });
                actor.watches.insert(Seq(1), watch);
            },
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut actor = idle();
            change(&mut actor);
            assert!(actor.rest().is_err(), "change {number}");
        }
    }
}
