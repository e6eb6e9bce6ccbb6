//! Leases, claims, sessions (I5, I8, I9).

use super::super::leases::Leases;
use super::*;

fn second(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn an_entry_that_is_not_renewed_for_its_ttl_ends() {
    let mut world = World::serving(&[new_entry(1), new_entry(2)]);
    world.pass(second(9));
    world.calls(renew(1));
    assert_eq!(world.on(Event::Due), []);
    world.pass(second(1));
    let effects = world.on(Event::Due);
    let left: Vec<Seq> = swap(&effects).1.entries.iter().map(|e| e.seq).collect();
    assert_eq!(left, [Seq(1)]);
    let effects = world.calls(renew(2));
    let expired = KeyError::Ended(EndedAs::Lost(EndReason::Expired));
    assert_eq!(errors(&effects), [expired.into()]);
}

#[test]
fn leases_expire_in_the_order_of_their_renewals() {
    let at = |n| Observed::default().plus(second(n));
    let mut leases = Leases::default();
    for n in 1..=4 {
        leases.add(Seq(n), TTL, TTL, at(n));
    }
    leases.get_mut(Seq(1)).unwrap().renew(at(5));
    leases.remove(Seq(2));
    let mut expired = Vec::new();
    while let Some(due) = leases.due() {
        expired.extend(leases.expire(due).into_iter().map(|seq| (seq.0, due)));
    }
    assert_eq!(expired, [(3, at(13)), (4, at(14)), (1, at(15))]);
}

#[test]
fn an_entry_whose_creation_waits_for_the_row_does_not_expire() {
    let mut world = World::serving(&[new_entry(1)]);
    let (created, _) = world.call(create(new_entry(2)));
    for _ in 0..3 {
        world.pass(second(9));
        world.calls(renew(1));
        assert_eq!(world.on(Event::Due), []);
    }
    let effects = world.applied();
    let told = |effect: &Effect| matches!(effect, Effect::Answer { call, answer: Ok(_) } if *call == created);
    assert!(effects.iter().any(told), "{effects:?}");
}

#[test]
fn a_holder_that_nobody_claimed_is_evicted_and_is_answered_held_no_more() {
    let mut world = World::serving(&[of_session(1), of_session(2)]);
    world.calls(release(held(1, NOW_US)));
    world.applied();
    world.pass(second(10));
    let effects = world.on(Event::Due);
    assert!(swap(&effects).1.unsynced);
    let unclaimed = KeyError::Ended(EndedAs::Lost(EndReason::Unclaimed));
    for call in [acquire(2), renew(2)] {
        let failed = errors(&world.calls(call.clone()));
        assert_eq!(failed, [unclaimed.clone().into()], "{call:?}");
    }
}

#[test]
fn a_first_entry_of_a_session_may_be_claimed_for_the_ttl_of_that() {
    let mut world = World::serving(&[of_session(1), of_session(2)]);
    world.calls(release(held(1, NOW_US)));
    world.applied();
    let (session, ttl) = (SessionId(Uuid::from_u128(2)), second(20));
    world.on(Event::SessionTtl { session, ttl });
    world.pass(second(19));
    assert_eq!(world.on(Event::Due), []);
    world.pass(second(1));
    assert!(world.on(Event::Due).iter().any(is_swap));
}

#[test]
fn a_first_entry_that_cannot_be_answered_held_yet_does_not_end() {
    for (second, call) in [
        (of_session(2), acquire(2)),
        (of_session(2), Call::Watch { entry: entry(2) }),
        (new_entry(2), acquire_now(2)),
    ] {
        let mut world = World::serving(&[of_session(1), second]);
        world.calls(force(1));
        world.applied();
        read(&world.calls(call));
        world.pass(TTL);
        assert_eq!(world.on(Event::Due), []);
    }
    // Nor one whose grant the row does not allow yet.
    let mut world = World::serving(&[of_session(1), of_session(2)]);
    world.calls(release(held(1, NOW_US)));
    world.pass(TTL);
    world.on(Event::Due);
    assert!(!world.applied().iter().any(is_swap));
}

#[test]
fn a_holder_that_was_told_so_is_never_unclaimed_unless_nobody_heard() {
    let mut world = World::serving(&[of_session(1)]);
    world.pass(second(100));
    assert_eq!(world.on(Event::Due), []);
    world.answer_lost();
    world.pass(second(10));
    assert!(world.on(Event::Due).iter().any(is_swap));
}

#[test]
fn a_claim_that_failed_for_want_of_the_store_is_waited_for_anew() {
    let mut world = World::new();
    world.calls(Call::TakeOver { from: replica(2) });
    let mut row = KeyState::clone(&row_of(2, &[of_session(1)]));
    row.kept = None;
    row.reserved.volatile_end = Seq(1);
    world.on(loaded(&Arc::new(row)));
    world.applied();
    world.pass(second(9));
    let io = read(&world.calls(acquire(1)));
    let effects = world.read_failed(io);
    assert_eq!(errors(&effects).len(), 1);
    world.pass(second(9));
    assert_eq!(world.on(Event::Due), []);
    world.pass(second(1));
    assert!(world.on(Event::Due).iter().any(is_swap));
}

#[test]
fn the_end_of_a_session_ends_what_lives_by_it() {
    let mut world = World::serving(&[of_session(1), new_entry(2)]);
    let session = SessionId(Uuid::from_u128(1));
    let effects = world.on(Event::SessionEnded(session));
    let (_, new) = swap(&effects);
    assert_eq!((new.head(), new.unsynced), (Seq(2), true));
    let effects = world.calls(put(held(1, NOW_US), "late"));
    let closed = KeyError::Ended(EndedAs::Lost(EndReason::SessionClosed));
    assert_eq!(errors(&effects), [closed.into()]);
    // The session has ended once the row has none of it.
    let effects = world.applied();
    assert!(effects.contains(&Effect::Detach {
        session,
        seq: Seq(1)
    }));
}

#[test]
fn a_call_renews_what_its_entry_lives_by() {
    let mut world = World::serving(&[of_session(1)]);
    let session = SessionId(Uuid::from_u128(1));
    let effects = world.calls(get(held(1, NOW_US)));
    assert!(effects.contains(&Effect::RenewSession(session)));
}
