//! What every change of a key must keep, whatever caused it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fermata::lock::{
    Command, CoreLimits, Diff, EndedAs, Entry, Fence, Lookup, Outcome, Released, Seq, State, decide,
};

use crate::model::{Effect, End, Model};

/// Checks the step from one committed state to the next, and the effect that each command had in it.
pub fn check(old: &State, new: &State, commands: &[Command], effects: &[Effect]) {
    assert_eq!(new.check(), Ok(()));
    one_entry_a_request(new);
    order_of_creation(old, new);
    timestamps_rise(old, new);
    unsynced_is_set_and_cleared(old, new, commands, effects);
    diff_leads_from_old_to_new(old, new);
}

/// What the state says of every entry that ever was is true, as far as it says anything.
pub fn tells_the_truth(state: &State, model: &Model) {
    let mut ahead = 0;
    for record in &model.log {
        let said = state.lookup(record.entry.seq, record.entry.tag());
        let true_ones = match &record.end {
            None => vec![Lookup::Live(ahead)],
            Some(End::Released) => vec![
                Lookup::Ended(EndedAs::Released),
                Lookup::Ended(EndedAs::NoLongerKept),
            ],
            Some(End::Otherwise(reason)) => vec![
                Lookup::Ended(EndedAs::Lost(reason.clone())),
                Lookup::Ended(EndedAs::NoLongerKept),
            ],
        };
        assert!(true_ones.contains(&said), "{said:?} of {record:?}");
        ahead += usize::from(record.end.is_none());
    }
}

/// A command that is decided again on what it made does nothing more, and says so.
pub fn idempotent(
    new: &State,
    command: &Command,
    first: &Outcome,
    now_us: u64,
    limits: &CoreLimits,
) {
    let again = decide(new, std::slice::from_ref(command), now_us, limits);
    assert_eq!(&again.state, new, "{command:?} did it twice");
    let Some(second) = again.outcomes.first() else {
        panic!("{command:?} has no outcome");
    };
    let agrees = match (first, second) {
        (Outcome::Created(a), Outcome::Created(b)) => a.seq == b.seq && b.existed,
        (Outcome::Released(Released { clean: true, .. }), Outcome::Gone(ended)) => {
            matches!(ended, EndedAs::Released | EndedAs::NoLongerKept)
        }
        (Outcome::Released(_), Outcome::Gone(ended)) => {
            matches!(ended, EndedAs::Lost(_) | EndedAs::NoLongerKept)
        }
        (Outcome::Evicted { .. }, Outcome::Gone(ended)) => {
            matches!(ended, EndedAs::Lost(_) | EndedAs::NoLongerKept)
        }
        (a, b) => a == b,
    };
    assert!(agrees, "{command:?} gave {first:?}, then {second:?}");
}

fn one_entry_a_request(new: &State) {
    let requests: BTreeSet<_> = new.entries.iter().map(|e| e.request_id).collect();
    assert_eq!(requests.len(), new.entries.len());
}

/// Nobody passes anybody: who stays keeps the order, who comes is behind, and numbers are not reused.
fn order_of_creation(old: &State, new: &State) {
    assert!(new.next >= old.next && new.head >= old.head);
    for entry in &new.entries {
        let stayed = old
            .entry(entry.seq)
            .is_some_and(|e| e.request_id == entry.request_id);
        assert!(stayed || entry.seq >= old.next, "{entry:?} came back");
    }
}

/// All timestamps of a later fence are above all of any earlier one; who holds newly, or at a new home,
/// has a grant of its own.
fn timestamps_rise(old: &State, new: &State) {
    let unused = Fence(old.fence.0 + u64::from(old.width));
    let moved = new.fence != old.fence;
    assert!(!moved || new.fence >= unused);
    let holding = |s: &State| s.holder().map(|e| (e.seq, e.home, e.epoch));
    if let Some(holds) = holding(new) {
        let same = holding(old) == Some(holds);
        assert!(same || (new.grant > old.fence && new.grant >= unused));
        assert!(!same || new.grant == old.grant);
    }
    assert!(moved || new.width == old.width);
}

fn unsynced_is_set_and_cleared(old: &State, new: &State, commands: &[Command], effects: &[Effect]) {
    let mut expected = old.unsynced;
    for (command, (outcome, did)) in commands.iter().zip(effects) {
        match (command, outcome) {
            (_, Outcome::Evicted { was_holder: true }) => expected = true,
            (
                Command::Release {
                    synced, open_write, ..
                },
                Outcome::Released(Released {
                    was_holder: true,
                    clean,
                }),
            ) => expected = !clean || *open_write || (expected && !synced),
            (Command::TakeOver { from_fence, .. }, Outcome::TakenOver) => {
                expected |= *did && *from_fence != Fence::NONE;
            }
            _ => {}
        }
    }
    assert_eq!(new.unsynced, expected);
}

fn diff_leads_from_old_to_new(old: &State, new: &State) {
    let diff = Diff::between(old, new);
    let by_seq = |e: &Arc<Entry>| (e.seq, Arc::clone(e));
    let mut rows: BTreeMap<Seq, Arc<Entry>> = old.entries.iter().map(by_seq).collect();
    for seq in &diff.ended {
        assert!(rows.remove(seq).is_some(), "{seq:?} was not there");
    }
    for entry in &diff.written {
        let before = rows.insert(entry.seq, Arc::clone(entry));
        assert_ne!(before.as_ref(), Some(entry), "written without a change");
    }
    assert!(rows.values().eq(new.entries.iter()));
}
