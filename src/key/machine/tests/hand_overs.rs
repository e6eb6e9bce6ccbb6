//! Giving the key away (H4): what comes in meanwhile, and outcomes that are not known.

use super::*;

fn hand_over() -> Call {
    Call::HandOver {
        to: replica(2),
        if_idle: false,
    }
}

#[test]
fn a_wait_that_has_ended_while_the_key_is_given_away_promises_nothing() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    let (wait, _) = world.call(acquire(2));
    swap(&world.calls(hand_over()));
    let effects = world.on(Event::WaitEnded(wait));
    assert_eq!(
        answers(&effects),
        [(wait, Err(KeyError::ChangingHome.into()))]
    );
}

#[test]
fn a_hand_over_in_doubt_is_sent_again_as_it_was_though_no_fence_can_be_taken() {
    let mut world = World::serving(&[new_entry(1)]);
    let (old, new) = swap(&world.calls(hand_over()));
    world.on(Event::Swapped(SwapOutcome::Unknown("late".into())));
    world.clock_is_wrong = true;
    world.on(Event::Resume(PauseOf::Row));
    let effects = world.on(loaded(&old));
    assert_eq!((answers(&effects), swap(&effects)), (vec![], (old, new)));
}

#[test]
fn a_key_that_follows_its_users_to_its_home_stays_there() {
    let mut world = World::serving(&[new_entry(1)]);
    let (call, effects) = world.call(Call::HandOver {
        to: replica(1),
        if_idle: true,
    });
    let home = home(1, 1);
    assert_eq!(
        effects,
        [Effect::Answer {
            call,
            answer: Ok(Answer::HandedOver(home))
        }]
    );
    assert!(world.calls(create(new_entry(2))).iter().any(is_swap));
}

#[test]
fn who_asked_for_a_hand_over_is_answered_though_another_replica_has_the_key() {
    let mut world = World::serving(&[new_entry(1)]);
    world.calls(create(new_entry(2)));
    let (call, effects) = world.call(hand_over());
    assert_eq!(effects, []);
    let row = row_of(3, &[new_entry(1)]);
    let effects = world.on(Event::Swapped(SwapOutcome::Conflict(row)));
    let elsewhere = Err(KeyError::Elsewhere(home(3, 1)).into());
    assert!(
        answers(&effects).contains(&(call, elsewhere)),
        "{effects:?}"
    );
}

#[test]
fn a_commit_in_doubt_that_applied_before_the_hand_over_goes_with_the_key() {
    let mut world = World::serving(&[new_entry(1)]);
    world.calls(release(held(1, NOW_US)));
    world.on(Event::Swapped(SwapOutcome::Applied));
    let (old, created) = swap(&world.calls(create(new_entry(2))));
    world.on(Event::Swapped(SwapOutcome::Unknown("late".into())));
    world.on(Event::Resume(PauseOf::Row));
    assert_eq!(swap(&world.on(loaded(&old))), (old, Arc::clone(&created)));
    assert_eq!(world.calls(hand_over()), []);
    let effects = world.on(Event::Swapped(SwapOutcome::Conflict(Arc::clone(&created))));
    let (from, to) = swap(&effects);
    assert_eq!((from, to.entries.len()), (created, 1));
}

/// A row that comes from replica 2 with two entries, of which the first was not heard of under its grant and has none.
fn ungranted() -> (Fence, Arc<KeyState>) {
    let mut other = World::serving_at(2, &[of_session(1), of_session(2)]);
    let grant = Fence(NOW_US);
    other.on(Event::AnswerLost { grant });
    let (_, row) = swap(&other.calls(Call::HandOver {
        to: replica(1),
        if_idle: false,
    }));
    (grant, row)
}

#[test]
fn a_first_entry_that_came_ungranted_is_granted_though_nobody_asks_for_it() {
    let (grant, row) = ungranted();
    assert_eq!(row.grant, Fence::NONE);
    let mut world = World::new();
    world.calls(Call::Adopt { term: 2 });
    let effects = world.on(loaded(&row));
    assert!(swap(&effects).1.grant > grant);
    world.on(Event::Swapped(SwapOutcome::Applied));
    world.pass(TTL);
    assert_eq!(swap(&world.on(Event::Due)).1.head(), Seq(2));
}

/// Its client may have left it long ago, and those behind it wait.
#[test]
fn a_first_entry_that_could_not_be_granted_is_granted_seconds_after_it_can_be() {
    let (grant, row) = ungranted();
    let mut world = World::new();
    world.clock_is_wrong = true;
    world.calls(Call::Adopt { term: 2 });
    assert!(!world.on(loaded(&row)).iter().any(is_swap));
    world.clock_is_wrong = false;
    world.pass(Duration::from_secs(5));
    assert!(swap(&world.on(Event::Due)).1.grant > grant);
}

#[test]
fn a_holder_whose_grant_was_named_goes_with_its_open_writes() {
    let mut world = World::serving(&[of_session(1)]);
    let (io, _) = write(&world.calls(put(held(1, NOW_US), "x")));
    let outcome = WriteOutcome::Unknown("late".into());
    world.on(Event::DataWritten { io, outcome });
    let grant = Fence(NOW_US);
    world.on(Event::AnswerLost { grant });
    assert!(swap(&world.calls(hand_over())).1.unsynced);
}

