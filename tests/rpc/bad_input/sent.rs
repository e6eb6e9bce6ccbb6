//! What rows send.

use bytes::Bytes;
use fermata::access::NewToken;
use fermata_proto::pipeline_call::Call;
use fermata_proto::*;
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use tonic::Status;
use tonic::body::Body;

use super::stage::Stage;
use crate::ask;
use crate::each_call::{AnyCall, Caller};
use crate::malformed::{call, framed};

const BY_ITSELF: &str = "by itself";

#[derive(Clone, Debug)]
pub enum Sent {
    Call(AnyCall),
    /// This message to a method of LockService, whatever it means there.
    Bytes(&'static str, Vec<u8>),
    /// The headers of a call with a deadline, and no message.
    NoMessage,
}

impl From<AnyCall> for Sent {
    fn from(call: AnyCall) -> Sent {
        Sent::Call(call)
    }
}

impl From<Call> for Sent {
    fn from(call: Call) -> Sent {
        Sent::Call(AnyCall::Carried(call))
    }
}

impl Sent {
    pub fn method(&self) -> String {
        match self {
            Sent::Call(call) => call.method(),
            Sent::Bytes(method, _) => (*method).to_owned(),
            Sent::NoMessage => "CreateLockRef".to_owned(),
        }
    }

    /// What this is answered with, by itself, and in a frame of a Pipeline where that carries it: as its fields show.
    pub async fn answers(
        self,
        stage: &Stage,
        anybody: &NewToken,
    ) -> Vec<(&'static str, Result<String, Status>)> {
        let world = &stage.world;
        match self {
            Sent::Call(call) => {
                let mut answers = Vec::new();
                let mut callers = Caller::both(&stage.client, &stage.admin, anybody).await;
                for (caller, way) in callers.iter_mut().zip([BY_ITSELF, "in a frame"]) {
                    if caller.makes(&call) {
                        let answer = caller.asked(call.clone()).await;
                        answers.push((way, answer.map(|answer| format!("{answer:?}"))));
                    }
                }
                answers
            }
            Sent::Bytes(method, message) => {
                let body = Body::new(Full::new(framed(0, message.len(), &message)));
                let path = format!("/fermata.v1.LockService/{method}");
                vec![(BY_ITSELF, Err(call(world, &path, body, &[]).await))]
            }
            Sent::NoMessage => {
                let nothing = tokio_stream::pending::<Result<Frame<Bytes>, Status>>();
                let path = "/fermata.v1.LockService/CreateLockRef";
                let body = Body::new(StreamBody::new(nothing));
                let deadline = [("grpc-timeout", "300m")];
                vec![(BY_ITSELF, Err(call(world, path, body, &deadline).await))]
            }
        }
    }
}

/// The calls that only a holder may make, with this lockRef. None of their numbers is ever taken.
pub fn critical_calls(lock_ref: &str) -> [Call; 4] {
    let call_no = 7;
    [
        Call::CriticalPut(CriticalPutRequest {
            call_no,
            ..ask::critical_put(lock_ref, "stolen")
        }),
        Call::CriticalGet(CriticalGetRequest {
            call_no,
            ..ask::critical_get(lock_ref)
        }),
        Call::CriticalDelete(CriticalDeleteRequest {
            call_no,
            ..ask::critical_delete(lock_ref)
        }),
        Call::ReleaseLock(ReleaseLockRequest {
            call_no,
            ..ask::release_with_put(lock_ref, "stolen")
        }),
    ]
}

/// All calls that take a lockRef, with this one, and the field it is in.
pub fn lock_ref_calls(lock_ref: &str) -> Vec<(&'static str, Sent)> {
    let others = [
        Call::AcquireLock(ask::acquire(lock_ref)),
        Call::ReleaseLock(ask::release(lock_ref)),
        Call::RenewLocks(ask::renew_locks(&[lock_ref])),
    ];
    let calls = critical_calls(lock_ref).into_iter().chain(others);
    let mut calls: Vec<_> = calls.map(|call| ("lock_ref", call.into())).collect();
    let watch = AnyCall::WatchLock(ask::watch(lock_ref));
    let renew = Call::RenewSession(ask::renew_session(lock_ref));
    let keep_alive = Call::KeepAlive(ask::keep_alive(lock_ref));
    calls.extend([
        ("lock_ref", watch.into()),
        ("session", renew.into()),
        ("session", keep_alive.into()),
    ]);
    calls
}

/// The calls that take a key and a table.
pub fn key_calls(key: &str, table: &str) -> [Sent; 3] {
    let table = || table.to_owned();
    let create = CreateLockRefRequest {
        table: table(),
        ..ask::create(key)
    };
    let get = GetRequest {
        table: table(),
        ..ask::get(key)
    };
    let describe = DescribeLockRequest {
        table: table(),
        ..ask::describe(key)
    };
    [
        Call::CreateLockRef(create).into(),
        Call::Get(get).into(),
        AnyCall::DescribeLock(describe).into(),
    ]
}
