//! The end of a session at its keeper.

use std::sync::Arc;
use std::time::Duration;

use super::announcements::EndedElsewhere;
use super::close_row::{Closed, write_closed};
use super::registry::Sessions;
use super::table::NotRenewed;
use super::take_over::find;
use crate::engine::api::EngineError;
use crate::lock::SessionId;

/// How often who waits for another call to close a session rereads whether it did.
const REREAD_EVERY: Duration = Duration::from_millis(50);
/// How often, before its own caller is told to come again.
const REREADS_MAX: u32 = 100;

/// What became of a session that its client closed.
pub(in super::super) enum ClosedByClient {
    /// It ended here, now or before. [`Sessions::until_emptied`] says when what lives by it has ended, too, and
    /// [`Sessions::ended_everywhere`] when that is so elsewhere.
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
    // Also where it has ended: then another call, or its expiry, may not have written that down yet.
    if !sessions.table.end(session) {
        // It was handed over a moment ago.
        return Err(EngineError::changing_keeper());
    }
    match end(&sessions, session).await {
        Closed::Done => Ok(ClosedByClient::Here {
            had_ended: renewed.is_err(),
            elsewhere: sessions.announce_ended(session),
        }),
        Closed::Stopped if sessions.local.is_stopping() => Err(EngineError::Stopping),
        Closed::Stopped => Err(EngineError::ending()),
        Closed::Moved => Err(EngineError::changing_keeper()),
    }
}

/// The time of a session has come here; if it `was_open`, it expired.
pub(in super::super) fn expired(sessions: &Arc<Sessions>, session: SessionId, was_open: bool) {
    if was_open {
        tracing::info!(%session, "a session expired");
    }
    let sessions = Arc::clone(sessions);
    tokio::spawn(async move {
        if end(&sessions, session).await == Closed::Done {
            // Nobody waits for what others say.
            drop(sessions.announce_ended(session));
            sessions.until_emptied(session).await;
        }
    });
}

/// Ends a session: first its lease here, then its row, then what lives by it. Returns once the row says so and the keys
/// heard of it, or this replica stops. Safe to run twice.
pub(in super::super) async fn end(sessions: &Arc<Sessions>, session: SessionId) -> Closed {
    let table = &sessions.table;
    let mut rereads = 0;
    if table.end(session) {
        while table.is_ending(session) {
            let Some(_closing) = table.begin_close(session) else {
                // Another call, or its expiry, does so.
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
            // Not before: a row that is still open is not forgotten, and nobody would come back for it.
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
