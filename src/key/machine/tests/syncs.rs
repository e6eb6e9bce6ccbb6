//! From a grant to HELD (I7).

use super::*;

/// The home of a key that was taken over from another one: its holder must be synced.
fn taken_over() -> World {
    let mut world = World::new();
    world.calls(Call::TakeOver { from: replica(2) });
    world.on(loaded(&row_of(2, &[new_entry(1)])));
    world.on(Event::Swapped(SwapOutcome::Applied));
    world
}

const GRANT: u64 = NOW_US + 4;

#[test]
fn a_holder_is_synced_by_one_read_and_one_write_once_somebody_asks() {
    let mut world = taken_over();
    let effects = world.calls(acquire(1));
    let io = read(&effects);
    let cell = Ok(Some(datum("x", NOW_US + 1)));
    let effects = world.on(Event::DataRead { io, cell });
    let (io, rewrite) = write(&effects);
    assert_eq!(rewrite, datum("x", GRANT));
    assert_eq!(grant_told(&effects), None);
    let outcome = WriteOutcome::Done;
    let effects = world.on(Event::DataWritten { io, outcome });
    assert_eq!(grant_told(&effects), Some(GRANT));
    let effects = world.calls(release(held(1, GRANT)));
    assert!(!swap(&effects).1.unsynced);
}

#[test]
fn a_fence_is_synced_from_one_read_however_often_it_is_written() {
    let mut world = taken_over();
    let io = read(&world.calls(acquire(1)));
    let cell = Ok(Some(datum("x", 7)));
    let effects = world.on(Event::DataRead { io, cell });
    let (io, first) = write(&effects);
    let outcome = WriteOutcome::Unknown("late".into());
    let effects = world.on(Event::DataWritten { io, outcome });
    assert_eq!(errors(&effects).len(), 1);
    let of = PauseOf::Sync(Fence(GRANT));
    assert!(effects.contains(&Effect::Pause { of, tries: 0 }));
    let effects = world.on(Event::Resume(of));
    let (_, second) = write(&effects);
    assert_eq!(first, second);
}

#[test]
fn a_sync_that_pauses_writes_nothing_once_the_key_may_be_given_away() {
    let mut world = taken_over();
    let io = read(&world.calls(acquire(1)));
    let cell = Ok(Some(datum("x", 7)));
    let (io, _) = write(&world.on(Event::DataRead { io, cell }));
    let outcome = WriteOutcome::Unknown("late".into());
    world.on(Event::DataWritten { io, outcome });
    let (_, row) = swap(&world.calls(Call::HandOver {
        to: replica(3),
        if_idle: false,
    }));
    assert!(row.unsynced);
    let of = PauseOf::Sync(Fence(GRANT));
    let effects = world.on(Event::Resume(of));
    assert_eq!(effects, [Effect::Pause { of, tries: 1 }]);
}

#[test]
fn a_sync_whose_read_failed_reads_again() {
    let mut world = taken_over();
    let io = read(&world.calls(acquire(1)));
    let cell = Err("down".into());
    let effects = world.on(Event::DataRead { io, cell });
    assert_eq!(errors(&effects).len(), 1);
    world.calls(acquire(1));
    let effects = world.on(Event::Resume(PauseOf::Sync(Fence(GRANT))));
    read(&effects);
}

#[test]
fn data_above_the_fence_is_synced_under_a_fence_above_it() {
    let mut world = taken_over();
    let io = read(&world.calls(acquire(1)));
    let cell = Ok(Some(datum("x", GRANT + 50)));
    let effects = world.on(Event::DataRead { io, cell });
    let (_, new) = swap(&effects);
    assert_eq!(new.fence, Fence(GRANT + 51));
    let effects = world.on(Event::Swapped(SwapOutcome::Applied));
    let io = read(&effects);
    let cell = Ok(Some(datum("x", GRANT + 50)));
    let effects = world.on(Event::DataRead { io, cell });
    assert_eq!(write(&effects).1, datum("x", GRANT + 51));
}

#[test]
fn a_call_of_the_holder_waits_for_the_sync() {
    let mut world = taken_over();
    let effects = world.calls(put(held(1, GRANT), "y"));
    let io = read(&effects);
    let cell = Ok(None);
    let effects = world.on(Event::DataRead { io, cell });
    let (io, rewrite) = write(&effects);
    assert_eq!((rewrite.value, rewrite.timestamp), (None, GRANT));
    let outcome = WriteOutcome::Done;
    let effects = world.on(Event::DataWritten { io, outcome });
    assert_eq!(write(&effects).1, datum("y", GRANT + 1));
}

