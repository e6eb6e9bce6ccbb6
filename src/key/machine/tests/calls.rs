//! What calls are answered by a home.

use super::*;

#[test]
fn a_waiter_is_answered_once_the_holder_released() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    let (wait, effects) = world.call(acquire(2));
    assert_eq!(effects, []);
    let (give, effects) = world.call(release(held(1, NOW_US)));
    assert!(answers(&effects).is_empty());
    let effects = world.applied();
    assert_eq!(answered(&effects), [give, wait]);
    assert_eq!(grant_told(&effects), Some(NOW_US + 4));
}

#[test]
fn puts_take_the_timestamps_of_the_fence_in_their_order() {
    let mut world = World::serving(&[new_entry(1)]);
    let effects = world.calls(put(held(1, NOW_US), "a"));
    assert_eq!(write(&effects).1, datum("a", NOW_US + 1));
    let effects = world.calls(put(held(1, NOW_US), "b"));
    assert_eq!(write(&effects).1, datum("b", NOW_US + 2));
}

#[test]
fn a_put_that_finds_no_timestamp_waits_for_more() {
    let mut world = World::serving(&[new_entry(1)]);
    world.use_up_timestamps();
    let effects = world.calls(put(held(1, NOW_US), "d"));
    let (_, new) = swap(&effects);
    assert_eq!((new.fence, new.grant), (Fence(NOW_US + 4), Fence(NOW_US)));
    let effects = world.applied();
    assert_eq!(write(&effects).1, datum("d", NOW_US + 5));
}

#[test]
fn a_put_that_waits_for_timestamps_learns_how_its_entry_ended_and_the_next_holder_does_not() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    world.use_up_timestamps();
    let (wait, _) = world.call(acquire(2));
    world.calls(create(new_entry(3)));
    let (late, _) = world.call(put(held(1, NOW_US), "late"));
    let mut effects = world.calls(force(1));
    // More timestamps, and the end of their holder, are committed together.
    effects.extend(world.applied());
    effects.extend(world.applied());
    let ended = KeyError::Ended(EndedAs::Lost(forced()));
    assert!(answers(&effects).contains(&(late, Err(ended.into()))));
    assert!(!answered(&effects).contains(&wait));
}

#[test]
fn the_value_is_read_once_and_then_known() {
    let mut world = World::serving(&[new_entry(1)]);
    let get = |world: &mut World| world.calls(get(held(1, NOW_US)));
    let io = read(&get(&mut world));
    let effects = world.saw(io, Some(datum("x", 5)));
    let is_x = |effects: &[Effect]| matches!(&answers(effects)[..], [(_, Ok(Answer::Value { value: of, .. }))] if of.bytes == value("x"));
    assert!(is_x(&effects));
    assert!(is_x(&get(&mut world)));
    let (io, _) = write(&world.calls(put(held(1, NOW_US), "y")));
    world.wrote_in_doubt(io);
    read(&get(&mut world));
}

#[test]
fn a_read_that_comes_after_the_end_of_its_grant_shows_nothing() {
    for call in [get(held(1, NOW_US)), acquire_with_value(1)] {
        let mut world = World::serving(&[new_entry(1), new_entry(2)]);
        let io = read(&world.calls(call));
        world.calls(force(1));
        world.applied();
        let effects = world.saw(io, Some(datum("of the next one", NOW_US + 5)));
        let ended = KeyError::Ended(EndedAs::Lost(forced()));
        assert_eq!(errors(&effects), [ended.into()]);
    }
}

#[test]
fn the_next_holder_is_told_the_last_value_without_a_read() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    let (io, _) = write(&world.calls(release_with(held(1, NOW_US), 0)));
    world.wrote(io);
    world.applied();
    let effects = world.calls(acquire_with_value(2));
    assert_eq!(grant_told(&effects), Some(NOW_US + 4));
}

#[test]
fn all_callers_fail_with_the_read_that_fails_not_one_by_one() {
    let mut world = World::new();
    for n in [1, 2] {
        world.calls(create(new_entry(n)));
    }
    let effects = world.on(Event::Loaded(Err("down".into())));
    assert_eq!(errors(&effects).len(), 2);
}

#[test]
fn a_critical_call_needs_the_grant_in_force() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    let error = |world: &mut World, entry| errors(&world.calls(put(entry, "x")));
    assert_eq!(error(&mut world, entry(1)), [KeyError::NoGrant.into()]);
    assert_eq!(error(&mut world, held(2, 7)), [KeyError::NoGrant.into()]);
    let old = held(1, NOW_US - 1);
    assert_eq!(error(&mut world, old), [KeyError::GrantSuperseded.into()]);
    assert_eq!(
        error(&mut world, held(9, 7)),
        [KeyError::NeverIssued.into()]
    );
}

