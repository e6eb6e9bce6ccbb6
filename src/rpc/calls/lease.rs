//! The calls on leases: OpenSession, RenewSession, one message of a KeepAlive, CloseSession.

use std::borrow::Cow;

use fermata_proto::{
    CloseSessionRequest, CloseSessionResponse, EndReason, KeepAliveRequest, KeepAliveResponse,
    OpenSessionRequest, OpenSessionResponse, RenewSessionRequest, RenewSessionResponse,
};
use tonic::Status;

use super::{CallContext, Target, UnaryCall};
use crate::engine::{EngineError, LeaseId, SessionCall};
use crate::lock::{Secret, SessionId};
use crate::protocol::LockProtocol;
use crate::rpc::parse::{self, Invalid};
use crate::rpc::peer_proto::Method;
use crate::rpc::{answer, status};

/// Opens a session, or finds it.
pub struct OpenSession {
    /// With its request_id, so that it is one call at any home.
    ask: OpenSessionRequest,
    secret: Secret,
    call: SessionCall,
}

impl UnaryCall for OpenSession {
    const METHOD: Method = Method::OpenSession;
    const CHANGES: bool = true;
    type Ask = OpenSessionRequest;
    type Answer = OpenSessionResponse;

    fn parse(mut ask: OpenSessionRequest, context: &CallContext) -> Result<Self, Invalid> {
        let limits = &context.limits;
        let ttl_ms = parse::ttl_ms(ask.ttl.as_ref(), limits)?;
        let grace = ask.disconnect_grace.as_ref();
        let request_id = parse::request_id(&ask.request_id, || context.ids.uuid())?;
        let secret = Secret::of_session(context.identity(), request_id);
        let call = SessionCall {
            id: secret.session(context.identity()),
            ttl_ms,
            disconnect_grace_ms: parse::disconnect_grace_ms(grace, ttl_ms, limits)?,
            owner: parse::owner(ask.owner.clone(), limits)?,
            identity: context.identity().to_owned(),
            share_of: context.login.share_of(),
            waited: context.deadline.age(),
        };
        ask.request_id = request_id.to_string();
        Ok(OpenSession { ask, secret, call })
    }

    fn target(&self) -> Target {
        Target::Session(self.call.id)
    }

