//! The calls on what keeps entries alive: OpenSession, RenewSession, one message of a KeepAlive, CloseSession.

use std::borrow::Cow;

use super::{Call, CallContext, Target};
use crate::engine::{Engine, EngineError, LeaseId, Renewed, SessionCall};
use crate::lock::SessionId;
use crate::proto::peer::Method;
use crate::proto::{
    CloseSessionRequest, CloseSessionResponse, EndReason, KeepAliveRequest, KeepAliveResponse,
    OpenSessionRequest, OpenSessionResponse, RenewSessionRequest, RenewSessionResponse,
};
use crate::rpc::parse::{self, Invalid};
use crate::rpc::{answer, status};

/// Opens a session, or finds it.
pub struct OpenSession {
    /// With its request_id, which is the session's.
    ask: OpenSessionRequest,
    call: SessionCall,
}

impl Call for OpenSession {
    const METHOD: Method = Method::OpenSession;
    type Ask = OpenSessionRequest;
    type Answer = OpenSessionResponse;

    fn parse(mut ask: OpenSessionRequest, context: &CallContext) -> Result<Self, Invalid> {
        let limits = &context.limits;
        let ttl_ms = parse::ttl_ms(ask.ttl.as_ref(), limits)?;
        let grace = ask.disconnect_grace.as_ref();
        let call = SessionCall {
            request_id: parse::request_id(&ask.request_id, || context.ids.uuid())?,
            ttl_ms,
            disconnect_grace_ms: parse::disconnect_grace_ms(grace, ttl_ms, limits)?,
            owner: parse::owner(ask.owner.clone(), limits)?,
            identity: context.identity.clone(),
        };
        ask.request_id = call.request_id.to_string();
        Ok(OpenSession { ask, call })
    }

    fn target(&self) -> Target {
        Target::Session(SessionId(self.call.request_id))
    }

    fn ask(&self) -> Cow<'_, OpenSessionRequest> {
        Cow::Borrowed(&self.ask)
    }

    async fn serve_locally(&self, engine: &Engine) -> Result<OpenSessionResponse, EngineError> {
        let (session, renewed) = engine.open_session(self.call.clone()).await?;
        Ok(OpenSessionResponse {
            session: session.to_string(),
            ttl: Some(answer::duration(renewed.ttl)),
            valid_for: Some(answer::duration(renewed.valid_for)),
            disconnect_grace: renewed.disconnect_grace.map(answer::duration),
        })
    }
}

/// A renewal.
pub struct RenewSession {
    ask: RenewSessionRequest,
    lease: LeaseId,
}

impl Call for RenewSession {
    const METHOD: Method = Method::RenewSession;
    type Ask = RenewSessionRequest;
    type Answer = RenewSessionResponse;

    fn parse(ask: RenewSessionRequest, _context: &CallContext) -> Result<Self, Invalid> {
        let lease = parse::lease(&ask.session)?;
        Ok(RenewSession { ask, lease })
    }

    fn target(&self) -> Target {
        Target::from(&self.lease)
    }

    fn ask(&self) -> Cow<'_, RenewSessionRequest> {
        Cow::Borrowed(&self.ask)
    }

    async fn serve_locally(&self, engine: &Engine) -> Result<RenewSessionResponse, EngineError> {
        let renewed = engine.renew(&self.lease).await?;
        Ok(RenewSessionResponse {
            valid_for: Some(answer::duration(renewed.valid_for)),
            ttl: Some(answer::duration(renewed.ttl)),
            disconnect_grace: renewed.disconnect_grace.map(answer::duration),
        })
    }
}

/// A renewal on a stream: that a session has ended is an answer.
pub struct KeepAlive {
    ask: KeepAliveRequest,
    lease: LeaseId,
}

impl KeepAlive {
    /// The session that it is for, unless it is for a lockRef without one.
    pub fn session(&self) -> Option<SessionId> {
        match &self.lease {
            LeaseId::Session(session) => Some(*session),
            LeaseId::LockRef(_) => None,
        }
    }
}

impl Call for KeepAlive {
    const METHOD: Method = Method::KeepAlive;
    type Ask = KeepAliveRequest;
    type Answer = KeepAliveResponse;

    fn parse(ask: KeepAliveRequest, _context: &CallContext) -> Result<Self, Invalid> {
        let lease = parse::lease(&ask.session)?;
        Ok(KeepAlive { ask, lease })
    }

