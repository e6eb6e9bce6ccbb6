//! The rows of ended sessions. Each is kept for a TTL, so that a repeated OpenSession finds the session ended, and is then deleted.

use std::collections::{BTreeMap, BTreeSet};

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::lock::SessionId;

/// The rows to delete, with their times by CLOCK_BOOTTIME, in the memory of one replica. After its stop or crash a sweep or
/// the next start finds the rows, and keeps them for a TTL from then.
pub(in crate::engine) struct ClosedRows {
    rows: Mutex<RowsToDelete>,
    max: usize,
}

#[derive(Default)]
struct RowsToDelete {
    until: BTreeMap<SessionId, Duration>,
    due: BTreeSet<(Duration, SessionId)>,
}

impl ClosedRows {
    /// For `max` rows; above that the earliest due one is deleted at once.
    pub fn new(max: usize) -> Self {
        ClosedRows {
            rows: Mutex::default(),
            max,
        }
    }

    fn rows(&self) -> MutexGuard<'_, RowsToDelete> {
        // Nothing below panics between two dependent changes.
        self.rows.lock()
    }

    /// Whether this row is to be deleted later.
    pub fn has(&self, session: SessionId) -> bool {
        self.rows().until.contains_key(&session)
    }

    /// Has this row deleted at `until`, unless it has a time already.
    pub fn add(&self, session: SessionId, until: Duration) {
        let mut rows = self.rows();
        if rows.until.contains_key(&session) {
            return;
        }
        rows.until.insert(session, until);
        rows.due.insert((until, session));
    }

    /// Takes the due rows, and those above the limit.
    pub fn take_due(&self, boot: Duration) -> Vec<SessionId> {
        let mut rows = self.rows();
        let mut taken = Vec::new();
        while let Some((until, session)) = rows.due.first().copied()
            && (until <= boot || rows.due.len() > self.max)
        {
            rows.due.pop_first();
            rows.until.remove(&session);
            taken.push(session);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn session(n: u128) -> SessionId {
        SessionId(Uuid::from_u128(n))
    }

    #[test]
    fn a_row_is_due_after_its_ttl_and_once() {
        let rows = ClosedRows::new(10);
        rows.add(session(1), 2 * SECOND);
        rows.add(session(1), 3 * SECOND);
        rows.add(session(2), SECOND);
        assert_eq!(rows.take_due(SECOND), [session(2)]);
        assert!(rows.has(session(1)));
        assert_eq!(rows.take_due(2 * SECOND), [session(1)]);
        assert_eq!(rows.take_due(9 * SECOND), []);
    }

    #[test]
    fn above_the_limit_the_row_that_is_due_first_goes() {
        let rows = ClosedRows::new(2);
        for n in 1..=3 {
            rows.add(session(n), SECOND * u32::try_from(n).unwrap());
        }
        assert_eq!(rows.take_due(Duration::ZERO), [session(1)]);
    }
}
