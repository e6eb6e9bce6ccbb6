//! How calls are refused that are well made.

use fermata::limits::Limits;
use fermata_client::public_part;
use fermata_proto::*;
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::ask;
use crate::lever::Mode;
use crate::world::{World, create, done, has_retry_info, hold, in_ms, refused};

#[tokio::test]
async fn an_end_by_force_is_remembered_and_says_by_whom_and_why() {
    let world = World::new().await;
    let (mut client, mut admin) = (world.client().await, world.admin().await);
    let held = hold(&mut client, "a").await;
    let name = public_part(&held.lock_ref);
    let force = ForceReleaseRequest {
        forced_by: "ann".into(),
        ..ask::force(name, "wedged since Monday")
    };
    let forced = done(admin.force_release(force.clone())).await;
    assert!(forced.was_holder && !forced.already_released);
    assert!(done(admin.force_release(force)).await.already_released);

    let described = done(admin.describe_lock(ask::describe("a"))).await;
    assert!(described.unsynced && described.holders.is_empty());
    assert_eq!(described.last_fencing_token, held.fencing_token);
    let ended = &described.ended[0];
    let by_and_why = (ended.ended_by.as_str(), ended.detail.as_str());
    assert_eq!(by_and_why, ("ann", "wedged since Monday"));
    assert_eq!(ended.reason(), EndReason::Forced);

    let get = client.critical_get(ask::critical_get(&held.lock_ref));
    let status = refused(get, Code::FailedPrecondition, "FORCED").await;
    let info = status.get_details_error_info().unwrap();
    assert_eq!(info.metadata["by"], "ann");
    assert_eq!(info.metadata["why"], "wedged since Monday");
    // Who guesses its secret does not even learn that.
    let guessed = format!("{name}.{}", "0".repeat(26));
    let guess = client.acquire_lock(ask::acquire(&guessed));
    refused(guess, Code::NotFound, "NEVER_ISSUED").await;
}

#[tokio::test]
async fn a_limit_is_named_with_its_number_and_when_to_come_back() {
    let world = World::with(Limits {
        entries_per_key_max: 2,
        sessions_max: 1,
        ..Limits::default()
    })
    .await;
    let mut client = world.client().await;
    create(&mut client, "a").await;
    create(&mut client, "a").await;
    let full = client.create_lock_ref(ask::create("a"));
    let status = refused(full, Code::ResourceExhausted, "LIMIT_REACHED").await;
    assert!(has_retry_info(&status));
    let message = status.message();
    assert!(
        message.contains("entries_per_key_max") && message.contains('2'),
        "{message}"
    );

    done(client.open_session(OpenSessionRequest::default())).await;
    let second = client.open_session(OpenSessionRequest::default());
    let status = refused(second, Code::ResourceExhausted, "LIMIT_REACHED").await;
    assert!(has_retry_info(&status));
    assert!(status.message().contains("sessions_max"), "{status:?}");
}

#[tokio::test]
async fn a_store_that_fails_is_unavailable_and_may_be_asked_again() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await.lock_ref;
    let get = || ask::critical_get(&held);
    world.store.send_replace(Mode::Fails);
    for status in [
        client.critical_get(in_ms(get(), 2_000)).await.unwrap_err(),
        client.get(ask::get("a")).await.unwrap_err(),
    ] {
        assert_eq!(status.code(), Code::Unavailable);
        assert!(has_retry_info(&status));
    }
    world.store.send_replace(Mode::Works);
    done(client.critical_get(get())).await;
}
