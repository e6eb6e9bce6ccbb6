//! ForceRelease.

use std::borrow::Cow;

use fermata_proto::{ForceReleaseRequest, ForceReleaseResponse};

use super::{CallContext, Target, UnaryCall};
use crate::engine::{Engine, EngineError};
use crate::lock::LockRef;
use crate::rpc::parse::{self, Invalid};
use crate::rpc::peer::proto::Method;

/// The end of an entry by an operator.
pub struct ForceRelease {
    ask: ForceReleaseRequest,
    lock_ref: LockRef,
    by: String,
    why: String,
}

impl UnaryCall for ForceRelease {
    const METHOD: Method = Method::ForceRelease;
    type Ask = ForceReleaseRequest;
    type Answer = ForceReleaseResponse;

    fn parse(ask: ForceReleaseRequest, context: &CallContext) -> Result<Self, Invalid> {
        let limits = &context.limits;
        let lock_ref = parse::lock_ref(&ask.lock_ref)?;
        let why = parse::reason(ask.reason.clone(), limits)?;
        let by = parse::forced_by(ask.forced_by.clone(), limits)?;
        Ok(ForceRelease {
            ask,
            lock_ref,
            by,
            why,
        })
    }

    fn target(&self) -> Target {
        Target::LockRef(self.lock_ref.clone())
    }

    fn changes(&self) -> bool {
        true
    }

    fn ask(&self) -> Cow<'_, ForceReleaseRequest> {
        Cow::Borrowed(&self.ask)
    }

    async fn serve_locally(&self, engine: &Engine) -> Result<ForceReleaseResponse, EngineError> {
        let done = engine
            .force_release(&self.lock_ref, &self.by, &self.why)
            .await?;
        Ok(ForceReleaseResponse {
            already_released: done.already_released,
            was_holder: done.was_holder,
        })
    }
}
