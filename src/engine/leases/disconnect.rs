//! Sessions that end soon after their client's stream does.

use super::{Alarm, LeaseKey, Leases, NoLease, Table};
use crate::engine::api::Renewed;
use crate::lock::SessionId;
use crate::session::Observed;

impl Leases {
    /// As [`Leases::renew`], by a renewal on a stream.
    pub fn renew_on_stream(&self, session: SessionId) -> Result<Renewed, NoLease> {
        let (mut table, now) = self.table_now();
        let key = LeaseKey::Session(session);
        let renewed = table.renew(&key, now, self.clock.boot())?;
        if let Some(lease) = table.lease(&key) {
            lease.renew_on_stream(now);
        }
        Ok(renewed)
    }

    /// A stream ended that the client of a session sent renewals on.
    pub fn disconnected(&self, session: SessionId) {
        let (mut table, now) = self.table_now();
        if let Some(known) = table.sessions.get_mut(&session) {
            known.lease.disconnect(now);
            table.fire_sooner(session, now);
        }
    }
}

impl Table {
    /// Moves the alarm of a session that may end sooner than that fires. (Later is no matter: it is set again.)
    pub(super) fn fire_sooner(&mut self, session: SessionId, now: Observed) {
        let Some(known) = self.sessions.get(&session) else {
            return;
        };
        let (expires, older) = (known.lease.expires(now), known.alarm);
        // One that has ended has rung.
        if known.lease.has_ended() || expires >= older.0 {
            return;
        }
        self.alarms.remove(&older);
        let alarm = self.set_alarm(expires, Alarm::Session(session));
        if let Some(known) = self.sessions.get_mut(&session) {
            known.alarm = alarm;
        }
    }
}
