//! What the store holds, and what an operation does to it at the moment at which it takes effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use fermata::lock::{Key, KeyId, ReplicaId, SessionId, State, TableName};
use fermata::store::{
    Cell, Listed, QUESTION_KEPT, Question, ReplicaRow, SessionRow, SessionSwap, Swap,
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
    questions: Vec<Asked>,
}

struct Asked {
    question: Question,
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
    let places: Vec<String> = state.entries.iter().map(|e| e.seq.0.to_string()).collect();
    format!(
        "v{} [{}] grant {} fence {}{}",
        state.version,
        places.join(" "),
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

    /// Live places of all keys, in words.
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

    /// The first place of a key: its number and its tag.
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

    /// A plain write whose timestamp is the beat, as [`Rows::beat`].
    pub fn announce(&mut self, row: &ReplicaRow) {
        let present = self.replicas.get(&row.id);
        if !self.forgotten.contains(&row.id) && present.is_none_or(|one| one.beat < row.beat) {
            self.replicas.insert(row.id, row.clone());
        }
    }

    pub fn list_replicas(&self) -> Vec<ReplicaRow> {
        self.replicas.values().cloned().collect()
    }

    /// A plain write whose timestamp is the beat: the highest one stands.
    pub fn beat(&mut self, id: ReplicaId, beat: u64, stopped: bool) {
        if let Some(row) = self.replicas.get_mut(&id)
            && row.beat < beat
        {
            row.beat = beat;
            row.stopped = stopped;
        }
    }

    /// For good: what comes late does not bring it back.
    pub fn forget_replica(&mut self, id: ReplicaId) {
        self.replicas.remove(&id);
        self.forgotten.insert(id);
    }

    pub fn ask(&mut self, question: &Question) {
        self.questions.push(Asked {
            question: question.clone(),
            at: Instant::now(),
            answer: None,
        });
    }

    fn kept(&mut self) -> &mut Vec<Asked> {
        self.questions
            .retain(|asked| asked.at.elapsed() < QUESTION_KEPT);
        &mut self.questions
    }

    pub fn questions(&mut self, home: ReplicaId) -> Vec<Question> {
        let open = self
            .kept()
            .iter()
            .filter(|asked| asked.question.home == home && asked.answer.is_none());
        open.map(|asked| asked.question.clone()).collect()
    }

    pub fn answer(&mut self, question: &Question, yes: bool) {
        let asked = self
            .kept()
            .iter_mut()
            .filter(|asked| asked.question.id == question.id);
        asked.for_each(|asked| asked.answer = Some(yes));
    }

    pub fn answered(&mut self, question: &Question) -> Option<bool> {
        let asked = self
            .kept()
            .iter()
            .find(|asked| asked.question.id == question.id);
        asked.and_then(|asked| asked.answer)
    }
}
