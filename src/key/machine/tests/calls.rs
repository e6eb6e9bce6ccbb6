//! What calls are answered by a home.

use super::*;
use crate::lock::{EndReason, EndedAs};

#[test]
fn a_waiter_is_answered_once_the_holder_released() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    let (wait, effects) = world.call(acquire(2));
    assert_eq!(effects, []);
    let (give, effects) = world.call(release(held(1, NOW_US)));
    assert!(answers(&effects).is_empty());
    let effects = world.on(Event::Swapped(SwapOutcome::Applied));
    let answered: Vec<CallId> = answers(&effects).iter().map(|(call, _)| *call).collect();
    assert_eq!(answered, [give, wait]);
    assert_eq!(grant_told(&effects), Some(NOW_US + 4));
}

#[test]
fn a_try_of_a_waiter_is_answered_at_once() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    let effects = world.calls(Call::Acquire {
        entry: entry(2),
        wait: false,
        read_value: false,
    });
    assert!(matches!(
        &answers(&effects)[..],
        [(_, Ok(Answer::Waiting { position: 1, .. }))]
    ));
}

#[test]
fn a_wait_that_lasted_long_enough_is_answered_waiting() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    let (wait, _) = world.call(acquire(2));
    let effects = world.on(Event::WaitEnded(wait));
    assert!(matches!(
        &answers(&effects)[..],
        [(of, Ok(Answer::Waiting { position: 1, .. }))] if *of == wait
    ));
    assert_eq!(world.on(Event::WaitEnded(wait)), []);
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
    for text in ["a", "b", "c"] {
        let effects = world.calls(put(held(1, NOW_US), text));
        let (io, _) = write(&effects);
        let outcome = WriteOutcome::Done;
        world.on(Event::DataWritten { io, outcome });
    }
    let effects = world.calls(put(held(1, NOW_US), "d"));
    let (_, new) = swap(&effects);
    assert_eq!((new.fence, new.grant), (Fence(NOW_US + 4), Fence(NOW_US)));
    let effects = world.on(Event::Swapped(SwapOutcome::Applied));
    assert_eq!(write(&effects).1, datum("d", NOW_US + 5));
}

#[test]
fn the_value_is_read_once_and_then_known() {
    let mut world = World::serving(&[new_entry(1)]);
    let get = |world: &mut World| {
        world.calls(Call::Get {
            entry: held(1, NOW_US),
            call_no: 0,
        })
    };
    let io = read(&get(&mut world));
    let cell = Ok(Some(datum("x", 5)));
    let effects = world.on(Event::DataRead { io, cell });
    let is_x = |effects: &[Effect]| matches!(&answers(effects)[..], [(_, Ok(Answer::Value { value: of, .. }))] if of.bytes == value("x"));
    assert!(is_x(&effects));
    assert!(is_x(&get(&mut world)));
    let (io, _) = write(&world.calls(put(held(1, NOW_US), "y")));
    let outcome = WriteOutcome::Unknown("late".into());
    world.on(Event::DataWritten { io, outcome });
    read(&get(&mut world));
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
    let error = KeyError::CallNoNotAbove { given: 5, last: 5 };
    assert_eq!(errors(&world.calls(numbered(5))), [error.into()]);
}

#[test]
fn a_release_carries_its_put_first_and_nothing_is_taken_after_it() {
    let mut world = World::serving(&[new_entry(1)]);
    let with_put = || Call::Release {
        entry: held(1, NOW_US),
        call_no: 0,
        put: Some(put_of("x")),
    };
    let effects = world.calls(with_put());
    let (io, _) = write(&effects);
    assert!(!effects.iter().any(is_swap));
    let later = world.calls(put(held(1, NOW_US), "late"));
    assert_eq!(errors(&later), [KeyError::Releasing.into()]);
    let outcome = WriteOutcome::Done;
    let effects = world.on(Event::DataWritten { io, outcome });
    assert!(!swap(&effects).1.unsynced);
    let effects = world.on(Event::Swapped(SwapOutcome::Applied));
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
    let outcome = WriteOutcome::Done;
    let effects = world.on(Event::DataWritten { io, outcome });
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
    let effects = world.on(Event::Swapped(SwapOutcome::Applied));
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
        let effects = world.calls(Call::Release {
            entry: held(1, NOW_US),
            call_no: 0,
            put: Some(put_of("x")),
        });
        let (io, _) = write(&effects);
        let effects = world.on(Event::DataWritten { io, outcome });
        let failed = errors(&effects);
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0].may_have_written, may_have_written);
        write(&world.calls(put(held(1, NOW_US), "again")));
    }
}

