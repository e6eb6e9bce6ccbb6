//! A machine to which nothing happens, in few bytes. (All other tests go on with what was packed, wherever that can be:
//! [`World::pack`].)

use super::*;
use crate::key::Reserve;
use crate::lock::{EndReason, EndedAs};

/// One that holds its key in a session, was told so, and has written and read.
fn used() -> World {
    let mut world = World::serving(&[of_session(1)]);
    let holder = held(1, NOW_US);
    world.calls(acquire(1));
    ttl_of_session(&mut world, 1);
    let effects = world.calls(Call::Put {
        entry: holder,
        call_no: 7,
        value: put_of("v"),
    });
    let (io, _) = write(&effects);
    let outcome = WriteOutcome::Done;
    world.on(Event::DataWritten { io, outcome });
    world.machine.forget_value();
    world
}

#[test]
fn a_lock_that_is_held_and_not_used_takes_few_bytes() {
    let mut world = used();
    assert!(world.pack());
    let bytes = world.machine.pack().unwrap().len();
    assert!((60..160).contains(&bytes), "{bytes}");
}

#[test]
fn a_key_that_nobody_locks_takes_few_bytes() {
    let mut world = used();
    world.calls(release(held(1, NOW_US)));
    world.on(Event::Swapped(SwapOutcome::Applied));
    world.pass(Duration::from_secs(60));
    let now = world.observer.observe(world.at);
    world.machine.forget_past(now, Duration::from_secs(1));
    assert!(world.pack());
    let bytes = world.machine.pack().unwrap().len();
    assert!((30..160).contains(&bytes), "{bytes}");
    // It is the home still: the next lock takes one swap.
    let (old, new) = swap(&world.calls(create(of_session(2))));
    assert_eq!((old.home, new.entries.len()), (new.home, 1));
}

#[test]
fn what_its_holder_did_before_counts_after() {
    let mut world = used();
    assert!(world.pack());
    // An earlier call of the holder comes late.
    let late = Call::Get {
        entry: held(1, NOW_US),
        call_no: 6,
    };
    assert_eq!(errors(&world.calls(late)).len(), 1);
    assert!(world.pack());
    // The next write is above the one before.
    let (_, datum) = write(&world.calls(put(held(1, NOW_US), "w")));
    assert_eq!(datum.timestamp, NOW_US + 2);
    assert!(!world.pack(), "a write is in flight");
}

#[test]
fn who_comes_next_waits_and_is_granted_the_key() {
    let mut world = used();
    assert!(world.pack());
    world.calls(create(of_session(2)));
    assert!(!world.pack(), "somebody waits");
    world.on(Event::Swapped(SwapOutcome::Applied));
    world.calls(acquire(2));
    world.calls(release(held(1, NOW_US)));
    let effects = world.on(Event::Swapped(SwapOutcome::Applied));
    assert_eq!(grant_told(&effects), Some(NOW_US + 4));
}

#[test]
fn the_end_of_its_session_ends_it() {
    let mut world = used();
    assert!(world.pack());
    let session = SessionId(Uuid::from_u128(1));
    let effects = world.on(Event::SessionEnded(session));
    let (_, row) = swap(&effects);
    assert!(row.entries.is_empty());
    let end = row.end_of(Seq(1));
    assert_eq!(end, EndedAs::Lost(EndReason::SessionClosed));
}

/// One with a durable holder, and with a row that lies behind.
fn writing_back() -> World {
    let mut world = World::new();
    world.commit.mode = CommitMode::WriteBack(Reserve {
        seqs: 100,
        fence_us: 1_000,
        fence_us_if_far: 10,
        far_us: 10_000,
    });
    world.calls(create(of_session(1)));
    world.on(Event::Loaded(Ok(no_row())));
    world.on(Event::Swapped(SwapOutcome::Applied));
    commit_later(&mut world);
    world
}

fn commit_later(world: &mut World) {
    world.pass(world.commit.keep_after);
    swap(&world.on(Event::Due));
    world.on(Event::Swapped(SwapOutcome::Applied));
}

#[test]
fn a_row_that_is_not_as_the_state_is_stays_so() {
    let mut world = writing_back();
    let row = Arc::clone(world.row());
    assert_ne!(row, *world.machine.state().unwrap());
    assert!(world.pack());
    assert_eq!(row, *world.row());
}

/// Whoever looks over all keys takes what is packed for durable.
#[test]
fn a_holder_that_memory_alone_knows_is_not_packed() {
    let mut world = writing_back();
    world.calls(create(of_session(2)));
    commit_later(&mut world);
    world.calls(release(held(1, NOW_US)));
    world.on(Event::Swapped(SwapOutcome::Applied));
    world.pass(TTL / 2);
    let now = world.observer.observe(world.at);
    world.machine.forget_past(now, world.commit.keep_after);
    assert!(grant_told(&world.calls(acquire(2))).is_some());
    assert!(world.machine.has_volatile() && !world.pack());
    commit_later(&mut world);
    assert!(!world.machine.has_volatile() && world.pack());
}

fn ttl_of_session(world: &mut World, n: u128) {
    let (session, ttl) = (SessionId(Uuid::from_u128(n)), TTL);
    world.on(Event::SessionTtl { session, ttl });
}

