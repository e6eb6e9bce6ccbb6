//! Makes the calls of a stream, each like a separate call.

use std::sync::Arc;
use std::time::Duration;

use fermata_proto::pipeline_answer::Outcome;
use fermata_proto::pipeline_call::Call;
use fermata_proto::{KeyHome, PipelineAnswer, PipelineCall};
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Status};
use tracing::Instrument as _;

use crate::rpc::calls::{
    CallContext, CloseSession, CreateLockRef, CriticalDelete, CriticalGet, CriticalPut,
    OpenSession, ReleaseLock, RenewSession, Served, UnaryCall,
};
use crate::rpc::deadline::{Deadline, later};
use crate::rpc::keep_alive::Connected;
use crate::rpc::parse::{self, FieldProblem, Invalid};
use crate::rpc::route::Router;
use crate::rpc::stopping::Stopping;
use crate::rpc::{acquire, call_layer, read, renew_locks, status};
use crate::trace;

/// Makes the calls of a stream.
pub(super) struct Caller {
    pub router: Router,
    /// The context of the stream.
    pub context: CallContext,
    /// The zone of the client, if it names one.
    pub zone: Option<Arc<str>>,
    pub stopping: Stopping,
    pub connected: Arc<Connected>,
}

impl Caller {
    /// Makes one call, that was read then.
    pub async fn call(
        &self,
        call: PipelineCall,
        received: Instant,
    ) -> Result<Served<Outcome>, Status> {
        let missing = Invalid {
            field: "call",
            problem: FieldProblem::Missing,
        };
        let context = CallContext {
            deadline: Deadline::since(received, parse::timeout(call.timeout.as_ref())?),
            zone: (self.zone.clone()).unwrap_or_else(|| self.router.engine().zone()),
            ..self.context.clone()
        };
        let traceparent = call.traceparent;
        let call = call.call.ok_or(missing)?;
        let path = path(&call);
        let span = call_layer::span_of(path);
        let trace = trace::of_call(Some(path), Some(&*traceparent));
        let served = async {
            let served = self.make(call, &context).await;
            let code = served.as_ref().map_or_else(Status::code, |_| Code::Ok);
            tracing::debug!(?code, "answered");
            if let Err(status) = &served {
                trace::failed(status.code(), &status::reason(status));
            }
            served
        };
        served.instrument(span).instrument(trace).await
    }

    /// Counts an answered call. `path` is `None` if the call names none, or is not kept any more.
    pub fn count(&self, path: Option<&str>, failed: Option<&Status>, took: Option<Duration>) {
        let path = path.unwrap_or("/fermata.v1.LockService/Pipeline");
        let reason = failed.map(status::reason);
        let metrics = self.router.metrics();
        metrics.answered(path, reason.as_deref(), took);
    }

    /// The answer to a call that was refused before it began.
    pub fn refused(&self, call_id: u64, path: Option<&str>, status: Status) -> PipelineAnswer {
        self.count(path, Some(&status), None);
        self.answer(call_id, Err(status))
    }

