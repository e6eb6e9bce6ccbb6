//! ForceRelease.

use std::borrow::Cow;

use fermata_proto::{ForceReleaseRequest, ForceReleaseResponse};

use super::{CallContext, Target, UnaryCall};
use crate::access::{Verb, Verbs};
use crate::engine::{Engine, EngineError};
use crate::lock::EntryName;
use crate::rpc::parse::{self, Invalid};
use crate::rpc::peer::proto::Method;

/// The end of an entry by an operator.
pub struct ForceRelease {
    ask: ForceReleaseRequest,
    name: EntryName,
    by: String,
    why: String,
}

impl ForceRelease {
    /// The entry.
    pub fn name(&self) -> &EntryName {
        &self.name
    }

    /// By whom and why, as they say.
    pub fn words(&self) -> (&str, &str) {
        (&self.by, &self.why)
    }
}

impl UnaryCall for ForceRelease {
    const METHOD: Method = Method::ForceRelease;
    type Ask = ForceReleaseRequest;
    type Answer = ForceReleaseResponse;

    fn parse(ask: ForceReleaseRequest, context: &CallContext) -> Result<Self, Invalid> {
        let limits = &context.limits;
        let name = parse::entry_name(&ask.name)?;
        let why = parse::reason(ask.reason.clone(), limits)?;
        let by = parse::forced_by(ask.forced_by.clone(), limits)?;
        Ok(ForceRelease { ask, name, by, why })
    }

    fn target(&self) -> Target {
        Target::Entry(self.name.clone())
    }

    fn needs(&self) -> Verbs {
        Verb::Admin.into()
    }

    fn changes(&self) -> bool {
        true
    }

    fn ask(&self) -> Cow<'_, ForceReleaseRequest> {
        Cow::Borrowed(&self.ask)
    }

    async fn serve_locally(&self, engine: &Engine) -> Result<ForceReleaseResponse, EngineError> {
        let done = engine.force_release(&self.name, &self.by, &self.why);
        let done = done.await?;
        Ok(ForceReleaseResponse {
            already_released: done.already_released,
            was_holder: done.was_holder,
        })
    }
}
