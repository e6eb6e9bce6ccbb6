//! Opening a session, which finds the one that an earlier try opened.

use std::sync::Arc;

use super::elsewhere;
use super::table::NotRenewed;
use super::take_over::{adopt_row, too_many, was_taken};
use crate::engine::api::{EngineError, Renewed};
use crate::engine::replica::Replica;
use crate::store::{SessionRow, SessionSwap};

/// How often a change of a row that meets another one is tried.
const TRIES_MAX: u32 = 8;

/// Opens a session, or finds the open one with this id. To be run in a task of its own: a row that was written always
/// gets its lease.
pub(in super::super) async fn open(
    replica: Arc<Replica>,
    row: SessionRow,
) -> Result<Renewed, EngineError> {
    let mut tries = 0;
    let mut may_be_written = false;
    loop {
        let table = &replica.sessions.table;
        let place = match table.is_kept(row.id) {
            true => table.place_of_own(),
            false => table.place().ok_or_else(|| too_many(&replica))?,
        };
        let (found, is_new) = match replica.store.sessions.swap_session(0, &row).await {
            SessionSwap::Applied => (row.clone(), true),
            SessionSwap::Conflict(Some(found)) => (found, false),
            // Its outcome is looked up by trying again: the row is there, or it is not.
            swap @ (SessionSwap::Conflict(None) | SessionSwap::Unknown(_)) if tries < TRIES_MAX => {
                may_be_written |= matches!(swap, SessionSwap::Unknown(_));
                replica.clock.sleep(replica.backoff(tries)).await;
                tries += 1;
                continue;
            }
            SessionSwap::Conflict(None) => return Err(EngineError::changing_keeper()),
            SessionSwap::Unknown(error) => {
                look_up(&replica, row.clone());
                return Err(EngineError::of_store(error));
            }
            SessionSwap::NotStarted(error) => {
                if may_be_written {
                    look_up(&replica, row.clone());
                }
                return Err(EngineError::of_store(error));
            }
        };
        if !found.open {
            return Err(EngineError::SessionEnded);
        }
        if let Some(field) = differs(&found, &row) {
            return Err(EngineError::RequestMismatch { field });
        }
        if found.replica != replica.id {
            // Opened through another replica, which did not get to say so.
            table.moved(&found, replica.clock.boot());
            return elsewhere::renew(&replica, found.id).await;
        }
        let session = found.id;
        if is_new {
            if !table.keep(found, replica.time.now(), place) {
                return Err(EngineError::changing_keeper());
            }
        } else {
            // By a change of the row where it is not kept here: it may be on its way to another replica.
            drop(place);
            adopt_row(&replica, found).await?;
        }
        let renewed = table.renew(session, replica.time.now(), false);
        return renewed.map_err(NotRenewed::error);
    }
}

/// One task a session, however often its client tries.
fn look_up(replica: &Arc<Replica>, row: SessionRow) {
    let session = row.id;
    if !replica.sessions.table.begin_look_up(session) {
        return;
    }
    let replica = Arc::clone(replica);
    tokio::spawn(async move {
        keep_if_written(&replica, row).await;
        replica.sessions.table.end_look_up(session);
    });
}

/// Looks up whether a session of unknown outcome was opened, however long the store takes. Then it is kept: if nobody asks
/// for it again it expires, and its row is closed. By a change of the row, for meanwhile it may be another replica's. One
/// that is written later still names this replica, and is found by the sweep.
async fn keep_if_written(replica: &Arc<Replica>, row: SessionRow) {
    let session = row.id;
    let mut tries = 0;
    while let Ok(true) = was_taken(replica, &row).await {
        match adopt_row(replica, row.clone()).await {
            Ok(()) => return,
            Err(error) => tracing::debug!(%session, %error, "a session could not be kept yet"),
        }
        replica.clock.sleep(replica.backoff(tries)).await;
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
    } else if found.identity != asked.identity {
        Some("request_id")
    } else {
        None
    }
}
