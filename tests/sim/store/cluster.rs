//! What the store holds, and what an operation does to it at the moment at which it takes effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use fermata::engine::Engine;
use fermata::key::KeyState;
use fermata::lock::{Key, KeyId, LockRef, ReplicaId, SessionId, TableName};
use fermata::store::cassandra::modelled::Cql;
use fermata::store::{
    Cell, HAND_OVER_REQUEST_KEPT, HandOverRequest, ReplicaRow, ReplicaState, SessionRow,
    SessionSwap, StateSwap,
};
use fermata_cassandra::Value;
use tokio::time::Instant;

use super::super::beliefs::Beliefs;
use super::super::log::Log;
use super::super::nodes::{Nodes, Query, ReadRepair};
use super::super::rng::Rng;
use super::keys::KeySwap;

/// How many copies of a value there are.
pub const COPIES: usize = 3;

pub struct Cluster {
    pub log: Arc<Log>,
    pub beliefs: Arc<Beliefs>,
    rng: Mutex<Rng>,
    rows: Mutex<Rows>,
    engines: Mutex<Vec<Engine>>,
}

#[derive(Default)]
pub struct Rows {
    /// As they were committed last.
    states: BTreeMap<KeyId, KeyState>,
    nodes: BTreeMap<KeyId, Nodes<KeySwap>>,
    data: BTreeMap<KeyId, [Option<Cell>; COPIES]>,
    sessions: BTreeMap<SessionId, SessionRow>,
    replicas: BTreeMap<ReplicaId, ReplicaRow>,
    forgotten: BTreeSet<ReplicaId>,
    hand_over_requests: Vec<StoredRequest>,
}

struct StoredRequest {
    request: HandOverRequest,
    at: Instant,
}

/// The cell that stands, of two.
pub fn winner(a: Option<Cell>, b: Option<Cell>) -> Option<Cell> {
    let (Some(a), Some(b)) = (&a, &b) else {
        return a.or(b);
    };
    // Of two equal timestamps a deletion stands, else the larger value.
    let rank = |cell: &Cell| (cell.timestamp, cell.value.is_none(), cell.value.clone());
    Some(match rank(a) >= rank(b) {
        true => a.clone(),
        false => b.clone(),
    })
}

/// A queue in a few words.
fn shown(state: &KeyState) -> String {
    let entries: Vec<String> = state.entries.iter().map(|e| e.seq.0.to_string()).collect();
    let home = state.home.map_or_else(
        || "none".to_owned(),
        |home| home.replica.to_string()[..8].to_owned(),
    );
    format!(
        "v{} home {home} term {} [{}] grant {} fence {}{}",
        state.version,
        state.term(),
        entries.join(" "),
        state.grant.0,
        state.fence.0,
        if state.unsynced { " unsynced" } else { "" }
    )
}

impl Cluster {
    pub fn new(log: &Arc<Log>, beliefs: &Arc<Beliefs>, rng: Rng) -> Arc<Cluster> {
        Arc::new(Cluster {
            log: Arc::clone(log),
            beliefs: Arc::clone(beliefs),
            rng: Mutex::new(rng),
            rows: Mutex::default(),
            engines: Mutex::default(),
        })
    }

