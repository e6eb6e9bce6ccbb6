//! Who is home: first use, take-over, hand-over, deposition (H1, H3, H4, H6).

use super::*;

#[test]
fn the_first_use_of_a_key_is_one_load_and_one_swap() {
    let mut world = World::new();
    let (call, effects) = world.call(create(new_entry(1)));
    assert_eq!(effects, [Effect::Load { settle: false }]);
    let effects = world.on(Event::Loaded(Ok(no_row())));
    let (old, new) = swap(&effects);
    assert_eq!((old.version, new.version), (0, 1));
    assert_eq!(new.home, Some(home(1, 1)));
    let effects = world.applied();
    assert!(matches!(
        &answers(&effects)[..],
        [(of, Ok(Answer::Held { .. }))] if *of == call
    ));
    assert_eq!(grant_told(&effects), Some(NOW_US));
}

#[test]
fn a_create_whose_first_commit_fails_learns_why() {
    let taking = || {
        let mut world = World::new();
        world.calls(create(new_entry(1)));
        world.on(Event::Loaded(Ok(no_row())));
        world
    };
    let effects = taking().conflict(&row_of(2, &[]));
    assert_eq!(errors(&effects), [KeyError::Elsewhere(home(2, 1)).into()]);
    let mut world = taking();
    let down = KeyError::StoreUnavailable("down".into());
    assert_eq!(errors(&world.not_started()), [down.into()]);
    // Nobody waits for it any more.
    assert_eq!(world.resume_row(), []);
}

#[test]
fn calls_of_a_key_that_another_replica_has_are_sent_there() {
    let mut world = World::new();
    let row = row_of(2, &[new_entry(1)]);
    world.calls(acquire(1));
    let effects = world.on(loaded(&row));
    assert_eq!(errors(&effects), [KeyError::Elsewhere(home(2, 1)).into()]);
    assert!(world.machine.is_forgettable());
    // Not while a call waits, and not the home.
    world.calls(acquire(1));
    assert!(!world.machine.is_forgettable());
    assert!(!World::serving(&[]).machine.is_forgettable());
}

#[test]
fn a_key_of_which_nothing_was_created_needs_no_home() {
    let mut world = World::new();
    world.calls(acquire(1));
    let effects = world.on(Event::Loaded(Ok(no_row())));
    assert_eq!(errors(&effects), [KeyError::NeverIssued.into()]);
    assert!(!effects.iter().any(is_swap));
}

#[test]
fn a_key_is_taken_over_only_from_the_home_that_is_known_to_be_gone() {
    let row = row_of(2, &[new_entry(1)]);
    let mut world = World::new();
    world.calls(Call::TakeOver { from: replica(3) });
    let effects = world.on(loaded(&row));
    assert_eq!(errors(&effects), [KeyError::Elsewhere(home(2, 1)).into()]);
    world.calls(Call::TakeOver { from: replica(2) });
    let effects = world.on(loaded(&row));
    let (_, new) = swap(&effects);
    assert_eq!(new.home, Some(home(1, 2)));
    let effects = world.applied();
    assert!(matches!(
        &answers(&effects)[..],
        [(_, Ok(Answer::Home(home)))] if home.term == 2
    ));
}

#[test]
fn a_machine_that_lost_its_memory_takes_the_key_from_itself() {
    let row = row_of(1, &[new_entry(1)]);
    let mut world = World::new();
    world.calls(put(held(1, NOW_US), "x"));
    let effects = world.on(loaded(&row));
    let (_, new) = swap(&effects);
    assert_eq!((new.home, new.unsynced), (Some(home(1, 2)), true));
    let effects = world.applied();
    assert_eq!(errors(&effects), [KeyError::GrantSuperseded.into()]);
}

#[test]
fn one_process_that_has_the_store_alone_takes_over_at_once() {
    let mut world = World::new();
    world.is_alone = true;
    world.calls(acquire(1));
    let effects = world.on(loaded(&row_of(2, &[new_entry(1)])));
    assert_eq!(swap(&effects).1.home, Some(home(1, 2)));
}

