//! An AcquireLock that gives its place back where it does not get the lock in time, or its caller hangs up.
//!
//! It is the replica that was asked that gives it back, wherever the place is at home: what is broken between two
//! replicas costs nobody a place.

use std::time::Duration;

use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::calls::{AcquireLock, Call as _, Edge, ReleaseLock};
use super::deadline::{Deadline, later};
use super::router::Router;
use crate::proto::{
    AcquireLockRequest, AcquireLockResponse, LockState, ReleaseLockRequest, ReleaseLockResponse,
};

/// Asks for the lock, and leaves the queue unless it comes.
pub async fn acquire(
    router: &Router,
    request: Request<AcquireLockRequest>,
) -> Result<Response<AcquireLockResponse>, Status> {
    let edge = router.edge(Deadline::of_request(request.extensions()));
    let ask = request.into_inner();
    let release = ReleaseLockRequest {
        lock_ref: ask.lock_ref.clone(),
        ..ReleaseLockRequest::default()
    };
    let call = AcquireLock::parse(ask, &edge)?;
    let answer_by = call.answer_by(&edge);
    let mut leaving = Leaving(Some(Place {
        router: router.clone(),
        release: ReleaseLock::parse(release, &edge)?,
        edge: edge.clone(),
    }));
    let acquired = router.make(&call, &edge, answer_by).await;
    let place = leaving.0.take();
    let acquired = acquired?;
    let (LockState::Waiting, Some(place)) = (acquired.state(), place) else {
        return Ok(Response::new(acquired));
    };
    place.leave(answer_by).await?;
    Ok(Response::new(AcquireLockResponse {
        lock_ref: acquired.lock_ref,
        state: LockState::Released.into(),
        ..AcquireLockResponse::default()
    }))
}

/// A place that is given back.
struct Place {
    router: Router,
    release: ReleaseLock,
    edge: Edge,
}

impl Place {
    async fn leave(&self, answer_by: Instant) -> Result<ReleaseLockResponse, Status> {
        self.router.make(&self.release, &self.edge, answer_by).await
    }
}

/// Gives a place back where its caller is gone before it was answered.
struct Leaving(Option<Place>);

impl Drop for Leaving {
    fn drop(&mut self) {
        let Some(place) = self.0.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            let call_max: Duration = place.router.limits().call_max();
            if let Err(status) = place.leave(later(Instant::now(), call_max)).await {
                // Then it goes with its lease.
                tracing::debug!(%status, "a place whose caller hung up was not given back");
            }
        });
    }
}