#[test]
fn while_the_clock_is_wrong_the_next_one_waits_and_is_granted_afterwards() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    world.clock_is_wrong = true;
    world.calls(release(held(1, NOW_US)));
    let effects = world.on(Event::Swapped(SwapOutcome::Applied));
    assert_eq!(grant_told(&effects), None);
    let effects = world.calls(acquire(2));
    assert_eq!(errors(&effects), [KeyError::ClockIsWrong.into()]);
    world.clock_is_wrong = false;
    let effects = world.calls(acquire(2));
    assert_eq!(swap(&effects).1.grant, Fence(NOW_US + 4));
    let effects = world.on(Event::Swapped(SwapOutcome::Applied));
    assert_eq!(grant_told(&effects), Some(NOW_US + 4));
}

#[test]
fn whoever_waits_for_a_sync_that_gets_no_fence_fails_and_keeps_its_entry_alive_no_longer() {
    let mut world = taken_over();
    let io = read(&world.calls(acquire(1)));
    world.calls(Call::Watch { entry: entry(1) });
    world.limits.core.ahead_us_max = Some(0);
    let cell = Ok(Some(datum("x", GRANT + 50)));
    let effects = world.on(Event::DataRead { io, cell });
    assert!(matches!(errors(&effects)[0].why, KeyError::Fence(_)));
    // Not at once again for the watcher's sake.
    let of = PauseOf::Sync(Fence(GRANT));
    assert!(effects.contains(&Effect::Pause { of, tries: 0 }));
    assert!(!effects.iter().any(|e| matches!(e, Effect::ReadData { .. })));
}

#[test]
fn an_entry_whose_sync_got_no_fence_expires() {
    let mut world = taken_over();
    let io = read(&world.calls(acquire(1)));
    world.limits.core.ahead_us_max = Some(0);
    let cell = Ok(Some(datum("x", GRANT + 50)));
    world.on(Event::DataRead { io, cell });
    world.pass(TTL);
    assert!(swap(&world.on(Event::Due)).1.entries.is_empty());
}

#[test]
fn held_is_answered_though_more_timestamps_are_asked_for_meanwhile() {
    let mut world = World::serving(&[new_entry(1)]);
    world.limits.known_value_bytes_max = 0;
    for text in ["a", "b", "c"] {
        let (io, _) = write(&world.calls(put(held(1, NOW_US), text)));
        let outcome = WriteOutcome::Done;
        world.on(Event::DataWritten { io, outcome });
    }
    let (call, effects) = world.call(Call::Acquire {
        entry: entry(1),
        wait: true,
        read_value: true,
    });
    let io = read(&effects);
    swap(&world.calls(put(held(1, NOW_US), "d")));
    let cell = Ok(Some(datum("c", NOW_US + 3)));
    assert_eq!(answers(&world.on(Event::DataRead { io, cell })), []);
    let effects = world.on(Event::Swapped(SwapOutcome::Applied));
    let (io, written) = write(&effects);
    let outcome = WriteOutcome::Done;
    let io = read(&world.on(Event::DataWritten { io, outcome }));
    let cell = Ok(Some(written));
    let effects = world.on(Event::DataRead { io, cell });
    assert_eq!(answers(&effects)[0].0, call);
    assert_eq!(grant_told(&effects), Some(NOW_US));
}

#[test]
fn a_foreign_timestamp_that_one_holder_met_the_next_one_writes_above() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    let io = read(&world.calls(Call::Get {
        entry: held(1, NOW_US),
        call_no: 0,
    }));
    let cell = Ok(Some(datum("foreign", NOW_US + 500)));
    world.on(Event::DataRead { io, cell });
    world.calls(release(held(1, NOW_US)));
    world.on(Event::Swapped(SwapOutcome::Applied));
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
    let outcome = WriteOutcome::Done;
    world.on(Event::DataWritten { io, outcome });
    let known = world.machine.known_value().flatten().unwrap();
    let value = known.value.clone().unwrap();
    assert_eq!(value, request.slice(10..20));
    assert!(!request.as_ptr_range().contains(&value.as_ptr()));
}