/// The swap is of unknown outcome: nobody is answered before the row is read, which shows that it applied.
fn looked_up(world: &mut World, new: &Arc<KeyState>) -> Vec<Effect> {
    let effects = world.swapped_in_doubt();
    assert!(answers(&effects).is_empty());
    let effects = world.resume_row();
    assert_eq!(effects, [Effect::Load { settle: true }]);
    let effects = world.on(loaded(new));
    assert!(!effects.iter().any(is_swap));
    effects
}

#[test]
fn a_take_over_of_unknown_outcome_is_looked_up_and_goes_on() {
    let row = row_of(2, &[new_entry(1)]);
    let mut world = World::new();
    let (call, _) = world.call(Call::TakeOver { from: replica(2) });
    let effects = world.on(loaded(&row));
    let (_, new) = swap(&effects);
    let effects = looked_up(&mut world, &new);
    assert_eq!(answers(&effects), [(call, Ok(Answer::Home(home(1, 2))))]);
}

#[test]
fn a_first_use_of_unknown_outcome_serves_nobody_before_its_row_is_read() {
    let mut world = World::new();
    let (call, _) = world.call(create(new_entry(1)));
    let effects = world.on(Event::Loaded(Ok(no_row())));
    let (_, new) = swap(&effects);
    let effects = looked_up(&mut world, &new);
    assert!(matches!(&answers(&effects)[..], [(of, Ok(Answer::Held { .. }))] if *of == call));
}

#[test]
fn a_home_that_meets_another_one_answers_nothing_by_what_it_knew() {
    let mut world = World::serving(&[new_entry(1)]);
    let row = row_of(2, &[new_entry(1)]);
    let (wait, _) = world.call(create(new_entry(2)));
    let effects = world.conflict(&row);
    assert_eq!(
        answers(&effects),
        [(wait, Err(KeyError::Elsewhere(home(2, 1)).into()))]
    );
    let by = row.home;
    assert!(effects.contains(&Effect::Report(Report::Deposed { by })));
    assert_eq!(world.calls(acquire(1)), [Effect::Load { settle: false }]);
}

#[test]
fn from_the_sending_of_a_hand_over_nothing_is_answered() {
    let mut world = World::serving(&[new_entry(1)]);
    let (call, _) = world.call(Call::Watch { entry: entry(1) });
    let (hand, effects) = world.call(hand_over(2));
    let (_, new) = swap(&effects);
    assert_eq!(new.home, Some(home(2, 2)));
    let (get, effects) = world.call(get(held(1, NOW_US)));
    assert_eq!(effects, []);
    let effects = world.applied();
    let elsewhere = KeyError::Elsewhere(home(2, 2));
    assert_eq!(
        answers(&effects),
        [
            (hand, Ok(Answer::HandedOver(home(2, 2)))),
            (get, Err(elsewhere.into()))
        ]
    );
    let status = EntryStatus::Elsewhere(home(2, 2));
    assert!(effects.contains(&Effect::Notify { call, status }));
}

#[test]
fn a_hand_over_of_unknown_outcome_is_sent_again_whatever_the_old_version_shows() {
    let mut world = World::serving(&[new_entry(1)]);
    let effects = world.calls(hand_over(2));
    let (old, new) = swap(&effects);
    world.swapped_in_doubt();
    // Nor though no fence could be taken by now.
    world.clock_is_wrong = true;
    world.resume_row();
    let effects = world.on(loaded(&old));
    assert!(answers(&effects).is_empty());
    assert_eq!(swap(&effects), (old, Arc::clone(&new)));
    let effects = world.conflict(&new);
    assert!(matches!(
        &answers(&effects)[..],
        [(_, Ok(Answer::HandedOver(_)))]
    ));
}

#[test]
fn a_hand_over_waits_for_the_writes_in_flight() {
    let mut world = World::serving(&[new_entry(1)]);
    let (put, effects) = world.call(put(held(1, NOW_US), "x"));
    let (io, _) = write(&effects);
    assert_eq!(world.calls(hand_over(2)), []);
    let effects = world.wrote(io);
    assert!(matches!(
        &answers(&effects)[..],
        [(of, Ok(Answer::Written { .. }))] if *of == put
    ));
    assert!(!swap(&effects).1.unsynced);
}

