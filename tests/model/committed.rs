//! The lock's state in the model: the real one, changed by the real `decide` only.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use fermata::lock::{
    Command, Create, Entry, Evidence, Fence, Liveness, Lookup, Mode, Outcome, ReplicaId, Seq,
    State, Tag, decide,
};
use uuid::Uuid;

use crate::setup::Setup;
use crate::world::{Intent, Proof, Swap, Ts};

/// A state of the key, with its hash at hand: worlds are hashed by the million.
#[derive(Clone, Debug)]
pub struct Committed(Arc<(u64, State)>);

impl From<State> for Committed {
    fn from(state: State) -> Committed {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        Committed(Arc::new((hasher.finish(), state)))
    }
}

impl Default for Committed {
    fn default() -> Committed {
        State::default().into()
    }
}

impl Deref for Committed {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0.1
    }
}

impl PartialEq for Committed {
    fn eq(&self, other: &Committed) -> bool {
        self.0.0 == other.0.0 && self.0.1 == other.0.1
    }
}

impl Eq for Committed {}

impl Hash for Committed {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.0.0);
    }
}

pub fn replica_id(replica: u8) -> ReplicaId {
    ReplicaId(Uuid::from_u128(u128::from(replica) + 1))
}

fn request_id(request: u8) -> Uuid {
    Uuid::from_u128(u128::from(request) + 1)
}

/// The number of the request that made an entry.
pub fn request_of(entry: &Entry) -> u8 {
    (entry.request_id.as_u128() - 1) as u8
}

pub fn home_of(entry: &Entry) -> u8 {
    (entry.home.0.as_u128() - 1) as u8
}

pub fn seq_of(entry: &Entry) -> u8 {
    entry.seq.0 as u8
}

pub fn ts(fence: Fence) -> Ts {
    fence.0 as Ts
}

fn fence(ts: Ts) -> Fence {
    Fence(u64::from(ts))
}

/// The live entry of a request with this seq.
pub fn entry_of(state: &State, seq: u8, request: u8) -> Lookup {
    state.lookup(Seq(u64::from(seq)), Tag::of(request_id(request)))
}

/// The live entry with this seq.
pub fn entry(state: &State, seq: u8) -> Option<&Arc<Entry>> {
    state.entry(Seq(u64::from(seq)))
}

pub fn head_seq(state: &State) -> Option<u8> {
    state.holder().map(|e| seq_of(e))
}

impl Intent {
    pub fn command(&self, by: u8) -> Command {
        let tag = |request: u8| Tag::of(request_id(request));
        match *self {
            Intent::Create { request, open: _ } => Command::Create(Create {
                request_id: request_id(request),
                mode: Mode::Exclusive,
                liveness: Liveness::Own { ttl_ms: 1_000 },
                home: replica_id(by),
                identity: "".into(),
                owner: "".into(),
                created_at_ms: 0,
                past: None,
            }),
            Intent::Release {
                seq,
                request,
                words,
            } => Command::Release {
                seq: Seq(seq.into()),
                tag: tag(request),
                home: replica_id(by),
                grant: words.grant.map(fence),
                synced: words.synced,
                open_write: words.open_write,
            },
            Intent::Evict {
                seq,
                request,
                proof,
            } => Command::Evict {
                seq: Seq(seq.into()),
                tag: tag(request),
                evidence: match proof {
                    Proof::Silent { epoch } => Evidence::Silent {
                        epoch: epoch.into(),
                    },
                    Proof::Unclaimed { grant } => Evidence::Unclaimed {
                        home: replica_id(by),
                        grant: fence(grant),
                    },
                },
            },
            Intent::TakeOver {
                seq,
                from_home,
                from_fence,
                from_epoch,
            } => Command::TakeOver {
                seq: Seq(seq.into()),
                from_home: replica_id(from_home),
                from_fence: fence(from_fence),
                from_epoch: from_epoch.into(),
                to_home: replica_id(by),
            },
            Intent::Extend { seq, fence: named } => Command::Extend {
                seq: Seq(seq.into()),
                home: replica_id(by),
                fence: fence(named),
                past: None,
            },
        }
    }
}

/// What a batch makes of a state, as its replica decides it.
pub fn decided(setup: &Setup, state: &State, by: u8, batch: &[Intent]) -> (State, Vec<Outcome>) {
    let commands: Vec<Command> = batch.iter().map(|intent| intent.command(by)).collect();
    let now_us = setup.clocks[usize::from(by)].into();
    let decision = decide(state, &commands, now_us, &setup.limits);
    (decision.state, decision.outcomes)
}

impl Swap {
    pub fn decided(&self, setup: &Setup, state: &State) -> (State, Vec<Outcome>) {
        decided(setup, state, self.by, &self.batch)
    }
}

/// What every committed change keeps (I1, I2); the first thing that it did not.
pub fn is_step(old: &State, new: &State) -> Result<(), &'static str> {
    new.check()?;
    if new.version != old.version + 1 {
        return Err("a change does not raise the version by one");
    }
    let stays = |e: &Arc<Entry>| {
        old.entry(e.seq)
            .is_some_and(|o| o.request_id == e.request_id)
    };
    let came = |e: &Arc<Entry>| e.seq >= old.next;
    if !new.entries.iter().all(|e| stays(e) || came(e)) {
        return Err("an entry took the seq of another one");
    }
    let twice = |e: &Arc<Entry>| {
        let same = |o: &&Arc<Entry>| o.request_id == e.request_id;
        new.entries.iter().filter(same).count() > 1
    };
    if new.entries.iter().any(twice) {
        return Err("a request has two entries");
    }
    let holding = |s: &State| s.holder().map(|e| (e.seq, e.home, e.epoch));
    if holding(new).is_some() && holding(new) != holding(old) && new.grant <= old.fence {
        return Err("a holder has no fence of its own");
    }
    if new.fence != old.fence && new.fence.0 < old.fence.0 + u64::from(old.width) {
        return Err("a fence has timestamps of an earlier one");
    }
    Ok(())
}