    fn ask(&self) -> Cow<'_, OpenSessionRequest> {
        Cow::Borrowed(&self.ask)
    }

    async fn serve(&self, locks: &dyn LockProtocol) -> Result<OpenSessionResponse, EngineError> {
        let renewed = locks.open_session(self.call.clone()).await?;
        Ok(OpenSessionResponse {
            session: self.secret.session_text(&self.call.identity),
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

impl UnaryCall for RenewSession {
    const METHOD: Method = Method::RenewSession;
    type Ask = RenewSessionRequest;
    type Answer = RenewSessionResponse;

    fn parse(ask: RenewSessionRequest, context: &CallContext) -> Result<Self, Invalid> {
        let lease = parse::lease(&ask.session, context.identity())?;
        Ok(RenewSession { ask, lease })
    }

    fn target(&self) -> Target {
        Target::from(&self.lease)
    }

    fn ask(&self) -> Cow<'_, RenewSessionRequest> {
        Cow::Borrowed(&self.ask)
    }

    async fn serve(&self, locks: &dyn LockProtocol) -> Result<RenewSessionResponse, EngineError> {
        let renewed = locks.renew(&self.lease).await?;
        Ok(RenewSessionResponse {
            valid_for: Some(answer::duration(renewed.valid_for)),
            ttl: Some(answer::duration(renewed.ttl)),
            disconnect_grace: renewed.disconnect_grace.map(answer::duration),
            durable: renewed.durable,
        })
    }
}

/// A renewal on a stream: that a session has ended is an answer.
pub struct KeepAlive {
    ask: KeepAliveRequest,
    lease: LeaseId,
}

impl KeepAlive {
    /// The session of the lease, unless it is that of a lockRef.
    pub fn session(&self) -> Option<SessionId> {
        match &self.lease {
            LeaseId::Session(session) => Some(*session),
            LeaseId::LockRef(_) => None,
        }
    }

    /// The answer for a lease that has ended; without a reason: for a lease of unknown state.
    pub fn nothing_safe(&self, reason: EndReason) -> KeepAliveResponse {
        KeepAliveResponse {
            session: self.ask.session.clone(),
            valid_for: Some(prost_types::Duration::default()),
            ttl: None,
            reason: reason.into(),
            disconnect_grace: None,
            durable: false,
        }
    }
}

impl UnaryCall for KeepAlive {
    const METHOD: Method = Method::KeepAlive;
    type Ask = KeepAliveRequest;
    type Answer = KeepAliveResponse;

    fn parse(ask: KeepAliveRequest, context: &CallContext) -> Result<Self, Invalid> {
        let lease = parse::lease(&ask.session, context.identity())?;
        Ok(KeepAlive { ask, lease })
    }

    fn target(&self) -> Target {
        Target::from(&self.lease)
    }

    fn ask(&self) -> Cow<'_, KeepAliveRequest> {
        Cow::Borrowed(&self.ask)
    }

    async fn serve(&self, locks: &dyn LockProtocol) -> Result<KeepAliveResponse, EngineError> {
        let renewed = locks.renew_on_stream(&self.lease).await?;
        Ok(KeepAliveResponse {
            session: self.ask.session.clone(),
            valid_for: Some(answer::duration(renewed.valid_for)),
            ttl: Some(answer::duration(renewed.ttl)),
            reason: EndReason::Unspecified.into(),
            disconnect_grace: renewed.disconnect_grace.map(answer::duration),
            durable: renewed.durable,
        })
    }

    /// At any home the end of a lease is an answer.
    fn failed(&self, error: EngineError) -> Result<KeepAliveResponse, Status> {
        match how_ended(&error) {
            Some(reason) => Ok(self.nothing_safe(reason)),
            None => Err(status::of_engine(&error)),
        }
    }
}

/// Closes a session.
pub struct CloseSession {
    ask: CloseSessionRequest,
    session: SessionId,
}

impl UnaryCall for CloseSession {
    const METHOD: Method = Method::CloseSession;
    const CHANGES: bool = true;
    type Ask = CloseSessionRequest;
    type Answer = CloseSessionResponse;

    fn parse(ask: CloseSessionRequest, context: &CallContext) -> Result<Self, Invalid> {
        let session = parse::session(&ask.session, context.identity())?;
        Ok(CloseSession { ask, session })
    }

    fn target(&self) -> Target {
        Target::Session(self.session)
    }

    fn ask(&self) -> Cow<'_, CloseSessionRequest> {
        Cow::Borrowed(&self.ask)
    }

    async fn serve(&self, locks: &dyn LockProtocol) -> Result<CloseSessionResponse, EngineError> {
        let closed = locks.close_session(self.session).await?;
        Ok(CloseSessionResponse {
            already_closed: closed.had_ended,
            may_be_served: closed.may_be_served,
        })
    }
}

/// The end of a lease by an error; `None` if the error is about something else.
fn how_ended(error: &EngineError) -> Option<EndReason> {
    match error {
        EngineError::SessionEnded => Some(EndReason::SessionClosed),
        EngineError::Ended(how) | EngineError::EndedDuringWrite(how) => {
            Some(status::end_reason(how))
        }
        // Its holder gives it back already.
        EngineError::Releasing | EngineError::ReleasingDuringWrite => Some(EndReason::Released),
        // It is of another life of its key, whose end is not kept.
        EngineError::NeverIssued => Some(EndReason::NoLongerKept),
        EngineError::UnknownTable(_)
        | EngineError::GrantSuperseded
        | EngineError::SupersededDuringWrite
        | EngineError::NoGrant
        | EngineError::CallNoNotAbove { .. }
        | EngineError::RequestMismatch { .. }
        | EngineError::NotInProtocol { .. }
        | EngineError::RowBusy { .. }
        | EngineError::StaleLock { .. }
        | EngineError::Exhausted { .. }
        | EngineError::ShareUsed { .. }
        | EngineError::Overloaded { .. }
        | EngineError::KeyUsedUp(_)
        | EngineError::Unavailable(_)
        | EngineError::ClockOff
        | EngineError::WriteUnknown(_)
        | EngineError::Silent
        | EngineError::Fenced
        | EngineError::Elsewhere { .. }
        | EngineError::Stopping => None,
    }
}