#[test]
fn a_replica_serves_what_was_handed_to_it_in_the_term_that_it_was_told() {
    let mut other = World::serving_at(2, &[new_entry(1)]);
    let effects = other.calls(hand_over(1));
    let (_, row) = swap(&effects);
    assert!(!World::new().adopts(&row).iter().any(is_swap));
    let mut world = World::new();
    world.calls(Call::Adopt { term: 1 });
    let effects = world.on(loaded(&row));
    assert!(effects.iter().any(is_swap), "from itself");
}

#[test]
fn a_key_that_a_machine_takes_from_itself_is_not_served_in_the_term_before() {
    let mut other = World::serving_at(2, &[new_entry(1)]);
    let (_, row) = swap(&other.calls(hand_over(1)));
    let mut world = World::new();
    // The news of the hand-over come late.
    world.calls(acquire(1));
    let (_, taken) = swap(&world.on(loaded(&row)));
    world.swapped_in_doubt();
    world.calls(Call::Adopt { term: 2 });
    world.resume_row();
    let effects = world.on(loaded(&row));
    assert_eq!((answers(&effects), swap(&effects).1), (vec![], taken));
}

#[test]
fn a_first_use_that_meets_no_row_reads_again_what_the_data_holds() {
    let mut world = World::new();
    world.calls(create(new_entry(1)));
    world.on(Event::Loaded(Ok(Loaded {
        past: Some(5_000),
        ..no_row()
    })));
    let effects = world.conflict(&Arc::default());
    assert_eq!(effects, [Effect::Load { settle: true }]);
}

#[test]
fn no_more_creates_go_into_a_take_over_than_calls_may_wait() {
    let mut world = World::new();
    for n in 1..=8 {
        world.calls(create(new_entry(n)));
    }
    world.on(Event::Loaded(Ok(no_row())));
    for n in 9..=16 {
        assert_eq!(world.calls(create(new_entry(n))), []);
    }
    world.swapped_in_doubt();
    world.resume_row();
    let effects = world.on(Event::Loaded(Ok(no_row())));
    assert_eq!(swap(&effects).1.entries.len(), 8);
}

#[test]
fn a_watcher_of_a_key_whose_row_is_lost_learns_that_its_entry_ended() {
    let mut world = World::serving(&[new_entry(1)]);
    let (call, _) = world.call(Call::Watch { entry: entry(1) });
    world.calls(create(new_entry(2)));
    let effects = world.conflict(&Arc::default());
    let status = EntryStatus::Ended(EndedAs::NoLongerKept);
    assert!(effects.contains(&Effect::Notify { call, status }));
}

/// Replica 1 is about to take a key from replica 3 when replica 2 does so, grants it to the next one, and gives it away.
#[test]
fn a_holder_that_came_with_the_key_is_not_judged_by_a_row_before() {
    let row = row_of(3, &[new_entry(1), new_entry(2)]);
    let mut world = World::new();
    world.calls(Call::TakeOver { from: replica(3) });
    swap(&world.on(loaded(&row)));
    world.swapped_in_doubt();
    let writes = WritesOfHolder {
        synced: true,
        open: false,
    };
    let released = Command::Release {
        seq: Seq(1),
        tag: entry(1).tag,
        writes,
    };
    let given = Command::HandOver {
        to: replica(1),
        holder: Some(writes),
        left_ms: 0,
    };
    let taken = Command::TakeOver {
        from: row.home,
        to: replica(2),
        past: None,
    };
    let limits = CoreLimits::default();
    let by = Decider {
        replica: replica(2),
        now_us: Some(NOW_US),
        limits: &limits,
    };
    let mut row = row;
    for command in [taken, released, given] {
        row = Arc::new(decide(&row, &[command], by).state);
    }
    assert_eq!((row.home, row.kept), (Some(home(1, 3)), Some(Seq(2))));
    world.calls(Call::Adopt { term: 3 });
    world.resume_row();
    let effects = world.on(loaded(&row));
    assert!(!effects.iter().any(is_swap), "it serves");
    for _ in 0..3 {
        world.pass(TTL / 10 * 9);
        world.calls(renew(2));
        assert_eq!(world.on(Event::Due), []);
    }
}
