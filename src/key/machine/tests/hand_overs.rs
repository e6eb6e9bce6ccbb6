//! Giving the key away (H4): what comes in meanwhile, and outcomes that are not known.

use super::*;

#[test]
fn a_wait_that_has_ended_while_the_key_is_given_away_promises_nothing() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    let (wait, _) = world.call(acquire(2));
    swap(&world.calls(hand_over(2)));
    let effects = world.on(Event::WaitEnded(wait));
    assert_eq!(
        answers(&effects),
        [(wait, Err(KeyError::ChangingHome.into()))]
    );
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
    let (call, effects) = world.call(hand_over(2));
    assert_eq!(effects, []);
    let row = row_of(3, &[new_entry(1)]);
    let effects = world.conflict(&row);
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
    world.applied();
    let (old, created) = swap(&world.calls(create(new_entry(2))));
    world.swapped_in_doubt();
    world.resume_row();
    assert_eq!(swap(&world.on(loaded(&old))), (old, Arc::clone(&created)));
    assert_eq!(world.calls(hand_over(2)), []);
    let effects = world.conflict(&created);
    let (from, to) = swap(&effects);
    assert_eq!((from, to.entries.len()), (created, 1));
}

#[test]
fn a_hand_over_that_was_not_begun_goes_on() {
    let mut world = World::serving(&[of_session(1)]);
    let (call, _) = world.call(hand_over(2));
    let effects = world.not_started();
    // It may have ended unnoticed.
    let session = SessionId(Uuid::from_u128(1));
    let seq = Seq(1);
    assert!(effects.contains(&Effect::Attach { session, seq }));
    swap(&world.resume_row());
    assert_eq!(answered(&world.applied()), [call]);
}

#[test]
fn a_key_without_a_fence_for_its_next_home_is_served_on() {
    let mut world = World::serving(&[new_entry(1)]);
    world.clock_is_wrong = true;
    assert_eq!(errors(&world.calls(hand_over(2))).len(), 1);
    read(&world.calls(get(held(1, NOW_US))));
}

/// A row that comes from replica 2 with two entries, of which the first was not heard of under its grant and has none.
fn ungranted() -> (Fence, Arc<KeyState>) {
    let mut other = World::serving_at(2, &[of_session(1), of_session(2)]);
    other.answer_lost();
    let (_, row) = swap(&other.calls(hand_over(1)));
    (Fence(NOW_US), row)
}

#[test]
fn a_first_entry_that_came_ungranted_is_granted_though_nobody_asks_for_it() {
    let (grant, row) = ungranted();
    assert_eq!(row.grant, Fence::NONE);
    let mut world = World::new();
    assert!(swap(&world.adopts(&row)).1.grant > grant);
    world.applied();
    assert_eq!(world.row_after(TTL).head(), Seq(2));
}

/// Its client may have left it long ago, and those behind it wait.
#[test]
fn a_first_entry_that_could_not_be_granted_is_granted_seconds_after_it_can_be() {
    let (grant, row) = ungranted();
    let mut world = World::new();
    world.clock_is_wrong = true;
    assert!(!world.adopts(&row).iter().any(is_swap));
    world.clock_is_wrong = false;
    assert!(world.row_after(Duration::from_secs(5)).grant > grant);
}

#[test]
fn a_holder_whose_grant_was_named_goes_with_its_open_writes() {
    let mut world = World::serving(&[of_session(1)]);
    let (io, _) = write(&world.calls(put(held(1, NOW_US), "x")));
    world.wrote_in_doubt(io);
    world.answer_lost();
    assert!(swap(&world.calls(hand_over(2))).1.unsynced);
}

#[test]
fn a_holder_that_is_not_heard_of_has_what_was_left_of_its_lease_at_the_home_after_the_next() {
    let adopted = |n, row: &Arc<KeyState>| {
        let mut world = World::new();
        world.replica = replica(n);
        world.pass(TTL * 2);
        world.adopts(row);
        world
    };
    let left = |world: &mut World| {
        let now = world.observer.observe(world.at);
        world.machine.lease_left(Seq(1), now).unwrap().1
    };
    let mut first = World::serving(&[new_entry(1)]);
    first.pass(TTL / 2);
    let (_, row) = swap(&first.calls(hand_over(2)));
    let mut next = adopted(2, &row);
    assert_eq!(left(&mut next), TTL, "the first one heard of it");
    next.pass(TTL - Duration::from_millis(700));
    let (_, row) = swap(&next.calls(hand_over(3)));
    let mut last = adopted(3, &row);
    assert_eq!(left(&mut last), Duration::from_millis(700));
    // Its client comes.
    last.calls(renew(1));
    assert_eq!(left(&mut last), TTL);
    let (_, row) = swap(&last.calls(hand_over(2)));
    assert_eq!(row.first_left_ms, 0);
}

/// A key that two replicas take from each other again and again, with a first entry whose client is gone.
#[test]
fn a_first_entry_that_nobody_hears_of_ends_however_often_its_key_is_handed_over() {
    for liveness in [new_entry(1), of_session(1)] {
        let is_own = matches!(liveness.liveness, Liveness::Own { .. });
        let mut world = World::serving(&[liveness, new_entry(2)]);
        world.answer_lost();
        let mut spent = Duration::ZERO;
        let mut homes = [2, 1].into_iter().cycle();
        loop {
            assert!(spent <= TTL * 3, "it goes on for ever");
            let (to, step) = (homes.next().unwrap(), TTL / 5);
            let (_, row) = swap(&world.calls(hand_over(to)));
            world = World::new();
            world.replica = replica(to);
            world.pass(TTL * 2);
            let mut effects = world.adopts(&row);
            // It is granted the key again, and does not come.
            while effects.iter().any(is_swap) {
                effects = world.applied();
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
    world.calls(hand_over(2));
    for _ in 0..3 {
        world.pass(TTL / 10 * 9);
        for n in [1, 2] {
            assert_eq!(world.calls(renew(n)), []);
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
    assert!(world.machine.due(world.commit).is_some());
    let effects = world.wrote(io);
    assert_eq!(swap(&effects).1.entries.len(), 2);
    // Once it is sent nothing of this home counts any more.
    assert_eq!(world.machine.due(world.commit), None);
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
    world.applied();
    world.pass(Duration::from_secs(2));
    if world.on(Event::Due).iter().any(is_swap) {
        world.applied();
    }
    let (_, new) = swap(&world.calls(follow()));
    assert_eq!(new.home, Some(home(2, 2)));
}
