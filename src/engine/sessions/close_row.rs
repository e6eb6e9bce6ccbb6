//! Writes into the row of a session that it is closed, for good.

use std::sync::Arc;

use crate::engine::replica::Replica;
use crate::lock::SessionId;
use crate::store::{SessionRow, SessionSwap, StoreError};

/// What came of ending a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Closed {
    /// It is closed, or gone.
    Done,
    /// Another replica keeps it now, so it is not for this one to end.
    Moved,
    /// This replica stopped before it could.
    Stopped,
}

/// Writes into the row that a session is closed.
pub(super) async fn write_closed(replica: &Arc<Replica>, session: SessionId) -> Closed {
    let mut tries = 0;
    while !*replica.stopping.borrow() {
        match try_write_closed(replica, session).await {
            Ok(Some(closed)) => return closed,
            Ok(None) => {}
            Err(error) => {
                let log_throttle = &replica.log_throttles.not_closed;
                if let Some(times) = log_throttle.met(replica.clock.boot(), &error.to_string()) {
                    tracing::warn!(%session, %error, times, "could not close a session yet; retrying");
                }
            }
        }
        replica.clock.sleep(replica.backoff(tries)).await;
        tries += 1;
    }
    Closed::Stopped
}

/// One try; `None` if the row changed meanwhile.
async fn try_write_closed(
    replica: &Arc<Replica>,
    session: SessionId,
) -> Result<Option<Closed>, StoreError> {
    let store = &replica.store.sessions;
    let Some(row) = store.load_session(session).await? else {
        return Ok(Some(Closed::Done));
    };
    if !row.open {
        return Ok(Some(Closed::Done));
    }
    if row.replica != replica.id {
        replica.sessions.table.moved(&row, replica.clock.boot());
        return Ok(Some(Closed::Moved));
    }
    let expected = row.epoch;
    let closed = SessionRow {
        open: false,
        epoch: expected.saturating_add(1),
        ..row
    };
    match store.swap_session(expected, &closed).await {
        SessionSwap::Applied => Ok(Some(Closed::Done)),
        SessionSwap::Conflict(_) => Ok(None),
        SessionSwap::Unknown(error) | SessionSwap::NotStarted(error) => Err(error),
    }
}
