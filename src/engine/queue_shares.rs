//! The share of each client machine in the queue of a key and in the keys, for entries without an identity. So one machine leaves
//! room to others.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::key::KeyState;
use crate::lock::{Seq, Tag};
use fermata_guard::shares;

/// Noted creates without a waiting caller, at most, beside those that made a live entry.
const GONE_MAX: usize = 1_024;

/// The shares in the queue of one key.
#[derive(Debug, Default)]
pub(super) struct QueueShares {
    /// The shares of live entries, maybe with some ended ones.
    entries: BTreeMap<Seq, Arc<str>>,
    /// The shares of creates without a waiting caller: they may make an entry all the same.
    gone: Vec<(Tag, Arc<str>)>,
}

impl QueueShares {
    /// Notes the share of an entry that was made, or found again.
    pub fn note(&mut self, seq: Seq, share_of: Arc<str>, state: Option<&KeyState>) {
        self.entries.insert(seq, share_of);
        let entries = state.map(|state| &state.entries);
        if self.entries.len() > entries.map_or(0, |entries| entries.len()) {
            let live: HashSet<Seq> = entries.into_iter().flatten().map(|e| e.seq).collect();
            self.entries.retain(|seq, _| live.contains(seq));
        }
    }

    /// Notes a create whose caller did not wait for the answer.
    pub fn note_gone(&mut self, tag: Tag, share_of: Arc<str>, state: Option<&KeyState>) {
        if share_of.is_empty() {
            return;
        }
        let entries = state.map(|state| &state.entries);
        if self.gone.len() >= entries.map_or(0, |entries| entries.len()) + GONE_MAX {
            let live: HashSet<Tag> = entries.into_iter().flatten().map(|e| e.tag).collect();
            self.gone.retain(|(tag, _)| live.contains(tag));
        }
        self.gone.push((tag, share_of));
    }

    /// The share of the entry that became the first one; if unknown, that of the latest create without a waiting caller.
    pub fn of_first(&mut self, seq: Seq) -> Option<Arc<str>> {
        let of_entry = self.entries.remove(&seq);
        of_entry.or_else(|| self.gone.last().map(|(_, share_of)| Arc::clone(share_of)))
    }

    /// Whether the client of this share may make the entry with this tag in a queue of `entries_max`: the last tenth is for
    /// clients with less than a hundredth. An existing entry is not made again (I5). Unanswered calls, with their tags and shares
    /// in `asked`, count as well. A full queue is refused later, in its turn.
    pub fn admit<'a>(
        &self,
        (tag, share_of): (Tag, &str),
        state: Option<&KeyState>,
        asked: impl Iterator<Item = (Tag, &'a str)> + Clone,
        entries_max: usize,
    ) -> bool {
        let entries = state.map(|state| &state.entries);
        let live = entries.map_or(0, |entries| entries.len());
        let is_full = live >= entries_max;
        let may_be = live.saturating_add(asked.clone().count());
        if share_of.is_empty() || is_full || !shares::is_scarce(may_be, entries_max) {
            return true;
        }
        // A decided entry is in the queue before its answer.
        let made: HashSet<Tag> = entries.into_iter().flatten().map(|e| e.tag).collect();
        let to_come = asked.clone().filter(|(tag, _)| !made.contains(tag));
        let is_scarce = shares::is_scarce(live + to_come.clone().count(), entries_max);
        if !is_scarce || made.contains(&tag) {
            return true;
        }
        let gone = self.gone.iter().filter(|(_, of)| **of == *share_of);
        let mut unanswered: HashSet<Tag> = gone.map(|(tag, _)| *tag).collect();
        unanswered.extend(asked.filter(|(_, of)| *of == share_of).map(|(tag, _)| tag));
        let is_mine = |seq: Seq, tag: Tag| match self.entries.get(&seq) {
            Some(of) => **of == *share_of,
            None => unanswered.contains(&tag),
        };
        let mine = entries.into_iter().flatten();
        let have = mine.filter(|entry| is_mine(entry.seq, entry.tag)).count()
            + to_come.filter(|(_, of)| *of == share_of).count();
        have < shares::share(entries_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Entry;
    use crate::lock::{Liveness, Mode};

    const MOST: usize = 1_000;

    fn tag(seq: u64) -> Tag {
        Tag::from_bits(seq.into())
    }

    /// A key with this many entries.
    fn queue(entries: u64) -> KeyState {
        let entry = |seq: u64| Entry {
            seq: Seq(seq),
            mode: Mode::Exclusive,
            tag: tag(seq),
            liveness: Liveness::Own { ttl_ms: 10_000 },
            identity: "".into(),
            owner: "".into(),
            created_at_ms: 0,
        };
        KeyState {
            entries: (1..=entries).map(|seq| Arc::new(entry(seq))).collect(),
            ..KeyState::default()
        }
    }

    #[test]
    fn what_is_not_answered_and_what_nobody_waited_for_counts_as_what_is_there() {
        let state = queue(950);
        let admits = |shares: &QueueShares, who: &str, asked: usize| {
            let asked = (0..asked).map(|n| (tag(10_000 + n as u64), "one"));
            shares.admit((tag(0), who), Some(&state), asked, MOST)
        };
        let mut shares = QueueShares::default();
        for seq in 1..=4 {
            shares.note(Seq(seq), "one".into(), Some(&state));
        }
        assert!(admits(&shares, "one", 0));
        for seq in 5..=8 {
            shares.note_gone(tag(seq), "one".into(), Some(&state));
        }
        // A create that made nothing.
        shares.note_gone(tag(5_000), "one".into(), Some(&state));
        assert!(admits(&shares, "one", 1));
        assert!(!admits(&shares, "one", 2));
        // More unanswered calls than there is room for.
        assert!(!admits(&shares, "one", 500));
        assert!(admits(&shares, "other", 500) && admits(&shares, "", 500));
        // An unanswered call counts once with its entry.
        let made = (1..=400).map(|seq| (tag(seq), "one"));
        assert!(shares.admit((tag(0), "one"), Some(&queue(800)), made, MOST));
        // A repeated call makes no other entry.
        let many = (0..500).map(|n| (tag(10_000 + n), "one"));
        assert!(shares.admit((tag(1), "one"), Some(&state), many, MOST));
        // A full queue refuses later, in its turn.
        let none = std::iter::empty();
        assert!(shares.admit((tag(0), "one"), Some(&queue(1_000)), none, MOST));
    }

    #[test]
    fn no_more_is_kept_than_lives_and_may_come() {
        let state = queue(100);
        let mut shares = QueueShares::default();
        for number in 0..10_000 {
            shares.note_gone(tag(number), "one".into(), Some(&state));
            shares.note(Seq(number), "one".into(), Some(&state));
            assert!(shares.gone.len() <= 100 + GONE_MAX && shares.entries.len() <= 101);
        }
        assert_eq!(shares.of_first(Seq(7)).as_deref(), Some("one"));
        // The share of the latest create without a waiting caller.
        shares.note_gone(tag(1), "other".into(), Some(&state));
        assert_eq!(shares.of_first(Seq(7)).as_deref(), Some("other"));
    }
}