#[test]
fn a_put_of_unknown_outcome_leaves_the_key_unsynced_unless_a_later_one_covers_it() {
    for covers in [false, true] {
        let mut world = World::serving(&[new_entry(1)]);
        let (io, _) = write(&world.calls(put(held(1, NOW_US), "a")));
        let outcome = WriteOutcome::Unknown("late".into());
        let effects = world.on(Event::DataWritten { io, outcome });
        assert!(errors(&effects)[0].may_have_written);
        if covers {
            let (io, _) = write(&world.calls(put(held(1, NOW_US), "b")));
            let outcome = WriteOutcome::Done;
            world.on(Event::DataWritten { io, outcome });
        }
        let effects = world.calls(release(held(1, NOW_US)));
        assert_eq!(swap(&effects).1.unsynced, !covers);
    }
}

#[test]
fn a_watcher_learns_how_many_are_ahead_that_it_holds_and_how_it_ended() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    let (watch, effects) = world.call(Call::Watch { entry: entry(2) });
    let news = |effects: &[Effect]| -> Vec<EntryStatus> {
        let news = |effect: &Effect| match effect {
            Effect::Notify { call, status } if *call == watch => Some(status.clone()),
            _ => None,
        };
        effects.iter().filter_map(news).collect()
    };
    assert_eq!(news(&effects), [EntryStatus::Waiting { position: 1 }]);
    world.calls(release(held(1, NOW_US)));
    let effects = world.on(Event::Swapped(SwapOutcome::Applied));
    let grant = Fence(NOW_US + 4);
    assert_eq!(news(&effects), [EntryStatus::Held { grant }]);
    let effects = world.calls(Call::Force {
        seq: Seq(2),
        by: "op".into(),
        why: "stuck".into(),
    });
    let (by, why) = ("op".into(), "stuck".into());
    let end = EndedAs::Lost(EndReason::Forced { by, why });
    assert_eq!(news(&effects), [EntryStatus::Ended(end)]);
}

#[test]
fn more_calls_than_may_wait_are_refused_by_the_name_of_the_limit() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    world.calls(acquire(2));
    world.calls(acquire(2));
    let effects = world.calls(acquire(2));
    assert!(matches!(
        &errors(&effects)[..],
        [CallError {
            why: KeyError::Exhausted {
                what: "waits_per_lock_ref_max",
                limit: 2
            },
            ..
        }]
    ));
}

#[test]
fn a_wait_that_nobody_listens_to_is_forgotten() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    let (wait, _) = world.call(acquire(2));
    world.on(Event::CallGone(wait));
    assert!(!world.machine.has_listeners());
}

#[test]
fn a_release_of_an_entry_no_longer_kept_says_that_its_put_may_be_written() {
    let mut world = World::serving(&[new_entry(1)]);
    world.limits.core.ended_max = 0;
    world.calls(Call::Force {
        seq: Seq(1),
        by: "op".into(),
        why: "stuck".into(),
    });
    world.on(Event::Swapped(SwapOutcome::Applied));
    let effects = world.calls(Call::Release {
        entry: held(1, NOW_US),
        call_no: 0,
        put: Some(put_of("x")),
    });
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
        for text in ["a", "b", "c"] {
            let (io, _) = write(&world.calls(put(held(1, NOW_US), text)));
            let outcome = WriteOutcome::Done;
            world.on(Event::DataWritten { io, outcome });
        }
        let with_put = || Call::Release {
            entry: held(1, NOW_US),
            call_no: 9,
            put: Some(put_of("x")),
        };
        // It waits for timestamps.
        world.limits.core.ahead_us_max = is_refused.then_some(0);
        let (release, effects) = world.call(with_put());
        if is_refused {
            assert!(matches!(errors(&effects)[0].why, KeyError::Fence(_)));
            world.limits.core.ahead_us_max = None;
        } else {
            swap(&effects);
            world.on(Event::CallGone(release));
            world.on(Event::Swapped(SwapOutcome::Applied));
        }
        let mut effects = world.calls(with_put());
        if is_refused {
            swap(&effects);
            effects = world.on(Event::Swapped(SwapOutcome::Applied));
        }
        assert_eq!(write(&effects).1, datum("x", NOW_US + 5));
    }
}

#[test]
fn the_calls_of_the_holder_before_do_not_count_against_the_next_one() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    world.limits.known_value_bytes_max = 0;
    let get = || Call::Get {
        entry: held(1, NOW_US),
        call_no: 0,
    };
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
    let effects = world.on(Event::Swapped(SwapOutcome::Applied));
    let grant = grant_told(&effects).unwrap();
    write(&world.calls(put(held(2, grant), "x")));
}
