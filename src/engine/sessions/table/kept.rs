//! The sessions that this replica keeps, with their leases. Each has one alarm; a renewal does not move it.

use std::sync::Arc;
use std::time::Duration;

use super::{
    Closing, Giving, KeptRow, Known, KnownSessions, NotRenewed, Reservation, RowOfDone,
    SessionRole, SessionTable,
};
use crate::engine::api::Renewed;
use crate::lock::SessionId;
use crate::session::{Lease, Observed};
use crate::store::SessionRow;

impl SessionTable {
    /// Makes this replica the keeper of a session, with a full TTL and its entries. False if the session has another keeper
    /// since that row was written, or has ended. Consumes the reservation.
    pub fn keep(&self, row: &SessionRow, now: Observed, mut reserved: Reservation<'_>) -> bool {
        let mut inner = self.inner();
        let id = row.id;
        let KnownSessions {
            sessions,
            alarms,
            kept,
            ..
        } = &mut *inner;
        let known = sessions
            .entry(id)
            .or_insert_with(|| Known::elsewhere(Duration::ZERO));
        match &known.role {
            SessionRole::Elsewhere { ended: true, .. } => return false,
            SessionRole::Elsewhere { .. } if known.epoch > row.epoch => return false,
            SessionRole::Elsewhere { .. } => {}
            SessionRole::Kept { .. } => {
                known.epoch = known.epoch.max(row.epoch);
                return true;
            }
        }
        let lease = Lease::new(row.ttl(), now).with_disconnect_grace(row.disconnect_grace());
        let alarm = lease.expires();
        alarms.insert((alarm, id), ());
        *kept += 1;
        known.epoch = row.epoch;
        known.share_of = std::mem::replace(&mut reserved.share_of, Arc::from(""));
        known.role = SessionRole::Kept {
            lease,
            alarm,
            row: KeptRow::Open,
        };
        true
    }

    /// Renews a session; `on_stream`: its client is connected.
    pub fn renew(
        &self,
        session: SessionId,
        now: Observed,
        on_stream: bool,
    ) -> Result<Renewed, NotRenewed> {
        let mut inner = self.inner();
        let Some(known) = inner.sessions.get_mut(&session) else {
            return Err(NotRenewed::NotKept);
        };
        match &mut known.role {
            SessionRole::Kept { lease, row, .. } => {
                let renewed = match on_stream {
                    true => lease.renew_on_stream(now),
                    false => lease.renew(now),
                };
                let valid_for = renewed.ok_or(match row {
                    KeptRow::Closed => NotRenewed::Ended,
                    KeptRow::Open | KeptRow::Closing => NotRenewed::Ending,
                })?;
                Ok(Renewed {
                    ttl: lease.ttl(),
                    disconnect_grace: lease.disconnect_grace(),
                    valid_for,
                    durable: false,
                })
            }
            SessionRole::Elsewhere { ended: true, .. } => Err(NotRenewed::Ended),
            SessionRole::Elsewhere { .. } => Err(NotRenewed::NotKept),
        }
    }

    /// The validity of an open session kept here, for a call that renewed it: the client counts from when it sent the call.
    pub fn promised(&self, session: SessionId) -> Option<Renewed> {
        match &self.inner().sessions.get(&session)?.role {
            SessionRole::Kept { lease, .. } if !lease.has_ended() => Some(Renewed {
                ttl: lease.ttl(),
                disconnect_grace: lease.disconnect_grace(),
                valid_for: lease.safe_for_most(),
                durable: false,
            }),
            SessionRole::Kept { .. } | SessionRole::Elsewhere { .. } => None,
        }
    }

    /// The renewal stream of a session's client ended.
    pub fn disconnected(&self, session: SessionId, now: Observed) {
        let mut inner = self.inner();
        if let Some(known) = inner.sessions.get_mut(&session)
            && let SessionRole::Kept { lease, .. } = &mut known.role
        {
            lease.disconnect(now);
        }
        inner.fire_sooner(session);
    }

    /// Takes the expired leases, `most` at most. The flag is true if the lease was open; the row of an earlier end may still be
    /// open.
    pub fn expire(&self, now: Observed, most: usize) -> Vec<(SessionId, bool)> {
        let mut inner = self.inner();
        let mut expired = Vec::new();
        while expired.len() < most
            && let Some(first) = inner.alarms.first_entry()
            && first.key().0 <= now
        {
            let ((_, session), ()) = first.remove_entry();
            let Some(known) = inner.sessions.get_mut(&session) else {
                continue;
            };
            let SessionRole::Kept { lease, alarm, .. } = &mut known.role else {
                continue;
            };
            let was_open = !lease.has_ended();
            if lease.expire(now) {
                expired.push((session, was_open));
            } else {
                let again = lease.expires();
                *alarm = again;
                inner.alarms.insert((again, session), ());
            }
        }
        expired
    }

    /// Ends a session: it takes no renewals and no entries any more. False if it is not kept here.
    pub fn end(&self, session: SessionId) -> bool {
        let mut inner = self.inner();
        let Some(known) = inner.sessions.get_mut(&session) else {
            return false;
        };
        match &mut known.role {
            SessionRole::Kept { lease, .. } => {
                lease.end();
                true
            }
            SessionRole::Elsewhere { .. } => false,
        }
    }

