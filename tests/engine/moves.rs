//! What changes its replica, or is ended by another one, and who must hear of that (I10, design §6).

use std::time::Duration;

use fermata::engine::{CreateCall, Engine, EngineError, LeaseId};
use fermata::lock::{EndReason, LockRef, Over};

use super::shared::Service;
use super::world::{call, until};

async fn create(engine: &Engine, call: CreateCall) -> LockRef {
    engine.create(call).await.unwrap().lock_ref
}

fn is_forced<T>(answer: Result<T, EngineError>) -> bool {
    let forced = |over: &Over| matches!(over, Over::Ended(EndReason::Forced { .. }));
    matches!(answer, Err(EngineError::Over(over)) if forced(&over))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_only_keeps_alive_hears_of_an_end_though_its_home_could_not_be_called() {
    let service = Service::of(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let held = create(a, call("k", 20_000)).await;
    service.wires.cut("replica-0");
    b.force_release(&held, "ops", "stuck").await.unwrap();
    let lease = LeaseId::LockRef(held);
    until("its keep-alives are refused", || async {
        is_forced(a.renew(&lease).await)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_is_told_of_an_end_also_where_its_outcome_had_to_be_looked_up() {
    let service = Service::of(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let held = create(a, call("k", 20_000)).await;
    service.replicas[1].way.unheard(1);
    b.force_release(&held, "ops", "stuck").await.unwrap();
    let lease = LeaseId::LockRef(held);
    until("its keep-alives are refused", || async {
        is_forced(a.renew(&lease).await)
    })
    .await;
}
