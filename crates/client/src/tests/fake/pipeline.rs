//! A call in a frame, served as the call of its name.

use fermata_proto::lock_service_server::LockService;
use fermata_proto::pipeline_answer::Outcome;
use fermata_proto::pipeline_call::Call;
use fermata_proto::*;
use tonic::metadata::MetadataMap;
use tonic::{Extensions, Request, Response, Status};
use tonic_types::StatusExt;

use super::Fake;

/// `metadata` are those of the stream.
pub async fn answer(fake: &Fake, metadata: MetadataMap, call: PipelineCall) -> PipelineAnswer {
    let served = match call.call.unwrap() {
        Call::CreateLockRef(ask) => {
            served(
                fake.create_lock_ref(with(metadata, ask)),
                Outcome::CreateLockRef,
            )
            .await
        }
        Call::AcquireLock(ask) => {
            served(fake.acquire_lock(with(metadata, ask)), Outcome::AcquireLock).await
        }
        Call::RenewLocks(ask) => {
            served(fake.renew_locks(with(metadata, ask)), Outcome::RenewLocks).await
        }
        Call::ReleaseLock(ask) => {
            served(fake.release_lock(with(metadata, ask)), Outcome::ReleaseLock).await
        }
        Call::CriticalGet(ask) => {
            served(fake.critical_get(with(metadata, ask)), Outcome::CriticalGet).await
        }
        Call::CriticalPut(ask) => {
            served(fake.critical_put(with(metadata, ask)), Outcome::CriticalPut).await
        }
        Call::CriticalDelete(ask) => {
            served(
                fake.critical_delete(with(metadata, ask)),
                Outcome::CriticalDelete,
            )
            .await
        }
        Call::OpenSession(ask) => {
            served(fake.open_session(with(metadata, ask)), Outcome::OpenSession).await
        }
        Call::RenewSession(ask) => {
            served(
                fake.renew_session(with(metadata, ask)),
                Outcome::RenewSession,
            )
            .await
        }
        Call::CloseSession(ask) => {
            served(
                fake.close_session(with(metadata, ask)),
                Outcome::CloseSession,
            )
            .await
        }
        Call::Get(ask) => served(fake.get(with(metadata, ask)), Outcome::Get).await,
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
pub fn given_up(call_id: u64) -> PipelineAnswer {
    let error = LockError {
        code: tonic::Code::Cancelled.into(),
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
