use super::*;
use crate::key::{Home, Reserved};
use crate::lock::{EndedAs, Liveness, Mode, SessionId};
use uuid::Uuid;

const NOW: u64 = 1_000;

fn replica(n: u128) -> ReplicaId {
    ReplicaId(Uuid::from_u128(n))
}

fn limits() -> CoreLimits {
    CoreLimits {
        width_min: 10,
        width_max: 80,
        ended_max: 2,
        entries_max: 3,
        ahead_us_max: Some(10_000),
    }
}

fn decided_by(n: u128, now_us: Option<u64>, state: &KeyState, commands: &[Command]) -> Decision {
    let limits = limits();
    let by = Decider {
        replica: replica(n),
        now_us,
        limits: &limits,
    };
    let decision = decide(state, commands, by);
    assert_eq!(decision.state.check(), Ok(()));
    decision
}

fn decided(state: &KeyState, commands: &[Command]) -> (KeyState, Vec<Outcome>) {
    let decision = decided_by(1, Some(NOW), state, commands);
    (decision.state, decision.outcomes)
}

fn create(n: u128) -> Command {
    Command::Create(NewEntry {
        tag: Tag::from_bits(n),
        mode: Mode::Exclusive,
        liveness: Liveness::Session(SessionId(Uuid::from_u128(n))),
        identity: "".into(),
        owner: "".into(),
        created_at_ms: 0,
    })
}

fn tag(n: u128) -> Tag {
    Tag::from_bits(n)
}

fn release(seq: u64, n: u128, writes: WritesOfHolder) -> Command {
    Command::Release {
        seq: Seq(seq),
        tag: tag(n),
        writes,
    }
}

fn evict(seq: u64, n: u128) -> Command {
    Command::Evict {
        seq: Seq(seq),
        tag: tag(n),
        reason: EndReason::Expired,
        only_under: None,
    }
}

fn take(from: Option<Home>, to: u128) -> Command {
    Command::TakeOver {
        from,
        to: replica(to),
        past: None,
    }
}

/// Replica 1 is home; entries 1 and 2, of which the first holds the key.
fn two_entries() -> KeyState {
    let commands = [take(None, 1), create(1), create(2)];
    let (state, outcomes) = decided(&KeyState::default(), &commands);
    let home = Home {
        replica: replica(1),
        term: 1,
    };
    let made = |seq| Outcome::Created {
        seq: Seq(seq),
        existed: false,
    };
    assert_eq!(outcomes, [Outcome::Home(home), made(1), made(2)]);
    state
}

#[test]
fn the_first_use_of_a_key_is_one_change() {
    let state = two_entries();
    assert_eq!(state.version, 1);
    assert_eq!(state.holder().map(|e| e.seq), Some(Seq(1)));
    assert_eq!(state.grant, Fence(NOW));
    assert!(!state.unsynced);
}

#[test]
fn with_write_through_nothing_lies_ahead_of_the_row() {
    let mut state = two_entries();
    let reserved = Reserved {
        seq_end: Seq(3),
        fence_end: NOW + 10,
        volatile_end: Seq(0),
    };
    assert_eq!(state.reserved, reserved);
    assert_eq!(state.kept, Some(Seq(1)));
    assert!(!state.may_be_behind());
    // Nor where volatile entries were only ahead of the first one.
    state.reserved.volatile_end = Seq(1);
    assert!(!state.may_be_behind());
}

#[test]
fn only_the_home_decides() {
    let state = two_entries();
    let decision = decided_by(2, Some(NOW), &state, &[create(3), evict(1, 1)]);
    assert_eq!(decision.state, state);
    let refused = Outcome::Refused(Refusal::NotHome(state.home));
    assert_eq!(decision.outcomes, [refused.clone(), refused]);
}

#[test]
fn a_request_id_finds_its_entry_again() {
    let state = two_entries();
    let (after, outcomes) = decided(&state, &[create(2)]);
    assert_eq!(after, state);
    let found = Outcome::Created {
        seq: Seq(2),
        existed: true,
    };
    assert_eq!(outcomes, [found]);
}

