use super::*;
use crate::key::next_row::tests::{end, state as home_of};
use crate::lock::EndReason;

/// A home whose first numbers ended, with these entries.
fn state() -> KeyState {
    home_of(3..=5)
}

fn renumber(state: &mut KeyState, at: usize, seq: u64) {
    Arc::make_mut(&mut state.entries[at]).seq = Seq(seq);
}

#[test]
fn an_entry_is_found_by_its_own_tag_only() {
    let mut state = state();
    end(&mut state, 1);
    end(&mut state, 2);
    let found = |seq, tag| state.lookup(Seq(seq), Tag::from_bits(tag));
    assert_eq!(found(5, 5), Lookup::Live(2));
    let expired = EndedAs::Lost(EndReason::Expired);
    assert_eq!(found(2, 2), Lookup::Ended(expired));
    for (seq, tag) in [(5, 3), (3, 5), (2, 1), (1, 2), (6, 6)] {
        assert_eq!(found(seq, tag), Lookup::NeverIssued, "{seq} {tag}");
    }
}

#[test]
fn the_numbers_of_a_row_may_go_up_to_their_limits() {
    let mut state = state();
    state.next = Seq(Seq::LAST.0 + 1);
    state.fence = Fence(Fence::MAX - u64::from(state.width));
    state.reserve_nothing();
    assert_eq!(state.check(), Ok(()));
}

#[test]
fn a_row_that_contradicts_itself_is_refused_by_the_name_of_its_fault() {
    type Damage = fn(&mut KeyState);
    let damages: [(&str, Damage); 17] = [
        ("next is out of range", |s| s.next = Seq(0)),
        ("next is out of range", |s| s.next = Seq(Seq::LAST.0 + 2)),
        ("fence is out of range", |s| s.fence = Fence(Fence::MAX)),
        ("fence is out of range", |s| {
            s.reserved.fence_end = Fence::MAX + 1
        }),
        ("seq_end is below next", |s| s.next = Seq(7)),
        ("fence_end is below the end of the fence", |s| s.width += 1),
        ("entries are out of order", |s| s.entries.swap(0, 1)),
        ("an entry was never given out", |s| renumber(s, 0, 0)),
        ("an entry was never given out", |s| renumber(s, 2, 6)),
        ("a grant without a holder", |s| s.entries.clear()),
        ("grant is above fence", |s| s.grant.0 += 1),
        ("kept is not the holder", |s| s.kept = Some(Seq(4))),
        ("a queue without a home", |s| s.home = None),
        ("an ended entry was never given out", |s| end(s, 6)),
        ("an ended entry is live", |s| end(s, 3)),
        ("complete_from is out of range", |s| {
            s.ended.complete_from = Seq(7)
        }),
        ("unknown ends reach beyond next", |s| {
            s.ended.unknown = Seq(1)..Seq(7)
        }),
    ];
    assert_eq!(state().check(), Ok(()));
    for (fault, damage) in damages {
        let mut state = state();
        damage(&mut state);
        assert_eq!(state.check(), Err(fault));
    }
}