    pub fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap()
    }

    /// An engine serves, or will.
    pub fn runs(&self, engine: &Engine) {
        self.engines.lock().unwrap().push(engine.clone());
    }

    /// One of `0..n`.
    pub fn below(&self, n: usize) -> usize {
        self.rng.lock().unwrap().below(n as u64) as usize
    }

    /// The nodes that keep a key. Now and then one of them learns of the latest change, or somebody lists locks, which reads
    /// a part of it, and repairs that part.
    pub fn with_nodes<T>(&self, id: &KeyId, ask: impl FnOnce(&mut Nodes<KeySwap>) -> T) -> T {
        let mut rows = self.rows();
        let head = rows.states.get(id).map_or(1, |state| state.head().0);
        let nodes = rows.nodes.entry(id.clone());
        let nodes = nodes.or_insert_with(|| Nodes::new(ReadRepair::Blocking));
        match self.below(10) {
            0 => nodes.deliver(&mut |n| self.below(n)),
            1 | 2 => {
                let (key, head) = (Value::text(id.key.as_str()), head.cast_signed());
                let (ask, values) = match self.below(3) {
                    0 => (Cql::Keys(id.table.clone()), Vec::new()),
                    1 => (Cql::First(id.table.clone()), vec![key, Value::BigInt(0)]),
                    _ => (
                        Cql::EntryRows(id.table.clone()),
                        vec![key, Value::BigInt(head)],
                    ),
                };
                let query = Query {
                    ask: &ask,
                    values: &values,
                    limit: 2,
                    below: None,
                    fails: false,
                };
                let _ = nodes.read(&query, &mut |n| self.below(n));
            }
            _ => {}
        }
        ask(nodes)
    }

    /// Takes in what was decided of a key, which may be a change of which its sender never heard.
    pub fn note_decided(&self, id: &KeyId) {
        let decided = self.with_nodes(id, Nodes::take_decided);
        for KeySwap { by, old, new } in decided {
            self.log
                .note("store", format_args!("{id} is committed: {}", shown(&new)));
            self.decided(&by, id, &old, &new);
        }
    }

    /// A state is replaced. `by`: the replicas that whoever swaps was.
    fn decided(&self, by: &BTreeSet<ReplicaId>, id: &KeyId, old: &KeyState, new: &KeyState) {
        let mut rows = self.rows();
        let violation = |what: &dyn std::fmt::Display| {
            self.log
                .violation(format_args!("a swap of {id} to {}: {what}", shown(new)));
        };
        if rows.states.get(id).cloned().unwrap_or_default() != *old {
            violation(&"what it names is not the state that was committed last");
        }
        if new.version != old.version + 1 {
            violation(&"it does not raise the version by one");
        }
        if let Err(wrong) = new.check() {
            violation(&wrong);
        }
        if let Err(wrong) = rows.may_change(by, old, new) {
            violation(&wrong);
        }
        rows.states.insert(id.clone(), new.clone());
        drop(rows);
        self.check_lease();
        self.beliefs.swapped(&self.log, id.key.as_str(), new);
    }

    /// No replica answers that is not up (H2), at whatever moment this is asked.
    fn check_lease(&self) {
        let answering: Vec<ReplicaId> = {
            let engines = self.engines.lock().unwrap();
            engines.iter().map(Engine::replica).collect()
        };
        let rows = self.rows();
        for id in answering {
            let is_gone = match rows.replicas.get(&id) {
                Some(row) => !matches!(row.state, ReplicaState::Up(_)),
                None => rows.forgotten.contains(&id),
            };
            if is_gone {
                self.log
                    .violation(format_args!("{id} answers, and is not up"));
            }
        }
    }

    /// Replaces a state.
    pub fn swap_state(
        &self,
        id: ReplicaId,
        expected: ReplicaState,
        next: ReplicaState,
    ) -> (StateSwap, String) {
        let swapped = self.rows().swap_state(id, expected, next);
        let words = match &swapped {
            StateSwap::Applied => format!("applied: {next:?}"),
            other => format!("{other:?}"),
        };
        self.check_lease();
        (swapped, words)
    }

    /// Writes a heartbeat.
    pub fn heartbeat(&self, id: ReplicaId, heartbeat: u64) {
        self.rows().write_heartbeat(id, heartbeat);
        self.check_lease();
    }

    /// Live entries of all keys, in words.
    pub fn left(&self) -> Vec<String> {
        let rows = self.rows();
        let live = rows.states.iter().filter(|(_, s)| !s.entries.is_empty());
        live.map(|(id, state)| {
            let owners: Vec<String> = state
                .entries
                .iter()
                .map(|e| format!("#{} of {}", e.seq.0, e.owner))
                .collect();
            format!("{id}: {}", owners.join(", "))
        })
        .collect()
    }

    /// The first entry of a key.
    pub fn holder(&self, key: &str) -> Option<LockRef> {
        let state = self.row(key);
        let holder = state.holder()?;
        Some(LockRef {
            table: TableName::default_table(),
            key: Key::parse(key, Key::BYTES_MAX).ok()?,
            seq: holder.seq,
            tag: holder.tag,
            grant: None,
        })
    }

    /// The row of a key.
    pub fn row(&self, key: &str) -> KeyState {
        let rows = self.rows();
        let mut of_it = rows.states.iter().filter(|(id, _)| id.key.as_str() == key);
        of_it
            .next()
            .map(|(_, state)| state.clone())
            .unwrap_or_default()
    }
}