#[test]
fn one_identity_leaves_a_tenth_of_the_queue_to_others_but_nobodys_entries_do_not() {
    let limits = CoreLimits {
        entries_max: 300,
        ..limits()
    };
    let by = Decider {
        replica: replica(1),
        now_us: Some(NOW),
        limits: &limits,
    };
    let of = |identity: &'static str, tags: std::ops::Range<u128>| {
        tags.map(move |n| match create(n) {
            Command::Create(new) => Command::Create(NewEntry {
                identity: identity.into(),
                ..new
            }),
            other => other,
        })
        .collect::<Vec<_>>()
    };
    let made = |outcomes: &[Outcome]| {
        let is_made = |outcome: &&Outcome| matches!(outcome, Outcome::Created { .. });
        outcomes.iter().filter(is_made).count()
    };
    let first = KeyState::default();
    let taken = decide(&first, &[take(None, 1)], by).state;

    let greedy = decide(&taken, &of("greedy", 0..300), by);
    assert_eq!(made(&greedy.outcomes), 270);
    let share_used = Outcome::Refused(Refusal::QueueShareUsed { share: 3 });
    assert_eq!(greedy.outcomes.last(), Some(&share_used));
    // A repeated call makes no new entry.
    let again = decide(&greedy.state, &of("greedy", 0..1), by).outcomes;
    assert_eq!(made(&again), 1);

    let others: Vec<_> = (0..10)
        .flat_map(|n| {
            let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
            of(names[n], 1_000 + n as u128 * 10..1_003 + n as u128 * 10)
        })
        .collect();
    let full = decide(&greedy.state, &others, by);
    assert_eq!(made(&full.outcomes), 30);
    let refused = decide(&full.state, &of("late", 2_000..2_001), by).outcomes;
    let queue_full = Refusal::QueueFull { entries_max: 300 };
    assert_eq!(refused, [Outcome::Refused(queue_full)]);

    let nobodys = decide(&taken, &of("", 0..301), by);
    assert_eq!(made(&nobodys.outcomes), 300);
}

#[test]
fn a_release_grants_the_next_one_above_all_that_was_written() {
    let (state, outcomes) = decided(&two_entries(), &[release(1, 1, WritesOfHolder::NONE)]);
    assert_eq!(outcomes, [Outcome::Released]);
    assert_eq!(state.holder().map(|e| e.seq), Some(Seq(2)));
    assert_eq!(state.grant, Fence(NOW + 10));
    assert_eq!(state.end_of(Seq(1)), EndedAs::Released);
    assert!(!state.unsynced);
}

#[test]
fn a_release_with_an_open_write_leaves_the_key_unsynced_until_a_synced_one() {
    let open = WritesOfHolder {
        synced: true,
        open: true,
    };
    let (state, _) = decided(&two_entries(), &[release(1, 1, open)]);
    assert!(state.unsynced);
    let (state, _) = decided(&state, &[release(2, 2, WritesOfHolder::NONE)]);
    assert!(state.unsynced);
    let (state, _) = decided(&state, &[create(3), create(4)]);
    let synced = WritesOfHolder {
        synced: true,
        open: false,
    };
    // A waiter has written nothing.
    let (state, _) = decided(&state, &[release(4, 4, synced)]);
    assert!(state.unsynced);
    let (state, _) = decided(&state, &[release(3, 3, synced)]);
    assert!(!state.unsynced);
}

#[test]
fn an_evicted_holder_leaves_the_key_unsynced_and_a_waiter_does_not() {
    let (state, _) = decided(&two_entries(), &[evict(2, 2)]);
    assert!(!state.unsynced);
    let (state, outcomes) = decided(&two_entries(), &[evict(1, 1)]);
    assert_eq!(outcomes, [Outcome::Evicted { was_holder: true }]);
    assert!(state.unsynced);
    assert_eq!(state.end_of(Seq(1)), EndedAs::Lost(EndReason::Expired));
}

#[test]
fn a_holder_is_unclaimed_only_under_the_grant_that_was_seen() {
    let state = two_entries();
    let unclaimed = |seq, grant| Command::Evict {
        seq: Seq(seq),
        tag: tag(seq.into()),
        reason: EndReason::Unclaimed,
        only_under: Some(grant),
    };
    for not_seen in [unclaimed(1, Fence(NOW - 1)), unclaimed(2, Fence(NOW))] {
        let (after, outcomes) = decided(&state, &[not_seen]);
        assert_eq!(outcomes, [Outcome::Refused(Refusal::OtherGrant)]);
        assert_eq!(after, state);
    }
    let (after, _) = decided(&state, &[unclaimed(1, Fence(NOW))]);
    assert_eq!(after.head(), Seq(2));
}

#[test]
fn a_take_over_keeps_the_queue_and_gives_the_holder_a_new_grant() {
    let state = two_entries();
    let decision = decided_by(2, Some(NOW), &state, &[take(state.home, 2)]);
    let after = decision.state;
    assert_eq!(after.entries, state.entries);
    assert_eq!(after.grant, Fence(NOW + 10));
    assert_eq!(after.kept, Some(Seq(1)));
    assert!(after.unsynced);
    assert_eq!(after.term(), 2);
    assert_eq!(after.ended.complete_from, Seq(1));
}