#[test]
fn the_number_of_a_critical_call_must_grow() {
    let mut world = World::serving(&[new_entry(1)]);
    let numbered = |call_no| Call::Put {
        entry: held(1, NOW_US),
        call_no,
        value: Mutation::Delete,
    };
    write(&world.calls(numbered(5)));
    for given in [5, 4, 1] {
        for call in [numbered(given), release_with(held(1, NOW_US), given)] {
            let error = KeyError::CallNoNotAbove { given, last: 5 };
            assert_eq!(errors(&world.calls(call)), [error.into()]);
        }
    }
}

#[test]
fn a_release_carries_its_put_first_and_nothing_is_taken_after_it() {
    let mut world = World::serving(&[new_entry(1)]);
    let with_put = || release_with(held(1, NOW_US), 0);
    let effects = world.calls(with_put());
    let (io, _) = write(&effects);
    assert!(!effects.iter().any(is_swap));
    let later = world.calls(put(held(1, NOW_US), "late"));
    assert_eq!(errors(&later), [KeyError::Releasing.into()]);
    let effects = world.wrote(io);
    assert!(!swap(&effects).1.unsynced);
    let effects = world.applied();
    let released = |already| Ok(Answer::Released { already });
    assert_eq!(answers(&effects)[0].1, released(false));
    let effects = world.calls(with_put());
    assert_eq!(answers(&effects)[0].1, released(true));
}

#[test]
fn a_release_that_is_decided_is_not_disturbed_by_a_lock_ref_that_was_made_up() {
    let mut world = World::serving(&[new_entry(1)]);
    let with_put = |entry| Call::Release {
        entry,
        call_no: 7,
        put: Some(put_of("x")),
    };
    let (io, _) = write(&world.calls(with_put(held(1, NOW_US))));
    let effects = world.wrote(io);
    assert!(effects.iter().any(is_swap));
    // The row does not say it yet. Who knows the number only has another tag.
    let made_up = EntryRef {
        tag: Tag::from_bits(99),
        ..held(1, NOW_US)
    };
    for call in [release(made_up), with_put(made_up)] {
        assert_eq!(errors(&world.calls(call)), [KeyError::NeverIssued.into()]);
    }
    // Its client does not know either, and asks again.
    world.calls(with_put(held(1, NOW_US)));
    let effects = world.applied();
    let released = |already| Ok(Answer::Released { already });
    let answers: Vec<_> = answers(&effects)
        .into_iter()
        .map(|(_, answer)| answer)
        .collect();
    assert_eq!(answers, [released(false), released(true)]);
}

#[test]
fn a_release_whose_put_fails_is_none_and_says_whether_it_may_show() {
    for (outcome, may_have_written) in [
        (WriteOutcome::Unknown("late".into()), true),
        (WriteOutcome::NotStarted("down".into()), false),
    ] {
        let mut world = World::serving(&[new_entry(1)]);
        let with_put = || release_with(held(1, NOW_US), 9);
        let (io, _) = write(&world.calls(with_put()));
        let effects = world.on(Event::DataWritten { io, outcome });
        let failed = errors(&effects);
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0].may_have_written, may_have_written);
        // It may be repeated with its number.
        write(&world.calls(with_put()));
    }
}

#[test]
fn a_last_put_that_fails_does_not_reopen_what_another_release_closed() {
    let mut world = World::serving(&[new_entry(1)]);
    let (with_put, effects) = world.call(release_with(held(1, NOW_US), 0));
    let (io, _) = write(&effects);
    let (plain, effects) = world.call(release(held(1, NOW_US)));
    assert!(effects.iter().any(is_swap));
    let outcome = WriteOutcome::NotStarted("down".into());
    let mut effects = world.on(Event::DataWritten { io, outcome });
    let late = world.calls(put(held(1, NOW_US), "late"));
    assert_eq!(errors(&late), [KeyError::Releasing.into()]);
    effects.extend(world.applied());
    // Not written, and released all the same.
    let not_written = Err(KeyError::Ended(EndedAs::Released).into());
    let released = Ok(Answer::Released { already: false });
    let expected = [(with_put, not_written), (plain, released)];
    let mut told = answers(&effects);
    told.sort_by_key(|(call, _)| call.0);
    assert_eq!(told, expected);
}

