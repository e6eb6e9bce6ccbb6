//! Three nodes that keep the rows of one key, of which any two answer: a change that was decided may have reached one only,
//! and a read writes what it queried, and nothing else, back to those of the two that lack it.
//!
//! The statements are those of the store, by their own text. Whoever uses this says what becomes of each transaction, and
//! which nodes are asked.

mod cql;
mod partition;

use fermata::store::cassandra::Keyspace;
use fermata::store::cassandra::modelled::Cql;
use fermata_cassandra::{Fault, Row, Value};

use partition::{Partition, Slice};

/// What a read does to the nodes that it asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadRepair {
    /// As Cassandra does by default, and ScyllaDB always.
    Blocking,
    None,
}

/// What becomes of a transaction whose condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// No node accepts it.
    Lost,
    /// One node accepts it: whoever asks that one next decides it.
    Accepted,
    /// It is decided, and its commit reaches so many nodes; the others learn of it later.
    Decided { nodes: usize },
}

/// One of `0..n`.
pub type Pick<'a> = &'a mut dyn FnMut(usize) -> usize;

/// A change that was accepted, and what it makes.
struct Proposal<T> {
    change: Partition,
    makes: T,
}

pub struct Nodes<T> {
    nodes: [Partition; 3],
    read_repair: ReadRepair,
    /// The latest change that was decided. All before it reached a majority.
    latest: Option<Partition>,
    /// Changes that one node accepted after what was decided last, in order: whoever asks that node next decides it.
    open: Vec<(usize, Proposal<T>)>,
    /// What was decided since this was asked for last, in order.
    decided: Vec<T>,
    time: u64,
}

/// What is read: a statement with its values, from where it left off.
pub struct Query<'a> {
    pub ask: &'a Cql,
    pub values: &'a [Value],
    /// How many rows a page has.
    pub limit: usize,
    /// The seq below which it goes on.
    pub below: Option<i64>,
    /// It is not answered, and may have repaired a node.
    pub fails: bool,
}

pub fn unknown() -> Fault {
    Fault::Unknown("no answer".to_owned())
}

fn text(ask: &Cql) -> String {
    ask.text(&Keyspace::parse("k").unwrap())
}

fn two(pick: Pick<'_>) -> [usize; 2] {
    [[0, 1], [1, 2], [0, 2]][pick(3)]
}

impl<T> Nodes<T> {
    pub fn new(read_repair: ReadRepair) -> Nodes<T> {
        Nodes {
            nodes: Default::default(),
            read_repair,
            latest: None,
            open: Vec::new(),
            decided: Vec::new(),
            time: 0,
        }
    }

    /// What was decided since this was called last, in order: also a change of which its sender never heard.
    pub fn take_decided(&mut self) -> Vec<T> {
        std::mem::take(&mut self.decided)
    }

    /// The latest change reaches one more node.
    pub fn deliver(&mut self, pick: Pick<'_>) {
        let node = pick(3);
        if let Some(latest) = &self.latest {
            self.nodes[node].merge(latest);
        }
    }

    fn decide(&mut self, proposal: Proposal<T>) {
        self.decided.push(proposal.makes);
        self.latest = Some(proposal.change);
        // What is older than a decision is never decided.
        self.open.clear();
    }

    /// What the first phase of a transaction does: what was accepted before is decided, and two nodes have all of it.
    fn settle(&mut self, pick: Pick<'_>) -> [usize; 2] {
        let two = two(&mut *pick);
        // One that nobody learns of now may be decided later.
        let last = self.open.iter().rposition(|(node, _)| two.contains(node));
        if let Some(last) = last {
            let (_, proposal) = self.open.remove(last);
            self.decide(proposal);
        }
        if let Some(latest) = &self.latest {
            for node in two {
                self.nodes[node].merge(latest);
            }
        }
        two
    }

    /// A lightweight transaction. Whether it was applied, where a majority says so.
    pub fn swap(
        &mut self,
        (ask, values): (&Cql, &[Value]),
        makes: T,
        reach: Reach,
        pick: Pick<'_>,
    ) -> Result<bool, Fault> {
        let two = self.settle(&mut *pick);
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
            makes,
        };
        match reach {
            Reach::Lost => Err(unknown()),
            Reach::Accepted => {
                self.open.push((pick(3), proposal));
                Err(unknown())
            }
            Reach::Decided { nodes } => {
                self.decide(proposal);
                let first = pick(3);
                for node in first..first + nodes {
                    self.nodes[node % 3].merge(&change);
                }
                match nodes {
                    2.. => Ok(true),
                    _ => Err(unknown()),
                }
            }
        }
    }

    /// A page of a read, and the seq below which the next one begins.
    pub fn read(
        &mut self,
        query: &Query<'_>,
        pick: Pick<'_>,
    ) -> Result<(Vec<Row>, Option<i64>), Fault> {
        let two = match query.ask {
            Cql::FirstSettled(_) => self.settle(&mut *pick),
            _ => two(&mut *pick),
        };
        let mut slice = cql::slice(&text(query.ask), query.values);
        slice.to = query.below.map_or(slice.to, |below| below - 1);
        let mut merged = Partition::default();
        for node in two {
            merged.merge(&self.nodes[node].queried(&slice));
        }
        let mut seqs = merged.seqs();
        seqs.reverse();
        let more = seqs.get(query.limit - 1).copied();
        let more = more.filter(|_| seqs.len() > query.limit);
        seqs.truncate(query.limit);
        if let Some(last) = more {
            // No more than this page was read.
            slice.from = last;
            merged = merged.queried(&slice);
        }
        if self.read_repair == ReadRepair::Blocking {
            for node in two {
                if !query.fails || pick(2) == 0 {
                    self.nodes[node].merge(&merged);
                }
            }
        }
        if query.fails {
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

/// What is known of a transaction that was sent twice, by the answer to one of them.
pub fn of_hedged(swapped: Result<bool, Fault>) -> Result<bool, Fault> {
    match swapped {
        // The other one may have been.
        Ok(false) => Err(unknown()),
        swapped => swapped,
    }
}

/// The answer to a transaction.
pub fn applied(applied: bool) -> Vec<Row> {
    vec![Row {
        columns: ["[applied]".to_owned()].into(),
        values: vec![Some(Value::Boolean(applied))],
    }]
}
