//! What is repeated, and what a repeat must not do twice.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tonic::transport::{Endpoint, Uri};
use tonic::{Code, Status};

use super::fake::{Act, not_above, refusal};
use super::{Connect, FakeClock, World, away, is_in_doubt, limited, secs};
use crate::{
    CallError, CallNumbers, Client, ClientOptions, CreateError, CriticalError, LockError,
    LockGuard, LostReason, Mutation, ReleaseError,
};

#[tokio::test(start_paused = true)]
async fn a_create_whose_answer_was_lost_takes_no_second_entry() {
    let world = World::new();
    world.fake.next("create", Act::LoseAnswer);
    world.fake.next("create", away());
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
    let (world, guard) = World::locked().await;
    world.fake.next("put", Act::LoseAnswer);
    world.fake.next("put", away());
    guard.put("a").await.unwrap();
    guard.put("b").await.unwrap();
    // None of them was refused for its number.
    assert_eq!(world.fake.calls("put").len(), 4);
    assert_eq!(guard.get().await.unwrap().unwrap(), "b");
}

/// Another process that has the lockRef called under it; its clock is ahead by so much.
fn overtake(world: &World, guard: &LockGuard, ahead: Duration) {
    let at = std::time::SystemTime::now() + ahead - Duration::from_millis(1);
    let at = at.duration_since(std::time::UNIX_EPOCH).unwrap();
    let number = u64::try_from(at.as_micros()).unwrap() * 1_024;
    let state = &mut world.fake.state();
    state.call_nos.insert(guard.lock_ref(), number);
}

