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
    let (session, ttl) = (SessionId(Uuid::from_u128(1)), TTL);
    world.on(Event::SessionTtl { session, ttl });
    let effects = world.calls(Call::Put {
        entry: holder,
        call_no: 7,
        value: value("v"),
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

/// A holder that is durable: what lies ahead of the row is not in the row.
#[test]
fn a_row_that_is_not_as_the_state_is_stays_so() {
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
    world.pass(world.commit.keep_after);
    swap(&world.on(Event::Due));
    world.on(Event::Swapped(SwapOutcome::Applied));
    let row = Arc::clone(world.row());
    assert_ne!(row, *world.machine.state().unwrap());
    assert!(world.pack());
    assert_eq!(row, *world.row());
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
            "nobody was told",
            World::serving(&[of_session(1), of_session(2)]),
        ),
    ] {
        assert!(!world.pack(), "{what}");
    }
    assert_eq!(Machine::unpack(b"none of these"), None);
}
