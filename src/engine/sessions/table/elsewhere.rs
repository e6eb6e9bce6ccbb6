//! The sessions of other keepers: each with its keeper, and the keeper's last answer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{Keeper, Known, KnownSessions, REMEMBERED_FOR, SessionRole, SessionTable};
use crate::engine::api::Renewed;
use crate::lock::{ReplicaId, SessionId};
use crate::store::SessionRow;

/// The bounds of the pause between reads of the row of a session elsewhere; within them it is the TTL. The keeper announces
/// an end at once, so the reads only find lost announcements.
const READ_AGAIN_MIN: Duration = Duration::from_secs(5);
const READ_AGAIN_MAX: Duration = Duration::from_secs(30);

/// Due work on a session that another replica keeps.
#[derive(Clone, Debug)]
pub struct Due {
    /// The session.
    pub session: SessionId,
    /// Read its row: it may have ended, or its keeper is down.
    pub read: bool,
    /// It has ended: end its entries.
    pub ended: bool,
}

/// The last answer of a session's keeper.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    /// The answer, with the rest of its validity.
    pub renewed: Renewed,
    /// At least two thirds of the validity are left: the keeper need not be asked again.
    pub is_fresh: bool,
}

impl SessionTable {
    /// The last answer of a session's keeper, while it is valid (H10).
    pub fn said(&self, session: SessionId, boot: Duration) -> Option<Said> {
        let inner = self.inner();
        match &inner.sessions.get(&session)?.role {
            SessionRole::Elsewhere {
                said: Some((renewed, until)),
                ended: false,
                ..
            } => {
                // The keeper answered by its clock, the client counts by its own: one clock may run a tenth slower.
                let gone = boot
                    .saturating_add(renewed.valid_for)
                    .saturating_sub(*until);
                let left = renewed.valid_for.saturating_sub(gone + gone / 9);
                (!left.is_zero()).then_some(Said {
                    renewed: Renewed {
                        valid_for: left,
                        ..*renewed
                    },
                    is_fresh: left >= renewed.valid_for / 3 * 2,
                })
            }
            SessionRole::Elsewhere { .. } | SessionRole::Kept { .. } => None,
        }
    }

    /// Whether a renewal must be passed on to the keeper now: the last one is a third of the TTL old. It counts as passed on
    /// from now on.
    pub fn is_due(&self, session: SessionId, boot: Duration) -> bool {
        let mut inner = self.inner();
        let Some(known) = inner.sessions.get_mut(&session) else {
            return false;
        };
        let SessionRole::Elsewhere {
            keeper: Some(keeper),
            renewed_at,
            ended: false,
            ..
        } = &mut known.role
        else {
            return false;
        };
        let pause = keeper.ttl / 3;
        let is_due = renewed_at.is_none_or(|at| boot.saturating_sub(at) >= pause);
        if is_due {
            *renewed_at = Some(boot);
        }
        is_due
    }

    /// Notes the keeper's answer to a renewal that was sent at `sent`.
    pub fn heard(&self, session: SessionId, renewed: Renewed, sent: Duration) {
        self.inner().heard(session, renewed, sent);
    }

    /// The keeper of a session elsewhere, if known.
    pub fn keeper(&self, session: SessionId) -> Option<Keeper> {
        match &self.inner().sessions.get(&session)?.role {
            SessionRole::Elsewhere { keeper, .. } => *keeper,
            SessionRole::Kept { .. } => None,
        }
    }

    /// Notes the row of a session that this replica does not keep.
    pub fn read(&self, row: &SessionRow, boot: Duration) {
        self.inner().read(row, boot);
    }

    /// Notes the end of a session that this replica does not keep.
    pub fn ended_elsewhere(&self, session: SessionId, boot: Duration) {
        let mut inner = self.inner();
        if let Some(known) = inner.sessions.get_mut(&session)
            && let SessionRole::Elsewhere { ended, read_at, .. } = &mut known.role
        {
            *ended = true;
            *read_at = Some(boot);
        }
    }

    /// Notes that another replica keeps a session that this one may have kept.
    pub fn moved(&self, row: &SessionRow, boot: Duration) {
        self.inner().moved(row, boot);
    }

