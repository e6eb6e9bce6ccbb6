//! The calls that a Pipeline carries: what each is on the stream, and by itself.

use std::pin::Pin;

use fermata_proto as proto;
use fermata_proto::lock_service_client::LockServiceClient;
use fermata_proto::{pipeline_answer, pipeline_call};
use prost::Message;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

/// A request of the contract that one answer ends.
pub trait Call: Message + Clone + Sized + Send + 'static {
    /// Its answer.
    type Answer: Message + Send + 'static;

    /// Whether its answer may carry a value.
    fn reads(&self) -> bool;

    /// Which room on the stream it takes.
    fn room(&self) -> CallRoom;

    /// As it stands in a frame.
    fn in_frame(self) -> pipeline_call::Call;

    /// Its answer, as it stands in a frame; `None` of another one's.
    fn answer(outcome: pipeline_answer::Outcome) -> Option<Self::Answer>;

    /// Made by itself.
    fn by_itself(
        locks: LockServiceClient<Channel>,
        request: Request<Self>,
    ) -> Answering<Self::Answer>;
}

/// Which room on the stream a call takes, and what it does where there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallRoom {
    /// That of all calls; it waits for it.
    Any,
    /// The same; it goes by itself where there is none: what a holder does, and what keeps its lock alive, does not wait
    /// behind what others wait for.
    AnyAtOnce,
    /// That which a server keeps for renewals; it goes by itself where there is none.
    Renewals,
}

/// A call by itself, on its way.
pub type Answering<A> = Pin<Box<dyn Future<Output = Result<Response<A>, Status>> + Send>>;

macro_rules! calls {
    ($($ask:ident -> $answer:ident: $name:ident, $method:ident, $reads:expr, $room:expr;)*) => {$(
        impl Call for proto::$ask {
            type Answer = proto::$answer;

            fn reads(&self) -> bool {
                let reads: fn(&Self) -> bool = $reads;
                reads(self)
            }

            fn room(&self) -> CallRoom {
                let room: fn(&Self) -> CallRoom = $room;
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
    CreateLockRefRequest -> CreateLockRefResponse: CreateLockRef, create_lock_ref, |ask| ask.read_value, |_| CallRoom::Any;
    AcquireLockRequest -> AcquireLockResponse: AcquireLock, acquire_lock, |ask| ask.read_value, |ask| {
        if ask.wait.is_none() { CallRoom::AnyAtOnce } else { CallRoom::Any }
    };
    RenewLocksRequest -> RenewLocksResponse: RenewLocks, renew_locks, |_| false, |_| CallRoom::Renewals;
    ReleaseLockRequest -> ReleaseLockResponse: ReleaseLock, release_lock, |_| false, |_| CallRoom::AnyAtOnce;
    CriticalGetRequest -> CriticalGetResponse: CriticalGet, critical_get, |_| true, |_| CallRoom::AnyAtOnce;
    CriticalPutRequest -> CriticalPutResponse: CriticalPut, critical_put, |_| false, |_| CallRoom::AnyAtOnce;
    CriticalDeleteRequest -> CriticalDeleteResponse: CriticalDelete, critical_delete, |_| false, |_| CallRoom::AnyAtOnce;
    OpenSessionRequest -> OpenSessionResponse: OpenSession, open_session, |_| false, |_| CallRoom::Any;
    RenewSessionRequest -> RenewSessionResponse: RenewSession, renew_session, |_| false, |_| CallRoom::Renewals;
    CloseSessionRequest -> CloseSessionResponse: CloseSession, close_session, |_| false, |_| CallRoom::Any;
    GetRequest -> GetResponse: Get, get, |_| true, |_| CallRoom::Any;
}
