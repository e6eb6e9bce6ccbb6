use uuid::Uuid;

use super::*;
use crate::key::Home;
use crate::lock::{EndReason, EndedEntry, Liveness, Mode, ReplicaId, SessionId, Tag};

const NOW: u64 = 1_000;

const RESERVE: Reserve = Reserve {
    seqs: 100,
    fence_us: 50,
    fence_us_if_far: 5,
    far_us: 10_000,
};

/// A home in its first term, with these entries, of which the first holds the key.
pub fn state(seqs: std::ops::RangeInclusive<u64>) -> KeyState {
    let entry = |seq| Entry {
        seq: Seq(seq),
        mode: Mode::Exclusive,
        tag: Tag::from_bits(seq.into()),
        liveness: Liveness::Session(SessionId(Uuid::from_u128(1))),
        identity: "".into(),
        owner: "".into(),
        created_at_ms: 0,
    };
    let mut state = KeyState {
        version: 1,
        home: Some(Home {
            replica: ReplicaId(Uuid::from_u128(1)),
            term: 1,
        }),
        next: Seq(seqs.end() + 1),
        grant: Fence(NOW),
        fence: Fence(NOW),
        width: 10,
        entries: seqs.map(|seq| Arc::new(entry(seq))).collect(),
        ..KeyState::default()
    };
    state.reserve_nothing();
    state
}

pub fn end(state: &mut KeyState, seq: u64) {
    state.ended.entries.push_back(EndedEntry {
        seq: Seq(seq),
        tag: Tag::from_bits(seq.into()),
        reason: EndReason::Expired,
    });
}

/// The row of that home before anything came.
fn row() -> KeyState {
    let home = state(1..=1).home;
    let version = 1;
    KeyState {
        version,
        home,
        ..KeyState::default()
    }
}

fn next<'a>(row: &'a KeyState, mode: CommitMode, survivors: Survivors) -> NextRow<'a> {
    NextRow {
        row,
        mode,
        survivors,
        lists_volatile: false,
        changes_max: 256,
        seqs_max: 1_000,
        now_us: Some(NOW),
    }
}

fn listed(row: &KeyState) -> Vec<u64> {
    assert_eq!(row.check(), Ok(()));
    row.entries.iter().map(|entry| entry.seq.0).collect()
}

#[test]
fn a_commit_lists_a_prefix_of_the_queue_and_knows_nothing_of_the_rest() {
    let before = row();
    let next = NextRow {
        changes_max: 2,
        ..next(&before, CommitMode::WriteThrough, Survivors::All)
    };
    let row = next.of(&state(1..=4));
    assert_eq!(listed(&row), [1, 2]);
    assert_eq!((row.next, row.reserved.seq_end), (Seq(3), Seq(3)));
    let next = NextRow { row: &row, ..next };
    let row = next.of(&state(1..=4));
    assert_eq!((listed(&row), row.next), (vec![1, 2, 3, 4], Seq(5)));
}

#[test]
fn what_ended_and_was_not_deleted_yet_is_listed_before_the_others() {
    let before = state(1..=3);
    let next = NextRow {
        changes_max: 1,
        ..next(&before, CommitMode::WriteThrough, Survivors::All)
    };
    let row = next.of(&state(3..=4));
    assert_eq!((listed(&row), row.next), (vec![2, 3], Seq(4)));
    // The holder is not the first one of the row yet.
    assert_eq!((row.grant, row.kept), (Fence::NONE, None));
    // Nor did anybody hold the key without the row.
    assert_eq!(row.reserved.volatile_end, Seq(0));
}

#[test]
fn whoever_may_hold_the_key_by_memory_alone_lies_below_volatile_end() {
    let before = row();
    let mode = CommitMode::WriteBack(RESERVE);
    let end = |survivors| {
        let row = next(&before, mode, survivors).of(&state(3..=6));
        (row.kept, row.reserved.volatile_end, listed(&row).len())
    };
    assert_eq!(end(Survivors::Behind(1)), (None, Seq(4), 4));
    assert_eq!(end(Survivors::Behind(2)), (None, Seq(5), 4));
    // None of them survives the home.
    assert_eq!(end(Survivors::Behind(4)), (None, Seq(107), 0));
    assert_eq!(end(Survivors::Holder), (Some(Seq(3)), Seq(4), 4));
}