#[tokio::test(start_paused = true)]
async fn a_guard_goes_on_after_another_process_called_under_its_lock_ref() {
    let (world, guard) = World::locked().await;
    guard.put("a").await.unwrap();
    // Refused once at most, and then not again for that.
    for (ahead, refused) in [(0, 0), (3_600, 1)] {
        overtake(&world, &guard, secs(ahead));
        let before = world.fake.calls("put").len();
        guard.put("b").await.unwrap();
        guard.put("c").await.unwrap();
        assert_eq!(world.fake.calls("put").len(), before + 2 + refused);
        overtake(&world, &guard, secs(ahead) + secs(1_800));
        assert_eq!(guard.get().await.unwrap().unwrap(), "c");
    }
    overtake(&world, &guard, secs(10_000));
    guard.release_with(Mutation::Put("d".into())).await.unwrap();
    assert_eq!(world.fake.state().value.as_deref(), Some(&b"d"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_overtaken_again_and_again_is_given_up() {
    let (world, guard) = World::locked().await;
    world.fake.always("put", Act::Refuse(not_above(7, 9)));
    let put = guard.put("a").await;
    assert!(matches!(put, Err(CriticalError::Overtaken(_))), "{put:?}");
    assert_eq!(world.fake.calls("put").len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_write_of_unknown_outcome_is_not_repeated_over_a_later_one_of_another_process() {
    for releases in [false, true] {
        let (world, guard) = World::locked().await;
        let lock_ref = guard.lock_ref();
        match releases {
            true => world.fake.next("release", away()),
            false => world.fake.next("put", Act::LoseAnswer),
        }
        // It began later, by the time of day.
        let other = async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let state = &mut world.fake.state();
            let last = state.call_nos.entry(lock_ref).or_default();
            *last = (*last).max(CallNumbers::default().next()) + 1_024;
            state.value = Some("theirs".into());
        };
        let mine = Mutation::Put("mine".into());
        let is_unknown = async {
            match releases {
                true => {
                    let released = guard.release_with(mine).await;
                    matches!(released, Err(ReleaseError::WriteUnknown(_)))
                }
                false => {
                    let put = guard.put("mine").await;
                    matches!(put, Err(CriticalError::WriteUnknown(_)))
                }
            }
        };
        let (is_unknown, ()) = tokio::join!(is_unknown, other);
        assert!(is_unknown, "{releases}");
        let value = world.fake.state().value.clone();
        assert_eq!(value.as_deref(), Some(&b"theirs"[..]), "{releases}");
    }
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
    world.fake.always("read", away());
    let start = tokio::time::Instant::now();
    let error = world.client.get("", "k").await.unwrap_err();
    assert!(error.to_string().contains("away"), "{error}");
    assert!(start.elapsed() <= world.client.options().timeout);
}

/// What did not come through is told from what was answered, in whatever words.
#[tokio::test(start_paused = true)]
async fn a_call_that_never_comes_through_says_so_and_for_how_long_it_was_tried() {
    let refuse = tower::service_fn(|_: Uri| async {
        Err::<TokioIo<tokio::io::DuplexStream>, _>(std::io::Error::other("nobody listens"))
    });
    let endpoint = Endpoint::from_static("http://nobody:1");
    let nobody = move || endpoint.connect_with_connector_lazy(refuse);
    let replicas: Vec<(String, Connect)> = vec![("nobody".to_owned(), Box::new(nobody))];
    let options = ClientOptions {
        timeout: secs(2),
        ..ClientOptions::default()
    };
    let clock = Arc::new(FakeClock::new());
    let client = Client::from_connectors_and_clock(replicas, options, clock as _).unwrap();
    let error = client.get("", "k").await.unwrap_err();
    assert!(matches!(error, CallError::Unavailable(_)), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("nobody listens"), "{said}");
    assert!(said.contains("(tried for "), "{said}");
}

#[tokio::test(start_paused = true)]
async fn what_may_have_been_done_is_not_said_to_have_been_refused() {
    let world = World::with(ClientOptions {
        timeout: secs(2),
        ..ClientOptions::default()
    });
    let overloaded = refusal(Code::ResourceExhausted, "OVERLOADED", "come again");
    world.fake.always("read", Act::Hang);
    world.fake.next("read", Act::Refuse(overloaded));
    let error = world.client.get("", "k").await.unwrap_err();
    assert_eq!(world.fake.count("read"), 2);
    assert!(error.to_string().contains("no answer within"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_take_over_gives_a_new_token_and_the_call_goes_on() {
    let (world, guard) = World::locked().await;
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
    let (world, guard) = World::locked().await;
    world.fake.next("release", Act::LoseAnswer);
    guard.release_with(Mutation::Put("v".into())).await.unwrap();
    assert_eq!(world.fake.count("release"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_release_waits_for_the_one_in_flight() {
    let (world, guard) = World::locked().await;
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
    let (world, guard) = World::locked().await;
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
    world.until_nobody_waits().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_given_back_in_the_background_is_given_back_for_as_long_as_its_session_lives() {
    let world = World::new();
    let session = world.session().await;
    let guard = session.lock("k").await.unwrap();
    world.fake.next("release", limited());
    world.fake.always("release", away());
    drop(guard);
    tokio::time::sleep(secs(300)).await;
    assert_eq!(world.fake.state().queue.len(), 1);
    world.fake.state().always.clear();
    tokio::time::sleep(secs(10)).await;
    assert!(world.fake.state().queue.is_empty());
    assert!(session.valid_until().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_release_of_another_after_an_attempt_that_never_left_is_no_write() {
    let world = World::with_nobody();
    let guard = world.client.lock("k").await.unwrap();
    world.fake.end(&guard.lock_ref(), "RELEASED", "");
    // The first attempt goes where nobody listens.
    world.client.leave(0);
    let released = guard.release_with(Mutation::Put("v".into())).await;
    assert_eq!(world.fake.count("release"), 1);
    assert!(
        matches!(released, Err(ReleaseError::Lost(_))),
        "{released:?}"
    );
}

/// The answer to the first attempt of a write is lost, and before the second one another replica takes over, where
/// another one that has the lockRef writes.
async fn taken_over_meanwhile(world: &World) {
    tokio::time::sleep(Duration::from_millis(10)).await;
    world.fake.take_over();
    world.fake.state().value = Some("another's".into());
}

#[tokio::test(start_paused = true)]
async fn a_put_of_unknown_outcome_is_not_repeated_under_a_new_grant() {
    let (world, guard) = World::locked().await;
    world.fake.next("put", Act::LoseAnswer);
    let (put, ()) = tokio::join!(guard.put("mine"), taken_over_meanwhile(&world));
    is_in_doubt(&put);
    assert_eq!(guard.get().await.unwrap().unwrap(), "another's");
    guard.put("mine").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_put_of_unknown_outcome_stays_so_where_the_new_grant_is_not_given() {
    let (world, guard) = World::locked().await;
    world.fake.next("put", Act::LoseAnswer);
    world.fake.next("acquire", limited());
    let (put, ()) = tokio::join!(guard.put("mine"), taken_over_meanwhile(&world));
    is_in_doubt(&put);
}

#[tokio::test(start_paused = true)]
async fn a_put_that_asks_for_its_new_grant_does_not_outlive_the_validity() {
    let world = World::new();
    world.fake.state().ttl = secs(6);
    let guard = world.client.lock("k").await.unwrap();
    world.fake.take_over();
    world
        .fake
        .always_all(&["acquire", "keep_alive", "renew"], Act::Hang);
    let start = tokio::time::Instant::now();
    let put = guard.put("v").await;
    assert!(matches!(put, Err(CriticalError::Lost(_))), "{put:?}");
    assert!(start.elapsed() <= secs(6), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_lock_is_lost_when_it_asks_for_its_new_grant_says_so() {
    let (world, guard) = World::locked().await;
    world.fake.take_over();
    let expired = refusal(Code::FailedPrecondition, "EXPIRED", "it expired");
    world.fake.next("acquire", Act::Refuse(expired));
    let released = guard.release_with(Mutation::Delete).await;
    let Err(ReleaseError::Lost(lost)) = released else {
        panic!("{released:?}");
    };
    assert_eq!(lost.reason, LostReason::Expired);
}

#[tokio::test(start_paused = true)]
async fn a_release_with_a_put_of_unknown_outcome_does_not_repeat_it_under_a_new_grant() {
    let (world, guard) = World::locked().await;
    world.fake.next("release", away());
    let releasing = guard.release_with(Mutation::Put("mine".into()));
    let (released, ()) = tokio::join!(releasing, taken_over_meanwhile(&world));
    assert!(
        matches!(released, Err(ReleaseError::WriteUnknown(_))),
        "{released:?}"
    );
    assert_eq!(world.fake.state().value.as_deref(), Some(&b"another's"[..]));
    world.until_nobody_waits().await;
}

#[tokio::test(start_paused = true)]
async fn a_write_in_doubt_is_not_said_to_be_undone_because_its_lock_is_released_by_now() {
    let (world, guard) = World::locked().await;
    let released = refusal(Code::FailedPrecondition, "RELEASED", "it was released");
    world.fake.next("release", away());
    world.fake.next("release", Act::Refuse(released));
    let released = guard.release_with(Mutation::Put("v".into())).await;
    let Err(ReleaseError::WriteUnknown(error)) = released else {
        panic!("{released:?}");
    };
    assert_eq!(error.reason, "RELEASED");
    assert_eq!(world.fake.count("release"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_write_is_not_said_to_have_been_refused_after_an_attempt_that_may_have_been_done() {
    let (world, guard) = World::locked().await;
    world.fake.next("put", limited());
    let refused = guard.put("v").await;
    assert!(
        matches!(refused, Err(CriticalError::Limit(_))),
        "{refused:?}"
    );
    world.fake.next("put", Act::LoseAnswer);
    world.fake.next("put", limited());
    let unknown = guard.put("v").await;
    is_in_doubt(&unknown);
}

#[tokio::test(start_paused = true)]
async fn what_is_given_back_in_the_background_ends_with_its_session() {
    let world = World::new();
    let session = world.session().await;
    let guard = session.lock("k").await.unwrap();
    world.fake.always("release", away());
    drop(guard);
    tokio::time::sleep(secs(60)).await;
    session.close().await.unwrap();
    tokio::time::sleep(secs(1)).await;
    let asked = world.fake.count("release");
    tokio::time::sleep(secs(60)).await;
    assert_eq!(world.fake.count("release"), asked);
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_put_is_refused_gives_the_lock_back_before_it_says_so() {
    let large = refusal(Code::InvalidArgument, "TOO_LARGE", "the value is too large");
    let limit = refusal(Code::ResourceExhausted, "LIMIT_REACHED", "too many calls");
    let full = Status::unavailable("the disk is full");
    for status in [large, limit, full] {
        let (world, guard) = World::locked().await;
        world.fake.state().refuses_puts = Some(status.clone());
        let refused = guard.release_with(Mutation::Put("v".into())).await;
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(status.message()), "{error}");
        assert!(world.fake.state().queue.is_empty(), "{error}");
        assert_eq!(world.fake.state().value, None);
    }
}