/// The home of this row went, and nobody asked for the key since.
fn taken_over(row: &Arc<KeyState>) -> World {
    let mut world = World::new();
    world.calls(Call::TakeOver { from: replica(2) });
    swap(&world.on(loaded(row)));
    world.on(Event::Swapped(SwapOutcome::Applied));
    world
}

/// The sync of the holder, once it asks; whether it was told then that it holds the key.
fn synced(world: &mut World, n: u64) -> bool {
    let io = read(&world.calls(acquire(n)));
    let (io, _) = write(&world.on(Event::DataRead { io, cell: Ok(None) }));
    let outcome = WriteOutcome::Done;
    let effects = world.on(Event::DataWritten { io, outcome });
    world.machine.forget_value();
    grant_told(&effects).is_some()
}

#[test]
fn one_that_was_taken_over_and_not_asked_for_since_is_packed() {
    let mut world = taken_over(&row_of(2, &[of_session(1)]));
    ttl_of_session(&mut world, 1);
    assert!(world.row().unsynced && world.pack());
    // It lives by its session alone (I8).
    assert_eq!(world.machine.due(world.commit), None);
    // Also after a sync that failed.
    let io = read(&world.calls(acquire(1)));
    let cell = Err("down".into());
    world.on(Event::DataRead { io, cell });
    assert!(!world.pack(), "the sync goes on in a moment");
    let grant = world.row().grant;
    world.on(Event::Resume(PauseOf::Sync(grant)));
    assert!(world.pack());
    assert!(synced(&mut world, 1) && world.pack());
}

#[test]
fn one_that_was_handed_over_and_not_asked_for_since_is_packed() {
    let mut other = World::serving_at(2, &[of_session(1)]);
    let (_, row) = swap(&other.calls(Call::HandOver {
        to: replica(1),
        if_idle: false,
    }));
    let mut world = World::new();
    world.calls(Call::Adopt { term: row.term() });
    world.on(loaded(&row));
    ttl_of_session(&mut world, 1);
    assert!(world.machine.has_inherited_holder() && world.pack());
    world.calls(acquire(1));
    assert!(!world.machine.has_inherited_holder() && world.pack());
}

#[test]
fn one_before_which_others_ended_is_packed_with_their_ends() {
    let forced = EndReason::Forced {
        by: "op".into(),
        why: "stuck".into(),
    };
    type End = fn(&mut World);
    let ends: [(NewEntry, EndReason, End); 4] = [
        (of_session(1), EndReason::SessionClosed, |world| {
            let session = SessionId(Uuid::from_u128(1));
            world.on(Event::SessionEnded(session));
        }),
        (new_entry(1), EndReason::Expired, |world| {
            world.pass(TTL);
            world.on(Event::Due);
        }),
        (of_session(1), EndReason::Unclaimed, |world| {
            let grant = Fence(NOW_US);
            world.on(Event::AnswerLost { grant });
            world.pass(TTL);
            world.on(Event::Due);
        }),
        (of_session(1), forced, |world| {
            world.calls(Call::Force {
                seq: Seq(1),
                by: "op".into(),
                why: "stuck".into(),
            });
        }),
    ];
    for (first, reason, end) in ends {
        let mut world = World::serving(&[first, of_session(2)]);
        end(&mut world);
        world.on(Event::Swapped(SwapOutcome::Applied));
        assert!(!world.pack(), "it is not claimed yet");
        assert!(synced(&mut world, 2));
        world.pass(TTL);
        let now = world.observer.observe(world.at);
        world.machine.forget_past(now, world.commit.keep_after);
        assert!(world.row().unsynced && world.pack(), "{reason:?}");
        let ended = world.machine.state().unwrap().end_of(Seq(1));
        assert_eq!(ended, EndedAs::Lost(reason));
    }
}

#[test]
fn what_cannot_be_packed_is_not() {
    for (what, mut world) in [
        ("nothing is known", World::new()),
        ("nobody holds it", {
            let mut world = used();
            world.calls(release(held(1, NOW_US)));
            world.on(Event::Swapped(SwapOutcome::Applied));
            world
        }),
        ("it has a lease of its own", {
            let mut world = World::serving(&[new_entry(1)]);
            world.calls(acquire(1));
            world
        }),
        (
            "it was taken over, and has a lease of its own",
            taken_over(&row_of(2, &[new_entry(1)])),
        ),
        (
            "nobody was told",
            World::serving(&[of_session(1), of_session(2)]),
        ),
    ] {
        assert!(!world.pack(), "{what}");
    }
    assert_eq!(Machine::unpack(b"none of these"), None);
}

#[test]
fn one_before_which_others_were_released_is_packed_with_their_requests() {
    let mut world = World::serving(&[of_session(1), of_session(2)]);
    world.calls(release(held(1, NOW_US)));
    world.on(Event::Swapped(SwapOutcome::Applied));
    world.calls(acquire(2));
    let now = world.observer.observe(world.at);
    world.machine.forget_past(now, Duration::ZERO);
    assert!(world.pack());
    let effects = world.calls(create(of_session(1)));
    let released = KeyError::Ended(EndedAs::Released);
    assert_eq!(errors(&effects), [released.into()]);
}
