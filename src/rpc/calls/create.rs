//! CreateLockRef.

use std::borrow::Cow;

use fermata_proto::{CreateLockRefRequest, CreateLockRefResponse};

use super::{CallContext, Target, UnaryCall};
use crate::access::{Verb, Verbs};
use crate::engine::{CreateCall, EngineError};
use crate::lock::Secret;
use crate::protocol::LockProtocol;
use crate::rpc::answer;
use crate::rpc::parse::{self, Invalid};
use crate::rpc::peer_proto::Method;
use crate::trace;

/// A new entry in the queue of a key.
pub struct CreateLockRef {
    /// With its request_id, so that it is one call at any home (I5).
    ask: CreateLockRefRequest,
    secret: Secret,
    call: CreateCall,
}

impl UnaryCall for CreateLockRef {
    const METHOD: Method = Method::CreateLockRef;
    const CHANGES: bool = true;
    type Ask = CreateLockRefRequest;
    type Answer = CreateLockRefResponse;

    fn parse(mut ask: CreateLockRefRequest, context: &CallContext) -> Result<Self, Invalid> {
        let limits = &context.limits;
        let identity = context.identity();
        let id = parse::key_id(&ask.key, &ask.table, limits)?;
        let request_id = parse::request_id(&ask.request_id, || context.ids.uuid())?;
        let secret = Secret::of_entry(identity, &id, request_id);
        let call = CreateCall {
            id,
            tag: secret.tag(identity),
            live_by: parse::live_by((&ask.session, identity), ask.ttl.as_ref(), limits)?,
            mode: parse::mode(ask.mode)?,
            owner: parse::owner(ask.owner.clone(), limits)?,
            identity: identity.to_owned(),
            share_of: context.login.share_of(),
            read_value: ask.read_value,
            waited: context.deadline.age(),
        };
        ask.request_id = request_id.to_string();
        Ok(CreateLockRef { ask, secret, call })
    }

    fn target(&self) -> Target {
        Target::Key(self.call.id.clone())
    }

    fn needs(&self) -> Verbs {
        Verbs::from(Verb::Lock).and(self.ask.read_value, Verb::Read)
    }

    fn ask(&self) -> Cow<'_, CreateLockRefRequest> {
        Cow::Borrowed(&self.ask)
    }

    async fn serve(&self, locks: &dyn LockProtocol) -> Result<CreateLockRefResponse, EngineError> {
        let created = locks.create(self.call.clone()).await?;
        trace::record("entry", &created.lock_ref);
        Ok(answer::created(created, &self.ask.session, &self.secret))
    }
}
