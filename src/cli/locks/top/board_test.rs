use super::*;

pub fn at(seconds: u64) -> Moment {
    Moment::from_zero(Duration::from_secs(seconds))
}

fn turns(count: u64, mean_s: i64, longest_s: i64) -> Option<proto::Turns> {
    let span = |seconds| prost_types::Duration { seconds, nanos: 0 };
    Some(proto::Turns {
        count,
        mean_wait: Some(span(mean_s)),
        longest_wait: Some(span(longest_s)),
    })
}

pub fn key(key: &str, owner: &str, count: u64, waiters: u32) -> proto::KeyActivity {
    proto::KeyActivity {
        table: "default".to_owned(),
        key: key.to_owned(),
        owner: owner.to_owned(),
        waiters,
        last_minute: turns(count, 2, 5),
        held_for: None,
        identity: String::new(),
    }
}

/// A replica with this number, that granted and read so often since it started.
pub fn replica(number: u8, granted: u64, keys: Vec<proto::KeyActivity>) -> proto::ReplicaActivity {
    let count = keys
        .iter()
        .map(|key| key.last_minute.map_or(0, |turns| turns.count));
    proto::ReplicaActivity {
        replica: Some(proto::ReplicaInfo {
            replica: format!("0000000{number}-0000-4000-8000-000000000000"),
            address: format!("10.0.0.{number}:7450"),
            version: "0.1.0".to_owned(),
            ..proto::ReplicaInfo::default()
        }),
        answered: true,
        sessions: 3,
        keys: keys.len() as u64,
        grants: Some(proto::GrantCounts {
            at_once: granted / 2,
            after_change: granted - granted / 2,
        }),
        last_minute: turns(count.sum(), 2, 5),
        store: Some(proto::StoreCounts {
            reads: 10 * granted,
            writes: 2,
            transactions: granted,
            changes: granted,
            conflicts: 1,
        }),
        busiest_keys: keys,
        resident_bytes: 0,
        as_home: Some(proto::HomeCounts {
            volatile_grants: granted - 1,
            durable_grants: 1,
            background_commits: 3,
            commits_in_doubt: 4,
            take_overs: 5,
            received_keys: 8,
            hand_overs: 6,
            forgotten_keys: 7,
        }),
    }
}

pub fn silent(number: u8) -> proto::ReplicaActivity {
    proto::ReplicaActivity {
        replica: Some(proto::ReplicaInfo {
            replica: format!("0000000{number}-0000-4000-8000-000000000000"),
            ..proto::ReplicaInfo::default()
        }),
        ..proto::ReplicaActivity::default()
    }
}

pub fn snapshot(seconds: u64, replicas: Vec<proto::ReplicaActivity>) -> Snapshot {
    Snapshot {
        at: at(seconds),
        replicas,
    }
}

fn choice(prefix: &str, limit: usize) -> Choice {
    Choice {
        prefix: prefix.to_owned(),
        limit,
        ..Choice::default()
    }
}

fn names(board: &Board) -> Vec<&str> {
    board.keys.iter().map(|key| key.key.as_str()).collect()
}

#[test]
fn a_key_of_several_replicas_is_one_key_and_the_busiest_is_first() {
    let mut lone = key("a", "x", 4, 1);
    lone.last_minute = turns(4, 8, 9);
    let replicas = vec![
        replica(1, 9, vec![lone, key("b", "few", 3, 6)]),
        replica(2, 9, vec![key("b", "many", 6, 2), key("c", "x", 4, 2)]),
    ];
    let board = Board::new(snapshot(1, replicas), None, &choice("", 9));
    assert_eq!(names(&board), ["b", "c", "a"]);
    let busiest = &board.keys[0];
    // Nine grants in all; the longer of the two queues; the owner at the replica with the most grants.
    assert_eq!((busiest.waits.count, busiest.waiters), (9, 6));
    assert_eq!(busiest.owner, "many");
    let longest = busiest.waits.longest;
    assert_eq!(longest, Some(Duration::from_secs(5)));
    assert_eq!(board.waits.count, 17);
    assert_eq!(board.sessions, 6);
}

