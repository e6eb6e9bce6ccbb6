//! Keys, entries and random states for the tests of stores.

use std::sync::Arc;

use fermata::lock::{
    Command, CoreLimits, Create, Evidence, Key, KeyId, Liveness, Mode, ReplicaId, SessionId, State,
    TableName, decide,
};
use fermata::store::{ReplicaRow, SessionRow, Store, Swap};
use uuid::Uuid;

pub fn table(name: &str) -> TableName {
    TableName::parse(name).unwrap()
}

pub fn key(text: &str) -> Key {
    Key::parse(text, Key::BYTES_MAX).unwrap()
}

/// A key in the default table.
pub fn id(text: &str) -> KeyId {
    id_in("default", text)
}

pub fn id_in(table_name: &str, text: &str) -> KeyId {
    KeyId {
        table: table(table_name),
        key: key(text),
    }
}

pub fn replica(number: u128) -> ReplicaId {
    ReplicaId(Uuid::from_u128(number))
}

pub fn create(request: u128) -> Command {
    Command::Create(Create {
        request_id: Uuid::from_u128(request),
        mode: Mode::Exclusive,
        liveness: Liveness::Own { ttl_ms: 10_000 },
        home: replica(1),
        identity: "".into(),
        owner: "test".into(),
        created_at_ms: 1_700_000_000_000,
        past: None,
    })
}

/// The state after one more entry.
pub fn with_entry(state: &State, request: u128) -> State {
    decide(state, &[create(request)], 1_000, &CoreLimits::default()).state
}

/// The state after its holder has released.
pub fn without_holder(state: &State) -> State {
    let holder = state.holder().unwrap();
    let release = Command::Release {
        seq: holder.seq,
        tag: holder.tag(),
        home: holder.home,
        grant: Some(state.grant),
        synced: true,
        open_write: false,
    };
    decide(state, &[release], 2_000, &CoreLimits::default()).state
}

pub fn session(number: u128, epoch: u32, open: bool) -> SessionRow {
    SessionRow {
        id: SessionId(Uuid::from_u128(number)),
        ttl_ms: 30_000,
        disconnect_grace_ms: 500,
        replica: replica(7),
        epoch,
        open,
        identity: "who".to_owned(),
        owner: "ein Läufer".to_owned(),
        created_at_ms: -1,
    }
}

pub fn replica_row(number: u128) -> ReplicaRow {
    ReplicaRow {
        id: replica(number),
        address: format!("[::1]:{number}"),
        peer_address: format!("replica-{number}:7451"),
        version: "0.1.0".to_owned(),
        started_at_ms: 5,
        ttl_ms: 15_000,
        heartbeat: 0,
        stopped: false,
    }
}

/// Changes a state that nobody else changes. Where a store cannot say whether it did (a cluster on a busy machine),
/// it is asked until it can.
pub async fn apply(store: &dyn Store, id: &KeyId, old: &State, new: &State) {
    let mut is_unknown = false;
    for _ in 0..100 {
        match store.compare_and_swap(id, old, new).await {
            Swap::Applied => return,
            Swap::Conflict(Some(found)) if is_unknown && found == *new => return,
            Swap::Conflict(found) => panic!("{id}: {found:?} instead of {old:?}"),
            Swap::Unknown(error) => {
                println!("{id}: {error}");
                is_unknown = true;
            }
            Swap::NotStarted(error) => println!("{id}: {error}"),
        }
    }
    panic!("{id}: the store does not answer");
}

/// Random numbers that a seed repeats (splitmix64).
pub struct Random(u64);

impl Random {
    /// From the environment (`FERMATA_SEED`) or the clock; printed, so that a failure can be repeated.
    pub fn seeded(test: &str) -> Random {
        let seed = match std::env::var("FERMATA_SEED") {
            Ok(seed) => seed.parse().unwrap(),
            Err(_) => {
                let now = std::time::SystemTime::now();
                let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
                now.as_nanos() as u64
            }
        };
        println!("{test}: FERMATA_SEED={seed}");
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `0..count`.
    pub fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    pub fn uuid(&mut self) -> Uuid {
        Uuid::from_u64_pair(self.next(), self.next())
    }

    fn text(&mut self) -> Box<str> {
        let texts = ["", "a", "wörker/7", "日本", "x y", &"long".repeat(60)];
        texts[self.below(texts.len())].into()
    }

    /// A command that has a chance to do something to this state.
    pub fn command(&mut self, state: &State) -> Command {
        let random_create = |random: &mut Random| {
            Command::Create(Create {
                request_id: random.uuid(),
                mode: Mode::Exclusive,
                liveness: match random.below(2) {
                    0 => Liveness::Own {
                        ttl_ms: random.next() as u32,
                    },
                    _ => Liveness::Session(SessionId(random.uuid())),
                },
                home: replica(random.below(3) as u128),
                identity: random.text(),
                owner: random.text(),
                created_at_ms: random.next() as i64,
                past: (random.below(4) == 0).then(|| random.next() >> 20),
            })
        };
        if state.entries.is_empty() || self.below(3) == 0 {
            return random_create(self);
        }
        let entry = Arc::clone(&state.entries[self.below(state.entries.len())]);
        let holds = entry.seq == state.head;
        match self.below(5) {
            0 => Command::Release {
                seq: entry.seq,
                tag: entry.tag(),
                home: replica(self.below(3) as u128),
                grant: (self.below(2) == 0).then_some(state.grant),
                synced: self.below(2) == 0,
                open_write: self.below(2) == 0,
            },
            1 => Command::Evict {
                seq: entry.seq,
                tag: entry.tag(),
                evidence: match self.below(3) {
                    0 => Evidence::Silent { epoch: entry.epoch },
                    1 => Evidence::Unclaimed {
                        home: entry.home,
                        grant: state.grant,
                    },
                    _ => Evidence::Forced {
                        by: self.text(),
                        why: self.text(),
                    },
                },
            },
            2 => match entry.liveness {
                Liveness::Session(session) => Command::Evict {
                    seq: entry.seq,
                    tag: entry.tag(),
                    evidence: Evidence::SessionEnded(session),
                },
                Liveness::Own { .. } => random_create(self),
            },
            3 => Command::TakeOver {
                seq: entry.seq,
                from_home: entry.home,
                from_fence: if holds {
                    state.fence
                } else {
                    fermata::lock::Fence::NONE
                },
                from_epoch: entry.epoch,
                to_home: replica(self.below(3) as u128),
            },
            _ => Command::Extend {
                seq: entry.seq,
                home: entry.home,
                fence: state.fence,
                past: None,
            },
        }
    }

    /// A state that a few random commands make of this one; another version.
    pub fn successor(&mut self, state: &State) -> State {
        let limits = CoreLimits {
            ended_max: 5,
            ..CoreLimits::default()
        };
        loop {
            let commands: Vec<_> = (0..=self.below(4)).map(|_| self.command(state)).collect();
            let next = decide(state, &commands, self.next() >> 16, &limits).state;
            if next.version != state.version {
                return next;
            }
        }
    }
}