    /// Forgets the keeper of a session, so that its row is read at once.
    pub fn forget_keeper(&self, session: SessionId) {
        if let Some(known) = self.inner().sessions.get_mut(&session)
            && let SessionRole::Elsewhere {
                keeper,
                read_at,
                said,
                ..
            } = &mut known.role
        {
            (*keeper, *read_at, *said) = (None, None, None);
        }
    }

    /// The keepers of known sessions elsewhere.
    pub fn keepers(&self) -> BTreeSet<ReplicaId> {
        let inner = self.inner();
        let keepers = inner
            .sessions
            .values()
            .filter_map(|known| match &known.role {
                SessionRole::Elsewhere { keeper, .. } => keeper.map(|keeper| keeper.replica),
                SessionRole::Kept { .. } => None,
            });
        keepers.collect()
    }

    /// The due work on sessions of other keepers, some of which are `down`. Forgets sessions without a user.
    pub fn due(&self, boot: Duration, down: &BTreeSet<ReplicaId>) -> Vec<Due> {
        let mut inner = self.inner();
        let unwanted: Vec<SessionId> = inner
            .sessions
            .iter()
            .filter(|(_, known)| {
                let is_elsewhere = matches!(known.role, SessionRole::Elsewhere { .. });
                known.is_unused() && is_elsewhere && known.wanted_until <= boot
            })
            .map(|(id, _)| *id)
            .collect();
        for session in unwanted {
            inner.forget(session);
        }
        let sessions = inner.sessions.iter();
        let due = sessions.filter_map(|(session, known)| {
            let SessionRole::Elsewhere {
                keeper,
                read_at,
                ended,
                ..
            } = &known.role
            else {
                return None;
            };
            let ttl = keeper.map_or(READ_AGAIN_MIN, |keeper| keeper.ttl);
            let read_again = ttl.clamp(READ_AGAIN_MIN, READ_AGAIN_MAX);
            let is_down = keeper.is_some_and(|keeper| down.contains(&keeper.replica));
            let is_used = !known.entries.is_empty();
            let is_read_due = read_at.is_none_or(|at| boot.saturating_sub(at) >= read_again);
            Some(Due {
                session: *session,
                read: !ended && (is_down || (is_used && is_read_due)),
                ended: *ended && !known.entries.is_empty(),
            })
        });
        due.filter(|due| due.read || due.ended).collect()
    }
}

impl KnownSessions {
    pub(super) fn heard(&mut self, session: SessionId, renewed: Renewed, sent: Duration) {
        if let Some(known) = self.sessions.get_mut(&session)
            && let SessionRole::Elsewhere {
                said, renewed_at, ..
            } = &mut known.role
        {
            *said = Some((renewed, sent.saturating_add(renewed.valid_for)));
            *renewed_at = (*renewed_at).max(Some(sent));
        }
    }

    fn read(&mut self, row: &SessionRow, boot: Duration) {
        let known = self.sessions.entry(row.id);
        let known = known.or_insert_with(|| Known::elsewhere(boot));
        let SessionRole::Elsewhere {
            keeper,
            read_at,
            said,
            ended,
            ..
        } = &mut known.role
        else {
            return;
        };
        if known.epoch > row.epoch {
            return;
        }
        known.epoch = row.epoch;
        let new = Keeper {
            replica: row.replica,
            epoch: row.epoch,
            ttl: row.ttl(),
        };
        if keeper.is_none_or(|old| old.replica != new.replica) {
            *said = None;
        }
        *keeper = Some(new);
        *read_at = Some(boot);
        *ended |= !row.open;
    }

    /// The session stays known, because the late answer to an older swap may still bring an older row.
    pub(super) fn moved(&mut self, row: &SessionRow, boot: Duration) {
        if let Some(known) = self.sessions.get_mut(&row.id)
            && let SessionRole::Kept { alarm, .. } = &known.role
        {
            if known.epoch >= row.epoch {
                return;
            }
            self.alarms.remove(&(*alarm, row.id));
            self.kept -= 1;
            known.role = Known::elsewhere(boot).role;
            let share_of = std::mem::replace(&mut known.share_of, Arc::from(""));
            self.give_back(&share_of);
        }
        self.read(row, boot);
        if let Some(known) = self.sessions.get_mut(&row.id) {
            known.wanted_until = known.wanted_until.max(boot.saturating_add(REMEMBERED_FOR));
        }
    }
}
