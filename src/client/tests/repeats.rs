//! What is repeated, and what a repeat must not do twice.

use tonic::{Code, Status};

use super::fake::{Act, refusal};
use super::{World, secs};
use crate::client::{CreateError, CriticalError, LockError, Mutation, ReleaseError};

fn unavailable() -> Act {
    Act::Refuse(Status::unavailable("no majority"))
}

#[tokio::test(start_paused = true)]
async fn a_create_whose_answer_was_lost_takes_no_second_entry() {
    let world = World::new();
    world.fake.next("create", Act::LoseAnswer);
    world.fake.next("create", unavailable());
    let guard = world.client.lock("k").await.unwrap();
    assert_eq!(world.fake.state().queue.len(), 1);
    let ids = world.fake.calls("create");
    assert_eq!(ids.len(), 3);
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    guard.release().await.unwrap();
    assert!(world.fake.state().queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_create_that_hangs_is_asked_again() {
    let world = World::new();
    world.fake.next("create", Act::Hang);
    let guard = world.client.lock("k").await.unwrap();
    assert!(guard.is_valid());
    assert_eq!(world.fake.count("create"), 2);
}

#[tokio::test(start_paused = true)]
async fn an_entry_whose_create_is_given_up_is_given_back() {
    let world = World::new();
    world.fake.next("create", Act::Late(secs(2)));
    let creating = world.client.enqueue("k");
    assert!(tokio::time::timeout(secs(1), creating).await.is_err());
    assert_eq!(world.fake.state().queue.len(), 1);
    while !world.fake.state().queue.is_empty() {
        tokio::time::sleep(secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_entry_whose_create_never_was_answered_is_given_back() {
    let world = World::new();
    world.fake.always("create", Act::LoseAnswer);
    let error = world.client.lock("k").await.unwrap_err();
    assert!(matches!(
        error,
        LockError::Create(CreateError::Unavailable(_))
    ));
    assert_eq!(world.fake.state().queue.len(), 1);
    world.fake.state().always.clear();
    while !world.fake.state().queue.is_empty() {
        tokio::time::sleep(secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_attempt_of_a_put_has_a_higher_number() {
    let world = World::new();
    let guard = world.client.lock("k").await.unwrap();
    world.fake.next("put", Act::LoseAnswer);
    world.fake.next("put", unavailable());
    guard.put("a").await.unwrap();
    guard.put("b").await.unwrap();
    assert_eq!(
        world.fake.calls("put"),
        [
            "put call_no=1",
            "put call_no=2",
            "put call_no=3",
            "put call_no=4"
        ]
    );
    assert_eq!(guard.get().await.unwrap().unwrap(), "b");
}

#[tokio::test(start_paused = true)]
async fn what_the_caller_must_mend_is_not_repeated() {
    let world = World::new();
    let malformed = refusal(Code::InvalidArgument, "MALFORMED", "the key is empty");
    world.fake.next("create", Act::Refuse(malformed));
    let error = world.client.lock("").await.unwrap_err();
    assert!(matches!(error, LockError::Create(CreateError::Invalid(_))));
    assert_eq!(world.fake.count("create"), 1);

    let guard = world.client.lock("k").await.unwrap();
    let large = refusal(Code::InvalidArgument, "TOO_LARGE", "the value is too large");
    world.fake.next("put", Act::Refuse(large));
    let error = guard.put("x").await.unwrap_err();
    assert!(matches!(error, CriticalError::Invalid(_)));
    assert_eq!(world.fake.count("put"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stays_away_is_given_up_within_the_timeout() {
    let world = World::new();
    world.fake.always("read", unavailable());
    let start = tokio::time::Instant::now();
    let error = world.client.get("", "k").await.unwrap_err();
    assert!(error.to_string().contains("no majority"), "{error}");
    assert!(start.elapsed() <= world.client.options().timeout);
}

#[tokio::test(start_paused = true)]
async fn a_take_over_gives_a_new_token_and_the_call_goes_on() {
    let world = World::new();
    let guard = world.client.lock("k").await.unwrap();
    let before = guard.fencing_token();
    world.fake.take_over();
    guard.put("after").await.unwrap();
    assert!(guard.fencing_token() > before);
    assert!(guard.is_valid());
    guard.release_with(Mutation::Delete).await.unwrap();
    assert!(world.fake.state().value.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_was_lost_is_a_release() {
    let world = World::new();
    let guard = world.client.lock("k").await.unwrap();
    world.fake.next("release", Act::LoseAnswer);
    guard.release_with(Mutation::Put("v".into())).await.unwrap();
    assert_eq!(world.fake.count("release"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_release_waits_for_the_one_in_flight() {
    let world = World::new();
    let guard = world.client.lock("k").await.unwrap();
    world.fake.next("release", Act::LoseAnswer);
    let in_flight = refusal(
        Code::FailedPrecondition,
        "RELEASING",
        "a release is in flight",
    );
    world.fake.next("release", Act::Refuse(in_flight));
    guard.release_with(Mutation::Put("v".into())).await.unwrap();
    assert_eq!(world.fake.count("release"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_found_its_lock_released_is_no_success() {
    let world = World::new();
    let guard = world.client.lock("k").await.unwrap();
    world.fake.end(&guard.lock_ref(), "RELEASED", "");
    let released = guard.release_with(Mutation::Put("v".into())).await;
    assert!(
        matches!(released, Err(ReleaseError::Lost(_))),
        "{released:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_is_released_in_the_background() {
    let world = World::new();
    drop(world.client.lock("k").await.unwrap());
    while !world.fake.state().queue.is_empty() {
        tokio::task::yield_now().await;
    }
}
