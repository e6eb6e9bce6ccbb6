//! Hand-overs of sessions: to a replica that asked for one, and of all sessions before a stop.
//!
//! A session takes no more renewals here before its swap is sent. Earlier promises hold, because the next keeper begins with a
//! whole TTL.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::registry::Sessions;
use crate::engine::api::EngineError;
use crate::engine::drain::{Drained, drain};
use crate::engine::peers::{Peer, Presence};
use crate::lock::{ReplicaId, SessionId};
use crate::store::{SessionRow, SessionSwap};

/// Hands a session over to a replica that requested it in this epoch.
pub(in super::super) async fn give(
    sessions: &Arc<Sessions>,
    session: SessionId,
    epoch: u32,
    to: ReplicaId,
) -> Result<(), EngineError> {
    let Some(row) = row_kept_here(sessions, session).await? else {
        return Ok(());
    };
    // Otherwise the request is stale, or the requesting replica is gone or silent.
    if row.epoch == epoch && matches!(sessions.local.presence(to), Presence::Live(_)) {
        give_row(sessions, row, to).await?;
    }
    Ok(())
}

/// Hands the sessions kept here over before this replica stops, for `within` at most: each to its next ranked replica in
/// `to`, the last renewed first. So clients need not wait until the stop is known. The others take the rest over then.
pub(in super::super) async fn hand_over_all(
    sessions: &Arc<Sessions>,
    to: &BTreeSet<ReplicaId>,
    within: Duration,
) {
    let clock = &*sessions.local.clock;
    let find = || std::future::ready(sessions.table.kept());
    let give = |session| hand_over(sessions, session, to);
    let Drained { found, done } = drain(clock, within, find, give).await;
    if found > 0 {
        tracing::info!(
            sessions = found,
            handed_over = done,
            "handed sessions over, before calls end"
        );
    }
}

/// True if it did.
async fn hand_over(sessions: &Arc<Sessions>, session: SessionId, to: &BTreeSet<ReplicaId>) -> bool {
    let local = &sessions.local;
    let next = local
        .membership
        .next_ranked(session.name_hash(), &local.zone);
    let Some(peer) = next.filter(|peer| to.contains(&peer.id)) else {
        return false;
    };
    // In a task of its own, so that the outcome of the swap is noted.
    let given = tokio::spawn(hand_over_to(Arc::clone(sessions), session, peer));
    given.await.unwrap_or(false)
}

async fn hand_over_to(sessions: Arc<Sessions>, session: SessionId, peer: Arc<Peer>) -> bool {
    let given = async {
        let Some(row) = row_kept_here(&sessions, session).await? else {
            return Ok(false);
        };
        give_row(&sessions, row, peer.id).await
    };
    let given = given.await;
    // Also after an unknown outcome. The peer reads the row.
    if !matches!(given, Ok(false)) {
        sessions.peers.session_given(&peer, session);
    }
    given.unwrap_or_else(|error: EngineError| {
        tracing::debug!(%session, to = %peer.id, %error, "could not hand a session over");
        false
    })
}

/// The row of an open session that names this replica.
async fn row_kept_here(
    sessions: &Arc<Sessions>,
    session: SessionId,
) -> Result<Option<SessionRow>, EngineError> {
    let row = sessions.rows.load_session(session).await;
    let row = row.map_err(EngineError::of_store)?;
    Ok(row.filter(|row| row.open && row.replica == sessions.local.id))
}

/// Hands a session over. True if it did.
async fn give_row(
    sessions: &Arc<Sessions>,
    row: SessionRow,
    to: ReplicaId,
) -> Result<bool, EngineError> {
    let (session, epoch) = (row.id, row.epoch);
    let given = SessionRow {
        replica: to,
        epoch: epoch.saturating_add(1),
        ..row
    };
    // An ended session gets no new TTL.
    let (now, boot) = (sessions.time.now(), sessions.local.clock.boot());
    let Some(giving) = sessions.table.begin_give(&given, now, boot) else {
        return Ok(false);
    };
    match sessions.rows.swap_session(epoch, &given).await {
        SessionSwap::Applied => {
            giving.done();
            tracing::debug!(%session, %to, "handed a session over");
            Ok(true)
        }
        SessionSwap::Conflict(_) => Ok(false),
        SessionSwap::Unknown(error) | SessionSwap::NotStarted(error) => {
            Err(EngineError::of_store(error))
        }
    }
}
