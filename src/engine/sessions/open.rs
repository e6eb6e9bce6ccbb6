//! OpenSession. A repeated one finds the session of the earlier try.

use std::sync::Arc;

use super::elsewhere;
use super::registry::Sessions;
use super::table::NotRenewed;
use super::take_over::{adopt_row, too_many, was_taken};
use crate::engine::api::{EngineError, Renewed};
use crate::store::{SessionRow, SessionSwap};

/// How often a change of a row that meets another one is tried.
const TRIES_MAX: u32 = 8;

/// Opens a session, or finds the open one with this id. To be run in a task of its own: a row that was written always
/// gets its lease.
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
            // Its outcome is looked up by trying again: the row is there, or it is not.
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
    } else {
        drop(reserved.take());
        if !found.open {
            return Err(EngineError::SessionEnded);
        }
        if let Some(field) = differs(&found, &row) {
            return Err(EngineError::RequestMismatch { field });
        }
        if found.replica != sessions.local.id {
            // Opened through another replica, which did not get to say so.
            table.moved(&found, sessions.local.clock.boot());
            return elsewhere::renew(&sessions, session).await;
        }
        // By a change of the row where it is not kept here: it may be on its way to another replica.
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

/// One task a session, however often its client tries.
fn resolve_behind(sessions: &Arc<Sessions>, row: SessionRow) {
    let session = row.id;
    let sessions = Arc::clone(sessions);
    tokio::spawn(async move {
        if let Some(_one) = sessions.table.begin_look_up(session) {
            keep_if_written(&sessions, row).await;
        }
    });
}

/// Looks up whether a session of unknown outcome was opened, however long the store takes. Then it is kept: if nobody asks
/// for it again it expires, and its row is closed. By a change of the row, for meanwhile it may be another replica's. One
/// that is written later still names this replica, and is found by the sweep.
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

/// The argument in which a session that was found differs from the one that is asked for.
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
