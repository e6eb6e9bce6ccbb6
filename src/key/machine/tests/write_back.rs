//! A home that answers from memory, within what its row reserves (H5).

use super::*;
use crate::key::Reserve;

const KEEP_AFTER: Duration = Duration::from_millis(100);

const RESERVE: Reserve = Reserve {
    seqs: 100,
    fence_us: 1_000,
    fence_us_if_far: 10,
    far_us: 10_000,
};

fn write_back() -> World {
    let mut world = World::new();
    world.commit.mode = CommitMode::WriteBack(RESERVE);
    world.limits.calls_max = 1_000;
    world
}

/// The home of a key with these entries, of which the first was answered HELD; its row reserves what it may.
fn serving(entries: u64) -> World {
    serving_within(RESERVE, entries)
}

fn serving_within(reserve: Reserve, entries: u64) -> World {
    let mut world = write_back();
    world.commit.mode = CommitMode::WriteBack(reserve);
    world.calls(create(of_session(1)));
    world.on(Event::Loaded(Ok(no_row())));
    world.applied();
    for n in 2..=entries {
        assert!(!world.calls(create(of_session(n))).iter().any(is_swap));
    }
    world
}

/// As `serving`, after the holder became durable.
pub fn kept(entries: u64) -> World {
    let mut world = serving(entries);
    world.commit_later();
    world
}

/// What another replica makes of this row, once its home is gone.
fn taken_over(row: &Arc<KeyState>) -> (World, Arc<KeyState>) {
    let mut world = write_back();
    world.replica = replica(2);
    world.calls(Call::TakeOver { from: replica(1) });
    let (_, taken) = swap(&world.on(loaded(row)));
    world.applied();
    (world, taken)
}

#[test]
fn a_section_on_a_warm_key_takes_one_write_and_no_swap() {
    let mut world = serving(1);
    world.calls(release(held(1, NOW_US)));
    for n in 2..20 {
        let grant = NOW_US + 4 * (n - 1);
        let effects = world.calls(create(of_session(n)));
        assert_eq!(grant_told(&effects), Some(grant));
        let effects = world.calls(release_with(held(n, grant), 0));
        let (io, _) = write(&effects);
        let effects = world.wrote(io);
        let released = Ok(Answer::Released { already: false });
        assert_eq!(answers(&effects)[0].1, released);
        assert!(!effects.iter().any(is_swap), "{effects:?}");
    }
}

#[test]
fn a_holder_that_holds_for_a_while_becomes_durable_with_those_who_wait() {
    let mut world = serving(3);
    world.pass(KEEP_AFTER);
    assert!(world.machine.due(world.commit).is_some());
    let (_, row) = swap(&world.on(Event::Due));
    let listed: Vec<Seq> = row.entries.iter().map(|entry| entry.seq).collect();
    assert_eq!(listed, [Seq(1), Seq(2), Seq(3)]);
    assert_eq!(
        (row.kept, row.reserved.volatile_end),
        (Some(Seq(1)), Seq(2))
    );
    let (_, taken) = taken_over(&row);
    assert_eq!(taken.holder().map(|holder| holder.seq), Some(Seq(1)));
    assert_eq!(taken.entries.len(), 3);
}

/// Each commit lets as many be granted the key without the row as ended of late, where one for each would do without that.
#[test]
fn a_queue_that_moves_fast_takes_fewer_commits_than_it_has_entries() {
    let mut world = kept(17);
    let mut commits = 0;
    let mut grant = NOW_US;
    for n in 1..=16 {
        let mut effects = world.calls(release(held(n, grant)));
        while effects.iter().any(is_swap) {
            commits += 1;
            effects = world.applied();
        }
        effects = world.calls(acquire(n + 1));
        grant = grant_told(&effects).unwrap();
    }
    assert!(commits <= 5, "{commits}");
}

/// The next home would take it for a holder that claimed its lock, and wait for it as long as its session lives.
#[test]
fn a_holder_whose_answer_nobody_heard_becomes_durable_once_it_is_answered_again() {
    let mut world = serving(1);
    world.answer_lost();
    world.pass(KEEP_AFTER);
    assert!(!world.on(Event::Due).iter().any(is_swap));
    assert_eq!(grant_told(&world.calls(acquire(1))), Some(NOW_US));
    let row = world.row_after(KEEP_AFTER);
    assert_eq!(row.kept, Some(Seq(1)));
}

