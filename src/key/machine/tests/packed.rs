//! A machine to which nothing happens, in few bytes. (All other tests go on with what was packed, wherever that can be:
//! [`World::pack`].)

use super::write_back::kept;
use super::*;

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
    world.wrote(io);
    world.machine.forget_value();
    world
}

#[test]
fn a_lock_that_is_held_and_not_used_takes_few_bytes() {
    let mut world = used();
    // Of a session without an entry here nothing is kept.
    ttl_of_session(&mut world, 9);
    assert!(world.pack());
    let bytes = world.machine.pack().unwrap().len();
    assert!((60..160).contains(&bytes), "{bytes}");
}

#[test]
fn a_key_that_nobody_locks_takes_few_bytes() {
    let mut world = used();
    world.calls(release(held(1, NOW_US)));
    world.applied();
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
fn a_foreign_timestamp_that_its_holder_met_counts_after() {
    let mut world = used();
    let (io, _) = write(&world.calls(put(held(1, NOW_US), "w")));
    world.wrote(io);
    world.machine.forget_value();
    let io = read(&world.calls(get(held(1, NOW_US))));
    world.saw(io, Some(datum("foreign", NOW_US + 50)));
    world.machine.forget_value();
    assert!(world.pack());
    let effects = world.calls(put(held(1, NOW_US), "x"));
    assert_eq!(swap(&effects).1.fence, Fence(NOW_US + 51));
}

#[test]
fn a_row_that_is_not_as_the_state_is_stays_so() {
    let mut world = kept(1);
    let row = Arc::clone(world.row());
    assert_ne!(row, *world.machine.state().unwrap());
    assert!(world.pack());
    assert_eq!(row, *world.row());
}

/// Whoever looks over all keys takes what is packed for durable.
#[test]
fn a_holder_that_memory_alone_knows_is_not_packed() {
    let mut world = kept(1);
    world.calls(create(of_session(2)));
    world.commit_later();
    world.calls(release(held(1, NOW_US)));
    world.applied();
    world.pass(TTL / 2);
    let now = world.observer.observe(world.at);
    world.machine.forget_past(now, world.commit.keep_after);
    assert!(grant_told(&world.calls(acquire(2))).is_some());
    assert!(world.machine.has_volatile() && !world.pack());
    world.commit_later();
    assert!(!world.machine.has_volatile() && world.pack());
}

fn ttl_of_session(world: &mut World, n: u128) {
    let (session, ttl) = (SessionId(Uuid::from_u128(n)), TTL);
    world.on(Event::SessionTtl { session, ttl });
}

/// The sync of the holder, once it asks; whether it was told then that it holds the key.
fn synced(world: &mut World, n: u64) -> bool {
    let io = read(&world.calls(acquire(n)));
    let (io, _) = write(&world.saw(io, None));
    let effects = world.wrote(io);
    world.machine.forget_value();
    grant_told(&effects).is_some()
}

#[test]
fn one_that_was_taken_over_and_not_asked_for_since_is_packed() {
    let mut world = World::taken_over(&row_of(2, &[of_session(1)]));
    ttl_of_session(&mut world, 1);
    assert!(world.row().unsynced && world.pack());
    // It lives by its session alone (I8).
    assert_eq!(world.machine.due(world.commit), None);
    // Also after a sync that failed.
    let io = read(&world.calls(acquire(1)));
    world.read_failed(io);
    assert!(!world.pack(), "the sync goes on in a moment");
    let grant = world.row().grant;
    world.on(Event::Resume(PauseOf::Sync(grant)));
    assert!(world.pack());
    assert!(synced(&mut world, 1) && world.pack());
}

#[test]
fn one_that_was_handed_over_and_not_asked_for_since_is_packed() {
    let mut other = World::serving_at(2, &[of_session(1)]);
    let (_, row) = swap(&other.calls(hand_over(1)));
    let mut world = World::new();
    world.adopts(&row);
    ttl_of_session(&mut world, 1);
    assert!(world.machine.has_inherited_holder() && world.pack());
    world.calls(acquire(1));
    assert!(!world.machine.has_inherited_holder() && world.pack());
}

#[test]
fn one_before_which_others_ended_is_packed_with_their_ends() {
    let forced = forced();
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
            world.answer_lost();
            world.pass(TTL);
            world.on(Event::Due);
        }),
        (of_session(1), forced, |world| {
            world.calls(force(1));
        }),
    ];
    for (first, reason, end) in ends {
        let mut world = World::serving(&[first, of_session(2)]);
        end(&mut world);
        world.applied();
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
            world.applied();
            world
        }),
        ("it has a lease of its own", {
            let mut world = World::serving(&[new_entry(1)]);
            world.calls(acquire(1));
            world
        }),
        (
            "it was taken over, and has a lease of its own",
            World::taken_over(&row_of(2, &[new_entry(1)])),
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
    world.applied();
    world.calls(acquire(2));
    let now = world.observer.observe(world.at);
    world.machine.forget_past(now, Duration::ZERO);
    assert!(world.pack());
    let effects = world.calls(create(of_session(1)));
    let released = KeyError::Ended(EndedAs::Released);
    assert_eq!(errors(&effects), [released.into()]);
}