#[test]
fn an_idle_key_that_is_taken_over_needs_no_sync() {
    let (state, _) = decided(&two_entries(), &[evict(2, 2)]);
    let (mut state, _) = decided(&state, &[release(1, 1, WritesOfHolder::NONE)]);
    // Only entries that the row knows to have ended were volatile.
    state.reserved.volatile_end = state.head();
    let decision = decided_by(2, Some(NOW), &state, &[take(state.home, 2)]);
    assert!(!decision.state.unsynced);
}

#[test]
fn a_take_over_names_the_home_and_term_that_it_follows() {
    let state = two_entries();
    let other_term = state.home.map(|home| Home {
        term: home.term + 1,
        ..home
    });
    for from in [None, other_term] {
        let decision = decided_by(2, Some(NOW), &state, &[take(from, 2)]);
        let refused = Outcome::Refused(Refusal::NotHome(state.home));
        assert_eq!(decision.outcomes, [refused]);
        assert_eq!(decision.state, state);
    }
}

#[test]
fn a_take_over_that_took_effect_is_found_again() {
    let before = two_entries();
    let after = decided_by(2, Some(NOW), &before, &[take(before.home, 2)]).state;
    let again = decided_by(2, Some(NOW), &after, &[take(before.home, 2)]);
    assert_eq!(again.state, after);
    assert_eq!(again.outcomes.len(), 1);
    assert!(matches!(again.outcomes[0], Outcome::Home(home) if Some(home) == after.home));
}

#[test]
fn a_take_over_jumps_what_the_home_before_had_reserved() {
    let mut state = two_entries();
    state.reserved = Reserved {
        seq_end: Seq(100),
        fence_end: 5_000,
        volatile_end: Seq(0),
    };
    let after = decided_by(2, Some(NOW), &state, &[take(state.home, 2)]).state;
    assert_eq!(after.next, Seq(100));
    assert_eq!(after.grant, Fence(5_000));
    assert_eq!(after.end_of(Seq(50)), EndedAs::NoLongerKept);
}

#[test]
fn what_the_row_knew_to_be_released_before_a_take_over_is_told_so() {
    let on = |n, state: &KeyState, command| decided_by(n, Some(NOW), state, &[command]).state;
    let followed_by = |n, mut state: KeyState| {
        state.reserved.seq_end = Seq(state.next.0 + 10);
        on(n, &state, take(state.home, n))
    };
    let released = |seq, tag| release(seq, tag, WritesOfHolder::NONE);
    let state = followed_by(2, on(1, &two_entries(), released(1, 1)));
    assert_eq!(state.end_of(Seq(1)), EndedAs::Released);
    assert_eq!(state.end_of(Seq(12)), EndedAs::NoLongerKept);
    // So is who lived on.
    let state = on(2, &state, released(2, 2));
    assert_eq!(state.end_of(Seq(2)), EndedAs::Released);
    // One range is remembered: of what was before it nothing is told any more.
    let state = followed_by(3, on(2, &state, create(13)));
    for seq in [1, 2, 12, 23] {
        assert_eq!(state.end_of(Seq(seq)), EndedAs::NoLongerKept);
    }
    let state = on(3, &state, released(13, 13));
    assert_eq!(state.end_of(Seq(13)), EndedAs::Released);
}

#[test]
fn a_take_over_ends_what_may_have_been_granted_in_memory_but_for_the_kept_holder() {
    let mut state = two_entries();
    (state, _) = decided(&state, &[create(3)]);
    state.reserved.volatile_end = Seq(3);
    let after = decided_by(2, Some(NOW), &state, &[take(state.home, 2)]).state;
    let left: Vec<Seq> = after.entries.iter().map(|e| e.seq).collect();
    assert_eq!(left, [Seq(1), Seq(3)]);
    assert_eq!(after.end_of(Seq(2)), EndedAs::NoLongerKept);
    state.kept = None;
    let after = decided_by(2, Some(NOW), &state, &[take(state.home, 2)]).state;
    let left: Vec<Seq> = after.entries.iter().map(|e| e.seq).collect();
    assert_eq!(left, [Seq(3)]);
    assert!(after.unsynced);
}

#[test]
fn the_first_fence_lies_above_what_the_data_holds() {
    let commands = [
        Command::TakeOver {
            from: None,
            to: replica(1),
            past: Some(NOW + 500),
        },
        create(1),
    ];
    let (state, _) = decided(&KeyState::default(), &commands);
    assert_eq!(state.grant, Fence(NOW + 501));
}

