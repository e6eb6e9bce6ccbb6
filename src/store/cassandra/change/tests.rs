use std::collections::VecDeque;
use std::sync::Arc;

use uuid::Uuid;

use super::*;
use crate::key::{Entry, Home, Reserved};
use crate::lock::{Fence, Liveness, Mode, ReplicaId, Tag};

fn entry(seq: u64) -> Arc<Entry> {
    Arc::new(Entry {
        seq: Seq(seq),
        mode: Mode::Exclusive,
        tag: Tag::from_bits(seq.into()),
        liveness: Liveness::Own { ttl_ms: 1_000 },
        identity: "".into(),
        owner: "".into(),
        created_at_ms: 0,
    })
}

fn state(version: u64, seqs: &[u64], next: u64) -> KeyState {
    let entries: VecDeque<_> = seqs.iter().map(|seq| entry(*seq)).collect();
    KeyState {
        version,
        home: Some(Home {
            replica: ReplicaId(Uuid::from_u128(1)),
            term: 1,
        }),
        next: Seq(next),
        grant: Fence(u64::from(!seqs.is_empty())),
        fence: Fence(1),
        width: 16,
        reserved: Reserved {
            seq_end: Seq(next),
            fence_end: 17,
            volatile_end: Seq(0),
        },
        entries,
        ..KeyState::default()
    }
}

/// The seqs of the rows that are written.
fn rows(change: &Change) -> Vec<i64> {
    let seq = |row: &Vec<Value>| match row.first() {
        Some(Value::BigInt(seq)) => *seq,
        other => panic!("{other:?}"),
    };
    change.rows.iter().map(seq).collect()
}

#[test]
fn a_new_key_gets_both_rows_that_stay() {
    let change = Change::between(&KeyState::default(), &state(1, &[1], 2)).unwrap();
    assert_eq!(rows(&change), [0, i64::MAX, 1]);
    assert_eq!(change.version, None);
    assert!(change.ranges.is_empty());
}

#[test]
fn a_release_of_the_head_writes_no_row_and_now_and_then_deletes_a_range() {
    let change = Change::between(&state(5, &[3, 4], 5), &state(6, &[4], 5)).unwrap();
    assert_eq!(rows(&change), [0i64; 0]);
    assert!(change.ranges.is_empty());
    let change = Change::between(&state(5, &[15], 16), &state(6, &[], 16)).unwrap();
    assert_eq!(rows(&change), [0i64; 0]);
    assert_eq!(change.ranges, [(0, 16)]);
}

#[test]
fn an_entry_that_ends_above_head_is_overwritten_whether_it_had_a_row_or_not() {
    let change = Change::between(&state(5, &[3, 4, 5], 6), &state(6, &[3, 5], 6)).unwrap();
    assert_eq!(rows(&change), [4]);
    // 6 came and went within the change.
    let change = Change::between(&state(5, &[3], 6), &state(6, &[3, 7], 8)).unwrap();
    assert_eq!(rows(&change), [6, 7]);
}

#[test]
fn a_long_run_is_noted_and_deleted_at_once() {
    let live: Vec<u64> = (1..=100).collect();
    let old = state(5, &live, 101);
    let new = state(6, &[1, 100], 101);
    let change = Change::between(&old, &new).unwrap();
    assert_eq!(rows(&change), [0]);
    assert_eq!(change.ranges, [(1, 100)]);
}

#[test]
fn a_take_over_that_jumps_over_seqs_writes_few_rows_however_many_they_are() {
    let old = state(5, &[3], 6);
    // 4 and 5 may have been granted and are gone; so is what was given out ahead of the row.
    for (next, rows_expected, ranges) in [(40, 34, vec![]), (4_101, 1, vec![(3, 4_101)])] {
        let change = Change::between(&old, &state(6, &[3], next)).unwrap();
        assert_eq!(change.rows.len(), rows_expected, "{next}");
        assert_eq!(change.ranges, ranges, "{next}");
    }
    // With nobody left there is nothing to account for.
    let change = Change::between(&old, &state(6, &[], 4_101)).unwrap();
    assert_eq!(rows(&change), [0i64; 0]);
    assert_eq!(change.ranges, [(0, 4_101)]);
}

#[test]
fn what_is_left_of_a_shape_repeats_what_is_there() {
    let change = Change::between(&KeyState::default(), &state(1, &[1], 2)).unwrap();
    let shape = change.shape();
    assert_eq!((shape.rows, shape.ranges), (4, 0));
    let values = change.values("k", shape);
    let width = 1 + super::super::statements::ROW_COLUMNS.len();
    let last = &values[values.len() - width..];
    assert_eq!(
        last,
        &values[values.len() - 2 * width..values.len() - width]
    );
}
