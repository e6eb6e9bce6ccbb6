//! AcquireLock. With `give_up` it releases its entry if it does not get the lock within its wait. If two thirds of the TTL cut
//! the wait short, the answer is WAITING, and the entry stays.
//!
//! The entry is released only after the answer WAITING, and not when a caller hangs up: another call of that client, over another
//! connection, may have been answered HELD.

use fermata_proto::{AcquireLockRequest, AcquireLockResponse, LockState, ReleaseLockRequest};
use tokio::time::Instant;
use tonic::Status;

use super::calls::{AcquireLock, CallContext, ReleaseLock, Served, UnaryCall as _};
use super::deadline::later;
use super::route::Router;
use super::status;
use super::stopping::Stopping;
use crate::trace;

/// Asks for the lock, and waits for it as the request says, until this replica stops.
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

/// Asks for the lock, and leaves the queue unless it comes in time. If this replica stops first the entry is kept. Not cut off
/// otherwise: the release may be on its way.
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
    let left = tokio::spawn(trace::carried(async move {
        let answer_by = later(Instant::now(), router.limits().call_max());
        router.make_checked(&release, &context, answer_by).await
    }));
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
