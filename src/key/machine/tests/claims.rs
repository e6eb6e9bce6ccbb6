//! Who came for a grant (I5), and entries whose end is wanted already.

use super::*;

#[test]
fn an_answer_that_nobody_heard_takes_no_claim_from_one_that_was_heard() {
    let mut world = World::serving(&[of_session(1)]);
    assert_eq!(grant_told(&world.calls(acquire(1))), Some(NOW_US));
    world.answer_lost();
    world.pass(10 * TTL);
    assert_eq!(world.on(Event::Due), []);
    world.answer_lost();
    world.pass(TTL);
    assert!(world.on(Event::Due).iter().any(is_swap));
}

#[test]
fn whoever_names_the_grant_was_told_it() {
    let renew = Call::Renew {
        entry: held(1, NOW_US),
    };
    for call in [renew, put(held(1, NOW_US), "x")] {
        let mut world = World::serving(&[of_session(1)]);
        world.calls(call);
        world.answer_lost();
        world.pass(10 * TTL);
        assert_eq!(world.on(Event::Due), []);
    }
}

#[test]
fn a_claim_whose_value_is_being_read_is_none_that_nobody_made() {
    let mut world = World::serving(&[of_session(1), of_session(2)]);
    world.calls(release(held(1, NOW_US)));
    world.applied();
    let io = read(&world.calls(acquire_with_value(2)));
    world.pass(TTL);
    assert_eq!(world.on(Event::Due), []);
    let effects = world.saw(io, None);
    assert_eq!(grant_told(&effects), Some(NOW_US + 4));
}

#[test]
fn an_entry_expires_though_an_operator_failed_to_end_it() {
    let mut world = World::serving(&[new_entry(1)]);
    world.calls(create(of_session(2)));
    world.calls(force(1));
    world.pass(TTL);
    world.on(Event::Due);
    world.not_started();
    let effects = world.resume_row();
    assert_eq!(swap(&effects).1.position(Seq(1)), None);
}

#[test]
fn an_entry_that_was_given_back_as_a_waiter_never_is_answered_held() {
    let mut world = World::serving(&[new_entry(1), new_entry(2), new_entry(3)]);
    world.calls(release(held(1, NOW_US)));
    let (back, _) = world.call(release(entry(2)));
    world.calls(acquire(2));
    let effects = world.applied();
    assert_eq!(grant_told(&effects), None);
    assert_eq!(swap(&effects).1.head(), Seq(3));
    let effects = world.calls(put(held(2, NOW_US + 4), "late"));
    assert_eq!(errors(&effects), [KeyError::Releasing.into()]);
    let effects = world.applied();
    let released = Ok(Answer::Released { already: false });
    assert!(answers(&effects).contains(&(back, released)));
}

#[test]
fn an_entry_that_is_being_released_is_answered_held_no_more() {
    let mut world = World::serving(&[new_entry(1)]);
    let (call, effects) = world.call(acquire_with_value(1));
    let io = read(&effects);
    let (last_put, _) = write(&world.calls(release_with(held(1, NOW_US), 0)));
    let effects = world.saw(io, None);
    assert_eq!(answers(&effects), []);
    world.wrote(last_put);
    let effects = world.applied();
    let ended = KeyError::Ended(EndedAs::Released);
    assert!(answers(&effects).contains(&(call, Err(ended.into()))));
}

#[test]
fn an_entry_whose_session_ended_while_it_waited_never_is_answered_held() {
    let mut world = World::serving(&[new_entry(1), of_session(2)]);
    world.calls(release(held(1, NOW_US)));
    let (wait, _) = world.call(acquire(2));
    let effects = world.on(Event::SessionEnded(SessionId(Uuid::from_u128(2))));
    let closed = KeyError::Ended(EndedAs::Lost(EndReason::SessionClosed));
    assert_eq!(answers(&effects), [(wait, Err(closed.into()))]);
    let effects = world.applied();
    assert_eq!(grant_told(&effects), None);
    assert_eq!(swap(&effects).1.entries.len(), 0);
}

#[test]
fn while_no_fence_can_be_taken_a_watcher_is_kept_and_the_grant_is_tried_again() {
    let mut world = World::serving(&[new_entry(1), of_session(2)]);
    let (watch, _) = world.call(Call::Watch { entry: entry(2) });
    world.clock_is_wrong = true;
    world.calls(release(held(1, NOW_US)));
    let effects = world.applied();
    assert!(answers(&effects).iter().all(|(of, _)| *of != watch));
    world.clock_is_wrong = false;
    assert!(world.machine.due(world.commit).is_some());
    world.row_after(TTL);
    let effects = world.applied();
    let grant = Fence(NOW_US + 4);
    let status = EntryStatus::Held { grant };
    assert!(effects.contains(&Effect::Notify {
        call: watch,
        status
    }));
}

#[test]
fn calls_that_read_the_value_are_counted_among_those_that_wait() {
    let mut world = World::serving(&[new_entry(1)]);
    read(&world.calls(acquire_with_value(1)));
    read(&world.calls(acquire_with_value(1)));
    let exhausted = KeyError::Exhausted {
        what: "waits_per_lock_ref_max",
        limit: 2,
    };
    let effects = world.calls(acquire_with_value(1));
    assert_eq!(errors(&effects), [exhausted.into()]);
}

#[test]
fn all_waits_of_a_key_together_are_bounded() {
    let entries: Vec<NewEntry> = (1..=6).map(new_entry).collect();
    let mut world = World::serving(&entries);
    for n in [2, 2, 3, 3, 4, 4, 5, 5] {
        assert_eq!(world.calls(acquire(n)), []);
    }
    let exhausted = KeyError::Exhausted {
        what: "calls_per_key_max",
        limit: 8,
    };
    assert_eq!(errors(&world.calls(acquire(6))), [exhausted.into()]);
}
