//! What a replica does about the sessions that it keeps: it ends them, and hands over those that are asked for.

use std::sync::Arc;
use std::time::Duration;

use super::close_row::{Closed, write_closed};
use super::registry::Sessions;
use super::table::NotRenewed;
use super::take_over::find;
use crate::engine::api::EngineError;
use crate::engine::peers::Presence;
use crate::lock::{ReplicaId, SessionId};
use crate::store::{SessionRow, SessionSwap};

/// How often who waits for another call to close a session rereads whether it did.
const REREAD_EVERY: Duration = Duration::from_millis(50);
/// How often, before its own caller is told to come again.
const REREADS_MAX: u32 = 100;

/// What became of a session that its client closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum ClosedByClient {
    /// It ended here, now or before. [`Sessions::until_emptied`] says when what lives by it has ended, too.
    Here { had_ended: bool },
    /// It had ended, and is not kept here.
    Elsewhere,
}

/// Closes a session for its client.
pub(in super::super) async fn close(
    sessions: Arc<Sessions>,
    session: SessionId,
) -> Result<ClosedByClient, EngineError> {
    let now = sessions.time.now();
    let renewed = sessions.table.renew(session, now, false);
    if renewed == Err(NotRenewed::NotKept) {
        return match find(&sessions, session).await {
            Ok(()) => Err(EngineError::changing_keeper()),
            Err(EngineError::SessionEnded) => Ok(ClosedByClient::Elsewhere),
            Err(error) => Err(error),
        };
    }
    // Also where it has ended: then another call, or its expiry, may not have written that down yet.
    if !sessions.table.end(session) {
        // It was handed over a moment ago.
        return Err(EngineError::changing_keeper());
    }
    match end(&sessions, session).await {
        Closed::Done => Ok(ClosedByClient::Here {
            had_ended: renewed.is_err(),
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
            sessions.notify_ended(session);
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

/// Hands a session to a replica that asked for it: nothing renews it here from before the row says so.
pub(in super::super) async fn give(
    sessions: &Arc<Sessions>,
    session: SessionId,
    epoch: u32,
    to: ReplicaId,
) -> Result<(), EngineError> {
    let row = sessions.rows.load_session(session).await;
    let row = row.map_err(EngineError::of_store)?.filter(|row| row.open);
    let is_asked_for = |row: &SessionRow| row.replica == sessions.local.id && row.epoch == epoch;
    let Some(row) = row.filter(is_asked_for) else {
        // It means nothing any more.
        return Ok(());
    };
    if !matches!(sessions.local.presence(to), Presence::Live(_)) {
        // It asked, and is gone or silent since.
        return Ok(());
    }
    let given = SessionRow {
        replica: to,
        epoch: epoch.saturating_add(1),
        ..row
    };
    // Its new keeper begins a whole TTL after this, so what was answered before holds. One that has ended gets no new TTL.
    let boot = sessions.local.clock.boot();
    if !sessions.table.begin_give(&given, boot) {
        return Ok(());
    }
    match sessions.rows.swap_session(epoch, &given).await {
        SessionSwap::Applied => {
            tracing::info!(%session, %to, "handed a session over that was asked for");
            Ok(())
        }
        // Whoever is asked about it next reads the row: it is kept here again where that says so.
        SessionSwap::Conflict(_) => {
            sessions.table.forget_keeper(session);
            Ok(())
        }
        SessionSwap::Unknown(error) | SessionSwap::NotStarted(error) => {
            sessions.table.forget_keeper(session);
            Err(EngineError::of_store(error))
        }
    }
}
