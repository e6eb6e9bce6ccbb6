//! The calls of a Pipeline: in a frame of the stream, or each as a separate call.

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

/// The rooms of the stream, each with the rule for a call without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// The room of renewals. Without room the call goes by itself, separately.
    Renewals,
    /// The room of all other calls. Without room a holder's call goes by itself, so that it never waits behind hanging calls.
    Holder,
    /// The room of all other calls. The call waits for room.
    Begins,
}

/// A request of the contract with one answer.
pub trait Call: Message + Clone + Sized + Send + 'static {
    /// Its answer.
    type Answer: Message + Send + 'static;

    /// Its room on the stream.
    fn room(&self) -> Room;

    /// The call in a frame.
    fn in_frame(self) -> pipeline_call::Call;

    /// Its answer in a frame; `None` for the answer of another call.
    fn answer(outcome: pipeline_answer::Outcome) -> Option<Self::Answer>;

    /// Makes the call by itself, without a frame.
    fn by_itself(
        locks: LockServiceClient<Channel>,
        request: Request<Self>,
    ) -> Answering<Self::Answer>;
}

/// A separate call in flight.
pub type Answering<A> = Pin<Box<dyn Future<Output = Result<Response<A>, Status>> + Send>>;

macro_rules! calls {
    ($($ask:ident -> $answer:ident: $name:ident, $method:ident, $room:expr;)*) => {$(
        impl Call for proto::$ask {
            type Answer = proto::$answer;

            fn room(&self) -> Room {
                let room: fn(&Self) -> Room = $room;
                room(self)
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
    CreateLockRefRequest -> CreateLockRefResponse: CreateLockRef, create_lock_ref, |_| Room::Begins;
    AcquireLockRequest -> AcquireLockResponse: AcquireLock, acquire_lock, |ask| match ask.wait.is_none() && !ask.read_value {
        true => Room::Renewals,
        false => Room::Holder,
    };
    RenewLocksRequest -> RenewLocksResponse: RenewLocks, renew_locks, |_| Room::Renewals;
    ReleaseLockRequest -> ReleaseLockResponse: ReleaseLock, release_lock, |_| Room::Holder;
    CriticalGetRequest -> CriticalGetResponse: CriticalGet, critical_get, |_| Room::Holder;
    CriticalPutRequest -> CriticalPutResponse: CriticalPut, critical_put, |_| Room::Holder;
    CriticalDeleteRequest -> CriticalDeleteResponse: CriticalDelete, critical_delete, |_| Room::Holder;
    OpenSessionRequest -> OpenSessionResponse: OpenSession, open_session, |_| Room::Begins;
    RenewSessionRequest -> RenewSessionResponse: RenewSession, renew_session, |_| Room::Renewals;
    CloseSessionRequest -> CloseSessionResponse: CloseSession, close_session, |_| Room::Begins;
    GetRequest -> GetResponse: Get, get, |_| Room::Begins;
}

/// The largest accepted answer. Values are at most 64 MiB by any configuration.
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

    /// A request; without `timeout` for a call that stays open.
    pub(crate) fn request<T>(&self, message: T, timeout: Option<Duration>) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(timeout) = timeout {
            request.set_timeout(timeout);
        }
        self.metadata.put_on(&mut request);
        request
    }

    /// Makes a separate call.
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
