//! What a seed says.

use std::sync::Arc;

use fermata::key::{Command, Decider, KeyState, NewEntry, WritesOfHolder, decide};
use fermata::lock::{CoreLimits, EndReason, Liveness, Mode, ReplicaId, Seq, SessionId, Tag};
use uuid::Uuid;

use super::super::rng::Rng;

/// Random numbers that a seed repeats.
pub struct Chance(pub Rng);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// One of `0..count`.
    pub fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % count as u64).unwrap()
    }

    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// How many rows a page has.
    pub fn page(&mut self) -> usize {
        [1, 2, 5, 100][self.below(4)]
    }

    fn replica(&mut self) -> ReplicaId {
        ReplicaId(Uuid::from_u128(self.below(3) as u128))
    }

    fn create(&mut self) -> Command {
        let session = SessionId(Uuid::from_u64_pair(self.next(), 1));
        Command::Create(NewEntry {
            tag: Tag::from_bits(Uuid::from_u64_pair(self.next(), self.next()).as_u128()),
            mode: Mode::Exclusive,
            liveness: match self.one_in(2) {
                true => Liveness::Session(session),
                false => Liveness::Own { ttl_ms: 9_000 },
            },
            identity: "".into(),
            owner: "somebody".into(),
            created_at_ms: 7,
        })
    }

    fn command(&mut self, state: &KeyState) -> Command {
        if state.home.is_none() || self.one_in(8) {
            return Command::TakeOver {
                from: state.home,
                to: self.replica(),
                past: None,
            };
        }
        if state.entries.is_empty() || self.one_in(3) {
            return self.create();
        }
        let entry = Arc::clone(&state.entries[self.below(state.entries.len())]);
        let writes = WritesOfHolder {
            synced: self.one_in(2),
            open: self.one_in(3),
        };
        match self.below(5) {
            0 | 1 => Command::Release {
                seq: entry.seq,
                tag: entry.tag,
                writes,
            },
            2 => Command::Evict {
                seq: entry.seq,
                tag: entry.tag,
                reason: EndReason::Forced {
                    by: "an operator".into(),
                    why: "".into(),
                },
                only_under: None,
            },
            3 => Command::HandOver {
                to: self.replica(),
                holder: self.one_in(2).then_some(writes),
                left_ms: self.next() as u32,
            },
            _ => Command::Extend {
                fence: state.fence,
                past: None,
            },
        }
    }

    /// Reserves for a home that commits later, as write-back does.
    fn reserve(&mut self, state: &mut KeyState) {
        if self.one_in(2) {
            return;
        }
        let seqs = [0, 3, 90][self.below(3)];
        state.reserved.seq_end = Seq(state.next.0 + seqs);
        state.reserved.fence_end += self.next() % 1_000;
        state.reserved.volatile_end = Seq(state.head().0 + self.next() % (seqs + 1));
        if self.one_in(2) {
            state.kept = None;
        }
    }

    /// A state that a few commands make of this one.
    pub fn successor(&mut self, state: &KeyState) -> KeyState {
        let limits = CoreLimits {
            ended_max: 3,
            ..CoreLimits::default()
        };
        loop {
            let mut commands: Vec<_> = (0..=self.below(3)).map(|_| self.command(state)).collect();
            // A key is taken over as its row stands, not behind other changes.
            if let Some(take_over) = commands
                .iter()
                .find(|c| matches!(c, Command::TakeOver { .. }))
            {
                commands = vec![take_over.clone()];
            }
            let by = Decider {
                replica: state.home.map_or(self.replica(), |home| home.replica),
                now_us: Some(state.fence.0 + self.next() % 1_000),
                limits: &limits,
            };
            let mut next = decide(state, &commands, by).state;
            if next.version != state.version {
                self.reserve(&mut next);
                assert_eq!(next.check(), Ok(()));
                return next;
            }
        }
    }
}
