//! Marks a session as closed in its row, for good.

use std::sync::Arc;

use super::registry::Sessions;
use crate::lock::SessionId;
use crate::store::{SessionRow, SessionSwap, StoreError};

/// The outcome of ending a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Closed {
    /// It is closed, or gone.
    Done,
    /// Another replica keeps it now, so this one must not end it.
    Moved,
    /// This replica stopped first.
    Stopped,
}

/// Writes into the row that a session is closed.
pub(super) async fn write_closed(sessions: &Arc<Sessions>, session: SessionId) -> Closed {
    let mut tries = 0;
    while !sessions.local.is_stopping() {
        match try_write_closed(sessions, session).await {
            Ok(Some(closed)) => return closed,
            Ok(None) => {}
            Err(error) => {
                let log_throttle = &sessions.not_closed;
                if let Some(times) =
                    log_throttle.met(sessions.local.clock.boot(), &error.to_string())
                {
                    tracing::warn!(%session, %error, times, "could not close a session yet; retrying");
                }
            }
        }
        sessions.local.back_off(tries).await;
        tries += 1;
    }
    Closed::Stopped
}

/// One try; `None` if the row changed meanwhile.
async fn try_write_closed(
    sessions: &Arc<Sessions>,
    session: SessionId,
) -> Result<Option<Closed>, StoreError> {
    let store = &sessions.rows;
    let Some(row) = store.load_session(session).await? else {
        return Ok(Some(Closed::Done));
    };
    if !row.open {
        return Ok(Some(Closed::Done));
    }
    if row.replica != sessions.local.id {
        sessions.table.moved(&row, sessions.local.clock.boot());
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
