//! The calls by which operators end entries and sessions by force: ForceRelease, EndSession.

use std::borrow::Cow;

use fermata_proto::{
    EndSessionRequest, EndSessionResponse, ForceReleaseRequest, ForceReleaseResponse,
};

use super::{CallContext, Target, UnaryCall};
use crate::access::{Verb, Verbs};
use crate::engine::EngineError;
use crate::limits::Limits;
use crate::lock::{EntryName, SessionId};
use crate::protocol::LockProtocol;
use crate::rpc::parse::{self, Invalid};
use crate::rpc::peer_proto::Method;

/// The operator and the reason of a forced end, in their words.
#[derive(Debug)]
pub struct Words {
    /// May be empty.
    pub by: String,
    /// Not empty.
    pub why: String,
}

impl Words {
    fn parse(why: &str, by: &str, limits: &Limits) -> Result<Words, Invalid> {
        Ok(Words {
            why: parse::reason(why.to_owned(), limits)?,
            by: parse::forced_by(by.to_owned(), limits)?,
        })
    }
}

/// The end of an entry by an operator.
pub struct ForceRelease {
    ask: ForceReleaseRequest,
    name: EntryName,
    words: Words,
}

impl UnaryCall for ForceRelease {
    const METHOD: Method = Method::ForceRelease;
    const CHANGES: bool = true;
    type Ask = ForceReleaseRequest;
    type Answer = ForceReleaseResponse;

    fn parse(ask: ForceReleaseRequest, context: &CallContext) -> Result<Self, Invalid> {
        let name = parse::entry_name(&ask.name)?;
        let words = Words::parse(&ask.reason, &ask.forced_by, &context.limits)?;
        Ok(ForceRelease { ask, name, words })
    }

    fn target(&self) -> Target {
        Target::Entry(self.name.clone())
    }

    fn needs(&self) -> Verbs {
        Verb::Admin.into()
    }

    fn ask(&self) -> Cow<'_, ForceReleaseRequest> {
        Cow::Borrowed(&self.ask)
    }

    async fn serve(&self, locks: &dyn LockProtocol) -> Result<ForceReleaseResponse, EngineError> {
        let Words { by, why } = &self.words;
        let done = locks.force_release(&self.name, by, why).await?;
        Ok(ForceReleaseResponse {
            already_released: done.already_released,
            was_holder: done.was_holder,
        })
    }
}

impl ByForce for ForceRelease {
    fn words(&self) -> &Words {
        &self.words
    }

    fn had_ended(answer: &ForceReleaseResponse) -> bool {
        answer.already_released
    }
}

/// The end of a session by an operator.
pub struct EndSession {
    ask: EndSessionRequest,
    session: SessionId,
    words: Words,
}

impl UnaryCall for EndSession {
    const METHOD: Method = Method::EndSession;
    const CHANGES: bool = true;
    type Ask = EndSessionRequest;
    type Answer = EndSessionResponse;

    fn parse(ask: EndSessionRequest, context: &CallContext) -> Result<Self, Invalid> {
        let session = parse::session_id(&ask.session_id)?;
        let words = Words::parse(&ask.reason, &ask.forced_by, &context.limits)?;
        Ok(EndSession {
            ask,
            session,
            words,
        })
    }

    fn target(&self) -> Target {
        Target::Session(self.session)
    }

    fn needs(&self) -> Verbs {
        Verb::Admin.into()
    }

    fn ask(&self) -> Cow<'_, EndSessionRequest> {
        Cow::Borrowed(&self.ask)
    }

    async fn serve(&self, locks: &dyn LockProtocol) -> Result<EndSessionResponse, EngineError> {
        let closed = locks.close_session(self.session).await?;
        Ok(EndSessionResponse {
            already_ended: closed.had_ended,
            may_be_served: closed.may_be_served,
        })
    }
}

impl ByForce for EndSession {
    fn words(&self) -> &Words {
        &self.words
    }

    fn had_ended(answer: &EndSessionResponse) -> bool {
        answer.already_ended
    }
}

/// What ends something of somebody else, and is in the audit log.
pub trait ByForce: UnaryCall {
    /// The operator and the reason.
    fn words(&self) -> &Words;

    /// Whether there was nothing to end any more.
    fn had_ended(answer: &Self::Answer) -> bool;
}
