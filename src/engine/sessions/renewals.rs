//! Renewals of sessions, with the keeper here or elsewhere.

use std::sync::Arc;
use std::time::Duration;

use super::registry::Sessions;
use super::table::NotRenewed;
use super::{elsewhere, take_over};
use crate::engine::api::{EngineError, Renewed};
use crate::lock::SessionId;

/// How long a call waits for the keeper of its session, where what that said before has not ended.
const KEEPER_ANSWERS_WITHIN: Duration = Duration::from_millis(200);

impl Sessions {
    /// A renewal of a session by whoever wants to be told its validity: here, or at its keeper.
    pub async fn renew(self: &Arc<Self>, session: SessionId) -> Result<Renewed, EngineError> {
        match self.table.renew(session, self.time.now(), false) {
            Ok(renewed) => Ok(renewed),
            Err(NotRenewed::NotKept) => match self.local.is_alone() {
                false => elsewhere::renew(self, session).await,
                true => Err(EngineError::SessionEnded),
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
            match self.table.renew(session, now, on_stream) {
                Ok(renewed) => return Ok(renewed),
                Err(NotRenewed::NotKept) => take_over::find(self, session).await?,
                Err(ended @ (NotRenewed::Ended | NotRenewed::Ending)) => return Err(ended.error()),
            }
        }
        Err(EngineError::changing_keeper())
    }

    /// How long a session is safe from now on, as far as it is known here.
    pub fn safe_for(&self, session: SessionId) -> Option<Duration> {
        if let Some((_, left)) = self.table.left(session, self.time.now()) {
            return Some(left.min(self.table.promised(session)?.valid_for));
        }
        let said = self.table.said(session, self.local.clock.boot())?;
        Some(said.renewed.valid_for)
    }

    /// How long a call may be told that its session is valid, which it renewed when it was made. What a keeper elsewhere said
    /// lately is enough (H10). One that says nothing now holds nobody up: what it said stands.
    pub async fn validity(self: &Arc<Self>, session: SessionId) -> Result<Renewed, EngineError> {
        if let Some(kept) = self.table.promised(session) {
            return Ok(kept);
        }
        let said = || self.table.said(session, self.local.clock.boot());
        match said() {
            Some(said) if said.is_fresh => return Ok(said.renewed),
            Some(_) => {}
            None => return self.renew(session).await,
        }
        let renewal = self.renew(session);
        tokio::pin!(renewal);
        tokio::select! {
            biased;
            renewed = &mut renewal => match (renewed, said()) {
                (Err(error), Some(said)) if error != EngineError::SessionEnded => {
                    tracing::debug!(%session, %error, "the keeper of a session did not answer; its last answer stands");
                    Ok(said.renewed)
                }
                (renewed, _) => renewed,
            },
            () = self.local.clock.sleep(KEEPER_ANSWERS_WITHIN) => match said() {
                // The asking goes on: whoever comes next may find it answered.
                Some(said) => Ok(said.renewed),
                None => renewal.await,
            },
        }
    }

    /// A renewal that nobody waits for, by a call about an entry that lives by the session.
    pub fn renew_behind(self: &Arc<Self>, session: SessionId) {
        let now = self.time.now();
        if self.table.renew(session, now, false) != Err(NotRenewed::NotKept)
            || !self.table.is_due(session, self.local.clock.boot())
        {
            return;
        }
        let sessions = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = elsewhere::renew(&sessions, session).await {
                tracing::debug!(%session, %error, "could not pass a renewal on to the keeper of a session");
            }
        });
    }

    /// Reads the row of a session that entries here live by, in a task of its own. Where nobody shares the store, nothing
    /// else would read it: then until it was read, or nothing lives by the session any more.
    pub fn read_behind(self: &Arc<Self>, session: SessionId) {
        let sessions = Arc::clone(self);
        tokio::spawn(async move {
            let mut tries = 0;
            while !elsewhere::read(&sessions, session).await
                && sessions.local.is_alone()
                && !sessions.local.is_stopping()
                && sessions.table.emptied(session).is_some()
            {
                sessions.local.back_off(tries).await;
                tries += 1;
            }
        });
    }
}