#[test]
fn a_put_of_unknown_outcome_leaves_the_key_unsynced_unless_a_later_one_covers_it() {
    let not_started = WriteOutcome::NotStarted("down".into());
    let unknown = WriteOutcome::Unknown("late".into());
    for (outcome, covers) in [
        (unknown.clone(), false),
        (unknown.clone(), true),
        (not_started, false),
    ] {
        let is_unknown = outcome == unknown;
        let mut world = World::serving(&[new_entry(1)]);
        let (io, _) = write(&world.calls(put(held(1, NOW_US), "a")));
        let effects = world.on(Event::DataWritten { io, outcome });
        assert_eq!(errors(&effects)[0].may_have_written, is_unknown);
        if covers {
            let (io, _) = write(&world.calls(put(held(1, NOW_US), "b")));
            world.wrote(io);
        }
        let effects = world.calls(release(held(1, NOW_US)));
        assert_eq!(swap(&effects).1.unsynced, is_unknown && !covers);
    }
}

#[test]
fn more_calls_than_may_wait_are_refused_by_the_name_of_the_limit() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    for call in [acquire(2), Call::Watch { entry: entry(2) }] {
        world.calls(call.clone());
        world.calls(call.clone());
        let (what, limit) = ("waits_per_lock_ref_max", 2);
        let error = KeyError::Exhausted { what, limit };
        assert_eq!(errors(&world.calls(call)), [error.into()]);
    }
}

#[test]
fn a_wait_that_nobody_listens_to_is_forgotten() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    for _ in 0..2 * world.limits.waits_per_lock_ref_max {
        let (wait, effects) = world.call(acquire(2));
        assert_eq!(effects, []);
        world.on(Event::CallGone(wait));
    }
}

#[test]
fn a_caller_that_leaves_takes_no_other_call_along() {
    // While the row is read.
    let mut world = World::new();
    let [stays, gone, late] = [1, 2, 3].map(|n| world.call(acquire(n)).0);
    world.on(Event::CallGone(gone));
    let changing = Err(KeyError::ChangingHome.into());
    let effects = world.on(Event::WaitEnded(late));
    assert_eq!(answers(&effects), [(late, changing)]);
    assert_eq!(answered(&world.on(loaded(&row_of(2, &[])))), [stays]);

    // While the row lacks the entry.
    let mut world = World::serving(&[new_entry(1)]);
    world.calls(create(new_entry(2)));
    let [stays, gone] = [3, 4].map(|n| world.call(create(new_entry(n))).0);
    world.on(Event::CallGone(gone));
    world.applied();
    assert_eq!(answered(&world.applied()), [stays]);
}

#[test]
fn a_release_of_an_entry_no_longer_kept_says_that_its_put_may_be_written() {
    let mut world = World::serving(&[new_entry(1)]);
    world.limits.core.ended_max = 0;
    world.calls(force(1));
    world.applied();
    let effects = world.calls(release_with(held(1, NOW_US), 0));
    let error = CallError {
        why: KeyError::Ended(EndedAs::NoLongerKept),
        may_have_written: true,
    };
    assert_eq!(errors(&effects), [error]);
}

#[test]
fn a_release_whose_put_never_began_may_be_repeated_with_its_number() {
    for is_refused in [false, true] {
        let mut world = World::serving(&[new_entry(1)]);
        world.use_up_timestamps();
        let with_put = || release_with(held(1, NOW_US), 9);
        // It waits for timestamps, and nothing is taken after it.
        world.limits.core.ahead_us_max = is_refused.then_some(0);
        let (release, effects) = world.call(with_put());
        if is_refused {
            assert!(matches!(errors(&effects)[0].why, KeyError::Fence(_)));
            world.limits.core.ahead_us_max = None;
        } else {
            swap(&effects);
            let late = world.calls(put(held(1, NOW_US), "late"));
            assert_eq!(errors(&late), [KeyError::Releasing.into()]);
            world.on(Event::CallGone(release));
            world.applied();
        }
        let mut effects = world.calls(with_put());
        if is_refused {
            swap(&effects);
            effects = world.applied();
        }
        assert_eq!(write(&effects).1, datum("x", NOW_US + 5));
    }
}

#[test]
fn the_calls_of_the_holder_before_do_not_count_against_the_next_one() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    world.limits.known_value_bytes_max = 0;
    let get = || get(held(1, NOW_US));
    read(&world.calls(get()));
    read(&world.calls(get()));
    assert!(matches!(
        errors(&world.calls(get()))[..],
        [CallError {
            why: KeyError::Exhausted { .. },
            ..
        }]
    ));
    world.calls(acquire(2));
    world.calls(release(held(1, NOW_US)));
    let effects = world.applied();
    let grant = grant_told(&effects).unwrap();
    write(&world.calls(put(held(2, grant), "x")));
}
