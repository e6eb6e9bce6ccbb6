//! A session that another replica asks for, and one that is this replica's by its row only (I10).

use std::sync::Arc;
use std::time::Duration;

use super::api::EngineError;
use super::inner::Inner;
use super::leases::LeaseKey;
use super::sessions::{HANDED_OVER_FOR, anew, moved, take_row};
use crate::lock::SessionId;
use crate::store::SessionRow;

/// How often it is looked whether the other one took it.
const READ_EVERY: Duration = Duration::from_millis(200);

/// Another replica asks for a session: whether it may have it.
pub(super) async fn give_up(inner: &Arc<Inner>, session: SessionId, epoch: u32) -> bool {
    match inner.store.load_session(session).await {
        Ok(Some(row)) if row.replica == inner.replica && row.epoch == epoch => {
            let is_first = inner.leases.handed_over_for(session).is_none();
            // One that is not here yet, or not any more, would be kept again by an answer that comes late.
            let is_handed_over = inner.leases.hand_over_session(session);
            if is_handed_over && is_first {
                tokio::spawn(follow(Arc::clone(inner), session));
            }
            is_handed_over
        }
        Ok(_) => false,
        Err(error) => {
            tracing::debug!(%session, %error, "could not read a session that another replica requested");
            false
        }
    }
}

/// Calls that are open here keep a session alive where it is kept. So what became of it is looked for at once, and
/// not only when the next call asks; and one that nobody claimed is kept here again for as long as they are open.
async fn follow(inner: Arc<Inner>, session: SessionId) {
    let is_mine = |row: &SessionRow| row.open && row.replica == inner.replica;
    while !*inner.stopping.borrow() {
        inner.clock.sleep(READ_EVERY).await;
        let Some(ago) = inner.leases.handed_over_for(session) else {
            return;
        };
        match inner.store.load_session(session).await {
            Ok(Some(row)) if is_mine(&row) => {
                if ago < HANDED_OVER_FOR {
                    continue;
                }
                if !inner.leases.has_open_call(session) {
                    // It expires, or its client comes.
                    return;
                }
            }
            // Unless it came back meanwhile.
            Ok(Some(row)) if row.open && inner.leases.handed_over_for(session).is_some() => {
                return moved(&inner, session);
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%session, %error, "could not read a session that was handed over");
                continue;
            }
        }
        match anew(&inner, session).await {
            Err(EngineError::Unavailable(_)) => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// Whether this replica lacks the lease of a session that its row says it keeps.
pub(super) fn is_unknown(inner: &Inner, row: &SessionRow) -> bool {
    row.open && inner.leases.ttl(&LeaseKey::Session(row.id)).is_none()
}

/// A row that names this replica, which keeps no such session: written by a change of which it never heard, or by a
/// task that crashed. Others take it for kept for as long as this replica sends heartbeats. So it is kept from here on,
/// and ends in its time unless its client comes.
pub(super) async fn adopt(inner: &Arc<Inner>, row: SessionRow) {
    let session = row.id;
    if !is_unknown(inner, &row) {
        return;
    }
    match take_row(inner, row).await {
        Ok(true) => {
            tracing::warn!(%session, "adopted a session that the store assigns to this replica")
        }
        // Changed meanwhile.
        Ok(false) => {}
        Err(error) => tracing::debug!(%session, %error, "could not adopt a session"),
    }
}
