use proptest::prelude::*;

use super::*;
use crate::store::StoreError;

const TTL: Duration = Duration::from_secs(10);

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Announced at 0.
fn announced() -> ReplicaLease {
    ReplicaLease::announced(s(0), 1, TTL)
}

fn row(state: ReplicaState, heartbeat: u64) -> OwnRow {
    OwnRow::Present { state, heartbeat }
}

fn up(incarnation: u32) -> OwnRow {
    row(ReplicaState::Up(incarnation), 1)
}

fn unknown() -> StateSwap {
    StateSwap::Unknown(StoreError::Unavailable("lost".to_owned()))
}

/// A round from `sent` to `ended` that came through.
fn round(lease: &mut ReplicaLease, sent: u64, ended: u64, incarnation: u32) {
    let round = lease.begin_round(s(sent), Some(1)).unwrap();
    lease.end_round(round, true, Some(up(incarnation)), s(ended));
}

/// Silent since 9, with a store that answers again at 20.
fn silent() -> ReplicaLease {
    let mut lease = announced();
    round(&mut lease, 20, 20, 1);
    assert_eq!(lease.status(s(20)), Status::Silent);
    lease
}

#[test]
fn a_replica_is_sure_for_90_percent_of_its_ttl_from_the_sending_of_the_last_round() {
    let mut lease = announced();
    assert_eq!(lease.status(s(0)), Status::SureUntil(s(9)));
    round(&mut lease, 3, 5, 1);
    assert_eq!(lease.status(s(11)), Status::SureUntil(s(12)));
    assert_eq!(lease.status(s(12)), Status::Silent);
}

#[test]
fn an_older_round_that_ends_later_takes_nothing_back() {
    let mut lease = announced();
    let early = lease.begin_round(s(1), Some(1)).unwrap();
    round(&mut lease, 2, 3, 1);
    lease.end_round(early, true, Some(up(1)), s(4));
    assert_eq!(lease.status(s(4)), Status::SureUntil(s(11)));
}

#[test]
fn a_round_counts_only_with_both_its_heartbeat_and_its_own_row() {
    for (acknowledged, own) in [(false, Some(up(1))), (true, None), (false, None)] {
        let mut lease = announced();
        let round = lease.begin_round(s(5), Some(1)).unwrap();
        lease.end_round(round, acknowledged, own, s(5));
        assert_eq!(lease.status(s(5)), Status::SureUntil(s(9)));
    }
}

#[test]
fn a_round_that_is_acknowledged_after_the_silence_began_brings_nothing_back() {
    let mut lease = announced();
    round(&mut lease, 8, 9, 1);
    // Nobody looked at the clock in between.
    assert_eq!(lease.status(s(9)), Status::Silent);
}

#[test]
fn a_silent_replica_is_sure_again_from_the_sending_of_its_applied_swap() {
    let mut lease = silent();
    let change = lease.come_back(s(21)).unwrap();
    assert_eq!((change.expected, change.next), (1, 2));
    assert_eq!(lease.status(s(21)), Status::Silent);
    lease.swapped(change, &StateSwap::Applied, s(23));
    assert_eq!(lease.status(s(23)), Status::SureUntil(s(30)));
    round(&mut lease, 25, 26, 2);
    assert_eq!(lease.status(s(26)), Status::SureUntil(s(34)));
}

#[test]
fn a_swap_that_is_applied_too_late_leaves_it_silent() {
    let mut lease = silent();
    let change = lease.come_back(s(21)).unwrap();
    lease.swapped(change, &StateSwap::Applied, s(30));
    assert_eq!(lease.status(s(30)), Status::Silent);
    round(&mut lease, 31, 31, 2);
    let change = lease.come_back(s(31)).unwrap();
    assert_eq!((change.expected, change.next), (2, 3));
}

#[test]
fn one_swap_is_sent_at_a_time_and_only_after_the_store_answered() {
    let mut lease = announced();
    assert_eq!(lease.come_back(s(8)), None, "it is sure");
    assert_eq!(lease.come_back(s(10)), None, "the store is away");
    let read_only = lease.begin_round(s(11), Some(1)).unwrap();
    lease.end_round(read_only, false, Some(up(1)), s(11));
    let change = lease.come_back(s(11)).unwrap();
    round(&mut lease, 12, 12, 1);
    assert_eq!(lease.come_back(s(12)), None, "one is in flight");
    lease.swapped(change, &unknown(), s(13));
    let again = lease.come_back(s(13)).unwrap();
    assert_eq!((again.expected, again.next), (1, 3), "no incarnation twice");
}

