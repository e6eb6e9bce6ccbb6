//! Reads of the holder while a write of its own is of unknown outcome.

use super::*;

fn put_in_flight(world: &mut World, text: &'static str) -> IoId {
    write(&world.calls(put(held(1, NOW_US), text))).0
}

fn ends(world: &mut World, io: IoId, outcome: WriteOutcome) -> Vec<Effect> {
    world.on(Event::DataWritten { io, outcome })
}

fn unknown() -> WriteOutcome {
    WriteOutcome::Unknown("late".into())
}

/// One whose holder wrote "x" with timestamp 1 of its fence, and does not know whether that took effect.
fn in_doubt() -> World {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    let io = put_in_flight(&mut world, "x");
    world.wrote_in_doubt(io);
    world
}

fn values(effects: &[Effect]) -> Vec<Option<Bytes>> {
    let value = |(_, answer)| match answer {
        Ok(Answer::Value { value, .. }) => Some(value.bytes),
        _ => None,
    };
    answers(effects).into_iter().filter_map(value).collect()
}

fn is_io(effect: &Effect) -> bool {
    matches!(effect, Effect::ReadData { .. } | Effect::WriteData { .. })
}

#[test]
fn what_a_get_shows_is_written_again_first_whether_the_write_in_doubt_shows_or_not() {
    for (cell, expected) in [
        (None, None),
        (Some(datum("x", NOW_US + 1)), value("x")),
        (Some(datum("of before", NOW_US - 9)), value("of before")),
    ] {
        let mut world = in_doubt();
        let io = read(&world.calls(get(held(1, NOW_US))));
        let effects = world.saw(io, cell);
        assert_eq!(answers(&effects), []);
        let (io, rewrite) = write(&effects);
        assert_eq!((&rewrite.value, rewrite.timestamp), (&expected, NOW_US + 2));
        let effects = world.wrote(io);
        assert_eq!(values(&effects).first(), Some(&expected));
        // From memory: whatever the store shows has the timestamp of the rewrite.
        assert_eq!(values(&world.calls(get(held(1, NOW_US)))), [expected]);
        // Nothing is left in doubt for the next holder.
        let effects = world.calls(release(held(1, NOW_US)));
        assert!(!swap(&effects).1.unsynced);
    }
}

#[test]
fn a_value_that_is_too_large_to_be_remembered_is_read_again_once_it_is_settled() {
    let mut world = in_doubt();
    world.limits.known_value_bytes_max = 0;
    let io = read(&world.calls(get(held(1, NOW_US))));
    let (io, _) = write(&world.saw(io, Some(datum("x", NOW_US + 1))));
    let io = read(&world.wrote(io));
    let effects = world.saw(io, Some(datum("x", NOW_US + 2)));
    assert_eq!(values(&effects), [value("x")]);
}

#[test]
fn a_write_does_not_come_between_the_read_and_the_rewrite() {
    let mut world = in_doubt();
    let io = read(&world.calls(get(held(1, NOW_US))));
    let effects = world.calls(put(held(1, NOW_US), "y"));
    assert!(!effects.iter().any(is_io), "{effects:?}");
    let (io, _) = write(&world.saw(io, None));
    let effects = world.wrote(io);
    assert_eq!(values(&effects), [None]);
    assert_eq!(write(&effects).1, datum("y", NOW_US + 3));
}

/// Its caller may have given it up, and take it for one that was not written.
#[test]
fn a_get_waits_for_the_write_in_flight_before_it() {
    for outcome in [WriteOutcome::Done, unknown()] {
        let mut world = World::serving(&[new_entry(1)]);
        let io = put_in_flight(&mut world, "x");
        let effects = world.calls(get(held(1, NOW_US)));
        assert!(!effects.iter().any(is_io), "{effects:?}");
        let is_done = outcome == WriteOutcome::Done;
        let effects = ends(&mut world, io, outcome);
        match is_done {
            true => assert_eq!(values(&effects), [value("x")]),
            false => assert_eq!(values(&effects), []),
        }
        assert_eq!(effects.iter().any(is_io), !is_done);
    }
}

