//! How a replica becomes the keeper of a session: of one whose keeper is down, that its keeper hands over because it was
//! asked for through the store, or whose row names this replica. Each is a compare-and-swap on the epoch in the row, so of
//! two replicas one is the keeper; the other one cannot end it.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::api::EngineError;
use crate::engine::peers::Presence;
use crate::engine::replica::Replica;
use crate::lock::{ReplicaId, SessionId};
use crate::store::{HandOverRequest, HandOverSubject, SessionRow, SessionSwap};

/// How long a session that was asked for through the store is waited for.
const REQUESTED_FOR: Duration = Duration::from_secs(5);
/// How often it is looked for meanwhile.
const REREAD_EVERY: Duration = Duration::from_millis(200);

pub(super) fn too_many(replica: &Replica) -> EngineError {
    EngineError::Exhausted {
        what: "sessions_max",
        limit: replica.limits.sessions_max as u64,
    }
}

/// Looks for a session that this replica does not keep: `Elsewhere` with its keeper; `Ok` where this replica is that,
/// from here on.
pub(super) async fn find(replica: &Arc<Replica>, session: SessionId) -> Result<(), EngineError> {
    if replica.store.cluster.is_none() {
        return Err(EngineError::SessionEnded);
    }
    let row = replica.store.sessions.load_session(session).await;
    let row = row.map_err(EngineError::of_store)?.filter(|row| row.open);
    let row = row.ok_or(EngineError::SessionEnded)?;
    if row.replica == replica.id {
        let replica = Arc::clone(replica);
        let adopted = tokio::spawn(async move { adopt_row(&replica, row).await });
        return adopted.await.map_err(|_| EngineError::changing_keeper())?;
    }
    Err(EngineError::Elsewhere {
        home: row.replica,
        version: u64::from(row.epoch),
    })
}

/// Makes this replica the keeper of a session, from the row that was read, with a full TTL. False if that changed, or the
/// session has gone on to another keeper since.
pub(in super::super) async fn take_row(
    replica: &Arc<Replica>,
    row: SessionRow,
) -> Result<bool, EngineError> {
    let table = &replica.sessions.table;
    let reserved = match row.replica == replica.id {
        true => table.reserve_own(),
        // Another replica may have room for it.
        false => table.reserve().ok_or_else(|| too_many(replica))?,
    };
    let expected = row.epoch;
    let row = SessionRow {
        replica: replica.id,
        epoch: expected.saturating_add(1),
        ..row
    };
    let session = row.id;
    match replica.store.sessions.swap_session(expected, &row).await {
        SessionSwap::Applied => {}
        SessionSwap::Conflict(_) => return Ok(false),
        SessionSwap::Unknown(error) => {
            tracing::warn!(%session, %error, "whether a session was taken over is unknown; resolving it");
            if !was_taken(replica, &row).await? {
                return Ok(false);
            }
        }
        SessionSwap::NotStarted(error) => return Err(EngineError::of_store(error)),
    }
    Ok(table.keep(&row, replica.time.now(), reserved))
}

/// Resolves a swap of unknown outcome, however long the store takes (I6): one that took effect and that nobody here
/// knows of would keep the session open for ever.
pub(super) async fn was_taken(
    replica: &Arc<Replica>,
    row: &SessionRow,
) -> Result<bool, EngineError> {
    let mut tries = 0;
    while !*replica.stopping.borrow() {
        match replica.store.sessions.load_session(row.id).await {
            Ok(found) => return Ok(found.as_ref() == Some(row)),
            Err(error) => {
                tracing::debug!(session = %row.id, %error, "it could not be looked up yet");
            }
        }
        replica.clock.sleep(replica.backoff(tries)).await;
        tries += 1;
    }
    Err(EngineError::Stopping)
}

/// Takes a session over from a keeper that is down, or asks a live one for it. In a task of its own: what it writes it also takes in.
pub(in super::super) async fn take_over(
    replica: &Arc<Replica>,
    session: SessionId,
    from: ReplicaId,
) -> Result<(), EngineError> {
    let replica = Arc::clone(replica);
    let taken = tokio::spawn(async move { take_from(&replica, session, from).await });
    taken.await.map_err(|_| EngineError::changing_keeper())?
}

/// The row of a session that `from` keeps still; `None` where this replica keeps it, from here on.
async fn row_kept_by(
    replica: &Arc<Replica>,
    session: SessionId,
    from: ReplicaId,
) -> Result<Option<SessionRow>, EngineError> {
    let row = replica.store.sessions.load_session(session).await;
    let row = row.map_err(EngineError::of_store)?.filter(|row| row.open);
    let row = row.ok_or(EngineError::SessionEnded)?;
    if row.replica == replica.id {
        adopt_row(replica, row).await?;
        return Ok(None);
    }
    if row.replica != from {
        return Err(EngineError::Elsewhere {
            home: row.replica,
            version: u64::from(row.epoch),
        });
    }
    Ok(Some(row))
}

async fn take_from(
    replica: &Arc<Replica>,
    session: SessionId,
    from: ReplicaId,
) -> Result<(), EngineError> {
    for tries in 0..4 {
        if tries > 0 {
            replica.clock.sleep(replica.backoff(tries)).await;
        }
        let Some(row) = row_kept_by(replica, session, from).await? else {
            return Ok(());
        };
        if !replica.declare_down(from).await? {
            match request(replica, row).await? {
                Requested::Kept => return Ok(()),
                // It crashed when it was asked.
                Requested::Down => continue,
            }
        }
        if take_row(replica, row).await? {
            tracing::info!(%session, %from, "took a session over");
            return Ok(());
        }
    }
    Err(EngineError::changing_keeper())
}

/// What came of asking a keeper for a session.
enum Requested {
    /// This replica keeps it.
    Kept,
    /// The keeper is down.
    Down,
}

/// Asks the keeper of a session for it through the store, and waits for it.
async fn request(replica: &Arc<Replica>, row: SessionRow) -> Result<Requested, EngineError> {
    let no_way = || {
        EngineError::Unavailable(
            "the replica that keeps this session cannot be called, and has not handed it over yet"
                .to_owned(),
        )
    };
    let cluster = replica.store.cluster.as_ref().ok_or_else(no_way)?;
    let (session, from) = (row.id, row.replica);
    let request = HandOverRequest {
        home: from,
        subject: HandOverSubject::Session {
            session,
            epoch: row.epoch,
        },
        to: replica.id,
    };
    let sent = cluster.request_hand_over(&request).await;
    sent.map_err(EngineError::of_store)?;
    let until = replica.clock.boot().saturating_add(REQUESTED_FOR);
    while replica.clock.boot() < until {
        replica.clock.sleep(REREAD_EVERY).await;
        if row_kept_by(replica, session, from).await?.is_none() {
            return Ok(Requested::Kept);
        }
        if replica.membership.presence(from) == Presence::Down {
            return Ok(Requested::Down);
        }
    }
    Err(no_way())
}

/// A row that names this replica: where it keeps no such session, it was written by a change of which it never heard.
/// So it is kept from here on, and ends in its time unless its client comes.
pub(in super::super) async fn adopt_row(
    replica: &Arc<Replica>,
    row: SessionRow,
) -> Result<(), EngineError> {
    if replica.sessions.table.is_kept(row.id) {
        return Ok(());
    }
    match take_row(replica, row).await? {
        true => Ok(()),
        false => Err(EngineError::changing_keeper()),
    }
}