    /// Begins to write the end of a session into its row; `None` if that is done, or another task does it.
    pub fn begin_close(&self, session: SessionId) -> Option<Closing<'_>> {
        let mut inner = self.inner();
        let known = inner.sessions.get_mut(&session)?;
        match &mut known.role {
            SessionRole::Kept { row, .. } if *row == KeptRow::Open => *row = KeptRow::Closing,
            SessionRole::Kept { .. } | SessionRole::Elsewhere { .. } => return None,
        }
        Some(Closing {
            table: self,
            session,
        })
    }

    /// Begins a hand-over of a session, by this row: nothing renews it here from now on. The rest of its lease counts as an
    /// answer of the next keeper, whose whole TTL begins later. `None` if the session has ended here.
    pub fn begin_give(
        &self,
        row: &SessionRow,
        now: Observed,
        boot: Duration,
    ) -> Option<Giving<'_>> {
        let mut inner = self.inner();
        let known = inner.sessions.get(&row.id);
        if known.is_some_and(|known| known.has_ended() || known.is_ending()) {
            return None;
        }
        let left = known.and_then(|known| match &known.role {
            SessionRole::Kept { lease, .. } => Some(Renewed {
                ttl: lease.ttl(),
                disconnect_grace: lease.disconnect_grace(),
                valid_for: lease.left(now).min(lease.safe_for_most()),
                durable: false,
            }),
            SessionRole::Elsewhere { .. } => None,
        });
        inner.moved(row, boot);
        if let Some(left) = left {
            inner.heard(row.id, left, boot);
        }
        Some(Giving {
            table: self,
            session: row.id,
            is_given: false,
        })
    }

    /// The open sessions that are kept here, the last renewed first.
    pub fn kept(&self) -> Vec<SessionId> {
        let inner = self.inner();
        let kept = inner.sessions.iter().filter_map(|(id, known)| {
            let SessionRole::Kept { lease, .. } = &known.role else {
                return None;
            };
            (!lease.has_ended()).then(|| (lease.heard(), *id))
        });
        let mut kept: Vec<_> = kept.collect();
        kept.sort_by(|(one, _), (other, _)| other.cmp(one));
        kept.into_iter().map(|(_, id)| id).collect()
    }

    /// Whether a session is known and has not ended.
    pub fn is_open(&self, session: SessionId) -> bool {
        let inner = self.inner();
        let known = inner.sessions.get(&session);
        known.is_some_and(|known| !known.has_ended())
    }

    /// Whether a session has ended here, but not in its row yet.
    pub fn is_ending(&self, session: SessionId) -> bool {
        let inner = self.inner();
        inner.sessions.get(&session).is_some_and(Known::is_ending)
    }

    /// Notes that the row of a session says that it has ended.
    pub fn note_closed(&self, session: SessionId) {
        if let Some(known) = self.inner().sessions.get_mut(&session)
            && let SessionRole::Kept { row, .. } = &mut known.role
        {
            *row = KeptRow::Closed;
        }
    }

    /// Forgets an ended session without entries. Returns the fate of its row.
    pub fn remove_if_done(&self, session: SessionId) -> RowOfDone {
        let mut inner = self.inner();
        let Some(known) = inner.sessions.get(&session).filter(|known| known.is_done()) else {
            return RowOfDone::Stays;
        };
        let row = match known.role {
            SessionRole::Elsewhere { .. } => RowOfDone::Stays,
            SessionRole::Kept { .. } if known.is_inherited => RowOfDone::GoesOnceRecovered,
            SessionRole::Kept { .. } => RowOfDone::Goes,
        };
        inner.forget(session);
        row
    }

    /// Notes that an earlier process opened this session.
    pub fn note_inherited(&self, session: SessionId) {
        if let Some(known) = self.inner().sessions.get_mut(&session) {
            known.is_inherited = true;
        }
    }

    /// The TTL of a session kept here, and the rest of it.
    pub fn left(&self, session: SessionId, now: Observed) -> Option<(Duration, Duration)> {
        match &self.inner().sessions.get(&session)?.role {
            SessionRole::Kept { lease, .. } => Some((lease.ttl(), lease.left(now))),
            SessionRole::Elsewhere { .. } => None,
        }
    }

    /// Whether this replica keeps a session.
    pub fn is_kept(&self, session: SessionId) -> bool {
        let inner = self.inner();
        let known = inner.sessions.get(&session);
        matches!(
            known.map(|known| &known.role),
            Some(SessionRole::Kept { .. })
        )
    }
}

impl KnownSessions {
    /// Moves the alarm of a session that may end sooner. (An early alarm is set again when it fires.)
    pub(super) fn fire_sooner(&mut self, session: SessionId) {
        let Some(known) = self.sessions.get_mut(&session) else {
            return;
        };
        let SessionRole::Kept { lease, alarm, .. } = &mut known.role else {
            return;
        };
        let expires = lease.expires();
        if lease.has_ended() || expires >= *alarm {
            return;
        }
        let older = std::mem::replace(alarm, expires);
        self.alarms.remove(&(older, session));
        self.alarms.insert((expires, session), ());
    }
}
