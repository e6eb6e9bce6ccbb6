//! Ends a session at its keeper, the replica in charge of it.

use std::sync::Arc;
use std::time::Duration;

use super::announcements::EndedElsewhere;
use super::close_row::{Closed, write_closed};
use super::registry::Sessions;
use super::table::NotRenewed;
use super::take_over::find;
use crate::engine::api::EngineError;
use crate::lock::SessionId;

/// The pause between looks while another call closes the session.
const REREAD_EVERY: Duration = Duration::from_millis(50);
/// Looks before the caller is told to retry.
const REREADS_MAX: u32 = 100;

/// The outcome of a CloseSession.
pub(in super::super) enum ClosedByClient {
    /// It ended here, now or before. [`Sessions::until_emptied`] waits for the end of its entries here, and
    /// [`Sessions::ended_everywhere`] for that elsewhere.
    Here {
        had_ended: bool,
        elsewhere: EndedElsewhere,
    },
    /// It had ended, and is not kept here.
    Elsewhere,
}

/// Closes a session for its client.
pub(in super::super) async fn close(
    sessions: Arc<Sessions>,
    session: SessionId,
) -> Result<ClosedByClient, EngineError> {
    let renew = || sessions.table.renew(session, sessions.time.now(), false);
    let mut renewed = renew();
    if renewed == Err(NotRenewed::NotKept) {
        match find(&sessions, session).await {
            Ok(()) => renewed = renew(),
            Err(EngineError::SessionEnded) => return Ok(ClosedByClient::Elsewhere),
            Err(error) => return Err(error),
        }
    }
    // Also if it has ended: another call, or its expiry, may not have written the row yet.
    if !sessions.table.end(session) {
        // It was handed over a moment ago.
        return Err(EngineError::changing_keeper());
    }
    match end(&sessions, session).await {
        Closed::Done => {
            if renewed.is_ok() {
                sessions.metrics.closed_sessions.inc();
            }
            Ok(ClosedByClient::Here {
                had_ended: renewed.is_err(),
                elsewhere: sessions.announce_ended(session),
            })
        }
        Closed::Stopped if sessions.local.is_stopping() => Err(EngineError::Stopping),
        Closed::Stopped => Err(EngineError::ending()),
        Closed::Moved => Err(EngineError::changing_keeper()),
    }
}

/// Ends a session whose alarm fired; if it `was_open`, it expired.
pub(in super::super) fn expired(sessions: &Arc<Sessions>, session: SessionId, was_open: bool) {
    if was_open {
        sessions.metrics.expired_sessions.inc();
        tracing::info!(%session, "a session expired");
    }
    let sessions = Arc::clone(sessions);
    tokio::spawn(async move {
        if end(&sessions, session).await == Closed::Done {
            // Nothing waits for the answers of others.
            drop(sessions.announce_ended(session));
            sessions.until_emptied(session).await;
        }
    });
}

/// Ends a session: first its lease here, then its row, then its entries. Returns once the row says so and the keys are
/// notified, or this replica stops. Safe to run twice.
pub(in super::super) async fn end(sessions: &Arc<Sessions>, session: SessionId) -> Closed {
    let table = &sessions.table;
    let mut rereads = 0;
    if table.end(session) {
        while table.is_ending(session) {
            let Some(_closing) = table.begin_close(session) else {
                // Another call, or the expiry, is writing the row.
                if rereads == REREADS_MAX || sessions.local.is_stopping() {
                    return Closed::Stopped;
                }
                sessions.local.clock.sleep(REREAD_EVERY).await;
                rereads += 1;
                continue;
            };
            match write_closed(sessions, session).await {
                Closed::Done => {}
                other @ (Closed::Moved | Closed::Stopped) => return other,
            }
            // Only after the write: a session must not be forgotten while its row is open, because nothing would close it.
            table.note_closed(session);
        }
    }
    if table.is_open(session) {
        // Another replica keeps it.
        return Closed::Moved;
    }
    sessions.end_entries(session);
    Closed::Done
}
