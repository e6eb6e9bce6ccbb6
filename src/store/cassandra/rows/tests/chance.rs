//! What a seed says.

use std::sync::Arc;

use uuid::Uuid;

use crate::lock::{
    Command, CoreLimits, Create, Evidence, Fence, Liveness, Mode, ReplicaId, SessionId, State,
    decide,
};

/// Random numbers that a seed repeats (splitmix64).
pub struct Chance(pub u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
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

    fn home(&mut self) -> ReplicaId {
        ReplicaId(Uuid::from_u128(self.below(3) as u128))
    }

    fn command(&mut self, state: &State) -> Command {
        if state.entries.is_empty() || self.one_in(3) {
            let session = SessionId(Uuid::from_u64_pair(self.next(), 1));
            return Command::Create(Create {
                request_id: Uuid::from_u64_pair(self.next(), self.next()),
                mode: Mode::Exclusive,
                liveness: match self.one_in(2) {
                    true => Liveness::Session(session),
                    false => Liveness::Own { ttl_ms: 9_000 },
                },
                home: self.home(),
                identity: "".into(),
                owner: "somebody".into(),
                created_at_ms: 7,
                past: None,
            });
        }
        let entry = Arc::clone(&state.entries[self.below(state.entries.len())]);
        let holds = entry.seq == state.head;
        match self.below(4) {
            0 => Command::Release {
                seq: entry.seq,
                tag: entry.tag(),
                home: entry.home,
                grant: holds.then_some(state.grant),
                synced: self.one_in(2),
                open_write: false,
            },
            1 => Command::Evict {
                seq: entry.seq,
                tag: entry.tag(),
                evidence: Evidence::Forced {
                    by: "an operator".into(),
                    why: "".into(),
                },
            },
            2 => Command::TakeOver {
                seq: entry.seq,
                from_home: entry.home,
                from_fence: if holds { state.fence } else { Fence::NONE },
                from_epoch: entry.epoch,
                to_home: self.home(),
            },
            _ => Command::Extend {
                seq: entry.seq,
                home: entry.home,
                fence: state.fence,
                past: None,
            },
        }
    }

    /// A state that a few commands make of this one.
    pub fn successor(&mut self, state: &State) -> State {
        let limits = CoreLimits {
            ended_max: 3,
            ..CoreLimits::default()
        };
        loop {
            let commands: Vec<_> = (0..=self.below(3)).map(|_| self.command(state)).collect();
            let now = state.fence.0 + self.next() % 1_000;
            let next = decide(state, &commands, now, &limits).state;
            if next.version != state.version {
                return next;
            }
        }
    }
}
