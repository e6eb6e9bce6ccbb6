//! What the store holds, and what an operation does to it at the moment at which it takes effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use fermata::lock::{Key, KeyId, ReplicaId, SessionId, State, TableName};
use fermata::store::{
    Cell, HAND_OVER_REQUEST_KEPT, HandOverRequest, Listed, ReplicaRow, SessionRow, SessionSwap,
    Swap,
};
use tokio::time::Instant;

use super::super::beliefs::Beliefs;
use super::super::log::Log;

/// How many copies of a value there are.
pub const COPIES: usize = 3;

pub struct Cluster {
    pub log: Arc<Log>,
    pub beliefs: Arc<Beliefs>,
    rows: Mutex<Rows>,
}

#[derive(Default)]
pub struct Rows {
    states: BTreeMap<KeyId, State>,
    data: BTreeMap<KeyId, [Option<Cell>; COPIES]>,
    sessions: BTreeMap<SessionId, SessionRow>,
    replicas: BTreeMap<ReplicaId, ReplicaRow>,
    forgotten: BTreeSet<ReplicaId>,
    hand_over_requests: Vec<StoredRequest>,
}

struct StoredRequest {
    request: HandOverRequest,
    at: Instant,
    answer: Option<bool>,
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
fn shown(state: &State) -> String {
    let entries: Vec<String> = state.entries.iter().map(|e| e.seq.0.to_string()).collect();
    format!(
        "v{} [{}] grant {} fence {}{}",
        state.version,
        entries.join(" "),
        state.grant.0,
        state.fence.0,
        if state.unsynced { " unsynced" } else { "" }
    )
}

impl Cluster {
    pub fn new(log: &Arc<Log>, beliefs: &Arc<Beliefs>) -> Arc<Cluster> {
        Arc::new(Cluster {
            log: Arc::clone(log),
            beliefs: Arc::clone(beliefs),
            rows: Mutex::default(),
        })
    }

    pub fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap()
    }

    pub fn swap(&self, id: &KeyId, old: &State, new: &State) -> (Swap, String) {
        let mut rows = self.rows();
        let present = rows.states.get(id);
        if present.map_or(0, |state| state.version) != old.version {
            let words = format!("conflict: {}", present.map(shown).unwrap_or_default());
            return (Swap::Conflict(present.cloned()), words);
        }
        if new.version != old.version + 1 {
            self.log.violation(format_args!(
                "a swap of {id} from {} to {}",
                old.version, new.version
            ));
        }
        if let Err(wrong) = new.check() {
            self.log
                .violation(format_args!("a state of {id} is not in order: {wrong}"));
        }
        rows.states.insert(id.clone(), new.clone());
        drop(rows);
        self.beliefs.swapped(&self.log, id.key.as_str(), new);
        (Swap::Applied, format!("applied: {}", shown(new)))
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

    /// The first entry of a key: its number and its tag.
    pub fn holder(&self, key: &str) -> Option<(u64, u64)> {
        let rows = self.rows();
        let state = rows.states.iter().find(|(id, _)| id.key.as_str() == key)?.1;
        let holder = state.holder()?;
        Some((holder.seq.0, holder.tag().bits()))
    }
}

impl Rows {
    pub fn state(&self, id: &KeyId) -> Option<State> {
        self.states.get(id).cloned()
    }

    pub fn copy(&self, id: &KeyId, copy: usize) -> Option<Cell> {
        self.data.get(id).and_then(|copies| copies[copy].clone())
    }

    pub fn write(&mut self, id: &KeyId, copy: usize, cell: &Cell) {
        let copies = self.data.entry(id.clone()).or_default();
        copies[copy] = winner(copies[copy].take(), Some(cell.clone()));
    }

    pub fn live(&self, table: &TableName, after: Option<&Key>, limit: usize) -> Vec<Listed> {
        let live = self.states.iter().filter(|(id, state)| {
            id.table == *table
                && !state.entries.is_empty()
                && after.is_none_or(|after| id.key.as_str() > after.as_str())
        });
        let mut live: Vec<Listed> = live
            .map(|(id, state)| Listed {
                key: id.key.clone(),
                state: state.clone(),
            })
            .collect();
        live.sort_by(|a, b| a.key.as_str().cmp(b.key.as_str()));
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

    /// A plain write whose timestamp is the heartbeat, as [`Rows::heartbeat`].
    pub fn announce(&mut self, row: &ReplicaRow) {
        let present = self.replicas.get(&row.id);
        if !self.forgotten.contains(&row.id)
            && present.is_none_or(|one| one.heartbeat < row.heartbeat)
        {
            self.replicas.insert(row.id, row.clone());
        }
    }

    pub fn list_replicas(&self) -> Vec<ReplicaRow> {
        self.replicas.values().cloned().collect()
    }

    /// A plain write whose timestamp is the heartbeat: the highest one stands.
    pub fn heartbeat(&mut self, id: ReplicaId, heartbeat: u64, stopped: bool) {
        if let Some(row) = self.replicas.get_mut(&id)
            && row.heartbeat < heartbeat
        {
            row.heartbeat = heartbeat;
            row.stopped = stopped;
        }
    }

    /// For good: what comes late does not bring it back.
    pub fn forget_replica(&mut self, id: ReplicaId) {
        self.replicas.remove(&id);
        self.forgotten.insert(id);
    }

    pub fn ask(&mut self, request: &HandOverRequest) {
        self.hand_over_requests.push(StoredRequest {
            request: request.clone(),
            at: Instant::now(),
            answer: None,
        });
    }

    fn kept(&mut self) -> &mut Vec<StoredRequest> {
        self.hand_over_requests
            .retain(|asked| asked.at.elapsed() < HAND_OVER_REQUEST_KEPT);
        &mut self.hand_over_requests
    }

    pub fn hand_over_requests(&mut self, home: ReplicaId) -> Vec<HandOverRequest> {
        let open = self
            .kept()
            .iter()
            .filter(|asked| asked.request.home == home && asked.answer.is_none());
        open.map(|asked| asked.request.clone()).collect()
    }

    pub fn answer(&mut self, request: &HandOverRequest, yes: bool) {
        let asked = self
            .kept()
            .iter_mut()
            .filter(|asked| asked.request.id == request.id);
        asked.for_each(|asked| asked.answer = Some(yes));
    }

    pub fn answered(&mut self, request: &HandOverRequest) -> Option<bool> {
        let asked = self
            .kept()
            .iter()
            .find(|asked| asked.request.id == request.id);
        asked.and_then(|asked| asked.answer)
    }
}
