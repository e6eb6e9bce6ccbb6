//! The ways to become the keeper of a session: its keeper is down, its keeper hands it over (on request or before a stop), or its
//! row names this replica. Each way is a compare-and-swap on the epoch in the row. So of two replicas only one is the keeper, and
//! the other cannot end the session.

use std::sync::Arc;
use std::time::Duration;

use super::registry::Sessions;
use crate::engine::api::EngineError;
use crate::engine::limits::{REQUESTED_FOR, REREAD_EVERY};
use crate::engine::peers::Presence;
use crate::lock::{ReplicaId, SessionId};
use crate::store::{HandOverRequest, HandOverSubject, SessionRow, SessionSwap};
use fermata_guard::shares::NoShare;

/// The longest wait of a call for a session in hand-over, or in adoption by another call.
const SETTLES_WITHIN: Duration = Duration::from_secs(1);
/// The highest step of its back-off.
const BACK_OFF_MAX: u32 = 3;

pub(super) fn too_many(sessions: &Sessions, no_share: NoShare) -> EngineError {
    EngineError::of_no_share(no_share, "sessions_max", sessions.table.sessions_max())
}

/// Finds a session that this replica does not keep: `Elsewhere` with its keeper; `Ok` if this replica is the keeper from
/// now on.
pub(super) async fn find(sessions: &Arc<Sessions>, session: SessionId) -> Result<(), EngineError> {
    if sessions.local.is_alone() {
        return Err(EngineError::SessionEnded);
    }
    let row = open_row(sessions, session).await?;
    let sessions = Arc::clone(sessions);
    let adopted = tokio::spawn(async move { adopt_row(&sessions, row).await });
    adopted.await.map_err(|_| EngineError::changing_keeper())?
}

async fn open_row(sessions: &Arc<Sessions>, session: SessionId) -> Result<SessionRow, EngineError> {
    let row = sessions.rows.load_session(session).await;
    let row = row.map_err(EngineError::of_store)?.filter(|row| row.open);
    row.ok_or(EngineError::SessionEnded)
}

fn kept_elsewhere(row: &SessionRow) -> EngineError {
    EngineError::Elsewhere {
        home: row.replica,
        version: u64::from(row.epoch),
    }
}

/// Makes this replica the keeper of a session by a swap of the read row, with a full TTL. False if the row changed, or the
/// session has another keeper since.
pub(in super::super) async fn take_row(
    sessions: &Arc<Sessions>,
    row: SessionRow,
) -> Result<bool, EngineError> {
    let table = &sessions.table;
    // The address of its client is lost, so without an identity the session counts for no client.
    let share_of = row.identity.as_str();
    let reserved = match row.replica == sessions.local.id {
        true => table.reserve_own(share_of),
        // Without room here, another replica may have some.
        false => {
            let reserved = table.reserve_open(share_of);
            reserved.map_err(|no_share| too_many(sessions, no_share))?
        }
    };
    let expected = row.epoch;
    let row = SessionRow {
        replica: sessions.local.id,
        epoch: expected.saturating_add(1),
        ..row
    };
    let session = row.id;
    match sessions.rows.swap_session(expected, &row).await {
        SessionSwap::Applied => {}
        SessionSwap::Conflict(_) => return Ok(false),
        SessionSwap::Unknown(error) => {
            tracing::warn!(%session, %error, "the outcome of taking a session over is unknown; resolving it");
            if !was_taken(sessions, &row).await? {
                return Ok(false);
            }
        }
        SessionSwap::NotStarted(error) => return Err(EngineError::of_store(error)),
    }
    Ok(table.keep(&row, sessions.time.now(), reserved))
}

/// Resolves a swap of unknown outcome, however long the store takes (I6): an unnoticed success would keep the session open
/// for ever.
pub(super) async fn was_taken(
    sessions: &Arc<Sessions>,
    row: &SessionRow,
) -> Result<bool, EngineError> {
    let mut tries = 0;
    while !sessions.local.is_stopping() {
        match sessions.rows.load_session(row.id).await {
            Ok(found) => return Ok(found.as_ref() == Some(row)),
            Err(error) => {
                tracing::debug!(session = %row.id, %error, "could not read the row of a session; retrying");
            }
        }
        sessions.local.back_off(tries).await;
        tries += 1;
    }
    Err(EngineError::Stopping)
}

