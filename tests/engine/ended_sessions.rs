//! Sessions that have ended, and their rows.

use std::time::Duration;

use fermata::engine::{EngineError, LeaseId, SessionCall};
use uuid::Uuid;

use super::sessions::{rows, until_none_is_open};
use super::world::{World, session_call, until};

const TTL: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(200);

#[tokio::test]
async fn a_session_that_ended_stays_ended_for_a_ttl_though_its_open_is_repeated() {
    let (world, clock) = World::by_hand().await;
    let calls = [1, 2].map(|id| session_call(Uuid::from_u128(id), 10_000));
    for call in &calls {
        world.engine.open_session(call.clone()).await.unwrap();
    }
    let closed = world.engine.close_session(calls[0].id).await;
    assert_eq!(closed, Ok(false));
    clock.advance(TTL - STEP).await;
    let reopened = |call: &SessionCall| world.engine.open_session(call.clone());
    assert_eq!(
        reopened(&calls[0]).await.unwrap_err(),
        EngineError::SessionEnded
    );
    // The other one expires.
    clock.advance(2 * STEP).await;
    until_none_is_open(&world).await;
    until("the first row is deleted", || async {
        clock.advance(STEP).await;
        rows(&world, false).await == 1
    })
    .await;
    assert_eq!(
        reopened(&calls[1]).await.unwrap_err(),
        EngineError::SessionEnded
    );
    let renewed = world.engine.renew(&LeaseId::Session(calls[1].id)).await;
    assert_eq!(renewed.unwrap_err(), EngineError::SessionEnded);
    // Also by another process, for as long.
    let world = world.restart().await;
    let reopened = world.engine.open_session(calls[1].clone()).await;
    assert_eq!(reopened.unwrap_err(), EngineError::SessionEnded);
    until("no row is left", || async {
        clock.advance(STEP).await;
        rows(&world, false).await == 0
    })
    .await;
}
