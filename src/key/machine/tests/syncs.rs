//! From a grant to HELD (I7).

use super::*;

const GRANT: u64 = NOW_US + 4;

#[test]
fn a_holder_is_synced_by_one_read_and_one_write_once_somebody_asks() {
    let mut world = World::taken_over(&row_of(2, &[new_entry(1)]));
    let effects = world.calls(acquire(1));
    let io = read(&effects);
    let effects = world.saw(io, Some(datum("x", NOW_US + 1)));
    let (io, rewrite) = write(&effects);
    assert_eq!(rewrite, datum("x", GRANT));
    assert_eq!(grant_told(&effects), None);
    let effects = world.wrote(io);
    assert_eq!(grant_told(&effects), Some(GRANT));
    let effects = world.calls(release(held(1, GRANT)));
    assert!(!swap(&effects).1.unsynced);
}

#[test]
fn a_fence_is_synced_from_one_read_however_often_it_is_written() {
    let mut world = World::taken_over(&row_of(2, &[new_entry(1)]));
    let io = read(&world.calls(acquire(1)));
    let effects = world.saw(io, Some(datum("x", 7)));
    let (io, first) = write(&effects);
    let effects = world.wrote_in_doubt(io);
    assert_eq!(errors(&effects).len(), 1);
    let of = PauseOf::Sync(Fence(GRANT));
    assert!(effects.contains(&Effect::Pause { of, tries: 0 }));
    let effects = world.on(Event::Resume(of));
    let (_, second) = write(&effects);
    assert_eq!(first, second);
}

#[test]
fn a_sync_that_pauses_writes_nothing_once_the_key_may_be_given_away() {
    let mut world = World::taken_over(&row_of(2, &[new_entry(1)]));
    let io = read(&world.calls(acquire(1)));
    let (io, _) = write(&world.saw(io, Some(datum("x", 7))));
    world.wrote_in_doubt(io);
    let (_, row) = swap(&world.calls(hand_over(3)));
    assert!(row.unsynced);
    let of = PauseOf::Sync(Fence(GRANT));
    let effects = world.on(Event::Resume(of));
    assert_eq!(effects, [Effect::Pause { of, tries: 1 }]);
}

#[test]
fn a_sync_whose_read_failed_reads_again() {
    let mut world = World::taken_over(&row_of(2, &[new_entry(1)]));
    let io = read(&world.calls(acquire(1)));
    let effects = world.read_failed(io);
    assert_eq!(errors(&effects).len(), 1);
    world.calls(acquire(1));
    let effects = world.on(Event::Resume(PauseOf::Sync(Fence(GRANT))));
    read(&effects);
}

#[test]
fn data_above_the_fence_is_synced_under_a_fence_above_it() {
    let mut world = World::taken_over(&row_of(2, &[new_entry(1)]));
    let io = read(&world.calls(acquire(1)));
    let effects = world.saw(io, Some(datum("x", GRANT + 50)));
    let (_, new) = swap(&effects);
    assert_eq!(new.fence, Fence(GRANT + 51));
    let effects = world.applied();
    let io = read(&effects);
    let effects = world.saw(io, Some(datum("x", GRANT + 50)));
    assert_eq!(write(&effects).1, datum("x", GRANT + 51));
}

#[test]
fn a_call_of_the_holder_waits_for_the_sync() {
    let mut world = World::taken_over(&row_of(2, &[new_entry(1)]));
    let effects = world.calls(put(held(1, GRANT), "y"));
    let io = read(&effects);
    let effects = world.saw(io, None);
    let (io, rewrite) = write(&effects);
    assert_eq!((rewrite.value, rewrite.timestamp), (None, GRANT));
    let effects = world.wrote(io);
    assert_eq!(write(&effects).1, datum("y", GRANT + 1));
}

#[test]
fn while_the_clock_is_wrong_the_next_one_waits_and_is_granted_afterwards() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    world.clock_is_wrong = true;
    world.calls(release(held(1, NOW_US)));
    let effects = world.applied();
    assert_eq!(grant_told(&effects), None);
    let effects = world.calls(acquire(2));
    assert_eq!(errors(&effects), [KeyError::ClockIsWrong.into()]);
    world.clock_is_wrong = false;
    let effects = world.calls(acquire(2));
    assert_eq!(swap(&effects).1.grant, Fence(NOW_US + 4));
    let effects = world.applied();
    assert_eq!(grant_told(&effects), Some(NOW_US + 4));
}

#[test]
fn whoever_waits_for_a_sync_that_gets_no_fence_fails_and_keeps_its_entry_alive_no_longer() {
    let mut world = World::taken_over(&row_of(2, &[new_entry(1)]));
    let io = read(&world.calls(acquire(1)));
    world.calls(Call::Watch { entry: entry(1) });
    world.limits.core.ahead_us_max = Some(0);
    let effects = world.saw(io, Some(datum("x", GRANT + 50)));
    assert!(matches!(errors(&effects)[0].why, KeyError::Fence(_)));
    // Not at once again for the watcher's sake.
    let of = PauseOf::Sync(Fence(GRANT));
    assert!(effects.contains(&Effect::Pause { of, tries: 0 }));
    assert!(!effects.iter().any(|e| matches!(e, Effect::ReadData { .. })));
}

#[test]
fn an_entry_whose_sync_got_no_fence_expires() {
    let mut world = World::taken_over(&row_of(2, &[new_entry(1)]));
    let io = read(&world.calls(acquire(1)));
    world.limits.core.ahead_us_max = Some(0);
    world.saw(io, Some(datum("x", GRANT + 50)));
    world.pass(TTL);
    assert!(swap(&world.on(Event::Due)).1.entries.is_empty());
}

#[test]
fn held_is_answered_though_more_timestamps_are_asked_for_meanwhile() {
    let mut world = World::serving(&[new_entry(1)]);
    world.limits.known_value_bytes_max = 0;
    world.use_up_timestamps();
    let (call, effects) = world.call(acquire_with_value(1));
    let io = read(&effects);
    swap(&world.calls(put(held(1, NOW_US), "d")));
    assert_eq!(answers(&world.saw(io, Some(datum("c", NOW_US + 3)))), []);
    let effects = world.applied();
    let (io, written) = write(&effects);
    let io = read(&world.wrote(io));
    let effects = world.saw(io, Some(written));
    assert_eq!(answers(&effects)[0].0, call);
    assert_eq!(grant_told(&effects), Some(NOW_US));
}

#[test]
fn a_foreign_timestamp_that_one_holder_met_the_next_one_writes_above() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    let io = read(&world.calls(get(held(1, NOW_US))));
    world.saw(io, Some(datum("foreign", NOW_US + 500)));
    world.calls(release(held(1, NOW_US)));
    world.applied();
    let effects = world.calls(put(held(2, NOW_US + 4), "x"));
    assert_eq!(swap(&effects).1.fence, Fence(NOW_US + 501));
}

#[test]
fn a_remembered_value_is_a_copy_that_keeps_nothing_else_in_memory() {
    let mut world = World::serving(&[new_entry(1)]);
    let request = Bytes::from(vec![b'x'; 1_000]);
    let (io, _) = write(&world.calls(Call::Put {
        entry: held(1, NOW_US),
        call_no: 0,
        value: Mutation::Put(request.slice(10..20)),
    }));
    world.wrote(io);
    let known = world.machine.known_value().flatten().unwrap();
    let value = known.value.clone().unwrap();
    assert_eq!(value, request.slice(10..20));
    assert!(!request.as_ptr_range().contains(&value.as_ptr()));
}
