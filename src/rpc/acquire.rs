//! AcquireLock, also one that releases its entry where it does not get the lock within its wait. Where that was cut short
//! by two thirds of the TTL, the answer is WAITING, and the entry stays.
//!
//! That only where it was answered WAITING: of a caller that hung up it is not known whether another call of it, over
//! another connection, was answered HELD meanwhile.

use fermata_proto::{AcquireLockRequest, AcquireLockResponse, LockState, ReleaseLockRequest};
use tokio::time::Instant;
use tonic::Status;

use super::calls::{AcquireLock, CallContext, ReleaseLock, Served, UnaryCall as _};
use super::deadline::later;
use super::route::Router;
use super::status;
use super::stopping::Stopping;

/// Asks for the lock, and waits for it where the request says so, until this replica stops.
pub async fn acquire(
    router: &Router,
    mut stopping: Stopping,
    ask: AcquireLockRequest,
    context: &CallContext,
) -> Result<Served<AcquireLockResponse>, Status> {
    if ask.give_up {
        return acquire_or_leave(router, stopping, ask, context).await;
    }
    let waits = ask.wait.is_some();
    tokio::select! {
        biased;
        answer = router.call::<AcquireLock>(ask, context) => answer,
        // The engine answers those who wait here, and not those who wait through this replica at another.
        () = stopping.stopped(), if waits => Err(status::stopping()),
    }
}

/// Asks for the lock, and leaves the queue unless it comes in time. Where this replica stops first the entry is kept.
/// Not cut off otherwise: it may be releasing its entry.
async fn acquire_or_leave(
    router: &Router,
    mut stopping: Stopping,
    ask: AcquireLockRequest,
    context: &CallContext,
) -> Result<Served<AcquireLockResponse>, Status> {
    let release = ReleaseLockRequest {
        lock_ref: ask.lock_ref.clone(),
        ..ReleaseLockRequest::default()
    };
    let call = AcquireLock::parse(ask, context)?;
    let release = ReleaseLock::parse(release, context)?;
    let acquired = tokio::select! {
        biased;
        acquired = router.make(&call, context, call.answer_by(context)) => acquired?,
        // As above.
        () = stopping.stopped() => return Err(status::stopping()),
    };
    if acquired.answer.state() != LockState::Waiting || call.left() > context.deadline.margin() {
        return Ok(acquired);
    }
    // In a task of its own: it goes on where the caller is gone, or its time has passed.
    let (router, context) = (router.clone(), context.clone());
    let left = tokio::spawn(async move {
        let answer_by = later(Instant::now(), router.limits().call_max());
        router.make_checked(&release, &context, answer_by).await
    });
    left.await.map_err(|_| status::outcome_unknown())??;
    Ok(Served {
        answer: AcquireLockResponse {
            lock_ref: acquired.answer.lock_ref,
            state: LockState::Released.into(),
            ..AcquireLockResponse::default()
        },
        home: acquired.home,
    })
}