#[test]
fn nobody_is_granted_the_key_before_the_end_of_a_durable_holder_is_committed() {
    let mut world = kept(2);
    let (wait, _) = world.call(acquire(2));
    let (give, effects) = world.call(release(held(1, NOW_US)));
    assert_eq!(answers(&effects), []);
    let (_, row) = swap(&effects);
    assert_eq!((row.kept, row.position(Seq(1))), (None, None));
    assert!(row.reserved.volatile_end > Seq(2));
    let effects = world.applied();
    assert_eq!(answered(&effects), [give, wait]);
}

#[test]
fn a_commit_in_doubt_that_makes_a_holder_durable_counts_as_applied_and_as_not() {
    let mut world = serving(2);
    world.row_after(KEEP_AFTER);
    world.swapped_in_doubt();
    let (wait, _) = world.call(acquire(2));
    let (give, effects) = world.call(release(held(1, NOW_US)));
    // At the next home the first one may still hold the key.
    assert_eq!(answers(&effects), []);
    world.resume_row();
    let row = Arc::clone(world.row());
    swap(&world.on(loaded(&row)));
    let effects = world.applied();
    assert_eq!(answers(&effects), []);
    swap(&effects);
    let effects = world.applied();
    assert_eq!(answered(&effects), [give, wait]);
}

#[test]
fn what_a_home_may_have_done_ahead_of_its_row_is_jumped_over_by_the_next_one() {
    let world = serving(2);
    let row = Arc::clone(world.row());
    let (mut next, taken) = taken_over(&row);
    assert!(taken.unsynced && taken.entries.is_empty());
    assert!(taken.next >= row.reserved.seq_end);
    let lost = KeyError::Ended(EndedAs::NoLongerKept);
    for n in [1, 2] {
        assert_eq!(errors(&next.calls(acquire(n))), [lost.clone().into()]);
    }
    let effects = next.calls(create(of_session(3)));
    let io = read(&effects);
    let effects = next.saw(io, None);
    assert!(write(&effects).1.timestamp >= row.reserved.fence_end);
}

#[test]
fn reserves_are_raised_when_half_of_them_is_used() {
    let mut world = serving(1);
    let before = world.row().reserved.seq_end;
    let effects = (2..100).find_map(|n| {
        let effects = world.calls(create(of_session(n)));
        effects.iter().any(is_swap).then_some((n, effects))
    });
    let (n, effects) = effects.unwrap();
    assert!((40..60).contains(&n), "{n}");
    assert!(answers(&effects).len() == 1, "nobody waits for it");
    assert!(swap(&effects).1.reserved.seq_end > before);
}

#[test]
fn a_create_beyond_the_reserve_waits_for_the_commit() {
    let mut world = serving(1);
    for n in 2..=101 {
        world.calls(create(of_session(n)));
    }
    let (late, effects) = world.call(create(of_session(102)));
    assert_eq!(answers(&effects), []);
    // The one in flight reserves enough.
    let effects = world.applied();
    assert_eq!(answers(&effects)[0].0, late);
}

#[test]
fn a_grant_beyond_the_reserve_of_fences_waits_for_the_commit() {
    let mut world = write_back();
    world.commit.mode = CommitMode::WriteBack(Reserve {
        fence_us: 16,
        ..RESERVE
    });
    world.calls(create(of_session(1)));
    world.on(Event::Loaded(Ok(no_row())));
    world.applied();
    let end = world.row().reserved.fence_end;
    let mut answered = vec![NOW_US];
    for n in 1..=5 {
        world.calls(release(held(n, NOW_US + 4 * (n - 1))));
        answered.extend(grant_told(&world.calls(create(of_session(n + 1)))));
    }
    let within: Vec<u64> = (NOW_US..end).step_by(4).collect();
    assert_eq!(answered, within);
    let effects = world.applied();
    assert_eq!(grant_told(&effects), Some(end));
}

#[test]
fn a_durable_holder_stays_durable_at_the_next_home_whatever_that_commits() {
    let world = kept(2);
    let (mut next, taken) = taken_over(world.row());
    assert_eq!(
        (taken.kept, taken.reserved.volatile_end),
        (Some(Seq(1)), Seq(2))
    );
    let effects = next.calls(force(2));
    let (_, row) = swap(&effects);
    assert_eq!((row.position(Seq(2)), row.kept), (None, Some(Seq(1))));
}

#[test]
fn an_operator_is_answered_once_the_row_knows_it() {
    // The others are known to memory alone.
    for (mut world, ended) in [(kept(1), 1), (serving(1), 1), (serving(2), 2)] {
        let (call, effects) = world.call(force(ended));
        assert_eq!(answers(&effects), [], "{ended}");
        let (_, row) = swap(&effects);
        assert_eq!(row.position(Seq(ended)), None, "{ended}");
        assert_eq!(row.end_of(Seq(ended)), EndedAs::Lost(forced()), "{ended}");
        assert_eq!(answered(&world.applied()), [call], "{ended}");
    }
}