#[test]
fn a_round_of_before_the_swap_counts_for_nothing_after_it() {
    let mut lease = silent();
    let early = lease.begin_round(s(21), Some(1)).unwrap();
    let change = lease.come_back(s(22)).unwrap();
    lease.swapped(change, &StateSwap::Applied, s(22));
    lease.end_round(early, true, Some(up(1)), s(23));
    assert_eq!(lease.status(s(23)), Status::SureUntil(s(31)));
    // Sent while silent, whatever its read saw.
    let mut lease = silent();
    let change = lease.come_back(s(22)).unwrap();
    let during = lease.begin_round(s(29), Some(1)).unwrap();
    lease.swapped(change, &StateSwap::Applied, s(30));
    lease.end_round(during, true, Some(up(2)), s(30));
    assert_eq!(lease.status(s(30)), Status::SureUntil(s(31)));
}

#[test]
fn a_swap_of_unknown_outcome_that_was_applied_is_followed_by_another_one() {
    let mut lease = silent();
    let change = lease.come_back(s(21)).unwrap();
    lease.swapped(change, &unknown(), s(22));
    // Its own incarnation in the row is no proof: another process may have its id.
    round(&mut lease, 23, 23, 2);
    assert_eq!(lease.status(s(23)), Status::Silent);
    let change = lease.come_back(s(23)).unwrap();
    assert_eq!((change.expected, change.next), (2, 3));
    lease.swapped(change, &StateSwap::Applied, s(24));
    assert_eq!(lease.status(s(24)), Status::SureUntil(s(32)));
}

#[test]
fn a_conflict_with_its_own_earlier_swap_is_followed_by_another_one_at_once() {
    let mut lease = silent();
    let first = lease.come_back(s(21)).unwrap();
    lease.swapped(first, &unknown(), s(22));
    round(&mut lease, 23, 23, 1);
    let second = lease.come_back(s(23)).unwrap();
    assert_eq!((second.expected, second.next), (1, 3));
    lease.swapped(
        second,
        &StateSwap::Conflict(Some(ReplicaState::Up(2))),
        s(24),
    );
    let third = lease.come_back(s(24)).unwrap();
    assert_eq!((third.expected, third.next), (2, 4));
}

#[test]
fn a_row_that_tells_of_its_end_or_of_another_process_fences_for_good() {
    let cases = [
        (OwnRow::Missing, FencedBy::Missing),
        (row(ReplicaState::Down, 1), FencedBy::Down),
        (row(ReplicaState::Stopped, 1), FencedBy::Stopped),
        (up(2), FencedBy::Incarnation(2)),
        (row(ReplicaState::Up(1), 2), FencedBy::Heartbeat(2)),
    ];
    for (own, by) in cases {
        for mut lease in [announced(), {
            let mut lease = announced();
            lease.status(s(20));
            lease
        }] {
            lease.saw(own);
            assert_eq!(lease.status(s(1)), Status::Fenced(by));
            assert_eq!(lease.begin_round(s(1), Some(1)), None);
            assert_eq!(lease.come_back(s(1)), None);
            assert_eq!(lease.stop(), None);
            lease.saw(up(1));
            assert_eq!(lease.status(s(1)), Status::Fenced(by));
        }
    }
}

#[test]
fn a_conflict_that_tells_of_its_end_or_of_another_process_fences() {
    for (met, by) in [
        (None, FencedBy::Missing),
        (Some(ReplicaState::Down), FencedBy::Down),
        (Some(ReplicaState::Stopped), FencedBy::Stopped),
        (Some(ReplicaState::Up(3)), FencedBy::Incarnation(3)),
        (Some(ReplicaState::Up(0)), FencedBy::Incarnation(0)),
    ] {
        let mut lease = silent();
        let change = lease.come_back(s(21)).unwrap();
        lease.swapped(change, &StateSwap::Conflict(met), s(21));
        assert_eq!(lease.status(s(21)), Status::Fenced(by));
    }
}

#[test]
fn its_own_heartbeats_do_not_fence_it() {
    let mut lease = announced();
    let round = lease.begin_round(s(1), Some(1)).unwrap();
    assert_eq!(round.heartbeat, Some(2));
    lease.end_round(round, true, Some(row(ReplicaState::Up(1), 2)), s(1));
    assert_eq!(lease.status(s(1)), Status::SureUntil(s(10)));
    let without = lease.begin_round(s(2), None).unwrap();
    assert_eq!(without.heartbeat, None);
}

