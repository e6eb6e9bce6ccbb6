//! Sessions of this replica: opened and closed by compare-and-swap on their rows, kept alive in memory.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::oneshot;

use super::actor::Msg;
use super::api::{EngineError, Renewed};
use super::inner::Inner;
use super::leases::{EntryId, LeaseKey, NoLease};
use super::peers::Presence;
use super::routes::{failed, hand_over_agreed};
use crate::lock::{ReplicaId, SessionId};
use crate::store::{HandOverTarget, SessionRow, SessionSwap, StoreError};

/// How many entries of sessions that have ended are evicted at once, of all sessions: the store has more to do than to
/// clean up, and the heartbeats of this replica most of all.
pub(super) const EVICTS_AT_ONCE: usize = 64;
/// For how long one of them counts as such.
const EVICT_TURN: Duration = Duration::from_secs(5);

/// An agreement that is followed by no take-over is given up after this.
pub(super) const HANDED_OVER_FOR: Duration = Duration::from_secs(6);

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
    let begun = inner.clock.boot();
    loop {
        if inner.leases.renew(&LeaseKey::Session(row.id)).is_err()
            && inner.leases.counts().0 >= inner.limits.sessions_max
        {
            return Err(too_many(&inner));
        }
        let swap = inner.store.swap_session(0, &row).await;
        may_be_written |= matches!(swap, SessionSwap::Unknown(_));
        // When one that was found got its epoch is not known here: then a heartbeat is all that keeps it valid.
        let (found, since) = match swap {
            SessionSwap::Applied => (row.clone(), begun),
            SessionSwap::Conflict(Some(found)) => (found, Duration::ZERO),
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
                    let _ = inner.leases.add_session(&row, begun);
                }
                return Err(EngineError::Unavailable(error.to_string()));
            }
        };
        if !found.open {
            return Err(EngineError::SessionEnded);
        }
        if found.ttl_ms != row.ttl_ms {
            return Err(EngineError::RequestMismatch { field: "ttl" });
        }
        if found.disconnect_grace_ms != row.disconnect_grace_ms {
            return Err(EngineError::RequestMismatch {
                field: "disconnect_grace",
            });
        }
        if found.owner != row.owner {
            return Err(EngineError::RequestMismatch { field: "owner" });
        }
        if found.identity != row.identity {
            return Err(EngineError::RequestMismatch {
                field: "request_id",
            });
        }
        if found.replica != inner.replica {
            // Opened through another replica, which did not get to say so.
            return super::remote::renew(&inner, found.id).await;
        }
        // Also one that was found: by the row of this replica's own id it was written by this one, now or before.
        return match inner.leases.add_session(&found, since) {
            Ok(()) => {
                inner.heartbeat_sooner.notify_one();
                renew(&inner, found.id).await
            }
            Err(NoLease::TooMany) => {
                write_closed(&inner, found.id).await;
                Err(too_many(&inner))
            }
            Err(_) => Err(EngineError::SessionEnded),
        };
    }
}

/// A renewal of a session. `Elsewhere` where another replica keeps it.
pub(super) async fn renew(inner: &Arc<Inner>, session: SessionId) -> Result<Renewed, EngineError> {
    match inner.leases.renew(&LeaseKey::Session(session)) {
        Ok(renewed) => Ok(renewed),
        Err(NoLease::Unknown | NoLease::InDoubt | NoLease::HandedOver) if inner.shared => {
            let inner = Arc::clone(inner);
            // In a task of its own: what it writes it also takes in.
            tokio::spawn(async move { anew(&inner, session).await })
                .await
                .map_err(|_| super::actor::no_answer())?
        }
        Err(_) => Err(EngineError::SessionEnded),
    }
}