/// Takes a session over from a keeper that is down, or requests it from a live one. In a task of its own, so that a written
/// row is always followed by its lease.
pub(in super::super) async fn take_over(
    sessions: &Arc<Sessions>,
    session: SessionId,
    from: ReplicaId,
) -> Result<(), EngineError> {
    let sessions = Arc::clone(sessions);
    let taken = tokio::spawn(async move { take_from(&sessions, session, from).await });
    taken.await.map_err(|_| EngineError::changing_keeper())?
}

/// The row of a session that `from` still keeps; `None` if this replica keeps it from now on.
async fn row_kept_by(
    sessions: &Arc<Sessions>,
    session: SessionId,
    from: ReplicaId,
) -> Result<Option<SessionRow>, EngineError> {
    let row = open_row(sessions, session).await?;
    if row.replica == sessions.local.id {
        adopt_row(sessions, row).await?;
        return Ok(None);
    }
    if row.replica != from {
        return Err(kept_elsewhere(&row));
    }
    Ok(Some(row))
}

async fn take_from(
    sessions: &Arc<Sessions>,
    session: SessionId,
    from: ReplicaId,
) -> Result<(), EngineError> {
    for tries in 0..4 {
        if tries > 0 {
            sessions.local.back_off(tries).await;
        }
        let Some(row) = row_kept_by(sessions, session, from).await? else {
            return Ok(());
        };
        if !sessions.local.declare_down(from).await? {
            match request(sessions, row).await? {
                Requested::Kept => return Ok(()),
                // It crashed after the request.
                Requested::Down => continue,
            }
        }
        if take_row(sessions, row).await? {
            tracing::info!(%session, %from, "took a session over");
            return Ok(());
        }
    }
    Err(EngineError::changing_keeper())
}

/// The outcome of a request for a session.
enum Requested {
    /// This replica keeps it.
    Kept,
    /// The keeper is down.
    Down,
}

/// Requests a session from its keeper through the store, and waits for it.
async fn request(sessions: &Arc<Sessions>, row: SessionRow) -> Result<Requested, EngineError> {
    let no_way = || {
        EngineError::Unavailable(
            "the keeper of this session cannot be called, and has not handed the session over yet"
                .to_owned(),
        )
    };
    let cluster = sessions.cluster.as_ref().ok_or_else(no_way)?;
    let (session, from) = (row.id, row.replica);
    let request = HandOverRequest {
        home: from,
        subject: HandOverSubject::Session {
            session,
            epoch: row.epoch,
        },
        to: sessions.local.id,
    };
    let sent = cluster.request_hand_over(&request).await;
    sent.map_err(EngineError::of_store)?;
    let until = sessions.local.clock.boot().saturating_add(REQUESTED_FOR);
    while sessions.local.clock.boot() < until {
        sessions.local.clock.sleep(REREAD_EVERY).await;
        if row_kept_by(sessions, session, from).await?.is_none() {
            return Ok(Requested::Kept);
        }
        if sessions.local.presence(from) == Presence::Down {
            return Ok(Requested::Down);
        }
    }
    Err(no_way())
}

/// Makes this replica the keeper of a session whose row names it; `Elsewhere` if the row names another one. A session that
/// is named but not kept comes from a swap whose answer this replica missed, or has not received yet. It expires unless its
/// client renews it. A session in hand-over is not taken back: this waits for the outcome.
pub(in super::super) async fn adopt_row(
    sessions: &Arc<Sessions>,
    mut row: SessionRow,
) -> Result<(), EngineError> {
    let (session, table) = (row.id, &sessions.table);
    let clock = &sessions.local.clock;
    let until = clock.boot().saturating_add(SETTLES_WITHIN);
    for tries in 0.. {
        if row.replica != sessions.local.id {
            return Err(kept_elsewhere(&row));
        }
        if table.is_kept(session) {
            return Ok(());
        }
        let keeper = table.keeper(session);
        if keeper.is_none_or(|keeper| keeper.epoch <= row.epoch)
            && let Some(_one) = table.begin_adopt(session)
            && take_row(sessions, row).await?
        {
            return Ok(());
        }
        if clock.boot() >= until {
            break;
        }
        sessions.local.back_off(tries.min(BACK_OFF_MAX)).await;
        row = open_row(sessions, session).await?;
    }
    Err(EngineError::changing_keeper())
}
