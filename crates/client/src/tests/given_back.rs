//! What is given back in the background, by many at once.

use std::time::Duration;

use tonic::Code;

use super::fake::{Act, refusal};
use super::{World, away, secs};
use crate::QueueEntry;

async fn entries(world: &World, number: usize) -> Vec<QueueEntry> {
    let mut entries = Vec::new();
    for _ in 0..number {
        entries.push(world.client.enqueue("k").await.unwrap());
    }
    entries
}

#[tokio::test(start_paused = true)]
async fn not_all_entries_that_are_let_go_at_once_are_released_at_once() {
    let world = World::new();
    let entries = entries(&world, 600).await;
    world.fake.always("release", Act::Late(secs(1) / 10));
    drop(entries);
    tokio::time::sleep(secs(1) / 20).await;
    assert_eq!(world.fake.count("release"), 256);
    while !world.fake.state().queue.is_empty() {
        tokio::time::sleep(secs(1)).await;
    }
    assert_eq!(world.fake.count("release"), 600);
}

#[tokio::test(start_paused = true)]
async fn what_is_dropped_on_a_thread_without_a_runtime_is_given_back_as_well() {
    let world = World::new();
    let session = world.session().await;
    let guard = session.lock("k").await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    tokio::time::sleep(secs(1)).await;
    assert!(world.fake.state().queue.is_empty());
}

/// In a session it would be held for as long as that lives.
#[tokio::test(start_paused = true)]
async fn a_lock_whose_release_no_rule_allowed_for_a_while_is_released() {
    let world = World::new();
    let session = world.session().await;
    let guard = session.lock("k").await.unwrap();
    let denied = refusal(Code::PermissionDenied, "NOT_ALLOWED", "no rule allows it");
    world.fake.always("release", Act::Refuse(denied));
    drop(guard);
    tokio::time::sleep(secs(60)).await;
    assert_eq!(world.fake.state().queue.len(), 1);
    world.fake.state().always.clear();
    tokio::time::sleep(secs(3)).await;
    assert!(world.fake.state().queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_close_was_given_up_is_closed_in_the_background() {
    let world = World::new();
    let session = world.session().await;
    world.fake.always("close_session", Act::Hang);
    let closed = tokio::time::timeout(secs(1), session.close()).await;
    assert!(closed.is_err());
    tokio::time::sleep(secs(20)).await;
    let before = world.fake.count("close_session");
    world.fake.state().always.remove("close_session");
    tokio::time::sleep(secs(20)).await;
    assert!(world.fake.count("close_session") > before);
    let after = world.fake.count("close_session");
    tokio::time::sleep(secs(60)).await;
    assert_eq!(
        world.fake.count("close_session"),
        after,
        "once it was answered"
    );
}

/// How long it takes until one entry is released that is let go of after so many others, of which nobody hears.
async fn released_behind(number: usize, act: Act) -> Duration {
    let world = World::new();
    let mut entries = entries(&world, number + 1).await;
    for entry in &entries[..number] {
        world
            .fake
            .always_about("release", entry.lock_ref(), act.clone());
    }
    let last = entries.pop().unwrap();
    let released = format!("release {}", last.lock_ref());
    drop(entries);
    tokio::task::yield_now().await;
    drop(last);
    let start = tokio::time::Instant::now();
    while !world.fake.state().calls.contains(&released) {
        tokio::time::sleep(secs(1) / 100).await;
    }
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn releases_that_hang_hold_up_no_other() {
    let took = released_behind(200, Act::Hang).await;
    assert!(took <= secs(1), "{took:?}");
    // Where more hang than may go on side by side: for the time of an attempt.
    let took = released_behind(300, Act::Hang).await;
    assert!(took <= secs(6), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn releases_that_are_to_be_repeated_hold_up_no_other() {
    let took = released_behind(300, away()).await;
    assert!(took <= secs(1) / 5, "{took:?}");
}
