//! Three nodes, of which any two answer: a change that was decided may have reached one only, and a read writes what it
//! queried, and nothing else, back to those of the two that lack it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use fermata_cassandra::{Fault, Keyspace, Row, Value};

use super::chance::Chance;
use super::cql;
use super::partition::{Partition, Slice};
use crate::key::KeyState;
use crate::lock::KeyId;
use crate::store::cassandra::change::Change;
use crate::store::cassandra::rows::Asks;
use crate::store::cassandra::statements::Ask;

/// What a read does to the nodes that it asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadRepair {
    /// As Cassandra does by default, and ScyllaDB always.
    Blocking,
    None,
}

/// A change that was accepted, with the state that it makes.
#[derive(Clone)]
struct Proposal {
    change: Partition,
    state: KeyState,
}

pub struct Nodes {
    nodes: [Partition; 3],
    read_repair: ReadRepair,
    /// The latest change that was decided. All before it reached a majority.
    latest: Option<Proposal>,
    /// A change that one node accepted, and of which nobody knows what becomes.
    open: Option<(usize, Proposal)>,
    /// Every state that was ever committed, by its version.
    committed: BTreeMap<u64, KeyState>,
    time: u64,
    /// What the transaction that comes next makes of the state.
    proposed: Option<KeyState>,
    pub chance: Chance,
}

pub struct Cluster {
    nodes: Mutex<Nodes>,
    id: KeyId,
}

/// The seq below which a read goes on.
pub struct Below(i64);