/// As [`renew`], by a message on a stream.
pub(super) async fn renew_on_stream(
    inner: &Arc<Inner>,
    session: SessionId,
) -> Result<Renewed, EngineError> {
    let here = || inner.leases.renew_on_stream(session);
    if let Ok(renewed) = here() {
        return Ok(renewed);
    }
    // It may need a new epoch first. What works at that goes on without whoever waits for it, so it must not
    // say that the client is connected: its stream may have ended meanwhile.
    renew(inner, session).await?;
    here().map_err(|_| changing())
}

fn changing() -> EngineError {
    EngineError::Unavailable("the session is changing its replica".to_owned())
}

/// Who keeps a session that this replica does not: `Elsewhere`; `None` if it has ended.
pub(super) async fn kept_elsewhere(
    inner: &Arc<Inner>,
    session: SessionId,
) -> Result<Option<EngineError>, EngineError> {
    if !inner.shared {
        return Ok(None);
    }
    let row = inner.store.load_session(session).await.map_err(failed)?;
    let Some(row) = row.filter(|row| row.open) else {
        return Ok(None);
    };
    if row.replica == inner.replica {
        // Of a try whose outcome nobody learned of.
        return Ok(Some(changing()));
    }
    Ok(Some(EngineError::Elsewhere {
        home: row.replica,
        version: u64::from(row.epoch),
    }))
}

/// Gives a session that this replica keeps, by its row, a new epoch and a fresh lease.
pub(super) async fn anew(inner: &Arc<Inner>, session: SessionId) -> Result<Renewed, EngineError> {
    let row = inner.store.load_session(session).await.map_err(failed)?;
    let Some(row) = row.filter(|row| row.open) else {
        // Ended by an observer, which saw no heartbeat of this replica for too long.
        inner.leases.end_session(session);
        tokio::spawn(end(Arc::clone(inner), session));
        return Err(EngineError::SessionEnded);
    };
    if row.replica != inner.replica {
        moved(inner, session);
        return Err(EngineError::Elsewhere {
            home: row.replica,
            version: u64::from(row.epoch),
        });
    }
    // Whoever it was promised to may still claim it.
    if inner
        .leases
        .handed_over_for(session)
        .is_some_and(|ago| ago < HANDED_OVER_FOR)
    {
        return Err(changing());
    }
    match take_row(inner, row).await? {
        true => renew_again(inner, session),
        false => Err(changing()),
    }
}

fn renew_again(inner: &Inner, session: SessionId) -> Result<Renewed, EngineError> {
    let renewed = inner.leases.renew(&LeaseKey::Session(session));
    renewed.map_err(|_| changing())
}

/// Makes this replica the one that keeps a session, from the row that was read. False if that changed.
pub(super) async fn take_row(inner: &Arc<Inner>, row: SessionRow) -> Result<bool, EngineError> {
    // Another replica may have room for it.
    if row.replica != inner.replica && inner.leases.counts().0 >= inner.limits.sessions_max {
        return Err(too_many(inner));
    }
    let since = inner.clock.boot();
    let expected = row.epoch;
    let row = SessionRow {
        replica: inner.replica,
        epoch: expected.saturating_add(1),
        ..row
    };
    match inner.store.swap_session(expected, &row).await {
        SessionSwap::Applied => {}
        SessionSwap::Conflict(_) => return Ok(false),
        SessionSwap::Unknown(error) => {
            tracing::warn!(session = %row.id, %error, "it is unknown whether a session was taken over; reading it");
            if !was_taken(inner, &row).await? {
                return Ok(false);
            }
        }
        SessionSwap::NotStarted(error) => return Err(failed(error)),
    }
    match inner.leases.add_session(&row, since) {
        Ok(()) => {
            inner.heartbeat_sooner.notify_one();
            for entry_id in inner.remote.take_entries(row.id) {
                let _ = inner.leases.attach(row.id, entry_id);
            }
            Ok(true)
        }
        Err(NoLease::TooMany) => {
            write_closed(inner, row.id).await;
            Err(too_many(inner))
        }
        Err(_) => Err(EngineError::SessionEnded),
    }
}

