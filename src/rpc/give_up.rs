//! An AcquireLock that releases its entry where it does not get the lock in time.
//!
//! Only where it was answered WAITING: of a caller that hung up it is not known whether another call of it, over
//! another connection, was answered HELD meanwhile.

use fermata_proto::{AcquireLockRequest, AcquireLockResponse, LockState, ReleaseLockRequest};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::calls::{AcquireLock, ReleaseLock, UnaryCall as _};
use super::deadline::later;
use super::route::{Router, Served};
use super::status;
use super::stopping::Stopping;

/// Asks for the lock, and leaves the queue unless it comes in time. Where this replica stops first the entry is kept.
pub async fn acquire(
    router: &Router,
    mut stopping: Stopping,
    request: Request<AcquireLockRequest>,
) -> Result<Response<AcquireLockResponse>, Status> {
    let context = router.context(&request);
    let ask = request.into_inner();
    let release = ReleaseLockRequest {
        lock_ref: ask.lock_ref.clone(),
        ..ReleaseLockRequest::default()
    };
    let call = AcquireLock::parse(ask, &context)?;
    let release = ReleaseLock::parse(release, &context)?;
    let acquired = tokio::select! {
        biased;
        acquired = router.make(&call, &context, call.answer_by(&context)) => acquired?,
        // The engine answers those who wait here, and not those who wait through this replica at another.
        () = stopping.stopped() => return Err(status::stopping()),
    };
    if acquired.answer.state() != LockState::Waiting {
        return Ok(acquired.into_response());
    }
    // In a task of its own: it goes on where the caller is gone, or its time has passed.
    let router = router.clone();
    let left = tokio::spawn(async move {
        let answer_by = later(Instant::now(), router.limits().call_max());
        router.make(&release, &context, answer_by).await
    });
    left.await.map_err(|_| status::outcome_unknown())??;
    let released = Served {
        answer: AcquireLockResponse {
            lock_ref: acquired.answer.lock_ref,
            state: LockState::Released.into(),
            ..AcquireLockResponse::default()
        },
        home: acquired.home,
    };
    Ok(released.into_response())
}