#[test]
fn data_too_far_ahead_of_the_clock_is_refused_and_nothing_is_changed() {
    let far = Command::TakeOver {
        from: None,
        to: replica(1),
        past: Some(NOW + 20_000),
    };
    let (state, outcomes) = decided(&KeyState::default(), &[far, create(1)]);
    assert_eq!(state, KeyState::default());
    assert!(matches!(
        outcomes[0],
        Outcome::Refused(Refusal::Fence(
            crate::lock::FenceError::PastTooFarAhead { .. }
        ))
    ));
}

#[test]
fn while_the_clock_is_wrong_nobody_is_granted_and_releases_go_on() {
    let state = two_entries();
    let decision = decided_by(1, None, &state, &[release(1, 1, WritesOfHolder::NONE)]);
    assert_eq!(decision.outcomes, [Outcome::Released]);
    let after = decision.state;
    assert_eq!((after.head(), after.grant), (Seq(2), Fence::NONE));
    assert_eq!(after.holder(), None);
    let (after, outcomes) = decided(&after, &[Command::Grant]);
    assert_eq!(outcomes, [Outcome::Granted]);
    assert_eq!(after.grant, Fence(NOW + 10));
    let none = decided_by(1, None, &KeyState::default(), &[take(None, 1), create(1)]);
    assert_eq!(none.outcomes[1], Outcome::Refused(Refusal::ClockIsWrong));
}

#[test]
fn while_the_clock_is_wrong_a_holder_gets_more_timestamps_all_the_same() {
    let extend = |past| Command::Extend {
        fence: Fence(NOW),
        past,
    };
    for (past, fence) in [(None, NOW + 10), (Some(NOW + 30), NOW + 31)] {
        let decision = decided_by(1, None, &two_entries(), &[extend(past)]);
        assert_eq!(decision.outcomes, [Outcome::Extended]);
        assert_eq!(decision.state.fence, Fence(fence));
    }
}

#[test]
fn an_extend_gives_a_wider_fence_above_what_was_met() {
    let state = two_entries();
    let extend = |fence, past| Command::Extend { fence, past };
    let (after, outcomes) = decided(&state, &[extend(Fence(NOW), Some(NOW + 30))]);
    assert_eq!(outcomes, [Outcome::Extended]);
    assert_eq!((after.fence, after.width), (Fence(NOW + 31), 80));
    assert_eq!(after.grant, Fence(NOW));
    let (same, outcomes) = decided(&after, &[extend(Fence(NOW), None)]);
    assert_eq!((same, outcomes), (after.clone(), vec![Outcome::Extended]));
    let (_, outcomes) = decided(&after, &[extend(Fence(NOW - 1), None)]);
    assert_eq!(outcomes, [Outcome::Refused(Refusal::OtherGrant)]);
}

#[test]
fn a_hand_over_gives_the_holder_a_new_grant_and_one_that_was_not_told_none() {
    let state = two_entries();
    let clean = WritesOfHolder {
        synced: false,
        open: false,
    };
    let hand = |holder| Command::HandOver {
        to: replica(2),
        holder,
        left_ms: 700,
    };
    let (answered, outcomes) = decided(&state, &[hand(Some(clean))]);
    assert_eq!(outcomes, [Outcome::HandedOver]);
    assert_eq!(answered.grant, Fence(NOW + 10));
    assert_eq!((answered.kept, answered.unsynced), (Some(Seq(1)), false));
    assert_eq!(answered.first_left_ms, 700);
    assert_eq!(
        answered.home.map(|h| (h.replica, h.term)),
        Some((replica(2), 2))
    );
    let (unnotified, _) = decided(&state, &[hand(None)]);
    assert_eq!((unnotified.grant, unnotified.kept), (Fence::NONE, None));
    assert_eq!(unnotified.first_left_ms, 700);
    let (taken, _) = decided(&answered, &[take(answered.home, 3)]);
    assert_eq!(taken.first_left_ms, 0);
    let open = WritesOfHolder {
        synced: false,
        open: true,
    };
    let (with_open, _) = decided(&state, &[hand(Some(open))]);
    assert!(with_open.unsynced);
}

#[test]
fn ends_that_are_forgotten_are_said_to_be() {
    let mut state = KeyState::default();
    (state, _) = decided(&state, &[take(None, 1)]);
    for n in 1..=3 {
        (state, _) = decided(&state, &[create(n)]);
        (state, _) = decided(&state, &[evict(n as u64, n)]);
    }
    assert_eq!(state.end_of(Seq(1)), EndedAs::NoLongerKept);
    assert_eq!(state.end_of(Seq(3)), EndedAs::Lost(EndReason::Expired));
}