#[test]
fn a_holder_that_is_not_heard_of_has_what_was_left_of_its_lease_at_the_home_after_the_next() {
    let adopted = |n, row: &Arc<KeyState>| {
        let mut world = World::new();
        world.replica = replica(n);
        world.pass(TTL * 2);
        world.calls(Call::Adopt { term: row.term() });
        world.on(loaded(row));
        world
    };
    let left = |world: &mut World| {
        let now = world.observer.observe(world.at);
        world.machine.lease_left(Seq(1), now).unwrap().1
    };
    let mut first = World::serving(&[new_entry(1)]);
    first.pass(TTL / 2);
    let (_, row) = swap(&first.calls(hand_over()));
    let mut next = adopted(2, &row);
    assert_eq!(left(&mut next), TTL, "the first one heard of it");
    next.pass(TTL - Duration::from_millis(700));
    let (_, row) = swap(&next.calls(Call::HandOver {
        to: replica(3),
        if_idle: false,
    }));
    let mut last = adopted(3, &row);
    assert_eq!(left(&mut last), Duration::from_millis(700));
    // Its client comes.
    last.calls(Call::Renew { entry: entry(1) });
    assert_eq!(left(&mut last), TTL);
    let (_, row) = swap(&last.calls(hand_over()));
    assert_eq!(row.first_left_ms, 0);
}

/// A key that two replicas take from each other again and again, with a first entry whose client is gone.
#[test]
fn a_first_entry_that_nobody_hears_of_ends_however_often_its_key_is_handed_over() {
    for liveness in [new_entry(1), of_session(1)] {
        let is_own = matches!(liveness.liveness, Liveness::Own { .. });
        let mut world = World::serving(&[liveness, new_entry(2)]);
        let grant = Fence(NOW_US);
        world.on(Event::AnswerLost { grant });
        let mut spent = Duration::ZERO;
        let mut homes = [2, 1].into_iter().cycle();
        loop {
            assert!(spent <= TTL * 3, "it goes on for ever");
            let (to, step) = (homes.next().unwrap(), TTL / 5);
            let (_, row) = swap(&world.calls(Call::HandOver {
                to: replica(to),
                if_idle: false,
            }));
            world = World::new();
            world.replica = replica(to);
            world.pass(TTL * 2);
            world.calls(Call::Adopt { term: row.term() });
            let mut effects = world.on(loaded(&row));
            // It is granted the key again, and does not come.
            while effects.iter().any(is_swap) {
                effects = world.on(Event::Swapped(SwapOutcome::Applied));
            }
            if !is_own {
                let (session, ttl) = (SessionId(Uuid::from_u128(1)), TTL);
                world.on(Event::SessionTtl { session, ttl });
            }
            world.pass(step);
            spent += step;
            let evicted = |state: &KeyState| state.position(Seq(1)).is_none();
            if world.on(Event::Due).iter().any(|effect| match effect {
                Effect::Swap { new, .. } => evicted(new),
                _ => false,
            }) {
                break;
            }
        }
    }
}

#[test]
fn who_asks_while_the_key_is_given_away_does_not_expire() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    let (io, _) = write(&world.calls(put(held(1, NOW_US), "x")));
    world.calls(hand_over());
    for _ in 0..3 {
        world.pass(TTL / 10 * 9);
        for n in [1, 2] {
            assert_eq!(world.calls(Call::Renew { entry: entry(n) }), []);
        }
        assert_eq!(world.on(Event::Due), []);
    }
    // One that waits need not ask again.
    assert_eq!(world.calls(acquire(1)), []);
    assert_eq!(world.calls(acquire(2)), []);
    for _ in 0..3 {
        world.pass(TTL / 10 * 9);
        assert_eq!(world.on(Event::Due), []);
    }
    let outcome = WriteOutcome::Done;
    let effects = world.on(Event::DataWritten { io, outcome });
    assert_eq!(swap(&effects).1.entries.len(), 2);
}

#[test]
fn a_key_that_is_to_move_while_it_is_idle_stays_while_anybody_locks_it() {
    let mut world = World::serving(&[new_entry(1)]);
    let follow = || Call::HandOver {
        to: replica(2),
        if_idle: true,
    };
    let (call, effects) = world.call(follow());
    let here = Ok(Answer::HandedOver(home(1, 1)));
    assert_eq!(answers(&effects), [(call, here)]);
    assert!(!effects.iter().any(is_swap));
    world.calls(release(held(1, NOW_US)));
    world.on(Event::Swapped(SwapOutcome::Applied));
    world.pass(Duration::from_secs(2));
    if world.on(Event::Due).iter().any(is_swap) {
        world.on(Event::Swapped(SwapOutcome::Applied));
    }
    let (_, new) = swap(&world.calls(follow()));
    assert_eq!(new.home, Some(home(2, 2)));
}
