//! The calls that a Pipeline carries: in a frame of the stream, and as calls of their own.

use std::pin::Pin;
use std::time::Duration;

use fermata_proto as proto;
use fermata_proto::lock_service_client::LockServiceClient;
use fermata_proto::{pipeline_answer, pipeline_call};
use prost::Message;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::transport::call_metadata::CallMetadata;
use crate::transport::not_grpc;

/// A request of the contract with one answer.
pub trait Call: Message + Clone + Sized + Send + 'static {
    /// Its answer.
    type Answer: Message + Send + 'static;

    /// Whether it keeps something alive. Such a call waits behind no others: the stream has room for them alone, and without
    /// room they are made as calls of their own.
    fn is_renewal(&self) -> bool;

    /// The call in a frame.
    fn in_frame(self) -> pipeline_call::Call;

    /// Its answer in a frame; `None` for the answer of another call.
    fn answer(outcome: pipeline_answer::Outcome) -> Option<Self::Answer>;

    /// Makes it as a call of its own.
    fn by_itself(
        locks: LockServiceClient<Channel>,
        request: Request<Self>,
    ) -> Answering<Self::Answer>;
}

/// A call of its own, on its way.
pub type Answering<A> = Pin<Box<dyn Future<Output = Result<Response<A>, Status>> + Send>>;

macro_rules! calls {
    ($($ask:ident -> $answer:ident: $name:ident, $method:ident, $is_renewal:expr;)*) => {$(
        impl Call for proto::$ask {
            type Answer = proto::$answer;

            fn is_renewal(&self) -> bool {
                let is_renewal: fn(&Self) -> bool = $is_renewal;
                is_renewal(self)
            }

            fn in_frame(self) -> pipeline_call::Call {
                pipeline_call::Call::$name(self)
            }

            fn answer(outcome: pipeline_answer::Outcome) -> Option<proto::$answer> {
                match outcome {
                    pipeline_answer::Outcome::$name(answer) => Some(answer),
                    _ => None,
                }
            }

            fn by_itself(
                mut locks: LockServiceClient<Channel>,
                request: Request<Self>,
            ) -> Answering<proto::$answer> {
                Box::pin(async move { locks.$method(request).await })
            }
        }
    )*};
}

calls! {
    CreateLockRefRequest -> CreateLockRefResponse: CreateLockRef, create_lock_ref, |_| false;
    AcquireLockRequest -> AcquireLockResponse: AcquireLock, acquire_lock, |ask| ask.wait.is_none();
    RenewLocksRequest -> RenewLocksResponse: RenewLocks, renew_locks, |_| true;
    ReleaseLockRequest -> ReleaseLockResponse: ReleaseLock, release_lock, |_| false;
    CriticalGetRequest -> CriticalGetResponse: CriticalGet, critical_get, |_| false;
    CriticalPutRequest -> CriticalPutResponse: CriticalPut, critical_put, |_| false;
    CriticalDeleteRequest -> CriticalDeleteResponse: CriticalDelete, critical_delete, |_| false;
    OpenSessionRequest -> OpenSessionResponse: OpenSession, open_session, |_| false;
    RenewSessionRequest -> RenewSessionResponse: RenewSession, renew_session, |_| true;
    CloseSessionRequest -> CloseSessionResponse: CloseSession, close_session, |_| false;
    GetRequest -> GetResponse: Get, get, |_| false;
}

/// The largest answer that is taken. Values are at most 64 MiB by any configuration.
pub(crate) const ANSWER_BYTES_MAX: usize = 65 * 1024 * 1024;

/// A connection, and the metadata of its calls.
#[derive(Clone)]
pub(crate) struct Opener {
    pub(crate) channel: Channel,
    pub(crate) metadata: CallMetadata,
}

impl Opener {
    pub(crate) fn locks(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// A request; without `timeout` of a call that stays open.
    pub(crate) fn request<T>(&self, message: T, timeout: Option<Duration>) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(timeout) = timeout {
            request.set_timeout(timeout);
        }
        self.metadata.put_on(&mut request);
        request
    }

    /// Makes a call of its own.
    pub(crate) async fn by_itself<C: Call>(
        &self,
        call: C,
        timeout: Duration,
    ) -> Result<Response<C::Answer>, Status> {
        let request = self.request(call, Some(timeout));
        let answer = C::by_itself(self.locks(), request).await;
        answer.map_err(not_grpc::of_answer)
    }
}
