//! LockService: parse, call the engine within the caller's deadline, answer.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};
use tracing::Span;
use tracing::field::display;

use super::answer;
use super::deadline::{Deadline, within};
use super::stopping::Stopping;
use super::{keep_alive, parse, watch};
use crate::engine::{CreateCall, Done, Engine, Ids, LeaseId, Mutation, Value};
use crate::limits::Limits;
use crate::lock::LockRef;
use crate::proto::lock_service_server::LockService;
use crate::proto::{
    AcquireLockRequest, AcquireLockResponse, CloseSessionRequest, CloseSessionResponse,
    CreateLockRefRequest, CreateLockRefResponse, CriticalDeleteRequest, CriticalDeleteResponse,
    CriticalGetRequest, CriticalGetResponse, CriticalPutRequest, CriticalPutResponse, GetRequest,
    GetResponse, KeepAliveRequest, KeepAliveResponse, OpenSessionRequest, OpenSessionResponse,
    ReleaseLockRequest, ReleaseLockResponse, RenewSessionRequest, RenewSessionResponse,
    WatchLockRequest, WatchLockResponse,
};

/// LockService on an engine.
#[derive(Clone)]
pub struct LockServiceRpc {
    engine: Engine,
    limits: Arc<Limits>,
    stopping: Stopping,
    ids: Arc<dyn Ids>,
}

impl LockServiceRpc {
    /// `ids` makes the request_ids that callers leave out.
    pub fn new(engine: Engine, stopping: Stopping, ids: Arc<dyn Ids>) -> Self {
        LockServiceRpc {
            limits: Arc::new(engine.limits().clone()),
            engine,
            stopping,
            ids,
        }
    }

    /// When a call without a wait must be answered.
    fn answer_by(&self, deadline: Deadline) -> Instant {
        deadline.answer_by_or(self.limits.call_max())
    }

    async fn write(
        &self,
        deadline: Deadline,
        lock_ref: &LockRef,
        mutation: Mutation,
        call_no: u64,
    ) -> Result<Done<()>, Status> {
        let write = self.engine.critical_write(lock_ref, mutation, call_no);
        within(self.answer_by(deadline), write).await
    }
}

/// Takes a request apart.
fn opened<T>(request: Request<T>) -> (Deadline, T) {
    let deadline = Deadline::of_request(request.extensions());
    (deadline, request.into_inner())
}

/// `lock_ref` of a request, named in the span of the call (without its grant).
fn lock_ref(text: &str) -> Result<LockRef, Status> {
    let lock_ref = parse::lock_ref(text)?;
    Span::current().record("lock_ref", display(lock_ref.without_grant()));
    Ok(lock_ref)
}

/// `session` of a request, named in the span of the call.
fn lease(text: &str) -> Result<LeaseId, Status> {
    let lease = parse::lease(text)?;
    Span::current().record("session", display(answer::lease_text(&lease)));
    Ok(lease)
}

#[tonic::async_trait]
impl LockService for LockServiceRpc {
    async fn create_lock_ref(
        &self,
        request: Request<CreateLockRefRequest>,
    ) -> Result<Response<CreateLockRefResponse>, Status> {
        let (deadline, ask) = opened(request);
        let call = CreateCall {
            id: parse::key_id(&ask.key, &ask.table, &self.limits)?,
            request_id: parse::request_id(&ask.request_id, || self.ids.uuid())?,
            live_by: parse::live_by(&ask.session, ask.ttl.as_ref(), &self.limits)?,
            mode: parse::mode(ask.mode)?,
            owner: parse::owner(ask.owner, &self.limits)?,
            identity: String::new(),
            read_value: ask.read_value,
        };
        let span = Span::current();
        span.record("table", display(&call.id.table));
        span.record("request_id", display(call.request_id));
        let created = within(self.answer_by(deadline), self.engine.create(call)).await?;
        span.record("lock_ref", display(created.lock_ref.without_grant()));
        Ok(Response::new(answer::created(created)))
    }

    async fn acquire_lock(
        &self,
        request: Request<AcquireLockRequest>,
    ) -> Result<Response<AcquireLockResponse>, Status> {
        let (deadline, ask) = opened(request);
        let lock_ref = lock_ref(&ask.lock_ref)?;
        let wait = parse::wait(ask.wait.as_ref(), &self.limits)?;
        let wait = match deadline.wait_until() {
            Some(until) => wait.min(until.saturating_duration_since(Instant::now())),
            None => wait,
        };
        let answer_by = deadline.answer_by_or(wait.saturating_add(self.limits.call_max()));
        let acquire = self.engine.acquire(&lock_ref, wait, ask.read_value);
        let acquired = within(answer_by, acquire).await?;
        Ok(Response::new(answer::acquired(acquired)))
    }

    async fn release_lock(
        &self,
        request: Request<ReleaseLockRequest>,
    ) -> Result<Response<ReleaseLockResponse>, Status> {
        let (deadline, ask) = opened(request);
        let lock_ref = lock_ref(&ask.lock_ref)?;
        let put = parse::mutation(ask.put, &self.limits)?;
        let release = self.engine.release(&lock_ref, put, ask.call_no);
        let already_released = within(self.answer_by(deadline), release).await?;
        Ok(Response::new(ReleaseLockResponse { already_released }))
    }

