//! Renewals of sessions, with the keeper here or elsewhere.

use std::sync::Arc;
use std::time::Duration;

use super::registry::Sessions;
use super::table::NotRenewed;
use super::{elsewhere, take_over};
use crate::engine::api::{EngineError, Renewed};
use crate::lock::SessionId;

/// The longest wait of a call for its session's keeper while the keeper's last answer is valid.
const KEEPER_ANSWERS_WITHIN: Duration = Duration::from_millis(200);

impl Sessions {
    /// Renews a session, here or at its keeper, and returns its validity.
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

    /// A renewal by a client, at the keeper only: `Elsewhere` if that is another replica.
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

    /// The span without expiry of a session from now on, if known here.
    pub fn safe_for(&self, session: SessionId) -> Option<Duration> {
        if let Some((_, left)) = self.table.left(session, self.time.now()) {
            return Some(left.min(self.table.promised(session)?.valid_for));
        }
        let said = self.table.said(session, self.local.clock.boot())?;
        Some(said.renewed.valid_for)
    }

    /// The validity of a session for a call that renewed it. A recent answer of a keeper elsewhere is enough (H10). A keeper
    /// that does not answer delays no call: its last answer stands.
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
                // The renewal goes on: the next call may find it answered.
                Some(said) => Ok(said.renewed),
                None => renewal.await,
            },
        }
    }

    /// A renewal in the background, by a call about an entry of the session.
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

    /// Reads the row of a session with entries here, in a task of its own. On a store of this process alone nothing else would
    /// read it, so this tries until it is read, or the session has no entries.
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
