//! Sessions: opened, renewed, closed.

use std::time::Duration;

use fermata_proto as proto;
use tonic::Status;
use uuid::Uuid;

use super::answer::Renewed;
use super::client::{Client, Tries};
use super::error::SessionError;
use super::fault::Fault;
use super::request::SessionRequest;
use super::wire::{from_wire, to_wire};

fn grace(answered: Option<prost_types::Duration>) -> Option<Duration> {
    answered.map(|grace| from_wire(Some(grace)))
}

impl Client {
    pub(crate) async fn open_session_raw(
        &self,
        request: &SessionRequest,
    ) -> Result<Renewed, SessionError> {
        let message = proto::OpenSessionRequest {
            ttl: request.ttl.and_then(to_wire),
            // One id for all attempts: a repeat finds the session that the first one opened.
            request_id: Uuid::new_v4().to_string(),
            owner: request.owner.clone(),
            disconnect_grace: request.disconnect_grace.and_then(to_wire),
        };
        let opened = self.call(|attempt| attempt.call(message.clone())).await;
        let answer = opened.map_err(|status| Fault::new(&status))?;
        Ok(Renewed {
            validity: answer.validity(answer.message.valid_for),
            session: answer.message.session,
            ttl: from_wire(answer.message.ttl),
            disconnect_grace: grace(answer.message.disconnect_grace),
        })
    }

    /// Renews a session, or a lockRef without a session.
    pub async fn renew_session(&self, session: &str) -> Result<Renewed, SessionError> {
        let renewed = self.renew_raw(session, self.tries()).await;
        Ok(renewed.map_err(|status| Fault::new(&status))?)
    }

    pub(crate) async fn renew_raw(&self, session: &str, tries: Tries) -> Result<Renewed, Status> {
        let message = proto::RenewSessionRequest {
            session: session.to_owned(),
        };
        let answer = self
            .make(None, tries, |attempt| attempt.call(message.clone()))
            .await?;
        Ok(Renewed {
            session: session.to_owned(),
            ttl: from_wire(answer.message.ttl),
            disconnect_grace: grace(answer.message.disconnect_grace),
            validity: answer.validity(answer.message.valid_for),
        })
    }

    /// Closes a session and ends all its lockRefs. True if the session had ended before.
    pub async fn close_session(&self, session: &str) -> Result<bool, SessionError> {
        let closed = self.close_session_raw(session, self.tries()).await;
        Ok(closed.map_err(|status| Fault::new(&status))?)
    }

    pub(crate) async fn close_session_raw(
        &self,
        session: &str,
        tries: Tries,
    ) -> Result<bool, Status> {
        let message = proto::CloseSessionRequest {
            session: session.to_owned(),
        };
        let answer = self
            .make(None, tries, |attempt| attempt.call(message.clone()))
            .await?;
        Ok(answer.message.already_closed)
    }
}