#[test]
fn a_waiter_that_the_row_lists_and_that_left_is_deleted_within_a_second() {
    let mut world = kept(2);
    let effects = world.calls(release(entry(2)));
    let released = Ok(Answer::Released { already: false });
    assert_eq!(answers(&effects)[0].1, released);
    assert!(!effects.iter().any(is_swap));
    let row = world.row_after(Duration::from_secs(1));
    assert_eq!(row.position(Seq(2)), None);
    assert_eq!(row.kept, Some(Seq(1)));
}

#[test]
fn who_comes_behind_a_durable_holder_becomes_durable_after_a_while_and_in_a_flood_within_a_second()
{
    let second = Duration::from_secs(1);
    for (keep_after, within) in [(KEEP_AFTER, KEEP_AFTER), (60 * second, second)] {
        let mut world = kept(1);
        world.commit.keep_after = keep_after;
        assert!(!world.calls(create(of_session(2))).iter().any(is_swap));
        let row = world.row_after(within);
        let listed = (row.entries.len(), row.kept);
        assert_eq!(listed, (2, Some(Seq(1))), "{keep_after:?}");
    }
}

#[test]
fn while_a_commit_is_in_flight_or_pauses_nothing_else_is_due() {
    let mut world = serving(2);
    world.row_after(KEEP_AFTER);
    assert_eq!(world.machine.due(world.commit), None);
    world.not_started();
    assert_eq!(world.machine.due(world.commit), None);
    let (_, row) = swap(&world.resume_row());
    assert_eq!(row.kept, Some(Seq(1)));
}

#[test]
fn a_key_is_handed_over_with_all_that_its_home_knows() {
    let mut world = serving(3);
    let (_, row) = swap(&world.calls(hand_over(2)));
    assert_eq!((row.home, row.kept), (Some(home(2, 2)), Some(Seq(1))));
    assert_eq!(row.entries.len(), 3);
    assert!(!row.may_be_behind() && !row.unsynced);
}

#[test]
fn a_hand_over_in_several_commits_keeps_no_holder_that_nobody_heard() {
    for is_heard in [true, false] {
        let reserve = Reserve {
            seqs: 1_000,
            ..RESERVE
        };
        let mut world = serving_within(reserve, 300);
        if !is_heard {
            world.answer_lost();
        }
        let (to, if_idle) = (replica(2), false);
        let (_, row) = swap(&world.calls(Call::HandOver { to, if_idle }));
        assert!(row.entries.len() < 300);
        assert_eq!(row.kept.is_some(), is_heard);
        let (_, row) = swap(&world.applied());
        assert_eq!((row.entries.len(), row.kept.is_some()), (300, is_heard));
    }
}

#[test]
fn a_key_is_handed_over_once_its_row_knows_of_all_its_seqs() {
    let reserve = Reserve {
        seqs: 10_000,
        ..RESERVE
    };
    let mut world = serving_within(reserve, 1);
    world.commit_later();
    for n in 2..=3_000 {
        world.calls(create(of_session(n)));
        world.calls(release(entry(n)));
    }
    swap(&world.calls(hand_over(2)));
    let (_, row) = swap(&world.applied());
    assert_eq!((row.home, row.next), (Some(home(2, 2)), Seq(3_001)));
}

/// They may have been released at the home before.
#[test]
fn inherited_entries_that_nobody_asks_for_end_together() {
    let entries = [1, 2, 3, 4].map(of_session);
    let mut row = KeyState::clone(&row_of(1, &entries));
    row.kept = None;
    row.reserved.volatile_end = Seq(1);
    let (mut world, _) = taken_over(&Arc::new(row));
    world.calls(acquire(3));
    world.pass(TTL);
    world.on(Event::Due);
    let state = world.machine.state().unwrap();
    let left: Vec<Seq> = state.entries.iter().map(|entry| entry.seq).collect();
    assert_eq!(left, [Seq(3)]);
}

/// Before this replica stops.
#[test]
fn a_home_knows_what_the_next_one_would_lack() {
    let lacks = |world: &World| {
        let of = &world.machine;
        let by_crash = of.has_volatile() && !of.is_durable(Seq(1));
        [by_crash, of.is_ahead_of_row(), of.is_to_hand_over()]
    };
    assert_eq!(lacks(&write_back()), [false, false, false]);
    assert_eq!(lacks(&serving(1)), [true, true, true]);
    let mut world = kept(2);
    assert_eq!(lacks(&world), [false, false, true]);
    assert!(world.machine.is_durable(Seq(1)));
    // An end that only memory knows.
    world.calls(release(entry(2)));
    assert_eq!(lacks(&world), [false, true, true]);
}