impl Rows {
    /// Whether a change of a state is one that whoever asks for it may make: a home changes its keys, and nobody else
    /// does so unless the home is gone for good (H1, H3).
    fn may_change(
        &self,
        by: &BTreeSet<ReplicaId>,
        old: &KeyState,
        new: &KeyState,
    ) -> Result<(), &'static str> {
        let Some(home) = new.home else {
            return Err("it has no home");
        };
        let Some(before) = old.home else {
            return match by.contains(&home.replica) {
                true => Ok(()),
                false => Err("it gives a key without a home to another replica"),
            };
        };
        let rise = home.term.checked_sub(before.term);
        match rise {
            Some(0) if home.replica == before.replica => {}
            Some(1) => {}
            _ => return Err("its term does not go with its home"),
        }
        if new.next < old.next || new.fence < old.fence {
            return Err("its seqs or its fences go back");
        }
        if by.contains(&before.replica) {
            return Ok(());
        }
        if !by.contains(&home.replica) {
            return Err("it is not the home's, and makes another one home");
        }
        match self.replicas.get(&before.replica).map(|row| row.state) {
            Some(ReplicaState::Up(_)) => Err("it is taken from a home that is up"),
            Some(ReplicaState::Down | ReplicaState::Stopped) => Ok(()),
            None if self.forgotten.contains(&before.replica) => Ok(()),
            None => Err("it is taken from a home that nobody knows"),
        }
    }

    pub fn copy(&self, id: &KeyId, copy: usize) -> Option<Cell> {
        self.data.get(id).and_then(|copies| copies[copy].clone())
    }

    pub fn write(&mut self, id: &KeyId, copy: usize, cell: &Cell) {
        let copies = self.data.entry(id.clone()).or_default();
        copies[copy] = winner(copies[copy].take(), Some(cell.clone()));
    }

    /// Keys with live entries.
    pub fn live(&self, table: &TableName, after: Option<&Key>, limit: usize) -> Vec<Key> {
        let live = self.states.iter().filter(|(id, state)| {
            id.table == *table
                && !state.entries.is_empty()
                && after.is_none_or(|after| id.key.as_str() > after.as_str())
        });
        let mut live: Vec<Key> = live.map(|(id, _)| id.key.clone()).collect();
        live.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        live.truncate(limit);
        live
    }

    pub fn session(&self, id: SessionId) -> Option<SessionRow> {
        self.sessions.get(&id).cloned()
    }

    pub fn swap_session(&mut self, expected: u32, row: &SessionRow) -> (SessionSwap, String) {
        let present = self.sessions.get(&row.id);
        if present.map_or(0, |row| row.epoch) != expected {
            return (
                SessionSwap::Conflict(present.cloned()),
                "conflict".to_owned(),
            );
        }
        let words = format!("applied: epoch {} open {}", row.epoch, row.open);
        self.sessions.insert(row.id, row.clone());
        (SessionSwap::Applied, words)
    }

    pub fn forget_session(&mut self, id: SessionId) {
        if self.sessions.get(&id).is_some_and(|row| !row.open) {
            self.sessions.remove(&id);
        }
    }

    pub fn list_sessions(&self, after: Option<SessionId>, limit: usize) -> Vec<SessionRow> {
        let above = self
            .sessions
            .values()
            .filter(|row| after.is_none_or(|a| row.id > a));
        above.take(limit).cloned().collect()
    }

    /// A plain write whose timestamp is the heartbeat, as [`Rows::heartbeat`]; a state that was swapped stays.
    pub fn announce(&mut self, row: &ReplicaRow) {
        if self.forgotten.contains(&row.id) {
            return;
        }
        match self.replicas.get_mut(&row.id) {
            Some(present) if present.heartbeat < row.heartbeat => {
                let state = present.state;
                *present = row.clone();
                present.state = state;
            }
            Some(_) => {}
            None => {
                self.replicas.insert(row.id, row.clone());
            }
        }
    }

    pub fn list_replicas(&self) -> Vec<ReplicaRow> {
        self.replicas.values().cloned().collect()
    }

    /// A plain write whose timestamp is the heartbeat: the highest one stands.
    fn write_heartbeat(&mut self, id: ReplicaId, heartbeat: u64) {
        if let Some(row) = self.replicas.get_mut(&id) {
            row.heartbeat = row.heartbeat.max(heartbeat);
        }
    }

    fn swap_state(
        &mut self,
        id: ReplicaId,
        expected: ReplicaState,
        next: ReplicaState,
    ) -> StateSwap {
        match self.replicas.get_mut(&id) {
            Some(row) if row.state == expected => {
                row.state = next;
                StateSwap::Applied
            }
            other => StateSwap::Conflict(other.map(|row| row.state)),
        }
    }

    /// For good: what comes late does not bring it back.
    pub fn forget_replica(&mut self, id: ReplicaId) {
        if (self.replicas.get(&id)).is_some_and(|row| !matches!(row.state, ReplicaState::Up(_))) {
            self.replicas.remove(&id);
            self.forgotten.insert(id);
        }
    }

    pub fn request_hand_over(&mut self, request: &HandOverRequest) {
        self.forget_hand_over_request(request);
        self.hand_over_requests.push(StoredRequest {
            request: request.clone(),
            at: Instant::now(),
        });
    }

    pub fn hand_over_requests(&mut self, home: ReplicaId) -> Vec<HandOverRequest> {
        self.hand_over_requests
            .retain(|stored| stored.at.elapsed() < HAND_OVER_REQUEST_KEPT);
        let requests = self.hand_over_requests.iter();
        let to_home = requests.filter(|stored| stored.request.home == home);
        to_home.map(|stored| stored.request.clone()).collect()
    }

    pub fn forget_hand_over_request(&mut self, request: &HandOverRequest) {
        self.hand_over_requests
            .retain(|stored| stored.request != *request);
    }
}
