//! Keys, entries and random states for the tests of stores.

use std::sync::Arc;

use fermata::key::{Command, Decider, KeyState, NewEntry, WritesOfHolder, decide};
use fermata::lock::{
    CoreLimits, EndReason, Key, KeyId, Liveness, Mode, ReplicaId, Seq, SessionId, TableName, Tag,
};
use fermata::store::{KeyStore, ReplicaRow, ReplicaState, SessionRow, Swap};
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
    Command::Create(NewEntry {
        tag: Tag::from_bits(request),
        mode: Mode::Exclusive,
        liveness: Liveness::Own { ttl_ms: 10_000 },
        identity: "".into(),
        owner: "test".into(),
        created_at_ms: 1_700_000_000_000,
    })
}

/// The state after these commands, at replica 1, which is the home of every key here.
pub fn decided(state: &KeyState, commands: &[Command]) -> KeyState {
    let limits = CoreLimits::default();
    let by = Decider {
        replica: replica(1),
        now_us: Some(1_000),
        limits: &limits,
    };
    let first_use = Command::TakeOver {
        from: None,
        to: replica(1),
        past: None,
    };
    let commands: Vec<_> = [&[first_use], commands].concat();
    decide(state, &commands, by).state
}

/// The state after one more entry.
pub fn with_entry(state: &KeyState, request: u128) -> KeyState {
    decided(state, &[create(request)])
}

/// The state after its holder has released.
pub fn without_holder(state: &KeyState) -> KeyState {
    let holder = state.holder().unwrap();
    let release = Command::Release {
        seq: holder.seq,
        tag: holder.tag,
        writes: WritesOfHolder {
            synced: true,
            open: false,
        },
    };
    decided(state, &[release])
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
        name: format!("replica-{number}"),
        zone: "Süd".to_owned(),
        address: format!("[::1]:{number}"),
        peer_address: format!("replica-{number}:7451"),
        version: "0.1.0".to_owned(),
        started_at_ms: 5,
        ttl_ms: 15_000,
        heartbeat: 0,
        state: ReplicaState::Up(1),
    }
}

/// Changes a state that nobody else changes. Where a store cannot say whether it did (a cluster on a busy machine),
/// it is asked until it can.
pub async fn apply(store: &dyn KeyStore, id: &KeyId, old: &KeyState, new: &KeyState) {
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

    fn create(&mut self) -> Command {
        Command::Create(NewEntry {
            tag: Tag::from_bits(self.uuid().as_u128()),
            mode: Mode::Exclusive,
            liveness: match self.below(2) {
                0 => Liveness::Own {
                    ttl_ms: self.next() as u32,
                },
                _ => Liveness::Session(SessionId(self.uuid())),
            },
            identity: self.text(),
            owner: self.text(),
            created_at_ms: self.next() as i64,
        })
    }

    fn reason(&mut self) -> EndReason {
        match self.below(5) {
            0 => EndReason::Expired,
            1 => EndReason::SessionClosed,
            2 => EndReason::Unclaimed,
            _ => EndReason::Forced {
                by: self.text(),
                why: self.text(),
            },
        }
    }

    /// A command that has a chance to do something to this state.
    fn command(&mut self, state: &KeyState) -> Command {
        if state.entries.is_empty() || self.below(3) == 0 {
            return self.create();
        }
        let entry = Arc::clone(&state.entries[self.below(state.entries.len())]);
        let writes = WritesOfHolder {
            synced: self.below(2) == 0,
            open: self.below(2) == 0,
        };
        match self.below(4) {
            0 => Command::Release {
                seq: entry.seq,
                tag: entry.tag,
                writes,
            },
            1 => Command::Evict {
                seq: entry.seq,
                tag: entry.tag,
                reason: self.reason(),
                only_under: None,
            },
            2 => Command::HandOver {
                to: replica(self.below(3) as u128),
                holder: (self.below(2) == 0).then_some(writes),
                left_ms: self.next() as u32,
            },
            _ => Command::Extend {
                fence: state.fence,
                past: None,
            },
        }
    }

    /// A take-over, which stands alone, or a few commands of the home.
    fn commands(&mut self, state: &KeyState) -> Vec<Command> {
        if state.home.is_none() || self.below(8) == 0 {
            let to = replica(self.below(3) as u128);
            let past = (self.below(4) == 0).then(|| self.next() >> 20);
            let from = state.home;
            return vec![Command::TakeOver { from, to, past }];
        }
        (0..=self.below(4)).map(|_| self.command(state)).collect()
    }

    /// Reserves for a home that commits later, as write-back does.
    fn reserve(&mut self, state: &mut KeyState) {
        if self.below(2) == 0 {
            return;
        }
        let seqs = [0, 5, 4_096][self.below(3)];
        state.reserved.seq_end = Seq(state.next.0 + seqs);
        state.reserved.fence_end += self.next() >> 40;
        state.reserved.volatile_end = Seq(state.head().0 + self.next() % (seqs + 1));
        if self.below(2) == 0 {
            state.kept = None;
        }
    }

    /// A state that a few random commands make of this one; another version.
    pub fn successor(&mut self, state: &KeyState) -> KeyState {
        let limits = CoreLimits {
            ended_max: 5,
            ..CoreLimits::default()
        };
        loop {
            let commands = self.commands(state);
            let by = Decider {
                replica: state.home.map_or(replica(1), |home| home.replica),
                now_us: Some(self.next() >> 16),
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