    fn target(&self) -> Target {
        Target::from(&self.lease)
    }

    fn ask(&self) -> Cow<'_, KeepAliveRequest> {
        Cow::Borrowed(&self.ask)
    }

    async fn serve_locally(&self, engine: &Engine) -> Result<KeepAliveResponse, EngineError> {
        let renewed = engine.renew_on_stream(&self.lease).await;
        answered(self.ask.session.clone(), renewed)
    }
}

/// Closes a session.
pub struct CloseSession {
    ask: CloseSessionRequest,
    session: SessionId,
}

impl Call for CloseSession {
    const METHOD: Method = Method::CloseSession;
    type Ask = CloseSessionRequest;
    type Answer = CloseSessionResponse;

    fn parse(ask: CloseSessionRequest, _context: &CallContext) -> Result<Self, Invalid> {
        let session = parse::session(&ask.session)?;
        Ok(CloseSession { ask, session })
    }

    fn target(&self) -> Target {
        Target::Session(self.session)
    }

    fn ask(&self) -> Cow<'_, CloseSessionRequest> {
        Cow::Borrowed(&self.ask)
    }

    async fn serve_locally(&self, engine: &Engine) -> Result<CloseSessionResponse, EngineError> {
        let already_closed = engine.close_session(self.session).await?;
        Ok(CloseSessionResponse { already_closed })
    }
}

/// A session that has ended is an answer; what says nothing about this session is an error.
fn answered(
    session: String,
    renewed: Result<Renewed, EngineError>,
) -> Result<KeepAliveResponse, EngineError> {
    let ended = |reason: EndReason| KeepAliveResponse {
        session: session.clone(),
        valid_for: Some(prost_types::Duration::default()),
        ttl: None,
        reason: reason.into(),
        disconnect_grace: None,
    };
    match renewed {
        Ok(renewed) => Ok(KeepAliveResponse {
            session,
            valid_for: Some(answer::duration(renewed.valid_for)),
            ttl: Some(answer::duration(renewed.ttl)),
            reason: EndReason::Unspecified.into(),
            disconnect_grace: renewed.disconnect_grace.map(answer::duration),
        }),
        Err(EngineError::SessionEnded) => Ok(ended(EndReason::SessionClosed)),
        Err(EngineError::Ended(how) | EngineError::EndedDuringWrite(how)) => {
            Ok(ended(status::end_reason(&how)))
        }
        // Of another life of its key: whatever ended it is not kept, and the others must go on.
        Err(EngineError::NeverIssued) => Ok(ended(EndReason::NoLongerKept)),
        // Its holder gives it back already.
        Err(EngineError::Releasing) => Ok(ended(EndReason::Released)),
        Err(
            error @ (EngineError::UnknownTable(_)
            | EngineError::GrantSuperseded
            | EngineError::SupersededDuringWrite
            | EngineError::NoGrant
            | EngineError::CallNoNotAbove { .. }
            | EngineError::RequestMismatch { .. }
            | EngineError::Exhausted { .. }
            | EngineError::KeyUsedUp(_)
            | EngineError::Unavailable(_)
            | EngineError::WriteUnknown(_)
            | EngineError::CutOff
            | EngineError::Elsewhere { .. }
            | EngineError::Stopping),
        ) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::EndedAs;

    #[test]
    fn a_session_that_has_ended_is_an_answer_and_ends_no_stream() {
        for (error, reason) in [
            (EngineError::SessionEnded, EndReason::SessionClosed),
            (EngineError::NeverIssued, EndReason::NoLongerKept),
            (
                EngineError::Ended(EndedAs::Lost(crate::lock::EndReason::Expired)),
                EndReason::Expired,
            ),
        ] {
            let answer = answered("s".to_owned(), Err(error)).unwrap();
            assert_eq!(answer.reason(), reason);
            assert_eq!(answer.valid_for, Some(prost_types::Duration::default()));
            assert_eq!((answer.session.as_str(), answer.ttl), ("s", None));
        }
    }

    #[test]
    fn a_store_that_cannot_be_reached_does_not_make_a_session_look_over() {
        let lost = EngineError::Unavailable("no majority".to_owned());
        let error = answered("s".to_owned(), Err(lost.clone())).unwrap_err();
        assert_eq!(error, lost);
    }
}
