//! The calls on a lockRef: AcquireLock, ReleaseLock, CriticalGet, CriticalPut, CriticalDelete.

use std::borrow::Cow;
use std::time::Duration;

use fermata_proto::{
    AcquireLockRequest, AcquireLockResponse, CriticalDeleteRequest, CriticalDeleteResponse,
    CriticalGetRequest, CriticalGetResponse, CriticalPutRequest, CriticalPutResponse,
    ReleaseLockRequest, ReleaseLockResponse,
};
use prost::Message;
use tokio::time::Instant;

use super::{CallContext, Target, UnaryCall};
use crate::access::{Verb, Verbs};
use crate::engine::{Done, EngineError, Mutation};
use crate::limits::Limits;
use crate::lock::LockRef;
use crate::protocol::LockProtocol;
use crate::rpc::answer;
use crate::rpc::deadline::later;
use crate::rpc::parse::{self, Invalid};
use crate::rpc::peer_proto::Method;

/// Asks for the lock, and may wait for it.
pub struct AcquireLock {
    ask: AcquireLockRequest,
    lock_ref: LockRef,
    wait: Duration,
    /// The end of the wait, at any home.
    until: Instant,
}

impl UnaryCall for AcquireLock {
    const METHOD: Method = Method::AcquireLock;
    type Ask = AcquireLockRequest;
    type Answer = AcquireLockResponse;

    fn parse(ask: AcquireLockRequest, context: &CallContext) -> Result<Self, Invalid> {
        let lock_ref = parse::lock_ref(&ask.lock_ref, context.identity())?;
        let wait = parse::wait(ask.wait.as_ref(), &context.limits)?;
        let now = Instant::now();
        let wait = match context.deadline.wait_until() {
            Some(until) => wait.min(until.saturating_duration_since(now)),
            None => wait,
        };
        Ok(AcquireLock {
            ask,
            lock_ref,
            wait,
            until: later(now, wait),
        })
    }

    fn target(&self) -> Target {
        Target::LockRef(self.lock_ref.clone())
    }

    fn needs(&self) -> Verbs {
        Verbs::from(Verb::Lock).and(self.ask.read_value, Verb::Read)
    }

    fn answer_by(&self, context: &CallContext) -> Instant {
        let longest = self.wait.saturating_add(context.limits.call_max());
        context.deadline.answer_within(longest)
    }

    fn waits(&self) -> bool {
        !self.wait.is_zero()
    }

    fn ask(&self) -> Cow<'_, AcquireLockRequest> {
        if !self.waits() {
            return Cow::Borrowed(&self.ask);
        }
        Cow::Owned(AcquireLockRequest {
            wait: Some(answer::duration(self.left())),
            ..self.ask.clone()
        })
    }

    async fn serve(&self, locks: &dyn LockProtocol) -> Result<AcquireLockResponse, EngineError> {
        let read_value = self.ask.read_value;
        let acquired = locks
            .acquire(&self.lock_ref, self.left(), read_value)
            .await?;
        Ok(answer::acquired(acquired, &self.ask.lock_ref))
    }
}

impl AcquireLock {
    /// Asks about a lockRef once, which renews it.
    pub fn renewal(lock_ref: String, context: &CallContext) -> Result<AcquireLock, Invalid> {
        let ask = AcquireLockRequest {
            lock_ref,
            ..AcquireLockRequest::default()
        };
        AcquireLock::parse(ask, context)
    }

    /// The lockRef as it was given.
    pub fn lock_ref_text(&self) -> String {
        self.ask.lock_ref.clone()
    }

    /// What is left of the wait.
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

/// Releases an entry, after an optional last write.
pub struct ReleaseLock {
    ask: ReleaseLockRequest,
    lock_ref: LockRef,
    put: Option<Mutation>,
}

impl UnaryCall for ReleaseLock {
    const METHOD: Method = Method::ReleaseLock;
    const CHANGES: bool = true;
    type Ask = ReleaseLockRequest;
    type Answer = ReleaseLockResponse;

    fn parse(ask: ReleaseLockRequest, context: &CallContext) -> Result<Self, Invalid> {
        let lock_ref = parse::lock_ref(&ask.lock_ref, context.identity())?;
        let put = parse::mutation(ask.put.clone(), &context.limits)?;
        Ok(ReleaseLock { ask, lock_ref, put })
    }

    fn target(&self) -> Target {
        Target::LockRef(self.lock_ref.clone())
    }

    fn needs(&self) -> Verbs {
        // A key that nobody has in memory is taken over for it.
        Verbs::from(Verb::Lock).and(self.put.is_some(), Verb::Write)
    }

    fn is_write(&self) -> bool {
        self.put.is_some()
    }

    fn ask(&self) -> Cow<'_, ReleaseLockRequest> {
        Cow::Borrowed(&self.ask)
    }

    async fn serve(&self, locks: &dyn LockProtocol) -> Result<ReleaseLockResponse, EngineError> {
        let released = locks.release(&self.lock_ref, self.put.clone(), self.ask.call_no);
        let already_released = released.await?;
        Ok(ReleaseLockResponse { already_released })
    }
}