    async fn make(&self, call: Call, context: &CallContext) -> Result<Served<Outcome>, Status> {
        let (router, stopping) = (&self.router, self.stopping.clone());
        match call {
            Call::CreateLockRef(ask) => {
                let made = self.unary::<CreateLockRef>(ask, context, Outcome::CreateLockRef);
                made.await
            }
            Call::AcquireLock(ask) => {
                let acquire = acquire::acquire(router, stopping, ask, context);
                // One that leaves the queue goes on; its caller is not kept waiting for that.
                let acquired = match context.deadline.last_chance() {
                    Some(at) => timeout_at(at, acquire).await,
                    None => Ok(acquire.await),
                };
                let acquired = acquired.unwrap_or_else(|_| Err(status::outcome_unknown()))?;
                Ok(acquired.map(Outcome::AcquireLock))
            }
            Call::RenewLocks(ask) => {
                let renewed = renew_locks::renew(router, ask, context).await?;
                Ok(without_home(Outcome::RenewLocks(renewed)))
            }
            Call::ReleaseLock(ask) => {
                let made = self.unary::<ReleaseLock>(ask, context, Outcome::ReleaseLock);
                made.await
            }
            Call::CriticalGet(ask) => {
                let made = self.unary::<CriticalGet>(ask, context, Outcome::CriticalGet);
                made.await
            }
            Call::CriticalPut(ask) => {
                let made = self.unary::<CriticalPut>(ask, context, Outcome::CriticalPut);
                made.await
            }
            Call::CriticalDelete(ask) => {
                let made = self.unary::<CriticalDelete>(ask, context, Outcome::CriticalDelete);
                made.await
            }
            Call::OpenSession(ask) => {
                let made = self.unary::<OpenSession>(ask, context, Outcome::OpenSession);
                made.await
            }
            Call::RenewSession(ask) => {
                let made = self.unary::<RenewSession>(ask, context, Outcome::RenewSession);
                made.await
            }
            Call::KeepAlive(ask) => {
                let call_max = later(Instant::now(), router.limits().call_max());
                let answer_by = context
                    .deadline
                    .answer_by()
                    .map_or(call_max, |at| at.min(call_max));
                // That its own time has passed is no end of the stream.
                let renewed = self.connected.renew(ask, &self.context, answer_by).await?;
                Ok(without_home(Outcome::KeepAlive(renewed)))
            }
            Call::CloseSession(ask) => {
                let made = self.unary::<CloseSession>(ask, context, Outcome::CloseSession);
                made.await
            }
            Call::Get(ask) => {
                let read = read::read(router, ask, context).await?;
                Ok(without_home(Outcome::Get(read)))
            }
        }
    }

    async fn unary<C: UnaryCall>(
        &self,
        ask: C::Ask,
        context: &CallContext,
        outcome: fn(C::Answer) -> Outcome,
    ) -> Result<Served<Outcome>, Status> {
        let served = self.router.call::<C>(ask, context).await?;
        Ok(served.map(outcome))
    }

    /// The answer to a call, for its client.
    pub fn answer(&self, call_id: u64, served: Result<Served<Outcome>, Status>) -> PipelineAnswer {
        let here = self.router.engine().replica();
        let (outcome, home) = match served {
            Ok(Served { answer, home }) => (answer, home.filter(|home| home.id != here)),
            Err(status) => (Outcome::Error(status::lock_error(&status)), None),
        };
        PipelineAnswer {
            call_id,
            home: home.map(|home| KeyHome {
                replica: home.id.to_string(),
                address: home.address,
                term: home.term,
            }),
            outcome: Some(outcome),
        }
    }
}

fn without_home(answer: Outcome) -> Served<Outcome> {
    Served { answer, home: None }
}

/// The path of the same call alone.
pub(super) fn path(call: &Call) -> &'static str {
    match call {
        Call::CreateLockRef(_) => "/fermata.v1.LockService/CreateLockRef",
        Call::AcquireLock(_) => "/fermata.v1.LockService/AcquireLock",
        Call::RenewLocks(_) => "/fermata.v1.LockService/RenewLocks",
        Call::ReleaseLock(_) => "/fermata.v1.LockService/ReleaseLock",
        Call::CriticalGet(_) => "/fermata.v1.LockService/CriticalGet",
        Call::CriticalPut(_) => "/fermata.v1.LockService/CriticalPut",
        Call::CriticalDelete(_) => "/fermata.v1.LockService/CriticalDelete",
        Call::OpenSession(_) => "/fermata.v1.LockService/OpenSession",
        Call::RenewSession(_) => "/fermata.v1.LockService/RenewSession",
        Call::KeepAlive(_) => "/fermata.v1.LockService/KeepAlive",
        Call::CloseSession(_) => "/fermata.v1.LockService/CloseSession",
        Call::Get(_) => "/fermata.v1.LockService/Get",
    }
}