    async fn critical_get(
        &self,
        request: Request<CriticalGetRequest>,
    ) -> Result<Response<CriticalGetResponse>, Status> {
        let (deadline, ask) = opened(request);
        let lock_ref = lock_ref(&ask.lock_ref)?;
        let get = self.engine.critical_get(&lock_ref, ask.call_no);
        let done: Done<Value> = within(self.answer_by(deadline), get).await?;
        let (value, exists) = answer::value(Some(done.value));
        Ok(Response::new(CriticalGetResponse {
            value,
            exists,
            valid_for: Some(answer::duration(done.valid_for)),
        }))
    }

    async fn critical_put(
        &self,
        request: Request<CriticalPutRequest>,
    ) -> Result<Response<CriticalPutResponse>, Status> {
        let (deadline, ask) = opened(request);
        let lock_ref = lock_ref(&ask.lock_ref)?;
        let put = parse::put(ask.value, &self.limits)?;
        let done = self.write(deadline, &lock_ref, put, ask.call_no).await?;
        Ok(Response::new(CriticalPutResponse {
            valid_for: Some(answer::duration(done.valid_for)),
        }))
    }

    async fn critical_delete(
        &self,
        request: Request<CriticalDeleteRequest>,
    ) -> Result<Response<CriticalDeleteResponse>, Status> {
        let (deadline, ask) = opened(request);
        let lock_ref = lock_ref(&ask.lock_ref)?;
        let done = self
            .write(deadline, &lock_ref, Mutation::Delete, ask.call_no)
            .await?;
        Ok(Response::new(CriticalDeleteResponse {
            valid_for: Some(answer::duration(done.valid_for)),
        }))
    }

    type WatchLockStream = Pin<Box<dyn Stream<Item = Result<WatchLockResponse, Status>> + Send>>;

    async fn watch_lock(
        &self,
        request: Request<WatchLockRequest>,
    ) -> Result<Response<Self::WatchLockStream>, Status> {
        let (deadline, ask) = opened(request);
        let lock_ref = lock_ref(&ask.lock_ref)?;
        let watched = within(self.answer_by(deadline), self.engine.watch(&lock_ref)).await?;
        let stream = watch::stream(lock_ref, watched, deadline, self.stopping.clone());
        Ok(Response::new(Box::pin(stream)))
    }

    async fn open_session(
        &self,
        request: Request<OpenSessionRequest>,
    ) -> Result<Response<OpenSessionResponse>, Status> {
        let (deadline, ask) = opened(request);
        let ttl_ms = parse::ttl_ms(ask.ttl.as_ref(), &self.limits)?;
        let request_id = parse::request_id(&ask.request_id, || self.ids.uuid())?;
        let owner = parse::owner(ask.owner, &self.limits)?;
        let open = self
            .engine
            .open_session(request_id, ttl_ms, owner, String::new());
        let (session, renewed) = within(self.answer_by(deadline), open).await?;
        Span::current().record("session", display(session));
        Ok(Response::new(OpenSessionResponse {
            session: session.to_string(),
            ttl: Some(answer::duration(renewed.ttl)),
            valid_for: Some(answer::duration(renewed.valid_for)),
        }))
    }

    async fn renew_session(
        &self,
        request: Request<RenewSessionRequest>,
    ) -> Result<Response<RenewSessionResponse>, Status> {
        let (deadline, ask) = opened(request);
        let lease = lease(&ask.session)?;
        let renewed = within(self.answer_by(deadline), self.engine.renew(&lease)).await?;
        Ok(Response::new(RenewSessionResponse {
            valid_for: Some(answer::duration(renewed.valid_for)),
            ttl: Some(answer::duration(renewed.ttl)),
        }))
    }

    type KeepAliveStream = Pin<Box<dyn Stream<Item = Result<KeepAliveResponse, Status>> + Send>>;

    async fn keep_alive(
        &self,
        request: Request<Streaming<KeepAliveRequest>>,
    ) -> Result<Response<Self::KeepAliveStream>, Status> {
        let (deadline, asks) = opened(request);
        let engine = self.engine.clone();
        let limits = Arc::clone(&self.limits);
        let stream = keep_alive::stream(engine, limits, asks, deadline, self.stopping.clone());
        Ok(Response::new(Box::pin(stream)))
    }

    async fn close_session(
        &self,
        request: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Status> {
        let (deadline, ask) = opened(request);
        let session = parse::session(&ask.session)?;
        Span::current().record("session", display(session));
        let close = self.engine.close_session(session);
        let already_closed = within(self.answer_by(deadline), close).await?;
        Ok(Response::new(CloseSessionResponse { already_closed }))
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        let (deadline, ask) = opened(request);
        let id = parse::key_id(&ask.key, &ask.table, &self.limits)?;
        Span::current().record("table", display(&id.table));
        let read = within(self.answer_by(deadline), self.engine.read(&id)).await?;
        let (value, exists) = answer::value(Some(read));
        Ok(Response::new(GetResponse { value, exists }))
    }
}
