//! Calls that are repeated, or come late, after their entry was released or has ended otherwise (I5).

use super::*;

const RELEASED: KeyError = KeyError::Ended(EndedAs::Released);

/// One whose holder released it, durably, with or without a put.
fn released(release: Call) -> World {
    let mut world = World::serving(&[new_entry(1)]);
    let effects = world.calls(release);
    let writes = |effect: &Effect| match effect {
        Effect::WriteData { io, .. } => Some(*io),
        _ => None,
    };
    if let Some(io) = effects.iter().find_map(writes) {
        world.wrote(io);
    }
    world.applied();
    world
}

#[test]
fn a_create_repeated_after_the_release_takes_no_second_entry_for_a_ttl() {
    let mut world = released(release(held(1, NOW_US)));
    // So does another one.
    world.calls(create(new_entry(2)));
    world.applied();
    world.calls(release(held(2, NOW_US + 4)));
    world.applied();
    world.pass(TTL - Duration::from_millis(1));
    let effects = world.calls(create(new_entry(1)));
    assert_eq!(errors(&effects), [RELEASED.into()]);
    assert!(!effects.iter().any(is_swap), "{effects:?}");
    world.pass(Duration::from_millis(1));
    let effects = world.calls(create(new_entry(1)));
    assert_eq!(swap(&effects).1.head(), Seq(3));
}

#[test]
fn a_create_repeated_during_the_release_is_told_of_it_once_that_is_durable() {
    let mut world = World::serving(&[new_entry(1)]);
    world.calls(release(held(1, NOW_US)));
    let (repeated, effects) = world.call(create(new_entry(1)));
    assert_eq!(answers(&effects), []);
    let effects = world.applied();
    assert!(answers(&effects).contains(&(repeated, Err(RELEASED.into()))));
}

#[test]
fn a_create_that_nobody_waited_for_any_more_is_none_that_was_released() {
    let mut world = World::serving(&[new_entry(1)]);
    world.calls(acquire(1));
    world.calls(create(new_entry(2)));
    // It waits for the commit of the one before.
    let (given_up, _) = world.call(create(new_entry(3)));
    world.on(Event::CallGone(given_up));
    world.applied();
    let effects = world.calls(create(new_entry(3)));
    assert!(swap(&effects).1.position(Seq(3)).is_some());
}

#[test]
fn a_create_repeated_after_its_entry_expired_or_was_ended_is_told_how() {
    for (is_forced, reason) in [(true, forced()), (false, EndReason::Expired)] {
        let mut world = World::serving(&[new_entry(1)]);
        match is_forced {
            true => world.calls(force(1)),
            false => {
                world.pass(TTL);
                world.on(Event::Due)
            }
        };
        world.applied();
        let row = Arc::clone(world.row());
        let ended = KeyError::Ended(EndedAs::Lost(reason));
        let effects = world.calls(create(new_entry(1)));
        assert_eq!(errors(&effects), [ended.clone().into()]);
        // The next home knows it from the row.
        let mut next = World::new();
        next.is_alone = true;
        next.call(create(new_entry(1)));
        let effects = next.on(loaded(&row));
        assert_eq!(errors(&effects), [ended.into()]);
    }
}

#[test]
fn who_asks_for_the_status_during_a_release_hears_of_it_once_it_is_durable() {
    let watch = |n| Call::Watch { entry: entry(n) };
    for ask in [renew(1), acquire(1), watch(1)] {
        let mut world = World::serving(&[new_entry(1)]);
        world.calls(release(held(1, NOW_US)));
        let (asked, effects) = world.call(ask);
        assert_eq!(answers(&effects), []);
        let effects = world.applied();
        assert!(answers(&effects).contains(&(asked, Err(RELEASED.into()))));
    }
}

#[test]
fn who_asks_for_the_status_during_the_last_put_learns_what_became_of_that() {
    for (outcome, is_held) in [
        (WriteOutcome::Done, false),
        (WriteOutcome::NotStarted("down".into()), true),
    ] {
        let mut world = World::serving(&[new_entry(1)]);
        let (io, _) = write(&world.calls(release_with(held(1, NOW_US), 1)));
        let (asked, effects) = world.call(acquire(1));
        assert_eq!(answers(&effects), []);
        let mut effects = world.on(Event::DataWritten { io, outcome });
        if !is_held {
            effects = world.applied();
        }
        assert_eq!(grant_told(&effects).is_some(), is_held, "{effects:?}");
        let told_released = answers(&effects).contains(&(asked, Err(RELEASED.into())));
        assert_eq!(told_released, !is_held, "{effects:?}");
    }
}

#[test]
fn a_put_that_comes_after_the_release_is_said_not_to_be_written() {
    let mut world = released(release(held(1, NOW_US)));
    let effects = world.calls(release_with(held(1, NOW_US), 1));
    assert_eq!(errors(&effects), [RELEASED.into()]);
    // A release without one only asks for what was done.
    let effects = world.calls(release(held(1, NOW_US)));
    let already = Ok(Answer::Released { already: true });
    assert_eq!(answers(&effects)[0].1, already);
}

#[test]
fn what_became_of_a_put_of_which_this_home_knows_nothing_is_not_told() {
    let unknown = || CallError {
        why: RELEASED,
        may_have_written: true,
    };
    // Another put was written.
    let mut world = released(release_with(held(1, NOW_US), 5));
    let effects = world.calls(release_with(held(1, NOW_US), 4));
    assert_eq!(errors(&effects), [unknown()]);
    // An earlier try was under another grant.
    let mut world = released(release(held(1, NOW_US)));
    let effects = world.calls(release_with(held(1, NOW_US - 1), 1));
    assert_eq!(errors(&effects), [unknown()]);
    // An earlier try was of unknown outcome.
    let mut world = World::serving(&[new_entry(1)]);
    let (io, _) = write(&world.calls(release_with(held(1, NOW_US), 1)));
    world.wrote_in_doubt(io);
    world.calls(release(held(1, NOW_US)));
    world.applied();
    let effects = world.calls(release_with(held(1, NOW_US), 1));
    assert_eq!(errors(&effects), [unknown()]);
    // It was released at the home before.
    let row = Arc::clone(released(release(held(1, NOW_US))).row());
    let mut next = World::new();
    next.is_alone = true;
    next.call(release_with(held(1, NOW_US), 1));
    let effects = next.on(loaded(&row));
    assert_eq!(errors(&effects), []);
    let effects = next.applied();
    assert_eq!(errors(&effects), [unknown()]);
}
