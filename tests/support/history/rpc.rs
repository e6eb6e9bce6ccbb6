//! Notes what is asked and answered over gRPC.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fermata::lock::LockRef;
use fermata_proto::{
    AcquireLockRequest, AcquireLockResponse, CreateLockRefRequest, CreateLockRefResponse,
    CriticalGetRequest, CriticalGetResponse, CriticalPutRequest, CriticalPutResponse, LockState,
    OpenSessionRequest, OpenSessionResponse, ReleaseLockRequest, ReleaseLockResponse,
    RenewSessionRequest, RenewSessionResponse,
};
use tonic::{Code, Response, Status};
use tonic_types::StatusExt as _;
use uuid::Uuid;

use super::event::{Event, Learned, Op, Outcome, Value};
use super::recorder::Recorder;

/// A request that a history has room for.
pub trait RecordedRequest {
    type Answer;

    /// What is asked for; `None` where no entry is concerned.
    fn op(&self) -> Option<Op> {
        None
    }

    /// What else is known before the answer.
    fn ask(&self, _: &mut Event) {}

    /// What the answer says.
    fn learned(_: &Self::Answer, _: &mut Event) -> Outcome {
        Outcome::Done
    }
}

fn valid(event: &mut Event, valid_for: Option<&prost_types::Duration>) {
    if let Some(valid_for) = valid_for.and_then(|span| Duration::try_from(*span).ok()) {
        event.safe_for(valid_for);
    }
}

fn value(bytes: &Bytes, exists: bool) -> Value {
    exists.then(|| bytes.clone())
}

/// The lockRef, as far as it is one.
fn names(event: &mut Event, text: &str) -> Option<LockRef> {
    let lock_ref = LockRef::parse(text, "").ok()?;
    event.names(&lock_ref);
    Some(lock_ref)
}

/// The same of what is asked under a grant.
fn names_granted(event: &mut Event, text: &str) {
    event.grant = names(event, text)
        .and_then(|l| l.grant)
        .map(|grant| grant.0);
}

impl RecordedRequest for CreateLockRefRequest {
    type Answer = CreateLockRefResponse;

    fn op(&self) -> Option<Op> {
        // Without an id of its own each try is another one.
        let request = self.request_id.parse().unwrap_or_else(|_| Uuid::new_v4());
        Some(Op::Create { request })
    }

    fn ask(&self, event: &mut Event) {
        event.key = self.key.as_str().into();
        event.session = (!self.session.is_empty()).then(|| self.session.as_str().into());
    }

    fn learned(answer: &CreateLockRefResponse, event: &mut Event) -> Outcome {
        names(event, &answer.lock_ref);
        valid(event, answer.valid_for.as_ref());
        if answer.state() == LockState::Held {
            event.grant = Some(answer.fencing_token);
        }
        Outcome::Done
    }
}

impl RecordedRequest for AcquireLockRequest {
    type Answer = AcquireLockResponse;

    fn op(&self) -> Option<Op> {
        // Its client counts on nothing from here on, unless it is answered HELD.
        Some(match self.give_up {
            true => Op::Release(None),
            false => Op::Acquire,
        })
    }

    fn ask(&self, event: &mut Event) {
        names(event, &self.lock_ref);
    }

    fn learned(answer: &AcquireLockResponse, event: &mut Event) -> Outcome {
        if answer.state() == LockState::Held {
            event.op = Op::Acquire;
            event.grant = Some(answer.fencing_token);
        }
        valid(event, answer.valid_for.as_ref());
        Outcome::Done
    }
}

impl RecordedRequest for CriticalGetRequest {
    type Answer = CriticalGetResponse;

    fn op(&self) -> Option<Op> {
        Some(Op::Get)
    }

    fn ask(&self, event: &mut Event) {
        names_granted(event, &self.lock_ref);
    }

    fn learned(answer: &CriticalGetResponse, event: &mut Event) -> Outcome {
        event.read = Some(value(&answer.value, answer.exists));
        valid(event, answer.valid_for.as_ref());
        Outcome::Done
    }
}

impl RecordedRequest for CriticalPutRequest {
    type Answer = CriticalPutResponse;

    fn op(&self) -> Option<Op> {
        Some(Op::Put(Some(self.value.clone())))
    }

    fn ask(&self, event: &mut Event) {
        names_granted(event, &self.lock_ref);
    }

    fn learned(answer: &CriticalPutResponse, event: &mut Event) -> Outcome {
        valid(event, answer.valid_for.as_ref());
        Outcome::Done
    }
}

impl RecordedRequest for ReleaseLockRequest {
    type Answer = ReleaseLockResponse;

    fn op(&self) -> Option<Op> {
        let put = self.put.as_ref();
        Some(Op::Release(put.map(|put| value(&put.value, !put.delete))))
    }

    fn ask(&self, event: &mut Event) {
        names_granted(event, &self.lock_ref);
    }

    fn learned(answer: &ReleaseLockResponse, event: &mut Event) -> Outcome {
        event.released(answer.already_released)
    }
}

impl RecordedRequest for OpenSessionRequest {
    type Answer = OpenSessionResponse;
}

impl RecordedRequest for RenewSessionRequest {
    type Answer = RenewSessionResponse;
}

/// What a refusal says. Only the service's own reasons say that nothing was done.
fn refused(status: &Status) -> Outcome {
    let details = status.get_error_details();
    let info = details.error_info();
    let learned = match (status.code(), info.map_or("", |info| &*info.reason)) {
        (Code::FailedPrecondition, "RELEASED") => Learned::Released,
        (Code::FailedPrecondition, "GRANT_SUPERSEDED") => Learned::Superseded,
        (Code::FailedPrecondition, "NO_GRANT" | "RELEASING" | "CALL_NO_NOT_ABOVE") => {
            Learned::Nothing
        }
        (Code::FailedPrecondition, reason) if !reason.is_empty() => Learned::Ended,
        (Code::InvalidArgument | Code::NotFound, _) => Learned::Nothing,
        _ => return Outcome::Unknown(Learned::Nothing),
    };
    let write = info.and_then(|info| info.metadata.get("write"));
    match write.is_some_and(|write| write == "unknown") {
        true => Outcome::Unknown(learned),
        false => Outcome::Refused(learned),
    }
}

impl Recorder {
    /// One try of a call, with what comes of it.
    pub async fn tried<Q: RecordedRequest>(
        &self,
        client: &Arc<str>,
        ask: &Q,
        answer: impl Future<Output = Result<Response<Q::Answer>, Status>>,
    ) -> Result<Q::Answer, Status> {
        let call = ask.op();
        let call = call.map(|op| self.call(client, op, |event| ask.ask(event)));
        let answer = answer.await.map(Response::into_inner);
        if let Some(mut call) = call {
            let outcome = match &answer {
                Ok(answer) => Q::learned(answer, &mut call.event),
                Err(status) => refused(status),
            };
            call.came_to(outcome);
        }
        answer
    }
}
