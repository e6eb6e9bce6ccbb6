//! Renewals, wherever a session is kept.

use std::sync::Arc;
use std::time::Duration;

use super::table::NotRenewed;
use super::{elsewhere, take_over};
use crate::engine::api::{EngineError, Renewed};
use crate::engine::replica::Replica;
use crate::lock::SessionId;

/// How long a call waits for the keeper of its session, where what that said before has not ended.
const KEEPER_ANSWERS_WITHIN: Duration = Duration::from_millis(200);

impl Replica {
    /// A renewal of a session by whoever wants to be told its validity: here, or at its keeper.
    pub async fn renew_session(
        self: &Arc<Self>,
        session: SessionId,
    ) -> Result<Renewed, EngineError> {
        match self.sessions.table.renew(session, self.time.now(), false) {
            Ok(renewed) => Ok(renewed),
            Err(NotRenewed::NotKept) => match self.store.cluster {
                Some(_) => elsewhere::renew(self, session).await,
                None => Err(EngineError::SessionEnded),
            },
            Err(ended @ (NotRenewed::Ended | NotRenewed::Ending)) => Err(ended.error()),
        }
    }

    /// A renewal by a client, at the keeper only: `Elsewhere` where that is another replica.
    pub async fn renew_kept(
        self: &Arc<Self>,
        session: SessionId,
        on_stream: bool,
    ) -> Result<Renewed, EngineError> {
        for _ in 0..2 {
            let now = self.time.now();
            match self.sessions.table.renew(session, now, on_stream) {
                Ok(renewed) => return Ok(renewed),
                Err(NotRenewed::NotKept) => take_over::find(self, session).await?,
                Err(ended @ (NotRenewed::Ended | NotRenewed::Ending)) => return Err(ended.error()),
            }
        }
        Err(EngineError::changing_keeper())
    }

    /// As [`Replica::renew_session`], where what its keeper said lately is enough (H10). One that says nothing now holds
    /// nobody up: what it said stands.
    pub async fn session_validity(
        self: &Arc<Self>,
        session: SessionId,
    ) -> Result<Renewed, EngineError> {
        let said = || self.sessions.table.said(session, self.clock.boot());
        match said() {
            Some(said) if said.is_fresh => return Ok(said.renewed),
            Some(_) => {}
            None => return self.renew_session(session).await,
        }
        let renewal = self.renew_session(session);
        tokio::pin!(renewal);
        tokio::select! {
            biased;
            renewed = &mut renewal => match (renewed, said()) {
                (Err(error), Some(said)) if error != EngineError::SessionEnded => {
                    tracing::debug!(%session, %error, "a session is as valid as its keeper said before");
                    Ok(said.renewed)
                }
                (renewed, _) => renewed,
            },
            () = self.clock.sleep(KEEPER_ANSWERS_WITHIN) => match said() {
                // The asking goes on: whoever comes next may find it answered.
                Some(said) => Ok(said.renewed),
                None => renewal.await,
            },
        }
    }

    /// A renewal that nobody waits for, by a call about an entry that lives by the session.
    pub fn renew_behind(self: &Arc<Self>, session: SessionId) {
        let now = self.time.now();
        if self.sessions.table.renew(session, now, false) != Err(NotRenewed::NotKept)
            || !self.sessions.table.is_due(session, self.clock.boot())
        {
            return;
        }
        let replica = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = elsewhere::renew(&replica, session).await {
                tracing::debug!(%session, %error, "a renewal could not be passed on to the keeper of a session");
            }
        });
    }

    /// Reads the row of a session that entries here live by, in a task of its own. Where nobody shares the store, nothing
    /// else would read it: then until it was read, or nothing lives by the session any more.
    pub fn look_up_session(self: &Arc<Self>, session: SessionId) {
        let replica = Arc::clone(self);
        tokio::spawn(async move {
            let mut tries = 0;
            while !elsewhere::read(&replica, session).await
                && replica.store.cluster.is_none()
                && !*replica.stopping.borrow()
                && replica.sessions.table.emptied(session).is_some()
            {
                replica.clock.sleep(replica.backoff(tries)).await;
                tries += 1;
            }
        });
    }
}
