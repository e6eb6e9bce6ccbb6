use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::lock::{Key, KeyId, TableName};
use crate::store::StoreError;

fn id(number: u128) -> ReplicaId {
    ReplicaId(Uuid::from_u128(number))
}

fn row(number: u128, heartbeat: u64) -> ReplicaRow {
    ReplicaRow {
        id: id(number),
        name: format!("fermata-{number}"),
        zone: String::new(),
        address: String::new(),
        peer_address: format!("127.0.0.{number}:1"),
        version: String::new(),
        started_at_ms: 0,
        ttl_ms: 10_000,
        heartbeat,
        state: ReplicaState::Up(1),
    }
}

fn with_state(state: ReplicaState, row: ReplicaRow) -> ReplicaRow {
    ReplicaRow { state, ..row }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Replica 1.
fn observer() -> Observation {
    Observation::new(&row(1, 1))
}

fn read(all: &mut Observation, at_ms: u64, rows: &[ReplicaRow]) {
    let read = all.begin_read(ms(at_ms));
    all.saw(read, ms(at_ms), rows);
}

/// Reads each second from `from` on, `times` times.
fn reads(all: &mut Observation, from: u64, times: u64, row: impl Fn(u64) -> ReplicaRow) {
    for n in from..from + times {
        read(all, n * 1_000, &[row(n)]);
    }
}

fn is_live(all: &mut Observation, number: u128) -> bool {
    matches!(all.presence(id(number)), Presence::Live(_))
}

#[test]
fn one_without_a_heartbeat_for_the_ttl_is_suspected_and_not_before() {
    let mut all = observer();
    reads(&mut all, 0, 10, |_| row(2, 5));
    assert!(is_live(&mut all, 2));
    assert_eq!(all.suspected_state(id(2)), None);
    reads(&mut all, 10, 1, |_| row(2, 5));
    assert_eq!(all.presence(id(2)), Presence::Suspected);
    assert_eq!(all.suspected_state(id(2)), Some(ReplicaState::Up(1)));
    assert!(all.peers().is_empty());
    reads(&mut all, 11, 1, |_| row(2, 6));
    assert!(is_live(&mut all, 2), "it sends heartbeats again");
}

#[test]
fn a_new_life_begins_the_count_anew() {
    let mut all = observer();
    reads(&mut all, 0, 9, |_| row(2, 5));
    reads(&mut all, 9, 10, |_| {
        with_state(ReplicaState::Up(2), row(2, 5))
    });
    assert!(is_live(&mut all, 2));
    reads(&mut all, 19, 1, |_| {
        with_state(ReplicaState::Up(2), row(2, 5))
    });
    assert_eq!(all.suspected_state(id(2)), Some(ReplicaState::Up(2)));
}

#[test]
fn one_with_another_ttl_is_waited_for_by_the_longer_one() {
    for (own, announced) in [(10_000, 30_000), (30_000, 2_000)] {
        let with_ttl = |ttl_ms, row| ReplicaRow { ttl_ms, ..row };
        let mut all = Observation::new(&with_ttl(own, row(1, 1)));
        reads(&mut all, 0, 30, |_| with_ttl(announced, row(2, 5)));
        assert!(is_live(&mut all, 2), "{own} {announced}");
        reads(&mut all, 30, 1, |_| with_ttl(announced, row(2, 5)));
        assert_eq!(all.presence(id(2)), Presence::Suspected);
    }
}

#[test]
fn time_in_which_nothing_could_be_read_counts_as_one_interval_at_most() {
    let mut all = observer();
    reads(&mut all, 0, 3, |_| row(2, 5));
    // 2 s and 2.5 s were observed, and 5 s from here on.
    reads(&mut all, 60, 6, |_| row(2, 5));
    assert!(is_live(&mut all, 2));
    reads(&mut all, 66, 1, |_| row(2, 5));
    assert_eq!(all.presence(id(2)), Presence::Suspected);
}

#[test]
fn a_store_that_was_away_for_longer_than_a_short_ttl_makes_nobody_suspected() {
    let short = |row| ReplicaRow {
        ttl_ms: 1_000,
        ..row
    };
    let mut all = Observation::new(&short(row(1, 1)));
    for n in 0..20 {
        read(&mut all, n * 100, &[short(row(2, n))]);
    }
    read(&mut all, 8_000, &[short(row(2, 19))]);
    assert!(is_live(&mut all, 2));
}

#[test]
fn a_replica_is_suspected_in_bounded_time_however_many_reads_fail_between_two_good_ones() {
    let mut all = observer();
    for n in 0..5 {
        read(&mut all, n * 5_000, &[row(2, 5)]);
    }
    assert_eq!(all.presence(id(2)), Presence::Suspected);
}

#[test]
fn silence_is_counted_from_the_answer_of_a_read_to_the_begin_of_another() {
    let mut all = observer();
    let slow = all.begin_read(ms(0));
    all.saw(slow, ms(1_000), &[row(2, 5)]);
    reads(&mut all, 2, 9, |_| row(2, 5));
    let last = all.begin_read(ms(10_999));
    all.saw(last, ms(12_000), &[row(2, 5)]);
    assert!(is_live(&mut all, 2));
    read(&mut all, 11_000, &[row(2, 5)]);
    assert_eq!(all.presence(id(2)), Presence::Suspected);
}

#[test]
fn a_read_that_was_overtaken_counts_for_nothing() {
    let mut all = observer();
    let overtaken = all.begin_read(ms(0));
    read(&mut all, 1, &[row(2, 6)]);
    all.saw(overtaken, ms(2), &[]);
    assert!(is_live(&mut all, 2));
}

#[test]
fn an_unknown_one_is_down_only_after_a_read_that_was_begun_later() {
    let mut all = observer();
    let early = all.begin_read(ms(0));
    assert_eq!(all.presence(id(9)), Presence::Unsure);
    all.saw(early, ms(1), &[]);
    assert_eq!(all.presence(id(9)), Presence::Unsure);
    read(&mut all, 2, &[]);
    assert_eq!(all.presence(id(9)), Presence::Down);
}

#[test]
fn one_whose_row_says_so_or_is_gone_is_down() {
    for state in [ReplicaState::Down, ReplicaState::Stopped] {
        let mut all = observer();
        read(&mut all, 0, &[with_state(state, row(2, 5))]);
        assert_eq!(all.presence(id(2)), Presence::Down);
        assert_eq!(all.suspected_state(id(2)), None);
    }
    let mut all = observer();
    read(&mut all, 0, &[row(2, 5)]);
    read(&mut all, 1, &[]);
    assert_eq!(all.presence(id(2)), Presence::Down);
}

#[test]
fn silence_alone_permits_nothing_until_it_was_declared() {
    let unavailable = || StoreError::Unavailable("lost".to_owned());
    for (came, presence) in [
        (StateSwap::Applied, Presence::Down),
        (
            StateSwap::Conflict(Some(ReplicaState::Down)),
            Presence::Down,
        ),
        (
            StateSwap::Conflict(Some(ReplicaState::Stopped)),
            Presence::Down,
        ),
        (StateSwap::Conflict(None), Presence::Down),
        (StateSwap::Unknown(unavailable()), Presence::Suspected),
        (StateSwap::NotStarted(unavailable()), Presence::Suspected),
    ] {
        let mut all = observer();
        reads(&mut all, 0, 11, |_| row(2, 5));
        assert_eq!(all.presence(id(2)), Presence::Suspected);
        all.declared(id(2), &came, ms(10_000));
        assert_eq!(all.presence(id(2)), presence, "{came:?}");
    }
}

#[test]
fn one_that_came_back_before_it_was_declared_down_lives() {
    let mut all = observer();
    reads(&mut all, 0, 11, |_| row(2, 5));
    let came = StateSwap::Conflict(Some(ReplicaState::Up(2)));
    all.declared(id(2), &came, ms(10_500));
    assert!(is_live(&mut all, 2));
    reads(&mut all, 11, 9, |_| {
        with_state(ReplicaState::Up(2), row(2, 5))
    });
    assert!(is_live(&mut all, 2));
}

#[test]
fn a_read_of_before_the_end_of_a_replica_does_not_bring_it_back() {
    let mut all = observer();
    reads(&mut all, 0, 11, |_| row(2, 5));
    let early = all.begin_read(ms(10_500));
    all.declared(id(2), &StateSwap::Applied, ms(10_600));
    all.saw(early, ms(10_700), &[row(2, 6)]);
    assert_eq!(all.presence(id(2)), Presence::Down);
}

#[test]
fn only_those_that_send_heartbeats_are_chosen_and_this_one_always_may_be() {
    let key = |n: u64| KeyId {
        table: TableName::default_table(),
        key: Key::parse(&format!("orders-{n}"), 99).unwrap(),
    };
    let chosen = |all: &Observation| -> Vec<u128> {
        let one = |n| match all.ranked(key(n).name_hash(), "") {
            Ranked::Local => 1,
            Ranked::Remote(peer) => peer.id.0.as_u128(),
        };
        let mut chosen: Vec<u128> = (0..100).map(one).collect();
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    };
    let mut all = observer();
    assert_eq!(chosen(&all), [1]);
    read(
        &mut all,
        0,
        &[
            row(1, 1),
            row(2, 0),
            row(3, 0),
            with_state(ReplicaState::Down, row(4, 0)),
        ],
    );
    assert_eq!(chosen(&all), [1, 2, 3]);
    for n in 1..=4 {
        read(&mut all, n * 1_000, &[row(2, n), row(3, 0)]);
    }
    assert_eq!(chosen(&all), [1, 2], "long before 3 is silent");
    assert_eq!(all.peers().len(), 2);
    // Nor is one that is about to stop, while there is another one.
    let next = |all: &Observation| all.next_ranked(key(0).name_hash(), "").map(|peer| peer.id);
    assert_eq!(next(&all), Some(id(2)));
    all.note_leaving(id(1));
    assert_eq!(chosen(&all), [2]);
    all.note_leaving(id(2));
    read(&mut all, 5_000, &[row(2, 5), row(3, 0)]);
    assert_eq!((chosen(&all), next(&all)), (vec![1], None));
    assert_eq!(all.peers().len(), 2, "it is called still");
}

#[test]
fn what_is_kept_of_ids_without_a_row_is_bounded() {
    let mut all = observer();
    for n in 0..30_000 {
        all.presence(id(100 + n));
    }
    assert!(all.no_row.len() <= UNKNOWN_MAX);
}

/// A way to the store that stalls, and then answers all that was asked meanwhile at once.
#[test]
fn reads_that_were_begun_before_a_heartbeat_was_seen_count_nothing_of_its_silence() {
    let short = |number, heartbeat| ReplicaRow {
        ttl_ms: 2_000,
        ..row(number, heartbeat)
    };
    let mut all = Observation::new(&short(1, 1));
    let stalled: Vec<BegunRead> = (0..10).map(|n| all.begin_read(ms(n * 200))).collect();
    for read in stalled {
        all.saw(read, ms(1_900), &[short(2, 7)]);
    }
    for at in (2_000..3_900).step_by(200) {
        read(&mut all, at, &[short(2, 7)]);
        assert!(is_live(&mut all, 2), "after {} ms", at - 1_900);
    }
    for at in (3_900..4_600).step_by(200) {
        read(&mut all, at, &[short(2, 7)]);
    }
    assert_eq!(all.presence(id(2)), Presence::Suspected);
}

/// What happens next, in milliseconds.
#[derive(Clone, Debug)]
struct Step {
    wait: u64,
    until_done: u64,
    until_answer: u64,
    writes: bool,
    reads: bool,
    /// For so long nothing that is asked reaches the store, and then all of it at once.
    stall: u64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let short_or_long = |long: u64| prop_oneof![3 => 0_u64..200, 1 => 0_u64..long];
    let times = (
        short_or_long(4_000),
        short_or_long(2_000),
        short_or_long(2_000),
    );
    let stall = prop_oneof![9 => Just(0_u64), 1 => 0_u64..2_000];
    let what = (prop::bool::weighted(0.1), prop::bool::weighted(0.9), stall);
    let step = (times, what).prop_map(
        |((wait, until_done, until_answer), (writes, reads, stall))| Step {
            wait,
            until_done,
            until_answer,
            writes,
            reads,
            stall,
        },
    );
    prop::collection::vec(step, 1..100)
}

proptest! {
    /// Reads take as long as they like, overlap and fail, and show what was there at any moment between their begin and
    /// their answer; heartbeats are written at any time.
    #[test]
    fn nobody_is_suspected_who_wrote_a_heartbeat_less_than_a_ttl_before_the_last_read(
        ttl_ms in prop_oneof![Just(1_000_u32), Just(2_000), Just(5_000), Just(10_000)],
        steps in steps(),
    ) {
        let of = |number, heartbeat| ReplicaRow { ttl_ms, ..row(number, heartbeat) };
        let mut all = Observation::new(&of(1, 1));
        let (mut now, mut stalled_until) = (0, 0);
        // When each heartbeat was written.
        let mut written = vec![0];
        let mut open: Vec<(u64, u64, BegunRead)> = Vec::new();
        let mut silent_ms = 0;
        for step in steps {
            now += step.wait;
            stalled_until = stalled_until.max(now + step.stall);
            if step.writes {
                written.push(now);
            }
            if step.reads {
                let done = stalled_until.max(now + step.until_done);
                open.push((done, done + step.until_answer, all.begin_read(ms(now))));
            }
            open.retain(|(done, answered, read)| {
                if *answered <= now {
                    let heartbeat = written.partition_point(|at| at <= done);
                    if read.number > all.seen {
                        let begun = u64::try_from(read.begun.as_millis()).unwrap();
                        silent_ms = begun.saturating_sub(written[heartbeat - 1]);
                    }
                    all.saw(*read, ms(now), &[of(2, heartbeat as u64)]);
                }
                *answered > now
            });
            if all.suspected_state(id(2)).is_some() {
                prop_assert!(silent_ms >= u64::from(ttl_ms), "{silent_ms} of {ttl_ms} ms");
            }
        }
    }
}
