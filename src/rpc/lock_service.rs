//! LockService: each call is routed to its home, within its caller's deadline.

use std::pin::Pin;

use fermata_proto::lock_service_server::LockService;
use fermata_proto::{
    AcquireLockRequest, AcquireLockResponse, CloseSessionRequest, CloseSessionResponse,
    CreateLockRefRequest, CreateLockRefResponse, CriticalDeleteRequest, CriticalDeleteResponse,
    CriticalGetRequest, CriticalGetResponse, CriticalPutRequest, CriticalPutResponse, GetRequest,
    GetResponse, KeepAliveRequest, KeepAliveResponse, OpenSessionRequest, OpenSessionResponse,
    PipelineRequest, ReleaseLockRequest, ReleaseLockResponse, RenewLocksRequest,
    RenewLocksResponse, RenewSessionRequest, RenewSessionResponse, WatchLockRequest,
    WatchLockResponse,
};
use futures_util::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::calls::{
    CloseSession, CreateLockRef, CriticalDelete, CriticalGet, CriticalPut, OpenSession,
    ReleaseLock, RenewSession,
};
use super::route::{Router, watch_relay};
use super::stopping::Stopping;
use super::{acquire, keep_alive, parse, pipeline, read, renew_locks};
use crate::trace;

/// LockService on an engine, and on those of other replicas.
#[derive(Clone)]
pub struct LockServiceRpc {
    router: Router,
    stopping: Stopping,
}

impl LockServiceRpc {
    /// By this router, until this replica stops.
    pub fn new(router: Router, stopping: Stopping) -> Self {
        LockServiceRpc { router, stopping }
    }
}

#[tonic::async_trait]
impl LockService for LockServiceRpc {
    async fn create_lock_ref(
        &self,
        request: Request<CreateLockRefRequest>,
    ) -> Result<Response<CreateLockRefResponse>, Status> {
        self.router.unary::<CreateLockRef>(request).await
    }

    async fn acquire_lock(
        &self,
        request: Request<AcquireLockRequest>,
    ) -> Result<Response<AcquireLockResponse>, Status> {
        let context = self.router.context(&request);
        let (ask, stopping) = (request.into_inner(), self.stopping.clone());
        let acquired = acquire::acquire(&self.router, stopping, ask, &context).await?;
        Ok(acquired.into_response())
    }

    async fn renew_locks(
        &self,
        request: Request<RenewLocksRequest>,
    ) -> Result<Response<RenewLocksResponse>, Status> {
        let context = self.router.context(&request);
        let renewed = renew_locks::renew(&self.router, request.into_inner(), &context);
        Ok(Response::new(renewed.await?))
    }

    async fn release_lock(
        &self,
        request: Request<ReleaseLockRequest>,
    ) -> Result<Response<ReleaseLockResponse>, Status> {
        self.router.unary::<ReleaseLock>(request).await
    }

    async fn critical_get(
        &self,
        request: Request<CriticalGetRequest>,
    ) -> Result<Response<CriticalGetResponse>, Status> {
        self.router.unary::<CriticalGet>(request).await
    }

    async fn critical_put(
        &self,
        request: Request<CriticalPutRequest>,
    ) -> Result<Response<CriticalPutResponse>, Status> {
        self.router.unary::<CriticalPut>(request).await
    }

    async fn critical_delete(
        &self,
        request: Request<CriticalDeleteRequest>,
    ) -> Result<Response<CriticalDeleteResponse>, Status> {
        self.router.unary::<CriticalDelete>(request).await
    }

    type WatchLockStream = Pin<Box<dyn Stream<Item = Result<WatchLockResponse, Status>> + Send>>;

    async fn watch_lock(
        &self,
        request: Request<WatchLockRequest>,
    ) -> Result<Response<Self::WatchLockStream>, Status> {
        let context = self.router.context(&request);
        let text = request.into_inner().lock_ref;
        let lock_ref = parse::lock_ref(&text, context.identity())?;
        trace::record("entry", &lock_ref);
        let (router, stopping) = (self.router.clone(), self.stopping.clone());
        let stream = watch_relay::open(router, (lock_ref, text), context, stopping).await?;
        Ok(Response::new(Box::pin(stream)))
    }

    async fn open_session(
        &self,
        request: Request<OpenSessionRequest>,
    ) -> Result<Response<OpenSessionResponse>, Status> {
        self.router.unary::<OpenSession>(request).await
    }

    async fn renew_session(
        &self,
        request: Request<RenewSessionRequest>,
    ) -> Result<Response<RenewSessionResponse>, Status> {
        self.router.unary::<RenewSession>(request).await
    }

    type KeepAliveStream = Pin<Box<dyn Stream<Item = Result<KeepAliveResponse, Status>> + Send>>;

    async fn keep_alive(
        &self,
        request: Request<Streaming<KeepAliveRequest>>,
    ) -> Result<Response<Self::KeepAliveStream>, Status> {
        let context = self.router.context(&request);
        let (router, stopping) = (self.router.clone(), self.stopping.clone());
        let stream = keep_alive::stream(router, request.into_inner(), context, stopping);
        Ok(Response::new(Box::pin(stream)))
    }

    async fn close_session(
        &self,
        request: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Status> {
        self.router.unary::<CloseSession>(request).await
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        let context = self.router.context(&request);
        let read = read::read(&self.router, request.into_inner(), &context);
        Ok(Response::new(read.await?))
    }

    type PipelineStream = pipeline::Answers;

    async fn pipeline(
        &self,
        request: Request<Streaming<PipelineRequest>>,
    ) -> Result<Response<Self::PipelineStream>, Status> {
        let (router, stopping) = (self.router.clone(), self.stopping.clone());
        Ok(Response::new(pipeline::answers(router, request, stopping)))
    }
}