#[test]
fn a_stopped_one_answers_nothing_and_follows_its_own_unknown_swap() {
    let mut lease = silent();
    let change = lease.come_back(s(21)).unwrap();
    assert_eq!(lease.stop(), Some(1));
    assert_eq!(lease.status(s(21)), Status::Stopped);
    lease.swapped(change, &StateSwap::Applied, s(21));
    assert_eq!(lease.status(s(21)), Status::Stopped);
    let met = StateSwap::Conflict(Some(ReplicaState::Up(2)));
    assert_eq!(lease.stopped(&met), StopOutcome::Again(2));
    assert_eq!(lease.stopped(&unknown()), StopOutcome::Again(2));
    assert_eq!(
        lease.stopped(&StateSwap::Conflict(Some(ReplicaState::Stopped))),
        StopOutcome::Done
    );
}

#[test]
fn a_stopped_one_leaves_the_row_of_another_process_alone() {
    let mut lease = announced();
    assert_eq!(lease.stop(), Some(1));
    let met = StateSwap::Conflict(Some(ReplicaState::Up(2)));
    assert_eq!(lease.stopped(&met), StopOutcome::Done);
}

/// The row of the replica and those that change it, in milliseconds: whoever observed neither a heartbeat nor a incarnation for
/// a TTL writes Down, whatever is late or lost.
#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    /// A round whose heartbeat is written, or lost, and acknowledged after so many steps.
    Round {
        written: bool,
        late: usize,
    },
    /// A swap, written or lost, whose outcome is known or not.
    ComeBack {
        written: bool,
        known: bool,
    },
    /// A read of the observer.
    Observe,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1_u64..2_000).prop_map(Step::Wait),
        3 => (prop::bool::weighted(0.6), 0_usize..10)
            .prop_map(|(written, late)| Step::Round { written, late }),
        2 => (prop::bool::weighted(0.8), prop::bool::weighted(0.7))
            .prop_map(|(written, known)| Step::ComeBack { written, known }),
        5 => Just(Step::Observe),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_replica_is_sure_once_an_observer_declared_it_down(
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let ttl = Duration::from_secs(3);
        let mut now = Duration::ZERO;
        let mut lease = ReplicaLease::announced(now, 1, ttl);
        let (mut incarnation, mut heartbeat) = (ReplicaState::Up(1), 1);
        // What the observer saw last, and when first.
        let mut seen = (incarnation, heartbeat, now);
        let mut open: Vec<(usize, Round, bool, OwnRow)> = Vec::new();
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Wait(ms) => now += Duration::from_millis(ms),
                Step::Round { written, late } => {
                    let Some(round) = lease.begin_round(now, Some(1)) else { break };
                    let own = row(incarnation, heartbeat);
                    // It is written at the very end, and read at the very beginning: the worst.
                    open.push((n + late, round, written, own));
                }
                Step::ComeBack { written, known } => {
                    if let Some(change) = lease.come_back(now) {
                        let is_expected = incarnation == ReplicaState::Up(change.expected);
                        if written && is_expected {
                            incarnation = ReplicaState::Up(change.next);
                        }
                        let came = match (known, is_expected) {
                            (true, false) => StateSwap::Conflict(Some(incarnation)),
                            (true, true) if written => StateSwap::Applied,
                            _ => unknown(),
                        };
                        lease.swapped(change, &came, now);
                    }
                }
                Step::Observe => {
                    if (seen.0, seen.1) != (incarnation, heartbeat) {
                        seen = (incarnation, heartbeat, now);
                    } else if now - seen.2 >= ttl {
                        incarnation = ReplicaState::Down;
                    }
                }
            }
            open.retain(|(at, round, written, own)| {
                let goes_on = *at > n;
                if !goes_on {
                    if *written {
                        heartbeat = heartbeat.max(round.heartbeat.unwrap());
                    }
                    lease.end_round(*round, *written, Some(*own), now);
                }
                goes_on
            });
            // On a copy: in truth nobody may have looked.
            let is_sure = matches!(lease.clone().status(now), Status::SureUntil(_));
            prop_assert!(!(is_sure && incarnation == ReplicaState::Down), "step {n} at {now:?}");
        }
    }
}
