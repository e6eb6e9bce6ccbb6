//! Sessions of this replica: opened and closed by compare-and-swap on their rows, kept alive in memory
//! (design §6).

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::oneshot;

use super::actor::Msg;
use super::api::{EngineError, Renewed};
use super::inner::Inner;
use super::leases::{LeaseKey, NoLease, PlaceId};
use crate::lock::SessionId;
use crate::store::{SessionRow, SessionSwap, StoreError};

/// How many places of a session that is over are evicted at once.
const EVICTS_AT_ONCE: usize = 64;

fn ttl_of(row: &SessionRow) -> Duration {
    Duration::from_millis(u64::from(row.ttl_ms))
}

fn too_many(inner: &Inner) -> EngineError {
    EngineError::Exhausted {
        what: "sessions_max",
        limit: inner.limits.sessions_max as u64,
    }
}

/// Opens a session, or finds the open one with this id.
pub(super) async fn open(inner: Arc<Inner>, row: SessionRow) -> Result<Renewed, EngineError> {
    let mut tries = 0;
    let mut may_be_written = false;
    loop {
        if inner.leases.renew(&LeaseKey::Session(row.id)).is_err()
            && inner.leases.counts().0 >= inner.limits.sessions_max
        {
            return Err(too_many(&inner));
        }
        let swap = inner.store.swap_session(0, &row).await;
        may_be_written |= matches!(swap, SessionSwap::Unknown(_));
        let found = match swap {
            SessionSwap::Applied => row.clone(),
            SessionSwap::Conflict(Some(found)) => found,
            SessionSwap::Conflict(None) | SessionSwap::Unknown(_) if tries < 8 => {
                // Its outcome is looked up by trying again: the row is there, or it is not.
                inner.clock.sleep(inner.backoff(tries)).await;
                tries += 1;
                continue;
            }
            SessionSwap::Conflict(None) => {
                return Err(EngineError::Unavailable(
                    "the session row changes too fast".to_owned(),
                ));
            }
            SessionSwap::Unknown(error) | SessionSwap::NotStarted(error) => {
                if may_be_written {
                    // If nobody asks for it again it expires, and its row is closed then.
                    let _ = inner.leases.add_session(row.id, ttl_of(&row));
                }
                return Err(EngineError::Unavailable(error.to_string()));
            }
        };
        if !found.open {
            return Err(EngineError::SessionOver);
        }
        if found.ttl_ms != row.ttl_ms {
            return Err(EngineError::RequestMismatch { field: "ttl" });
        }
        if found.owner != row.owner {
            return Err(EngineError::RequestMismatch { field: "owner" });
        }
        if found.identity != row.identity {
            return Err(EngineError::RequestMismatch {
                field: "request_id",
            });
        }
        let ttl = ttl_of(&found);
        return match inner.leases.add_session(found.id, ttl) {
            Ok(()) => Ok(Renewed {
                ttl,
                valid_for: ttl,
            }),
            Err(NoLease::TooMany) => {
                write_closed(&inner, found.id).await;
                Err(too_many(&inner))
            }
            Err(NoLease::Over | NoLease::Unknown) => Err(EngineError::SessionOver),
        };
    }
}

/// Ends a session: first its lease here, then its row, then what lives by it. Returns when all of that is
/// committed, however long the store takes: true; or once this replica stops. Safe to run twice.
pub(super) async fn end(inner: Arc<Inner>, session: SessionId) -> bool {
    let Some(places) = inner.leases.end_session(session) else {
        return true;
    };
    if !write_closed(&inner, session).await {
        return false;
    }
    futures_util::stream::iter(places)
        .for_each_concurrent(EVICTS_AT_ONCE, |place| {
            evict(Arc::clone(&inner), place, session)
        })
        .await;
    forget_if_done(&inner, session);
    !*inner.stopping.borrow()
}

async fn evict(inner: Arc<Inner>, place: PlaceId, session: SessionId) {
    let mut tries = 0;
    let mut stopping = inner.stopping.subscribe();
    while !*inner.stopping.borrow() {
        let (reply, done) = oneshot::channel();
        let msg = Msg::SessionOver {
            seq: place.seq,
            session,
            reply,
        };
        if inner.keys.send(&inner, &place.id, msg).is_ok() {
            tokio::select! {
                biased;
                done = done => if done.is_ok() {
                    return;
                },
                // The actor goes on trying; the next start does it if this one cannot.
                _ = stopping.wait_for(|stopping| *stopping) => return,
            }
        }
        inner.clock.sleep(inner.backoff(tries)).await;
        tries += 1;
    }
}

/// Writes into the row that a session is closed. False if this replica stopped before it could.
async fn write_closed(inner: &Arc<Inner>, session: SessionId) -> bool {
    let mut tries = 0;
    while !*inner.stopping.borrow() {
        match try_write_closed(inner, session).await {
            Ok(true) => return true,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%session, %error, "a session could not be closed yet; trying again");
            }
        }
        inner.clock.sleep(inner.backoff(tries)).await;
        tries += 1;
    }
    false
}

/// One try: true if the row is closed, or gone.
async fn try_write_closed(inner: &Arc<Inner>, session: SessionId) -> Result<bool, StoreError> {
    let Some(row) = inner.store.load_session(session).await? else {
        return Ok(true);
    };
    if !row.open {
        return Ok(true);
    }
    let expected = row.epoch;
    let closed = SessionRow {
        open: false,
        epoch: expected.saturating_add(1),
        ..row
    };
    match inner.store.swap_session(expected, &closed).await {
        SessionSwap::Applied => Ok(true),
        SessionSwap::Conflict(_) => Ok(false),
        SessionSwap::Unknown(error) | SessionSwap::NotStarted(error) => Err(error),
    }
}

/// Forgets a session that is over once nothing lives by it any longer.
pub(super) fn forget_if_done(inner: &Arc<Inner>, session: SessionId) {
    if !inner.leases.forget_session(session) {
        return;
    }
    let inner = Arc::clone(inner);
    tokio::spawn(async move {
        // A row that stays is closed, and is forgotten at the next start.
        if let Err(error) = inner.store.forget_session(session).await {
            tracing::debug!(%session, %error, "the row of a closed session stays for now");
        }
    });
}