/// Reads as the holder.
pub struct CriticalGet {
    ask: CriticalGetRequest,
    lock_ref: LockRef,
}

impl UnaryCall for CriticalGet {
    const METHOD: Method = Method::CriticalGet;
    type Ask = CriticalGetRequest;
    type Answer = CriticalGetResponse;

    fn parse(ask: CriticalGetRequest, context: &CallContext) -> Result<Self, Invalid> {
        let lock_ref = parse::lock_ref(&ask.lock_ref, context.identity())?;
        Ok(CriticalGet { ask, lock_ref })
    }

    fn target(&self) -> Target {
        Target::LockRef(self.lock_ref.clone())
    }

    fn needs(&self) -> Verbs {
        // It renews the lock.
        Verbs::from(Verb::Lock).and(true, Verb::Read)
    }

    fn ask(&self) -> Cow<'_, CriticalGetRequest> {
        Cow::Borrowed(&self.ask)
    }

    async fn serve(&self, locks: &dyn LockProtocol) -> Result<CriticalGetResponse, EngineError> {
        let done = locks.critical_get(&self.lock_ref, self.ask.call_no);
        let done = done.await?;
        let (value, exists) = answer::value(Some(done.value));
        Ok(CriticalGetResponse {
            value,
            exists,
            valid_for: Some(answer::duration(done.valid_for)),
            durable: done.durable,
        })
    }
}

/// A request that writes as the holder.
pub trait WriteAsk: Message + Default + Clone + 'static {
    /// As in [`UnaryCall`].
    const METHOD: Method;
    /// As in [`UnaryCall`].
    type Answer: Message + Default + Send + 'static;

    /// The lockRef of the call.
    fn lock_ref(&self) -> &str;
    /// Its number.
    fn call_no(&self) -> u64;
    /// What it writes. A value is shared with the request, not copied.
    fn mutation(&self, limits: &Limits) -> Result<Mutation, Invalid>;
    /// The answer: until when the lockRef is safe.
    fn answer(done: &Done<()>) -> Self::Answer;
}

/// Writes as the holder.
pub type CriticalPut = CriticalWrite<CriticalPutRequest>;
/// Deletes as the holder.
pub type CriticalDelete = CriticalWrite<CriticalDeleteRequest>;

impl WriteAsk for CriticalPutRequest {
    const METHOD: Method = Method::CriticalPut;
    type Answer = CriticalPutResponse;

    fn lock_ref(&self) -> &str {
        &self.lock_ref
    }

    fn call_no(&self) -> u64 {
        self.call_no
    }

    fn mutation(&self, limits: &Limits) -> Result<Mutation, Invalid> {
        parse::put(self.value.clone(), limits)
    }

    fn answer(done: &Done<()>) -> CriticalPutResponse {
        CriticalPutResponse {
            valid_for: Some(answer::duration(done.valid_for)),
            durable: done.durable,
        }
    }
}

impl WriteAsk for CriticalDeleteRequest {
    const METHOD: Method = Method::CriticalDelete;
    type Answer = CriticalDeleteResponse;

    fn lock_ref(&self) -> &str {
        &self.lock_ref
    }

    fn call_no(&self) -> u64 {
        self.call_no
    }

    fn mutation(&self, _limits: &Limits) -> Result<Mutation, Invalid> {
        Ok(Mutation::Delete)
    }

    fn answer(done: &Done<()>) -> CriticalDeleteResponse {
        CriticalDeleteResponse {
            valid_for: Some(answer::duration(done.valid_for)),
            durable: done.durable,
        }
    }
}

/// Writes a value, or none, as the holder.
pub struct CriticalWrite<A> {
    ask: A,
    lock_ref: LockRef,
    mutation: Mutation,
}

impl<A: WriteAsk> UnaryCall for CriticalWrite<A> {
    const METHOD: Method = A::METHOD;
    type Ask = A;
    type Answer = A::Answer;

    fn parse(ask: A, context: &CallContext) -> Result<Self, Invalid> {
        Ok(CriticalWrite {
            lock_ref: parse::lock_ref(ask.lock_ref(), context.identity())?,
            mutation: ask.mutation(&context.limits)?,
            ask,
        })
    }

    fn target(&self) -> Target {
        Target::LockRef(self.lock_ref.clone())
    }

    fn needs(&self) -> Verbs {
        // It renews the lock.
        Verbs::from(Verb::Lock).and(true, Verb::Write)
    }

    fn is_write(&self) -> bool {
        true
    }

    fn ask(&self) -> Cow<'_, A> {
        Cow::Borrowed(&self.ask)
    }

    async fn serve(&self, locks: &dyn LockProtocol) -> Result<A::Answer, EngineError> {
        let write = locks.critical_write(&self.lock_ref, self.mutation.clone(), self.ask.call_no());
        let done = write.await?;
        Ok(A::answer(&done))
    }
}
