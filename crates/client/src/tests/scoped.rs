//! Locks that live in a scope.

use tokio::time::Instant;

use super::fake::Act;
use super::{World, away, limited, secs};
use crate::{Lock, LockContext, LockError, LostReason, ReleaseError, RelockError, WaitError};

/// The methods that were called, of those that begin and end a lock.
fn begun_and_ended(world: &World) -> Vec<String> {
    let state = world.fake.state();
    let methods = state.calls.iter().filter_map(|call| call.split(' ').next());
    methods
        .filter(|method| ["create", "release"].contains(method))
        .map(str::to_owned)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_scope_that_ends_unlocks() {
    let world = World::new();
    let client = &world.client;
    {
        let lock = Lock::new(client, "k").await.unwrap();
        assert!(lock.is_locked());
    }
    world.until_nobody_waits().await;

    async fn fails(client: &crate::Client) -> Result<(), std::num::ParseIntError> {
        let _lock = Lock::new(client, "k").await.unwrap();
        "no number".parse::<u32>().map(drop)?;
        unreachable!("it fails before")
    }
    fails(client).await.unwrap_err();
    world.until_nobody_waits().await;

    let client = client.clone();
    let panics = tokio::spawn(async move {
        let _lock = Lock::new(&client, "k").await.unwrap();
        panic!("on purpose");
    });
    assert!(panics.await.unwrap_err().is_panic());
    world.until_nobody_waits().await;
    assert_eq!(world.fake.count("create"), 3);
}

#[tokio::test(start_paused = true)]
async fn an_empty_name_locks_nothing_and_unlocks() {
    let world = World::new();
    let mut lock = Lock::new(&world.client, "").await.unwrap();
    assert!(!lock.is_locked() && lock.guard().is_none());
    lock.unlock().await.unwrap();
    assert_eq!(world.fake.count("create"), 0);
    assert_eq!(lock.lock("k").await, Ok(true));
    assert!(lock.is_locked());
    assert_eq!(lock.lock("").await, Ok(false));
    assert!(!lock.is_locked());
    assert!(world.fake.state().queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn another_name_is_locked_once_the_one_before_is_unlocked() {
    let world = World::new();
    let mut lock = Lock::new(&world.client, "one").await.unwrap();
    assert_eq!(lock.lock("two").await, Ok(true));
    // The same name again as well.
    assert_eq!(lock.lock("two").await, Ok(true));
    let expected = ["create", "release", "create", "release", "create"];
    assert_eq!(begun_and_ended(&world), expected);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_not_obtained_in_time_is_no_lock_and_leaves_the_queue() {
    let world = World::new();
    world.fake.occupy();
    let context = LockContext::new(&world.client).lock_timeout(secs(7));
    let start = Instant::now();
    let mut lock = Lock::new(&context, "").await.unwrap();
    assert_eq!(lock.lock("k").await, Ok(false));
    assert!((secs(7)..secs(8)).contains(&start.elapsed()));
    assert_eq!(world.fake.state().queue.len(), 1);

    let timed_out = Lock::new(&context, "k").await.unwrap_err();
    let expected = WaitError::TimedOut { position: 1 };
    assert_eq!(timed_out, LockError::Wait(expected));
    assert_eq!(world.fake.state().queue.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_first_answer_counts() {
    let world = World::new();
    world.fake.occupy();
    world.fake.next("create", Act::Late(secs(3)));
    let mut lock = Lock::new(&world.client, "").await.unwrap();
    let start = Instant::now();
    assert_eq!(lock.lock("k").await, Ok(false));
    assert!((secs(5)..secs(6)).contains(&start.elapsed()));
}

#[tokio::test(start_paused = true)]
async fn what_fails_is_an_error() {
    let world = World::new();
    let mut lock = Lock::new(&world.client, "").await.unwrap();
    world.fake.next("create", limited());
    let refused = lock.lock("k").await.unwrap_err();
    assert!(matches!(refused, RelockError::Lock(LockError::Create(_))));

    // A service that is gone in the wait has not said no.
    world.fake.occupy();
    world.fake.always("acquire", away());
    let gone = lock.lock("k").await.unwrap_err();
    let RelockError::Lock(LockError::Wait(WaitError::Unavailable(_))) = gone else {
        panic!("{gone:?}");
    };
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_lost_is_not_in_effect_and_its_loss_is_told_before_the_next_one() {
    let world = World::new();
    let mut lock = Lock::new(&world.client, "k").await.unwrap();
    let guard = lock.guard().unwrap();
    world.fake.end(&guard.lock_ref(), "FORCED", "by ops");
    assert_eq!(guard.lost().await.reason, LostReason::Forced);
    assert!(!lock.is_locked());
    let told = lock.lock("k").await.unwrap_err();
    let RelockError::Unlock(ReleaseError::Lost(lost)) = told else {
        panic!("{told:?}");
    };
    assert_eq!(lost.reason, LostReason::Forced);
    assert_eq!(world.fake.count("create"), 1);
    assert_eq!(lock.lock("k").await, Ok(true));
}
