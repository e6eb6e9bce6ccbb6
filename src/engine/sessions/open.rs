//! OpenSession. A repeated call finds the session of the earlier try.

use std::sync::Arc;

use super::elsewhere;
use super::registry::Sessions;
use super::table::NotRenewed;
use super::take_over::{adopt_row, too_many, was_taken};
use crate::engine::api::{EngineError, Renewed};
use crate::store::{SessionRow, SessionSwap};

/// Retries of a swap that meets another change.
const TRIES_MAX: u32 = 8;

/// Opens a session, or finds the open one with this id. To be run in a task of its own, so that a written row always gets
/// its lease.
pub(in super::super) async fn open(
    sessions: Arc<Sessions>,
    row: SessionRow,
    share_of: Arc<str>,
) -> Result<Renewed, EngineError> {
    let table = &sessions.table;
    let session = row.id;
    let mut reserved = match table.is_kept(session) {
        true => None,
        false => {
            let reserved = table.reserve(&share_of);
            Some(reserved.map_err(|no_share| too_many(&sessions, no_share))?)
        }
    };
    let mut tries = 0;
    let mut may_be_written = false;
    let (found, is_new) = loop {
        let swap = sessions.rows.swap_session(0, &row).await;
        may_be_written |= matches!(swap, SessionSwap::Unknown(_));
        let error = match swap {
            SessionSwap::Applied => break (row.clone(), true),
            SessionSwap::Conflict(Some(found)) => break (found, false),
            // A retry shows the outcome: the row is there, or it is not.
            SessionSwap::Conflict(None) | SessionSwap::Unknown(_) if tries < TRIES_MAX => {
                sessions.local.back_off(tries).await;
                tries += 1;
                continue;
            }
            SessionSwap::Conflict(None) => EngineError::changing_keeper(),
            SessionSwap::Unknown(error) | SessionSwap::NotStarted(error) => {
                EngineError::of_store(error)
            }
        };
        if may_be_written {
            resolve_behind(&sessions, row.clone());
        }
        return Err(error);
    };
    if is_new {
        let reserved = reserved.unwrap_or_else(|| table.reserve_own(&share_of));
        if !table.keep(&found, sessions.time.now(), reserved) {
            return Err(EngineError::changing_keeper());
        }
        sessions.metrics.opened_sessions.inc();
    } else {
        drop(reserved.take());
        if !found.open {
            return Err(EngineError::SessionEnded);
        }
        if let Some(field) = differs(&found, &row) {
            return Err(EngineError::RequestMismatch { field });
        }
        if found.replica != sessions.local.id {
            // Opened through another replica, whose answer was lost.
            table.moved(&found, sessions.local.clock.boot());
            return elsewhere::renew(&sessions, session).await;
        }
        // By a swap of the row unless it is kept here: the session may be in hand-over to another replica.
        match adopt_row(&sessions, found).await {
            Err(EngineError::Elsewhere { .. }) => {
                return elsewhere::renew(&sessions, session).await;
            }
            adopted => adopted?,
        }
    }
    let renewed = table.renew(session, sessions.time.now(), false);
    renewed.map_err(NotRenewed::error)
}

/// One task for a session, regardless of its client's retries.
fn resolve_behind(sessions: &Arc<Sessions>, row: SessionRow) {
    let session = row.id;
    let sessions = Arc::clone(sessions);
    tokio::spawn(async move {
        if let Some(_one) = sessions.table.begin_look_up(session) {
            keep_if_written(&sessions, row).await;
        }
    });
}

/// Looks up a session of unknown outcome, however long the store takes. An opened one is kept: without a client it expires,
/// and its row is closed. A swap of the row adopts it, because it may have another keeper meanwhile. The sweep finds a row
/// that is written even later, because it names this replica.
async fn keep_if_written(sessions: &Arc<Sessions>, row: SessionRow) {
    let session = row.id;
    let mut tries = 0;
    while let Ok(true) = was_taken(sessions, &row).await {
        match adopt_row(sessions, row.clone()).await {
            Ok(()) => return,
            Err(error) => {
                tracing::debug!(%session, %error, "could not become the keeper of a session yet")
            }
        }
        sessions.local.back_off(tries).await;
        tries += 1;
    }
}

/// The argument in which the found session differs from the requested one.
fn differs(found: &SessionRow, asked: &SessionRow) -> Option<&'static str> {
    if found.ttl_ms != asked.ttl_ms {
        Some("ttl")
    } else if found.disconnect_grace_ms != asked.disconnect_grace_ms {
        Some("disconnect_grace")
    } else if found.owner != asked.owner {
        Some("owner")
    } else {
        None
    }
}