/// Resolves a swap of unknown outcome, however long the store takes (I6): one that took effect and that nobody here
/// knows of would keep the session open for ever. The read settles it.
async fn was_taken(inner: &Arc<Inner>, row: &SessionRow) -> Result<bool, EngineError> {
    let mut tries = 0;
    while !*inner.stopping.borrow() {
        match inner.store.load_session(row.id).await {
            Ok(found) => return Ok(found.as_ref() == Some(row)),
            Err(error) => {
                tracing::debug!(session = %row.id, %error, "it could not be looked up yet")
            }
        }
        inner.clock.sleep(inner.backoff(tries)).await;
        tries += 1;
    }
    Err(EngineError::Stopping)
}

/// Takes a session over from the replica that keeps it (I10): at once where it is down, else with its agreement. In a
/// task of its own: what it writes it also takes in, and a hand-over request that was put is followed up, whoever
/// waits.
pub(super) async fn take(
    inner: &Arc<Inner>,
    session: SessionId,
    keeper: ReplicaId,
) -> Result<(), EngineError> {
    let inner = Arc::clone(inner);
    let taken = tokio::spawn(async move { take_from(&inner, session, keeper).await });
    taken.await.map_err(|_| super::actor::no_answer())?
}

async fn take_from(
    inner: &Arc<Inner>,
    session: SessionId,
    keeper: ReplicaId,
) -> Result<(), EngineError> {
    for tries in 0..4 {
        if tries > 0 {
            inner.clock.sleep(inner.backoff(tries)).await;
        }
        let row = inner.store.load_session(session).await.map_err(failed)?;
        let row = row
            .filter(|row| row.open)
            .ok_or(EngineError::SessionEnded)?;
        if row.replica == inner.replica {
            return Ok(());
        }
        if row.replica != keeper {
            return Err(EngineError::Elsewhere {
                home: row.replica,
                version: u64::from(row.epoch),
            });
        }
        if inner.members.presence(keeper) != Presence::Down {
            let target = HandOverTarget::Session {
                session,
                epoch: row.epoch,
            };
            if !hand_over_agreed(inner, keeper, target)
                .await
                .map_err(failed)?
            {
                return Err(EngineError::Unavailable(
                    "the replica that keeps this session cannot be called, and did not give it up yet"
                        .to_owned(),
                ));
            }
        }
        if take_row(inner, row).await? {
            tracing::info!(%session, from = %keeper, "took a session over");
            return Ok(());
        }
    }
    Err(changing())
}

/// Another replica keeps a session that this one kept: what lives by it here is told by that one now.
pub(super) fn moved(inner: &Arc<Inner>, session: SessionId) {
    for entry_id in inner.leases.drop_session(session) {
        inner.remote.attach(session, entry_id);
    }
}

/// Ends a session: first its lease here, then its row, then what lives by it. Returns when all of that is
/// committed, however long the store takes; or once this replica stops. Safe to run twice.
pub(super) async fn end(inner: Arc<Inner>, session: SessionId) -> Closed {
    let Some(entries) = inner.leases.end_session(session) else {
        return Closed::Done;
    };
    match write_closed(&inner, session).await {
        Closed::Done => {}
        Closed::Moved => {
            moved(&inner, session);
            return Closed::Moved;
        }
        Closed::Stopped => return Closed::Stopped,
    }
    if inner.shared {
        for peer in inner.members.peers() {
            inner.peers.session_ended(&peer, session);
        }
    }
    // Not before: a row that is still open is not forgotten, and nobody would come back for it.
    inner.leases.note_closed(session);
    evict_all(&inner, session, entries).await;
    forget_if_done(&inner, session);
    match *inner.stopping.borrow() {
        true => Closed::Stopped,
        false => Closed::Done,
    }
}

