//! What a replica does about the sessions that it keeps.

use std::sync::Arc;
use std::time::Duration;

use super::table::NotRenewed;
use crate::engine::api::EngineError;
use crate::engine::peers::Presence;
use crate::engine::replica::Replica;
use crate::lock::{ReplicaId, SessionId};
use crate::store::{HandOverRequest, HandOverSubject, SessionRow, SessionSwap, StoreError};

/// How long a session that was asked for through the store is waited for.
const REQUESTED_FOR: Duration = Duration::from_secs(5);
/// How often it is looked for meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often a change of a row that meets another one is tried.
pub(super) const TRIES_MAX: u32 = 8;

pub(super) fn too_many(replica: &Replica) -> EngineError {
    EngineError::Exhausted {
        what: "sessions_max",
        limit: replica.limits.sessions_max as u64,
    }
}

/// Closes a session for its client. True if it had ended before.
pub(in super::super) async fn close(
    replica: Arc<Replica>,
    session: SessionId,
) -> Result<bool, EngineError> {
    let now = replica.time.now();
    let renewed = replica.sessions.table.renew(session, now, false);
    if renewed == Err(NotRenewed::NotKept) {
        return match find(&replica, session).await {
            Ok(()) => Err(EngineError::changing_keeper()),
            Err(EngineError::SessionEnded) => Ok(true),
            Err(error) => Err(error),
        };
    }
    // Also where it has ended: then another call, or its expiry, may not have written that down yet.
    match end(&replica, session).await {
        Closed::Done => Ok(renewed.is_err()),
        Closed::Stopped => Err(EngineError::Stopping),
        Closed::Moved => Err(EngineError::changing_keeper()),
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

/// What came of ending a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Closed {
    /// It is closed, or gone.
    Done,
    /// Another replica keeps it now, so it is not for this one to end.
    Moved,
    /// This replica stopped before it could.
    Stopped,
}

/// A session expired here.
pub(in super::super) fn expired(replica: &Arc<Replica>, session: SessionId) {
    tracing::info!(%session, "a session expired");
    let replica = Arc::clone(replica);
    tokio::spawn(async move { end(&replica, session).await });
}

/// Ends a session: first its lease here, then its row, then what lives by it. Returns when all of that is committed, as
/// far as it is known here, however long the store takes; or once this replica stops. Safe to run twice.
pub(in super::super) async fn end(replica: &Arc<Replica>, session: SessionId) -> Closed {
    if !replica.sessions.table.end(session) {
        return Closed::Done;
    }
    match write_closed(replica, session).await {
        Closed::Done => {}
        other @ (Closed::Moved | Closed::Stopped) => return other,
    }
    replica.tell_session_ended(session);
    // Not before: a row that is still open is not forgotten, and nobody would come back for it.
    replica.sessions.table.note_closed(session);
    replica.end_entries(session);
    replica.session_emptied(session).await;
    // A call may have been open when the last entry ended.
    replica.forget_session_if_done(session);
    match *replica.stopping.borrow() {
        true => Closed::Stopped,
        false => Closed::Done,
    }
}

/// Writes into the row that a session is closed.
async fn write_closed(replica: &Arc<Replica>, session: SessionId) -> Closed {
    let mut tries = 0;
    while !*replica.stopping.borrow() {
        match try_write_closed(replica, session).await {
            Ok(Some(closed)) => return closed,
            Ok(None) => {}
            Err(error) => {
                let log_throttle = &replica.log_throttles.not_closed;
                if let Some(times) = log_throttle.met(replica.clock.boot(), &error.to_string()) {
                    tracing::warn!(%session, %error, times, "could not close a session yet; retrying");
                }
            }
        }
        replica.clock.sleep(replica.backoff(tries)).await;
        tries += 1;
    }
    Closed::Stopped
}

/// One try; `None` if the row changed meanwhile.
async fn try_write_closed(
    replica: &Arc<Replica>,
    session: SessionId,
) -> Result<Option<Closed>, StoreError> {
    let store = &replica.store.sessions;
    let Some(row) = store.load_session(session).await? else {
        return Ok(Some(Closed::Done));
    };
    if !row.open {
        return Ok(Some(Closed::Done));
    }
    if row.replica != replica.id {
        replica.sessions.table.moved(&row, replica.clock.boot());
        return Ok(Some(Closed::Moved));
    }
    let expected = row.epoch;
    let closed = SessionRow {
        open: false,
        epoch: expected.saturating_add(1),
        ..row
    };
    match store.swap_session(expected, &closed).await {
        SessionSwap::Applied => Ok(Some(Closed::Done)),
        SessionSwap::Conflict(_) => Ok(None),
        SessionSwap::Unknown(error) | SessionSwap::NotStarted(error) => Err(error),
    }
}

/// Makes this replica the keeper of a session, from the row that was read, with a full TTL. False if that changed.
pub(in super::super) async fn take_row(
    replica: &Arc<Replica>,
    row: SessionRow,
) -> Result<bool, EngineError> {
    let table = &replica.sessions.table;
    // Another replica may have room for it.
    if row.replica != replica.id && table.is_full() {
        return Err(too_many(replica));
    }
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
    match table.keep(row, replica.time.now()) {
        true => Ok(true),
        false => {
            write_closed(replica, session).await;
            Err(too_many(replica))
        }
    }
}

/// Resolves a swap of unknown outcome, however long the store takes (I6): one that took effect and that nobody here
/// knows of would keep the session open for ever.
async fn was_taken(replica: &Arc<Replica>, row: &SessionRow) -> Result<bool, EngineError> {
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

/// Takes a session over from a keeper that is down. In a task of its own: what it writes it also takes in.
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
        if !replica.is_down(from).await? {
            return request(replica, row).await;
        }
        if take_row(replica, row).await? {
            tracing::info!(%session, %from, "took a session over");
            return Ok(());
        }
    }
    Err(EngineError::changing_keeper())
}

