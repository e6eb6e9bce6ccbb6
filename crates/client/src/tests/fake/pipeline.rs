//! A Pipeline, as strict as that of a server; and a call in a frame, served as the call of its name.

use std::collections::BTreeMap;
use std::sync::Arc;

use fermata_proto::lock_service_server::LockService;
use fermata_proto::pipeline_answer::Outcome;
use fermata_proto::pipeline_call::Call;
use fermata_proto::*;
use prost::Message as _;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Code, Extensions, Request, Response, Status, Streaming};
use tonic_types::StatusExt;

use super::{Fake, refusal};

/// With more calls than that a server reads no frame, nor what is given up.
const CALLS_MAX: usize = 1_024;
const FRAME_CALLS_MAX: usize = 256;
/// No frame is larger than the smallest message that a server can be told to take.
const FRAME_BYTES_MAX: usize = 16 * 1024;

/// Serves the calls of a stream.
pub fn answers(
    fake: &Fake,
    request: Request<Streaming<PipelineRequest>>,
) -> ReceiverStream<Result<PipelineResponse, Status>> {
    let (sender, answers) = mpsc::channel(1);
    let (metadata, _, mut frames) = request.into_parts();
    let fake = fake.clone();
    fake.state().pipelines_open += 1;
    tokio::spawn(async move {
        let mut tasks = BTreeMap::new();
        let (there, mut room) = watch::channel(0_usize);
        let there = Arc::new(there);
        loop {
            room.wait_for(|there| *there <= CALLS_MAX).await.unwrap();
            let Ok(Some(frame)) = frames.message().await else {
                break;
            };
            let is_too_large = frame.calls.len() > FRAME_CALLS_MAX
                || frame.given_up.len() > CALLS_MAX
                || frame.encoded_len() > FRAME_BYTES_MAX;
            if is_too_large {
                let refused = refusal(Code::InvalidArgument, "TOO_LARGE", "too large a frame");
                let _ = sender.send(Err(refused)).await;
                break;
            }
            if fake.state().swallows_frames {
                continue;
            }
            there.send_modify(|there| *there += frame.calls.len());
            note(&fake, frame.calls.len(), *there.borrow());
            for call in frame.calls {
                let (fake, sender) = (fake.clone(), sender.clone());
                let there = Arc::clone(&there);
                let (metadata, call_id) = (metadata.clone(), call.call_id);
                let task = tokio::spawn(async move {
                    let answers = vec![answer(&fake, metadata, call).await];
                    let _ = sender.send(Ok(PipelineResponse { answers })).await;
                    there.send_modify(|there| *there -= 1);
                });
                tasks.insert(call_id, task);
            }
            for call_id in frame.given_up {
                let task = tasks.remove(&call_id).unwrap();
                if task.is_finished() || fake.state().ignores_given_up {
                    continue;
                }
                task.abort();
                fake.state().calls.push("given_up".to_owned());
                let answers = vec![given_up(call_id)];
                let _ = sender.send(Ok(PipelineResponse { answers })).await;
                there.send_modify(|there| *there -= 1);
            }
        }
        fake.state().pipelines_open -= 1;
    });
    ReceiverStream::new(answers)
}

fn note(fake: &Fake, came: usize, there: usize) {
    let mut state = fake.state();
    state.in_frames += came;
    state.in_pipeline_max = state.in_pipeline_max.max(there);
}

/// `metadata` are those of the stream.
async fn answer(fake: &Fake, metadata: MetadataMap, call: PipelineCall) -> PipelineAnswer {
    macro_rules! as_its_call {
        ($method:ident, $ask:expr, $name:ident) => {
            served(fake.$method(with(metadata, $ask)), Outcome::$name).await
        };
    }
    let served = match call.call.unwrap() {
        Call::CreateLockRef(ask) => as_its_call!(create_lock_ref, ask, CreateLockRef),
        Call::AcquireLock(ask) => as_its_call!(acquire_lock, ask, AcquireLock),
        Call::RenewLocks(ask) => as_its_call!(renew_locks, ask, RenewLocks),
        Call::ReleaseLock(ask) => as_its_call!(release_lock, ask, ReleaseLock),
        Call::CriticalGet(ask) => as_its_call!(critical_get, ask, CriticalGet),
        Call::CriticalPut(ask) => as_its_call!(critical_put, ask, CriticalPut),
        Call::CriticalDelete(ask) => as_its_call!(critical_delete, ask, CriticalDelete),
        Call::OpenSession(ask) => as_its_call!(open_session, ask, OpenSession),
        Call::RenewSession(ask) => as_its_call!(renew_session, ask, RenewSession),
        Call::CloseSession(ask) => as_its_call!(close_session, ask, CloseSession),
        Call::Get(ask) => as_its_call!(get, ask, Get),
        Call::KeepAlive(_) => Err(Status::unimplemented("the library has a stream for it")),
    };
    let (outcome, home) = served.unwrap_or_else(|status| {
        let info = status.get_details_error_info();
        let error = LockError {
            code: status.code().into(),
            message: status.message().to_owned(),
            reason: info.map(|info| info.reason).unwrap_or_default(),
            details: status.details().to_vec().into(),
        };
        (Outcome::Error(error), None)
    });
    PipelineAnswer {
        call_id: call.call_id,
        home,
        outcome: Some(outcome),
    }
}

/// The answer to a call that was given up.
fn given_up(call_id: u64) -> PipelineAnswer {
    let error = LockError {
        code: Code::Cancelled.into(),
        ..LockError::default()
    };
    PipelineAnswer {
        call_id,
        home: None,
        outcome: Some(Outcome::Error(error)),
    }
}

fn with<T>(metadata: MetadataMap, ask: T) -> Request<T> {
    Request::from_parts(metadata, Extensions::default(), ask)
}

async fn served<T>(
    call: impl Future<Output = Result<Response<T>, Status>>,
    outcome: fn(T) -> Outcome,
) -> Result<(Outcome, Option<KeyHome>), Status> {
    let response = call.await?;
    let address = response.metadata().get(HOME_ADDRESS);
    let home = address.map(|address| KeyHome {
        address: address.to_str().unwrap().to_owned(),
        ..KeyHome::default()
    });
    Ok((outcome(response.into_inner()), home))
}