#[test]
fn a_label_is_not_taken_for_the_one_who_gave_it_itself() {
    let by = |identity: &str, count| proto::KeyActivity {
        identity: identity.to_owned(),
        ..key("a", "billing", count, 1)
    };
    let replicas = vec![
        replica(1, 9, vec![by("mallory", 2)]),
        replica(2, 9, vec![by("billing", 3)]),
    ];
    let board = Board::new(snapshot(1, replicas), None, &choice("", 9));
    let key = &board.keys[0];
    let named = (key.owner.as_str(), key.identity.as_str());
    assert_eq!(named, ("billing", "billing"));
}

#[test]
fn what_is_held_longest_while_others_wait_is_first() {
    let held = |name, count, seconds| proto::KeyActivity {
        held_for: Some(prost_types::Duration { seconds, nanos: 9 }),
        ..key(name, "x", count, 3)
    };
    let replicas = vec![
        replica(1, 9, vec![held("a", 0, 7), key("b", "x", 9, 0)]),
        // Its home before; and two that change hands each moment.
        replica(2, 9, vec![key("a", "y", 1, 0), held("c", 5, 0)]),
        replica(3, 9, vec![held("d", 6, 0), held("e", 0, 77)]),
    ];
    let board = Board::new(snapshot(1, replicas), None, &choice("", 9));
    assert_eq!(names(&board), ["e", "a", "b", "d", "c"]);
    let held: Vec<_> = board.keys.iter().map(|key| key.held_for).collect();
    assert_eq!(held[2], None);
    assert_eq!(held[1], Some(Duration::new(7, 9)));
}

#[test]
fn rates_are_the_difference_of_two_answers_of_the_same_replica() {
    let before = snapshot(10, vec![replica(1, 100, Vec::new()), silent(2)]);
    let replicas = vec![
        replica(3, 7, Vec::new()),
        replica(2, 7, Vec::new()),
        replica(1, 150, Vec::new()),
    ];
    let board = Board::new(snapshot(20, replicas), Some(&before), &choice("", 9));
    let rates = |at: usize| board.replicas[at].activity.as_ref().unwrap().rates;
    let expected = Rates {
        grants: 5.0,
        reads: 50.0,
        writes: 0.0,
        transactions: 5.0,
    };
    assert_eq!(rates(0), Some(expected));
    // One did not answer the time before, and one was not there: a counter is no rate.
    assert_eq!((rates(1), rates(2)), (None, None));
    assert_eq!(board.grants_per_second, Some(5.0));
    let first = board.replicas[0].activity.as_ref().unwrap();
    assert_eq!(first.conflicts, 1);
}

#[test]
fn only_the_keys_that_are_wanted_are_told_and_no_more_than_the_limit() {
    let mut foreign = key("a/3", "x", 9, 0);
    foreign.table = "other".to_owned();
    let keys = vec![
        key("b", "x", 8, 0),
        foreign,
        key("a/1", "x", 2, 0),
        key("a/2", "x", 3, 0),
    ];
    let board = |choice: &Choice| {
        let replicas = vec![replica(1, 1, keys.clone())];
        Board::new(snapshot(1, replicas), None, choice)
    };
    assert_eq!(names(&board(&choice("a/", 9))), ["a/3", "a/2", "a/1"]);
    let mut table = choice("a/", 9);
    table.table = "default".to_owned();
    assert_eq!(names(&board(&table)), ["a/2", "a/1"]);
    assert_eq!(names(&board(&choice("", 1))), ["a/3"]);
    // Of the whole service, whatever is left out.
    assert_eq!(board(&table).waits.count, 22);
    assert_eq!((table.keys_max(), choice("", 7).keys_max()), (KEYS_MAX, 7));
}