#[test]
fn within_a_term_no_reserve_is_taken_back() {
    let mut before = row();
    before.reserved = Reserved {
        seq_end: Seq(500),
        fence_end: NOW + 400,
        volatile_end: Seq(50),
    };
    let mode = CommitMode::WriteBack(RESERVE);
    for now_us in [None, Some(NOW)] {
        let next = NextRow {
            now_us,
            ..next(&before, mode, Survivors::Behind(1))
        };
        assert_eq!(next.of(&state(3..=6)).reserved, before.reserved);
    }
}

#[test]
fn a_holder_that_does_not_fit_behind_what_ended_may_have_written_all_the_same() {
    let before = state(1..=3);
    let now = state(4..=4);
    for survivors in [Survivors::All, Survivors::Holder] {
        let next = NextRow {
            changes_max: 1,
            ..next(&before, CommitMode::WriteBack(RESERVE), survivors)
        };
        let row = next.of(&now);
        assert_eq!((listed(&row), row.kept), (vec![2, 3], None));
        assert!(row.reserved.volatile_end > Seq(4));
    }
}

#[test]
fn a_commit_tells_the_row_of_so_many_seqs_at_most_however_few_are_live() {
    let mut state = state(1..=5_000);
    // All but the holder and one in fifty ended before the row knew of them.
    state.entries.retain(|e| e.seq.0 == 1 || e.seq.0 % 50 == 0);
    let mut before = row();
    let mut commits = 0;
    while before.next < state.next {
        let next = next(&before, CommitMode::WriteBack(RESERVE), Survivors::Holder);
        let after = next.of(&state);
        assert_eq!(after.check(), Ok(()));
        assert!(after.next.0 - before.next.0 <= 1_000, "{:?}", after.next);
        assert!(after.next > before.next, "no way forward");
        assert!(after.entries.iter().all(|e| e.seq < after.next));
        before = after;
        commits += 1;
    }
    assert_eq!(commits, 5);
    assert_eq!(before.entries, state.entries);
}

#[test]
fn a_row_knows_of_no_end_and_no_entry_beyond_the_seqs_that_it_knows() {
    let mut state = state(1..=3);
    state.entries.remove(1);
    end(&mut state, 2);
    let before = row();
    for (seqs_max, entries, ends) in [(1, vec![1], 0), (2, vec![1], 1), (3, vec![1, 3], 1)] {
        let next = NextRow {
            seqs_max,
            ..next(&before, CommitMode::WriteThrough, Survivors::All)
        };
        let row = next.of(&state);
        let known = (row.next, listed(&row), row.ended.entries.len());
        assert_eq!(known, (Seq(1 + seqs_max), entries, ends));
    }
}

#[test]
fn no_more_seqs_are_reserved_than_there_are() {
    let before = row();
    let next = next(&before, CommitMode::WriteBack(RESERVE), Survivors::Holder);
    let row = next.of(&state(Seq::LAST.0..=Seq::LAST.0));
    assert_eq!(listed(&row), [Seq::LAST.0]);
    assert_eq!(row.reserved.seq_end, Seq(Seq::LAST.0 + 1));
}

#[test]
fn fewer_timestamps_are_reserved_once_they_are_far_ahead_of_the_clock() {
    let far = NOW + RESERVE.far_us;
    for (used, now_us, end) in [
        (NOW - 1, Some(NOW), NOW + 50),
        (far - 1, Some(NOW), far + 49),
        (far, Some(NOW), far + 5),
        (Fence::MAX, Some(NOW), Fence::MAX),
        // While the clock is wrong.
        (NOW, None, NOW),
    ] {
        assert_eq!(RESERVE.fence_end(used, now_us), end, "{used}");
    }
}

#[test]
fn the_changes_of_a_commit_are_the_entries_that_only_one_of_both_has() {
    assert_eq!(changes(&state(3..=6), &state(1..=4)), 4);
}