impl Cluster {
    pub fn new(id: &KeyId, read_repair: ReadRepair, seed: u64) -> Cluster {
        Cluster {
            nodes: Mutex::new(Nodes {
                nodes: Default::default(),
                read_repair,
                latest: None,
                open: None,
                committed: BTreeMap::new(),
                time: 0,
                proposed: None,
                chance: Chance(seed),
            }),
            id: id.clone(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap()
    }

    /// The next transaction is to make this state.
    pub fn propose(&self, new: &KeyState) {
        self.lock().proposed = Some(new.clone());
    }

    /// What others do meanwhile.
    fn meanwhile(&self, nodes: &mut Nodes) {
        while nodes.chance.one_in(3) {
            match nodes.chance.below(4) {
                0 => nodes.deliver(),
                1 => {
                    // Somebody changes the key.
                    let old = nodes.newest();
                    let new = nodes.chance.successor(&old);
                    self.change(nodes, &old, &new);
                }
                _ => {
                    // Somebody reads a part of it.
                    let table = self.id.table.clone();
                    let head = nodes.newest().head().0.cast_signed();
                    let key = Value::text(self.id.key.as_str());
                    let (ask, values) = match nodes.chance.below(3) {
                        0 => (Ask::First(table), vec![key, Value::BigInt(0)]),
                        1 => (Ask::EntryRows(table), vec![key, Value::BigInt(head)]),
                        _ => (Ask::Keys(table), Vec::new()),
                    };
                    let limit = nodes.chance.page();
                    let _ = nodes.read(&ask, &values, limit, None);
                }
            }
        }
    }

    fn change(&self, nodes: &mut Nodes, old: &KeyState, new: &KeyState) {
        let change = Change::between(old, new).unwrap();
        let shape = change.shape();
        let values = change.values(self.id.key.as_str(), shape);
        let _ = nodes.swap(&Ask::Swap(self.id.table.clone(), shape), &values, new);
    }
}

fn text(ask: &Ask) -> String {
    ask.text(&Keyspace::parse("k").unwrap())
}

fn unknown() -> Fault {
    Fault::Unknown("no answer".to_owned())
}

impl Nodes {
    pub fn committed(&self, version: u64) -> Option<&KeyState> {
        self.committed.get(&version)
    }

    fn newest(&self) -> KeyState {
        let newest = self.committed.last_key_value();
        newest.map(|(_, state)| state.clone()).unwrap_or_default()
    }

    fn two(&mut self) -> [usize; 2] {
        [[0, 1], [1, 2], [0, 2]][self.chance.below(3)]
    }

    /// The latest change reaches one more node.
    fn deliver(&mut self) {
        let node = self.chance.below(3);
        if let Some(latest) = &self.latest {
            self.nodes[node].merge(&latest.change);
        }
    }

    fn decide(&mut self, proposal: Proposal) {
        let state = proposal.state.clone();
        self.committed.insert(state.version, state);
        self.latest = Some(proposal);
    }

    /// What the first phase of a transaction does: what was accepted before is decided, and two nodes have all of it.
    fn settle(&mut self) -> [usize; 2] {
        let two = self.two();
        match self.open.take() {
            // Where nobody learns of it the next proposal takes its place.
            Some((node, proposal)) if two.contains(&node) => self.decide(proposal),
            Some(_) | None => {}
        }
        if let Some(latest) = &self.latest {
            for node in two {
                self.nodes[node].merge(&latest.change);
            }
        }
        two
    }

    /// A lightweight transaction. Whether it was applied.
    fn swap(&mut self, ask: &Ask, values: &[Value], new: &KeyState) -> Result<bool, Fault> {
        let two = self.settle();
        self.time += 2;
        let (condition, change) = cql::batch(&text(ask), values, self.time);
        let mut seen = Partition::default();
        for node in two {
            seen.merge(&self.nodes[node]);
        }
        let present = match seen.static_value("version") {
            Some(Value::BigInt(version)) => Some(*version),
            _ => None,
        };
        if present != condition {
            return Ok(false);
        }
        let proposal = Proposal {
            change: change.clone(),
            state: new.clone(),
        };
        match self.chance.below(8) {
            0 => Err(unknown()),
            1 => {
                self.open = Some((self.chance.below(3), proposal));
                Err(unknown())
            }
            // Decided, and its commit reached so many.
            how => {
                self.decide(proposal);
                let reached = match how {
                    2..=4 => 1,
                    5 => 0,
                    _ => self.chance.below(2) + 2,
                };
                let first = self.chance.below(3);
                for node in first..first + reached {
                    self.nodes[node % 3].merge(&change);
                }
                match reached {
                    2.. => Ok(true),
                    _ => Err(unknown()),
                }
            }
        }
    }

    /// A page of a read, and the seq below which the next one begins.
    fn read(
        &mut self,
        ask: &Ask,
        values: &[Value],
        limit: usize,
        below: Option<i64>,
    ) -> Result<(Vec<Row>, Option<i64>), Fault> {
        let is_serial = matches!(ask, Ask::FirstSettled(_));
        let two = match is_serial {
            true => self.settle(),
            false => self.two(),
        };
        let text = text(ask);
        let mut slice = cql::slice(&text, values);
        slice.to = below.map_or(slice.to, |below| below - 1);
        let mut merged = Partition::default();
        for node in two {
            merged.merge(&self.nodes[node].queried(&slice));
        }
        let mut seqs = merged.seqs();
        seqs.reverse();
        let more = seqs.get(limit - 1).copied().filter(|_| seqs.len() > limit);
        seqs.truncate(limit);
        if let Some(last) = more {
            // No more than this page was read.
            slice.from = last;
            merged = merged.queried(&slice);
        }
        let fails = self.chance.one_in(20);
        if self.read_repair == ReadRepair::Blocking {
            for node in two {
                // One that fails may have repaired a node.
                if !fails || self.chance.one_in(2) {
                    self.nodes[node].merge(&merged);
                }
            }
        }
        if fails {
            return Err(unknown());
        }
        let rows = seqs.iter().map(|seq| row(&merged, &slice, *seq));
        Ok((rows.collect(), more))
    }
}

fn row(partition: &Partition, slice: &Slice, seq: i64) -> Row {
    let value = |column: &String| match column.as_str() {
        "seq" => Some(Value::BigInt(seq)),
        column => {
            let value = partition.value(seq, column).cloned();
            value.filter(|value| *value != Value::Null)
        }
    };
    Row {
        columns: slice.columns.clone().into(),
        values: slice.columns.iter().map(value).collect(),
    }
}

impl Asks for Cluster {
    type More = Below;

    async fn ask(&self, ask: Ask, values: &[Value]) -> Result<Vec<Row>, Fault> {
        let nodes = &mut *self.lock();
        self.meanwhile(nodes);
        if !matches!(ask, Ask::Swap(..)) {
            return Ok(nodes.read(&ask, values, 100, None)?.0);
        }
        let new = nodes.proposed.take().unwrap();
        let applied = nodes.swap(&ask, values, &new)?;
        let columns: Arc<[String]> = ["[applied]".to_owned()].into();
        Ok(vec![Row {
            columns,
            values: vec![Some(Value::Boolean(applied))],
        }])
    }

    async fn page(
        &self,
        ask: Ask,
        values: &[Value],
        page_rows: i32,
        from: Option<Below>,
    ) -> Result<(Vec<Row>, Option<Below>), Fault> {
        let nodes = &mut *self.lock();
        self.meanwhile(nodes);
        let limit = usize::try_from(page_rows).unwrap();
        let below = from.map(|Below(seq)| seq);
        let (rows, more) = nodes.read(&ask, values, limit, below)?;
        Ok((rows, more.map(Below)))
    }
}