/// Before the last replica stops.
#[test]
fn a_home_that_hands_its_key_over_to_itself_leaves_nothing_to_memory_alone() {
    let mut world = serving(3);
    let to = world.replica;
    let if_idle = false;
    let (_, row) = swap(&world.calls(Call::HandOver { to, if_idle }));
    assert_eq!((row.entries.len(), row.kept), (3, Some(Seq(1))));
    let effects = world.applied();
    let home = row.home.unwrap();
    assert_eq!(answers(&effects)[0].1, Ok(Answer::HandedOver(home)));
    assert!(!world.machine.has_volatile());
    let (_, taken) = taken_over(&row);
    let seqs: Vec<Seq> = taken.entries.iter().map(|entry| entry.seq).collect();
    assert_eq!(seqs, [Seq(1), Seq(2), Seq(3)]);
}

#[test]
fn who_comes_while_the_holder_becomes_durable_becomes_durable_after_a_while() {
    let mut world = serving(1);
    world.row_after(KEEP_AFTER);
    world.calls(create(of_session(2)));
    world.applied();
    assert!(world.machine.due(world.commit).is_some());
    let row = world.row_after(KEEP_AFTER);
    assert_eq!((row.entries.len(), row.kept), (2, Some(Seq(1))));
}

#[test]
fn a_key_is_not_idle_while_its_row_lists_what_ended() {
    let mut world = kept(3);
    world.calls(release(held(1, NOW_US)));
    world.applied();
    // Both may go without the row knowing.
    for n in [3, 2] {
        let effects = world.calls(release(entry(n)));
        let released = Ok(Answer::Released { already: false });
        assert_eq!(answers(&effects)[0].1, released);
    }
    assert_eq!(world.row().entries.len(), 2);
    assert!(!world.machine.is_idle());
    world.row_after(Duration::from_secs(1));
    world.applied();
    assert!(world.row().entries.is_empty() && world.machine.is_idle());
}

#[test]
fn only_a_durable_holder_is_promised_more_than_its_home_is_sure_of() {
    let until = |effects: &[Effect]| {
        let lease = answers(effects)
            .into_iter()
            .find_map(|(_, answer)| match answer {
                Ok(Answer::Held { lease, .. } | Answer::Waiting { lease, .. }) => Some(lease),
                _ => None,
            });
        let lease = lease.unwrap();
        (lease.durable, lease.promised_until)
    };
    let ask = |n| acquire_now(n);
    let mut world = serving(2);
    let sure = Some(world.sure_until);
    for n in [1, 2] {
        assert_eq!(until(&world.calls(ask(n))), (false, sure));
    }
    world.commit_later();
    assert_eq!(until(&world.calls(ask(1))), (true, None));
    // It comes to hold the key by memory alone, before anybody asks again.
    assert_eq!(until(&world.calls(ask(2))), (true, sure));
}

#[test]
fn while_the_commit_that_makes_a_holder_durable_is_in_doubt_it_is_promised_no_more() {
    let mut world = serving(1);
    world.row_after(KEEP_AFTER);
    let promised = |world: &mut World| {
        let effects = world.calls(acquire_now(1));
        match answers(&effects).pop() {
            Some((_, Ok(Answer::Held { lease, .. }))) => (lease.durable, lease.promised_until),
            other => panic!("{other:?}"),
        }
    };
    let sure = Some(world.sure_until);
    assert_eq!(promised(&mut world), (false, sure));
    world.swapped_in_doubt();
    assert_eq!(promised(&mut world), (false, sure));
    world.resume_row();
    let row = Arc::clone(world.row());
    swap(&world.on(loaded(&row)));
    assert_eq!(promised(&mut world), (false, sure));
    world.applied();
    assert_eq!(promised(&mut world), (true, None));
}

#[test]
fn a_key_that_was_given_long_ago_is_taken_over_where_memory_may_have_gone_beyond_its_row() {
    let world = serving(1);
    let row = Arc::clone(world.row());
    let mut again = write_back();
    // Word of a hand-over that comes late, once what was known is forgotten.
    let (_, effects) = again.call(Call::Adopt {
        term: row.home.unwrap().term,
    });
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Load { .. }))
    );
    let (_, taken) = swap(&again.on(loaded(&row)));
    assert!(taken.home.unwrap().term > row.home.unwrap().term);
    assert!(taken.unsynced && taken.next >= row.reserved.seq_end);
}
