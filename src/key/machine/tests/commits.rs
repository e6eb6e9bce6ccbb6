//! Group commit, and outcomes that are not known (I6).

use super::*;

#[test]
fn what_comes_in_while_a_swap_is_in_flight_goes_into_the_next_one() {
    let mut world = World::serving(&[new_entry(1)]);
    assert!(world.calls(create(new_entry(2))).iter().any(is_swap));
    assert_eq!(world.calls(create(new_entry(3))), []);
    assert_eq!(world.calls(create(new_entry(4))), []);
    let effects = world.applied();
    let (_, new) = swap(&effects);
    assert_eq!(new.entries.len(), 4);
}

#[test]
fn what_is_too_much_for_one_commit_goes_into_the_next_one() {
    let mut world = World::serving(&[of_session(1)]);
    world.limits.calls_max = 1_000;
    let liveness = of_session(1).liveness;
    for n in 2..=400 {
        let entry = new_entry(n);
        world.calls(create(NewEntry { liveness, ..entry }));
    }
    while world.applied().iter().any(is_swap) {}
    assert_eq!(world.row().entries.len(), 400);
    world.on(Event::SessionEnded(SessionId(Uuid::from_u128(1))));
    while world.applied().iter().any(is_swap) {}
    assert_eq!(world.row().entries.len(), 0);
}

#[test]
fn nobody_is_answered_by_an_unknown_outcome_until_it_is_resolved() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    let (call, effects) = world.call(release(held(1, NOW_US)));
    let (old, new) = swap(&effects);
    let effects = world.swapped_in_doubt();
    assert!(answers(&effects).is_empty());
    assert_eq!(world.resume_row(), [Effect::Load { settle: true }]);
    // To read the old version settles nothing: it is sent again.
    let effects = world.on(loaded(&old));
    assert!(answers(&effects).is_empty());
    assert_eq!(swap(&effects), (old, Arc::clone(&new)));
    // The first one was applied meanwhile.
    let effects = world.conflict(&new);
    let released = Ok(Answer::Released { already: false });
    assert_eq!(answers(&effects), [(call, released)]);
}

#[test]
fn a_row_that_contradicts_what_was_committed_is_not_served_on() {
    for version in [0, 1] {
        let mut world = World::serving(&[new_entry(1)]);
        let (call, effects) = world.call(create(new_entry(2)));
        let (old, _) = swap(&effects);
        let other = KeyState {
            version: old.version - version,
            next: Seq(old.next.0 + 7),
            ..KeyState::clone(&old)
        };
        let effects = world.on(Event::Swapped(SwapOutcome::Conflict(Arc::new(other))));
        let failed = KeyError::ChangingHome;
        assert_eq!(answers(&effects), [(call, Err(failed.into()))]);
        assert!(world.machine.state().is_none());
    }
}

#[test]
fn a_create_in_doubt_is_sent_again_though_nobody_waits() {
    let mut world = World::serving(&[new_entry(1)]);
    let (call, effects) = world.call(create(new_entry(2)));
    let (old, _) = swap(&effects);
    world.swapped_in_doubt();
    world.on(Event::CallGone(call));
    world.resume_row();
    let effects = world.on(loaded(&old));
    assert_eq!(swap(&effects).1.entries.len(), 2);
    // Its seq is not given out again.
    world.calls(create(new_entry(3)));
    let effects = world.applied();
    let (_, new) = swap(&effects);
    let made: Vec<Tag> = new.entries.iter().map(|e| e.tag).collect();
    assert_eq!(made, [1, 2, 3].map(Tag::from_bits));
}

#[test]
fn what_is_in_doubt_is_not_taken_back_by_a_later_try_that_was_not_begun() {
    let mut world = World::serving(&[new_entry(1)]);
    let (old, new) = swap(&world.calls(create(new_entry(2))));
    world.swapped_in_doubt();
    world.resume_row();
    swap(&world.on(loaded(&old)));
    world.not_started();
    world.calls(create(new_entry(3)));
    assert_eq!(world.resume_row(), [Effect::Load { settle: true }]);
    assert_eq!(swap(&world.on(loaded(&old))), (old, new));
}

#[test]
fn a_create_in_doubt_stays_though_its_caller_learned_that_the_row_cannot_be_read() {
    let mut world = World::serving(&[new_entry(1)]);
    let (call, effects) = world.call(create(new_entry(2)));
    let (old, new) = swap(&effects);
    world.swapped_in_doubt();
    world.resume_row();
    let why: Reason = "down".into();
    let effects = world.on(Event::Loaded(Err(Arc::clone(&why))));
    let failed = KeyError::StoreUnavailable(why);
    assert_eq!(answers(&effects), [(call, Err(failed.into()))]);
    // Its seq is not given out again.
    world.calls(create(new_entry(3)));
    world.resume_row();
    assert_eq!(swap(&world.on(loaded(&old))), (old, new));
    let effects = world.applied();
    let (_, new) = swap(&effects);
    let made: Vec<Tag> = new.entries.iter().map(|e| e.tag).collect();
    assert_eq!(made, [1, 2, 3].map(Tag::from_bits));
}

#[test]
fn what_is_in_doubt_is_sent_again_as_it_was_whatever_was_decided_since() {
    let mut world = World::serving(&[new_entry(1)]);
    let (first, effects) = world.call(create(new_entry(2)));
    let (old, new) = swap(&effects);
    world.swapped_in_doubt();
    world.clock_is_wrong = true;
    let (second, _) = world.call(create(new_entry(3)));
    world.resume_row();
    let effects = world.on(loaded(&old));
    assert_eq!(swap(&effects), (old, Arc::clone(&new)));
    let effects = world.applied();
    assert_eq!(answered(&effects), [first]);
    assert_eq!(swap(&effects).1.entries.len(), 3);
    let effects = world.applied();
    assert_eq!(answered(&effects), [second]);
}

#[test]
fn a_create_that_was_not_started_is_dropped_with_its_caller() {
    let mut world = World::serving(&[new_entry(1)]);
    let (call, _) = world.call(create(new_entry(2)));
    let why: Reason = "down".into();
    let effects = world.on(Event::Swapped(SwapOutcome::NotStarted(Arc::clone(&why))));
    let failed = KeyError::StoreUnavailable(why);
    assert_eq!(answers(&effects), [(call, Err(failed.into()))]);
    assert_eq!(world.resume_row(), []);
}

#[test]
fn a_release_goes_on_after_its_caller_learned_that_the_store_is_gone() {
    let mut world = World::serving(&[new_entry(1)]);
    world.calls(release(held(1, NOW_US)));
    let effects = world.not_started();
    assert_eq!(errors(&effects).len(), 1);
    let effects = world.resume_row();
    assert!(swap(&effects).1.entries.is_empty());
}

#[test]
fn the_same_swap_is_not_sent_beside_another() {
    let mut world = World::serving(&[new_entry(1)]);
    world.calls(release(held(1, NOW_US)));
    let effects = world.on(Event::Due);
    assert!(!effects.iter().any(is_swap));
}

#[test]
fn a_create_that_nobody_waits_for_any_longer_takes_no_commit_from_others() {
    let mut world = World::serving(&[new_entry(1)]);
    world.use_up_timestamps();
    world.calls(create(new_entry(2)));
    world.not_started();
    // The holder waits for timestamps while the row is left alone.
    world.calls(put(held(1, NOW_US), "d"));
    let (gone, _) = world.call(create(new_entry(3)));
    world.on(Event::CallGone(gone));
    let (_, row) = swap(&world.resume_row());
    assert_eq!((row.fence, row.entries.len()), (Fence(NOW_US + 4), 1));
}