/// Evicts what lives by a session that has ended, as far as it is known here.
pub(super) async fn evict_all(inner: &Arc<Inner>, session: SessionId, entries: Vec<EntryId>) {
    futures_util::stream::iter(entries)
        .for_each_concurrent(EVICTS_AT_ONCE, |entry_id| {
            evict(Arc::clone(inner), entry_id, session)
        })
        .await;
}

async fn evict(inner: Arc<Inner>, entry_id: EntryId, session: SessionId) {
    let mut tries = 0;
    let mut stopping = inner.stopping.subscribe();
    while !*inner.stopping.borrow() {
        let (reply, mut done) = oneshot::channel();
        let msg = Msg::SessionEnded {
            seq: entry_id.seq,
            session,
            reply,
        };
        let turn = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            turn = inner.evicts.acquire() => turn,
        };
        if inner.keys.send(&inner, &entry_id.id, msg).is_ok() {
            // The actor goes on trying; the next start does it if this one cannot.
            let ended = tokio::select! {
                biased;
                ended = &mut done => Some(ended.is_ok()),
                _ = stopping.wait_for(|stopping| *stopping) => return,
                () = inner.clock.sleep(EVICT_TURN) => None,
            };
            // Entries that the store cannot end now hold up no others.
            drop(turn);
            let ended = match ended {
                Some(ended) => ended,
                None => tokio::select! {
                    biased;
                    ended = done => ended.is_ok(),
                    _ = stopping.wait_for(|stopping| *stopping) => return,
                },
            };
            if ended {
                return;
            }
        }
        inner.clock.sleep(inner.backoff(tries)).await;
        tries += 1;
    }
}

/// What came of closing a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Closed {
    /// It is closed, or gone.
    Done,
    /// Another replica keeps the session now, so it is not for this one to close.
    Moved,
    /// This replica stopped before it could.
    Stopped,
}

/// Writes into the row that a session is closed.
async fn write_closed(inner: &Arc<Inner>, session: SessionId) -> Closed {
    let mut tries = 0;
    while !*inner.stopping.borrow() {
        match try_write_closed(inner, session).await {
            Ok(Some(closed)) => return closed,
            Ok(None) => {}
            Err(error) => {
                let log_throttle = &inner.log_throttles.not_closed;
                if let Some(times) = log_throttle.met(inner.clock.boot(), &error.to_string()) {
                    tracing::warn!(%session, %error, times, "could not close a session yet; retrying");
                }
            }
        }
        inner.clock.sleep(inner.backoff(tries)).await;
        tries += 1;
    }
    Closed::Stopped
}

/// One try; `None` if the row changed meanwhile.
async fn try_write_closed(
    inner: &Arc<Inner>,
    session: SessionId,
) -> Result<Option<Closed>, StoreError> {
    let Some(row) = inner.store.load_session(session).await? else {
        return Ok(Some(Closed::Done));
    };
    if !row.open {
        return Ok(Some(Closed::Done));
    }
    if row.replica != inner.replica {
        return Ok(Some(Closed::Moved));
    }
    let expected = row.epoch;
    let closed = SessionRow {
        open: false,
        epoch: expected.saturating_add(1),
        ..row
    };
    match inner.store.swap_session(expected, &closed).await {
        SessionSwap::Applied => Ok(Some(Closed::Done)),
        SessionSwap::Conflict(_) => Ok(None),
        SessionSwap::Unknown(error) | SessionSwap::NotStarted(error) => Err(error),
    }
}

/// Forgets a session that has ended once nothing lives by it any longer.
pub(super) fn forget_if_done(inner: &Arc<Inner>, session: SessionId) {
    if !inner.leases.forget_session(session) {
        return;
    }
    let inner = Arc::clone(inner);
    tokio::spawn(async move {
        // A row that stays is closed, and is forgotten at the next start.
        if let Err(error) = inner.store.forget_session(session).await {
            tracing::debug!(%session, %error, "could not delete the row of a closed session yet");
        }
    });
}