#[test]
fn what_a_later_write_overtook_is_not_remembered() {
    let mut world = World::serving(&[new_entry(1)]);
    world.limits.critical_calls_max = 3;
    let overtaken = read(&world.calls(get(held(1, NOW_US))));
    let [x, y] = ["x", "y"].map(|text| put_in_flight(&mut world, text));
    world.wrote(y);
    world.wrote(x);
    world.saw(overtaken, Some(datum("w", NOW_US - 9)));
    assert_eq!(values(&world.calls(get(held(1, NOW_US)))), [value("y")]);
}

#[test]
fn a_get_that_cannot_settle_it_fails_and_the_next_one_tries_again() {
    let mut world = in_doubt();
    let down = || KeyError::StoreUnavailable("down".into());
    let io = read(&world.calls(get(held(1, NOW_US))));
    let effects = world.read_failed(io);
    assert_eq!(errors(&effects), [down().into()]);
    for timestamp in [NOW_US + 2, NOW_US + 3] {
        let io = read(&world.calls(get(held(1, NOW_US))));
        let (io, rewrite) = write(&world.saw(io, None));
        assert_eq!(rewrite.timestamp, timestamp);
        let effects = ends(&mut world, io, WriteOutcome::Unknown("down".into()));
        assert_eq!(errors(&effects), [down().into()]);
    }
}

#[test]
fn where_no_timestamp_is_left_it_takes_more_and_reads_anew() {
    let mut world = in_doubt();
    for _ in 0..2 {
        let io = put_in_flight(&mut world, "x");
        world.wrote_in_doubt(io);
    }
    let io = read(&world.calls(get(held(1, NOW_US))));
    let effects = world.saw(io, None);
    assert_eq!(swap(&effects).1.fence, Fence(NOW_US + 4));
    let io = read(&world.applied());
    let (io, rewrite) = write(&world.saw(io, None));
    assert_eq!(rewrite.timestamp, NOW_US + 5);
    assert_eq!(values(&world.wrote(io)), [None]);
}

#[test]
fn where_no_fence_can_be_taken_for_it_everybody_who_reads_fails() {
    let mut world = in_doubt();
    world.limits.core.ahead_us_max = Some(0);
    for _ in 0..2 {
        let io = put_in_flight(&mut world, "x");
        world.wrote_in_doubt(io);
    }
    let io = read(&world.calls(get(held(1, NOW_US))));
    world.calls(acquire_with_value(1));
    world.calls(acquire_with_value(2));
    let effects = world.saw(io, None);
    assert_eq!(errors(&effects).len(), 2, "{effects:?}");
    assert!(!effects.iter().any(is_io), "{effects:?}");
}

#[test]
fn an_acquire_that_reads_the_value_settles_it_as_well() {
    let mut world = in_doubt();
    let io = read(&world.calls(Call::Acquire {
        entry: entry(1),
        wait: false,
        read_value: true,
    }));
    let (io, _) = write(&world.saw(io, None));
    let effects = world.wrote(io);
    assert_eq!(grant_told(&effects), Some(NOW_US));
}

#[test]
fn a_lock_that_is_released_meanwhile_leaves_the_value_to_the_sync_of_the_next_holder() {
    for is_written in [false, true] {
        let mut world = in_doubt();
        let mut io = read(&world.calls(get(held(1, NOW_US))));
        if is_written {
            io = write(&world.saw(io, None)).0;
        }
        let effects = world.calls(release(held(1, NOW_US)));
        assert_eq!(errors(&effects).len(), 1, "the read");
        assert!(swap(&effects).1.unsynced);
        let effects = match is_written {
            true => world.wrote(io),
            false => world.saw(io, None),
        };
        assert!(!effects.iter().any(is_io), "{effects:?}");
    }
}

#[test]
fn a_hand_over_waits_for_it() {
    let mut world = in_doubt();
    let io = read(&world.calls(get(held(1, NOW_US))));
    let effects = world.calls(hand_over(2));
    assert!(!effects.iter().any(is_swap));
    let effects = world.saw(io, None);
    assert!(!effects.iter().any(is_swap));
    let (io, _) = write(&effects);
    let effects = world.wrote(io);
    assert!(!swap(&effects).1.unsynced);
}
