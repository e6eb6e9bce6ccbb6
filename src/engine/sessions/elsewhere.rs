//! Sessions with entries on this home whose keeper is another replica.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Semaphore;

use super::asks::Ask;
use super::registry::Sessions;
use super::table::{Due, Keeper};
use super::take_over;
use crate::engine::api::{EngineError, Renewed};
use crate::engine::peers::{PeerError, Presence};
use crate::lock::SessionId;
use crate::store::SessionRow;

/// The pause between looks for due sessions.
const EVERY: Duration = Duration::from_millis(200);
/// Sessions in work at once.
const AT_ONCE: usize = 256;
/// Keepers that a renewal asks in turn, at most.
const HOPS_MAX: u32 = 4;

/// Works on due sessions until this replica is fenced. A slow one, whose row or keeper does not answer, holds up no other
/// until `AT_ONCE` are slow.
pub(in super::super) async fn watch(sessions: Arc<Sessions>) {
    let mut ended = sessions.local.ended();
    let room = Semaphore::new(AT_ONCE);
    let mut open = FuturesUnordered::new();
    let mut at_work = BTreeSet::new();
    let mut last = sessions.local.clock.boot();
    loop {
        let since = sessions.local.clock.boot().saturating_sub(last);
        tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => return,
            Some(session) = open.next() => {
                at_work.remove(&session);
                continue;
            }
            () = sessions.local.clock.sleep(EVERY.saturating_sub(since)) => {}
        }
        last = sessions.local.clock.boot();
        let mut down = sessions.table.keepers();
        down.retain(|keeper| sessions.local.presence(*keeper) == Presence::Down);
        for due in sessions.table.due(last, &down) {
            let session = due.session;
            if at_work.insert(session) {
                let (sessions, room) = (&sessions, &room);
                open.push(async move {
                    // An ended session makes no call. (The semaphore is never closed.)
                    let _permit = match due.ended {
                        true => None,
                        false => room.acquire().await.ok(),
                    };
                    look_after(sessions, due).await;
                    session
                });
            }
        }
    }
}

async fn look_after(sessions: &Arc<Sessions>, due: Due) {
    let session = due.session;
    if due.ended {
        return sessions.end_entries(session);
    }
    if due.read {
        read(sessions, session).await;
    }
}

/// Reads the row of a session and acts on it. False if it could not be read.
pub(in super::super) async fn read(sessions: &Arc<Sessions>, session: SessionId) -> bool {
    let row = match sessions.rows.load_session(session).await {
        Ok(row) => row,
        Err(error) => {
            tracing::debug!(%session, %error, "could not read the row of a session");
            return false;
        }
    };
    let boot = sessions.local.clock.boot();
    let Some(row) = row.filter(|row| row.open) else {
        sessions.table.ended_elsewhere(session, boot);
        sessions.end_entries(session);
        return true;
    };
    sessions.table.read(&row, boot);
    sessions.note_ttl(session, row.ttl());
    if row.replica == sessions.local.id {
        if let Err(error) = take_over::adopt_row(sessions, row).await {
            tracing::debug!(%session, %error, "could not become the keeper of a session yet");
        }
    } else if sessions.local.presence(row.replica) == Presence::Down {
        // Its client may live: the session gets a whole TTL from here on.
        let from = row.replica;
        if let Err(error) = take_over::take_over(sessions, session, from).await {
            tracing::debug!(%session, %error, "could not take a session over");
        }
    }
    true
}

/// Passes a renewal on to the keeper of a session, once for all concurrent callers. Returns the keeper's answer.
pub(in super::super) async fn renew(
    sessions: &Arc<Sessions>,
    session: SessionId,
) -> Result<Renewed, EngineError> {
    let begin = || -> Ask {
        let sessions = Arc::clone(sessions);
        Box::pin(async move { ask_keeper(&sessions, session).await })
    };
    let boot = sessions.local.clock.boot();
    sessions.asks.join(session, boot, begin).await
}

async fn ask_keeper(sessions: &Arc<Sessions>, session: SessionId) -> Result<Renewed, EngineError> {
    let table = &sessions.table;
    for hop in 0..HOPS_MAX {
        if let Ok(renewed) = table.renew(session, sessions.time.now(), false) {
            return Ok(renewed);
        }
        let keeper = match table.keeper(session) {
            Some(keeper) => keeper,
            None => read_keeper(sessions, session).await?,
        };
        let peer = match sessions
            .local
            .membership
            .presence_after_read(keeper.replica)
            .await
        {
            Presence::Live(peer) => peer,
            Presence::Local => {
                match take_over::find(sessions, session).await {
                    Ok(()) => {}
                    Err(EngineError::Elsewhere { .. }) => table.forget_keeper(session),
                    Err(error) => return Err(error),
                }
                continue;
            }
            // Its client lives: it named the session.
            Presence::Down => {
                match take_over::take_over(sessions, session, keeper.replica).await {
                    Ok(()) | Err(EngineError::Elsewhere { .. }) => table.forget_keeper(session),
                    Err(error) => return Err(error),
                }
                continue;
            }
            Presence::Suspected | Presence::Unsure => {
                return Err(unreachable("is silent, but not declared down yet"));
            }
        };
        let sent = sessions.local.clock.boot();
        match sessions.peers.renew_session(&peer, session).await {
            Ok(renewed) => {
                table.heard(session, renewed, sent);
                return Ok(renewed);
            }
            Err(PeerError::Refused(EngineError::SessionEnded)) => {
                table.ended_elsewhere(session, sessions.local.clock.boot());
                sessions.end_entries(session);
                return Err(EngineError::SessionEnded);
            }
            // The session is being handed over to that replica, and the row is not written yet.
            Err(PeerError::Refused(EngineError::Elsewhere { version, .. }))
                if version < u64::from(keeper.epoch) =>
            {
                sessions.local.back_off(hop).await;
            }
            Err(PeerError::Refused(EngineError::Elsewhere { .. })) => table.forget_keeper(session),
            Err(PeerError::Refused(error)) => return Err(error),
            // Request it through the store, if the keeper lives.
            Err(PeerError::Unreachable(why)) => {
                tracing::debug!(%session, why, "the keeper of a session cannot be called");
                match take_over::take_over(sessions, session, keeper.replica).await {
                    Ok(()) | Err(EngineError::Elsewhere { .. }) => table.forget_keeper(session),
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Err(EngineError::changing_keeper())
}

fn unreachable(why: &str) -> EngineError {
    EngineError::Unavailable(format!("the keeper of the session {why}"))
}

async fn read_keeper(sessions: &Arc<Sessions>, session: SessionId) -> Result<Keeper, EngineError> {
    let row = sessions.rows.load_session(session).await;
    let row: Option<SessionRow> = row.map_err(EngineError::of_store)?.filter(|row| row.open);
    let Some(row) = row else {
        let boot = sessions.local.clock.boot();
        sessions.table.ended_elsewhere(session, boot);
        return Err(EngineError::SessionEnded);
    };
    sessions.table.read(&row, sessions.local.clock.boot());
    Ok(Keeper {
        replica: row.replica,
        epoch: row.epoch,
        ttl: row.ttl(),
    })
}
