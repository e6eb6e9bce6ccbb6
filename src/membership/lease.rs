//! Whether this replica may answer (H2).
//!
//! ```text
//!            a round came through in time
//!              ┌────┐
//!   announced ─┴──► Sure ──► Silent ──► Sure, under the next incarnation
//!                    │  90 % of the TTL    │  its own swap of incarnation was applied
//!                    └──────┬──────────────┘
//!                           ▼ its row is missing, down, stopped, of another incarnation, or ahead of its heartbeats
//!                         Fenced: for good
//! ```
//!
//! Why nobody takes over from a replica that still answers: another one writes Down only after it observed neither a new
//! heartbeat nor a new incarnation for a whole TTL, and only over the observed incarnation.
//! - A round that counts was acknowledged while the replica was sure by the round before. So an observer that missed its heartbeat
//!   read before that acknowledgement, and had observed the round before, or a later one, less than a TTL earlier.
//! - A silent replica cannot know the observations of others. It changes its incarnation: an observer of the old one can no longer
//!   write Down, and an observer of the new one begins to count after the change was sent.
//!
//! All times are of this machine's CLOCK_BOOTTIME. If that clock stood still, the replica notices by the read of its own row.

use std::time::Duration;

use crate::store::{ReplicaState, StateSwap};

/// The part of the replica TTL for which a replica answers; the rest allows for differing clock rates.
pub(super) fn safe_part(replica_ttl: Duration) -> Duration {
    replica_ttl / 10 * 9
}

/// Why a replica is fenced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FencedBy {
    /// Another replica declared it down.
    #[error("another replica declared it down")]
    Down,
    /// Its row says that it stopped, which it did not.
    #[error("its row says that it stopped")]
    Stopped,
    /// Its row was deleted.
    #[error("its row was deleted")]
    Missing,
    /// Its row has an incarnation that it did not write: another process has its id, or the store was set back.
    #[error("its row has incarnation {0}, which it did not write")]
    Incarnation(u32),
    /// Its row has a heartbeat that it did not send: another process has its id, as the clone of a virtual machine does.
    #[error("its row has heartbeat {0}, which it did not send")]
    Heartbeat(u64),
}

/// This replica's own row, as read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OwnRow {
    Missing,
    Present { state: ReplicaState, heartbeat: u64 },
}

/// A round in progress: a heartbeat and a read of all rows, sent together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Round {
    sent: Duration,
    /// The heartbeat to write; `None` without one.
    pub heartbeat: Option<u64>,
    /// The incarnation at its start; `None` while silent.
    incarnation: Option<u32>,
}

/// A swap of this replica's own incarnation, to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct IncarnationChange {
    pub expected: u32,
    pub next: u32,
    sent: Duration,
}

/// Whether this replica may answer now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Status {
    /// Sure while CLOCK_BOOTTIME is below this.
    SureUntil(Duration),
    Silent,
    Fenced(FencedBy),
    Stopped,
}

