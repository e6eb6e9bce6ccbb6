//! Long runs of ended entries in the middle of a queue. The row at seq 0 names them, so that no load reads their rows.
//!
//! They follow from the state alone: all entries between two live ones, or behind the last one, have ended.

use crate::key::KeyState;
use crate::lock::Seq;

/// A run shorter than this is kept as rows that say that they have ended.
pub(super) const RUN_MIN: u64 = 65;

/// Ended entries `first..=last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Run {
    fn len(self) -> u64 {
        self.last - self.first + 1
    }

    pub(super) fn contains(self, seq: u64) -> bool {
        (self.first..=self.last).contains(&seq)
    }
}

/// The long runs of a state above its head, in order.
pub(super) fn long_runs(state: &KeyState) -> Vec<Run> {
    let live = state.entries.iter().map(|entry| entry.seq);
    let ahead = live.clone();
    let behind = live.skip(1).chain([state.next]);
    ahead
        .zip(behind)
        .filter(|(Seq(one), Seq(other))| other - one > RUN_MIN)
        .map(|(one, other)| Run {
            first: one.0 + 1,
            last: other.0 - 1,
        })
        .collect()
}

/// The runs of `new` of which so much was not in a run of `old` that their rows are better deleted by range
/// than overwritten one by one.
pub(super) fn to_delete(old: &[Run], new: &[Run]) -> Vec<Run> {
    new.iter()
        .copied()
        .filter(|run| {
            let within = |one: &&Run| run.contains(one.first) && run.contains(one.last);
            let known: u64 = old.iter().filter(within).map(|one| one.len()).sum();
            run.len() - known >= RUN_MIN
        })
        .collect()
}

/// How runs are kept: 16 bytes each.
pub(super) fn encode(runs: &[Run]) -> Vec<u8> {
    runs.iter()
        .flat_map(|run| [run.first.to_be_bytes(), run.last.to_be_bytes()])
        .flatten()
        .collect()
}

pub(super) fn decode(bytes: &[u8]) -> Option<Vec<Run>> {
    let (numbers, rest) = bytes.as_chunks::<8>();
    let (runs, half) = numbers.as_chunks::<2>();
    let run = |[first, last]: &[[u8; 8]; 2]| Run {
        first: u64::from_be_bytes(*first),
        last: u64::from_be_bytes(*last),
    };
    let runs: Vec<Run> = runs.iter().map(run).collect();
    let whole = rest.is_empty() && half.is_empty();
    (whole && runs.iter().all(|run| run.first <= run.last)).then_some(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, last: u64) -> Run {
        Run { first, last }
    }

    #[test]
    fn a_run_reads_back_and_half_of_one_does_not() {
        let runs = [run(3, 90), run(100, 900)];
        let bytes = encode(&runs);
        assert_eq!(decode(&bytes).as_deref(), Some(&runs[..]));
        assert_eq!(decode(&bytes[..24]), None);
        assert_eq!(decode(&bytes[..31]), None);
        assert_eq!(decode(&encode(&[run(9, 3)])), None);
        assert_eq!(decode(&[]), Some(Vec::new()));
    }

    #[test]
    fn a_run_that_grew_a_little_is_not_deleted_again() {
        let old = [run(3, 90)];
        assert_eq!(to_delete(&[], &old), old);
        assert_eq!(to_delete(&old, &[run(3, 100)]), []);
        assert_eq!(to_delete(&old, &[run(2, 200)]), [run(2, 200)]);
        // Two that became one.
        let two = [run(3, 90), run(92, 190)];
        assert_eq!(to_delete(&two, &[run(3, 190)]), []);
    }
}
