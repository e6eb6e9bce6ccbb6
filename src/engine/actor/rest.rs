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