/// Asks the keeper of a session for it through the store, and waits for it.
async fn request(replica: &Arc<Replica>, row: SessionRow) -> Result<(), EngineError> {
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
        replica.clock.sleep(LOOK_EVERY).await;
        if row_kept_by(replica, session, from).await?.is_none() {
            return Ok(());
        }
    }
    Err(no_way())
}

/// Hands a session to a replica that asked for it: nothing renews it here from before the row says so.
pub(in super::super) async fn give(
    replica: &Arc<Replica>,
    session: SessionId,
    epoch: u32,
    to: ReplicaId,
) -> Result<(), EngineError> {
    let row = replica.store.sessions.load_session(session).await;
    let row = row.map_err(EngineError::of_store)?.filter(|row| row.open);
    let is_asked_for = |row: &SessionRow| row.replica == replica.id && row.epoch == epoch;
    let Some(row) = row.filter(is_asked_for) else {
        // It means nothing any more.
        return Ok(());
    };
    if !matches!(replica.membership.presence(to), Presence::Live(_)) {
        // It asked, and is gone or silent since.
        return Ok(());
    }
    let given = SessionRow {
        replica: to,
        epoch: epoch.saturating_add(1),
        ..row
    };
    // Its new keeper begins a whole TTL after this, so what was answered before holds.
    replica.sessions.table.moved(&given, replica.clock.boot());
    match replica.store.sessions.swap_session(epoch, &given).await {
        SessionSwap::Applied => {
            tracing::info!(%session, %to, "handed a session over that was asked for");
            Ok(())
        }
        SessionSwap::Conflict(_) => Ok(()),
        // Whoever is asked about it next reads the row: it is kept here again where that says so.
        SessionSwap::Unknown(error) | SessionSwap::NotStarted(error) => {
            replica.sessions.table.forget_keeper(session);
            Err(EngineError::of_store(error))
        }
    }
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