/// The outcome of the swap that stops this replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StopOutcome {
    /// Its row says stopped or down.
    Done,
    /// To be sent again, in place of this incarnation.
    Again(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LeasePhase {
    /// `sent`: the start of the last round that counts, or of the swap or announcement that began this incarnation.
    Sure {
        sent: Duration,
    },
    Silent {
        /// The last known incarnation in the row: a confirmed one, or that of a swap of unknown outcome.
        seen: u32,
        /// Whether the store answered since the last swap was sent.
        answered: bool,
        /// Whether a swap is in flight.
        swapping: bool,
    },
    Fenced(FencedBy),
    Stopped {
        seen: u32,
    },
}

/// The lease of one replica.
#[derive(Clone, Debug)]
pub(super) struct ReplicaLease {
    replica_ttl: Duration,
    /// The highest heartbeat sent.
    heartbeat: u64,
    /// The last incarnation in which it was sure.
    incarnation: u32,
    /// The highest incarnation ever sent in a swap.
    tried: u32,
    phase: LeasePhase,
}

impl ReplicaLease {
    /// The incarnation of an announcement.
    pub const FIRST_INCARNATION: u32 = 1;

    /// The lease of an announced replica. `sent`: the start of the first try, from which on others may have observed it.
    pub fn announced(sent: Duration, heartbeat: u64, replica_ttl: Duration) -> Self {
        ReplicaLease {
            replica_ttl,
            heartbeat,
            incarnation: Self::FIRST_INCARNATION,
            tried: Self::FIRST_INCARNATION,
            phase: LeasePhase::Sure { sent },
        }
    }

    /// Whether it may answer at `now`.
    pub fn status(&mut self, now: Duration) -> Status {
        if let LeasePhase::Sure { sent } = self.phase {
            let until = sent.saturating_add(safe_part(self.replica_ttl));
            if now < until {
                return Status::SureUntil(until);
            }
            self.phase = LeasePhase::Silent {
                seen: self.incarnation,
                answered: false,
                swapping: false,
            };
        }
        match self.phase {
            LeasePhase::Sure { .. } | LeasePhase::Silent { .. } => Status::Silent,
            LeasePhase::Fenced(by) => Status::Fenced(by),
            LeasePhase::Stopped { .. } => Status::Stopped,
        }
    }

    /// Begins a round, with a heartbeat this step above the last one, or without one. `None` once it is fenced or stopped.
    ///
    /// The steps are random: of two processes with one id and one pace, one soon sees a heartbeat above its own. It is fenced and
    /// sends no more, so the other one never sees a higher one.
    pub fn begin_round(&mut self, now: Duration, step: Option<u64>) -> Option<Round> {
        let incarnation = match self.status(now) {
            Status::SureUntil(_) => Some(self.incarnation),
            Status::Silent => None,
            Status::Fenced(_) | Status::Stopped => return None,
        };
        let heartbeat = step.map(|step| {
            self.heartbeat = self.heartbeat.saturating_add(step.max(1));
            self.heartbeat
        });
        Some(Round {
            sent: now,
            heartbeat,
            incarnation,
        })
    }

    /// A read showed this row, however early it began. It can fence, and never makes sure.
    pub fn saw(&mut self, own: OwnRow) {
        match own {
            OwnRow::Missing => self.fence(FencedBy::Missing),
            OwnRow::Present { state, heartbeat } => {
                if heartbeat > self.heartbeat {
                    self.fence(FencedBy::Heartbeat(heartbeat));
                }
                self.saw_state(state);
            }
        }
    }

    /// A round ended, with its heartbeat acknowledged or not, and with the own row, if the read was answered.
    pub fn end_round(
        &mut self,
        round: Round,
        acknowledged: bool,
        own: Option<OwnRow>,
        now: Duration,
    ) {
        if let Some(own) = own {
            self.saw(own);
        }
        // The silence begins on time, however late this call is.
        self.status(now);
        let incarnation = self.incarnation;
        let mine = |own| matches!(own, OwnRow::Present { state: ReplicaState::Up(up), .. } if up == incarnation);
        match &mut self.phase {
            LeasePhase::Sure { sent } => {
                if acknowledged && own.is_some_and(mine) && round.incarnation == Some(incarnation) {
                    *sent = round.sent.max(*sent);
                }
            }
            LeasePhase::Silent { answered, .. } => *answered |= acknowledged || own.is_some(),
            LeasePhase::Fenced(_) | LeasePhase::Stopped { .. } => {}
        }
    }

    /// The swap to send now, to end the silence. One at a time, and only if the store answered since the last one.
    pub fn come_back(&mut self, now: Duration) -> Option<IncarnationChange> {
        self.status(now);
        let LeasePhase::Silent {
            seen,
            answered: answered @ true,
            swapping: swapping @ false,
        } = &mut self.phase
        else {
            return None;
        };
        // Never an incarnation that was tried before: so an earlier swap of unknown outcome cannot apply after a later one.
        let next = self.tried.checked_add(1)?;
        self.tried = next;
        (*answered, *swapping) = (false, true);
        Some(IncarnationChange {
            expected: *seen,
            next,
            sent: now,
        })
    }

    /// The outcome of that swap. Only an applied swap makes sure: its incarnation in the row may be another process's with the
    /// same id.
    pub fn swapped(&mut self, change: IncarnationChange, came: &StateSwap, now: Duration) {
        let LeasePhase::Silent {
            answered, swapping, ..
        } = &mut self.phase
        else {
            return;
        };
        *swapping = false;
        match came {
            StateSwap::Applied => {
                self.incarnation = change.next;
                self.phase = LeasePhase::Sure { sent: change.sent };
                self.status(now);
            }
            StateSwap::Conflict(row) => {
                *answered = true;
                self.met(*row);
            }
            StateSwap::Unknown(_) | StateSwap::NotStarted(_) => {}
        }
    }

    /// Nothing is answered from here on. Returns the incarnation to replace by Stopped; `None` once fenced: the id may be another
    /// process's.
    pub fn stop(&mut self) -> Option<u32> {
        let seen = match self.phase {
            LeasePhase::Sure { .. } => self.incarnation,
            LeasePhase::Silent { seen, .. } | LeasePhase::Stopped { seen } => seen,
            LeasePhase::Fenced(_) => return None,
        };
        self.phase = LeasePhase::Stopped { seen };
        Some(seen)
    }

    /// The outcome of that swap.
    pub fn stopped(&mut self, came: &StateSwap) -> StopOutcome {
        let LeasePhase::Stopped { seen } = &mut self.phase else {
            return StopOutcome::Done;
        };
        match came {
            StateSwap::Applied => StopOutcome::Done,
            // Its own swap of unknown outcome was applied.
            StateSwap::Conflict(Some(ReplicaState::Up(up)))
                if (self.incarnation..=self.tried).contains(up) =>
            {
                *seen = *up;
                StopOutcome::Again(*up)
            }
            StateSwap::Conflict(_) => StopOutcome::Done,
            StateSwap::Unknown(_) | StateSwap::NotStarted(_) => StopOutcome::Again(*seen),
        }
    }

    /// A swap met this row, or none.
    fn met(&mut self, row: Option<ReplicaState>) {
        match row {
            None => self.fence(FencedBy::Missing),
            Some(ReplicaState::Up(up)) if !(self.incarnation..=self.tried).contains(&up) => {
                self.fence(FencedBy::Incarnation(up));
            }
            Some(ReplicaState::Up(up)) => {
                if let LeasePhase::Silent { seen, .. } = &mut self.phase {
                    *seen = up;
                }
            }
            Some(state @ (ReplicaState::Down | ReplicaState::Stopped)) => self.saw_state(state),
        }
    }

    fn saw_state(&mut self, state: ReplicaState) {
        match (state, &mut self.phase) {
            (ReplicaState::Down, _) => self.fence(FencedBy::Down),
            (ReplicaState::Stopped, _) => self.fence(FencedBy::Stopped),
            (ReplicaState::Up(up), _) if up > self.tried => self.fence(FencedBy::Incarnation(up)),
            // A swap of unknown outcome was applied. (While sure, no tried incarnation is above its own.)
            (ReplicaState::Up(up), LeasePhase::Silent { seen, .. }) => *seen = up.max(*seen),
            // The read began before the last change.
            (ReplicaState::Up(_), _) => {}
        }
    }

    fn fence(&mut self, by: FencedBy) {
        match self.phase {
            LeasePhase::Sure { .. } | LeasePhase::Silent { .. } => {
                self.phase = LeasePhase::Fenced(by)
            }
            LeasePhase::Fenced(_) | LeasePhase::Stopped { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests;
