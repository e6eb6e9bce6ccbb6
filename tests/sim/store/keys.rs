//! The states of keys: the real store's own statements, each with a fate of its own, on three nodes that have more or less
//! of what was committed.

use std::collections::BTreeSet;

use fermata::key::KeyState;
use fermata::lock::{KeyId, ReplicaId};
use fermata::store::cassandra::modelled::{Asks, Cql, Rows};
use fermata_cassandra::{Fault, Row, Value};

use super::super::nodes::{Query, Reach, applied, of_hedged};
use super::cluster::Cluster;
use super::fate::Fate;
use super::link::{Ambush, Failed, StoreLink};

/// A change of a state.
#[derive(Clone)]
pub struct KeySwap {
    /// The replicas that whoever swaps was.
    pub by: BTreeSet<ReplicaId>,
    pub old: KeyState,
    pub new: KeyState,
}

/// Statements about one key.
pub(super) struct Statements<'a> {
    link: &'a StoreLink,
    id: &'a KeyId,
    /// What the transaction among them is to make.
    swap: Option<KeySwap>,
}

/// The seq below which a read goes on.
pub(super) struct Below(i64);

/// A page, and the seq below which the next one begins.
type Page = (Vec<Row>, Option<i64>);

impl From<Failed> for Fault {
    fn from(failed: Failed) -> Fault {
        match failed {
            Failed::NotStarted => Fault::NotStarted("refused".to_owned()),
            Failed::Unknown => Fault::Unknown("no answer".to_owned()),
        }
    }
}

impl StoreLink {
    pub(super) fn statements<'a>(&'a self, id: &'a KeyId, swap: Option<KeySwap>) -> Statements<'a> {
        Statements {
            link: self,
            id,
            swap,
        }
    }

    pub(super) fn rows_of<'a>(
        &'a self,
        statements: &'a Statements<'a>,
    ) -> Rows<'a, Statements<'a>> {
        Rows {
            asks: statements,
            in_doubt: &self.in_doubt,
            page_rows: self.page_rows,
            id: statements.id,
        }
    }
}

impl Statements<'_> {
    async fn execute(
        &self,
        ask: Cql,
        values: &[Value],
        limit: usize,
        below: Option<i64>,
    ) -> Result<Page, Fault> {
        self.link.alive().await;
        let swap = self.swap.clone().filter(|_| matches!(ask, Cql::Swap(..)));
        let drawn = match &swap {
            Some(swap) if swap.old.home == swap.new.home => {
                self.link.draw_or_ambushed(Ambush::Swap)
            }
            Some(_) => self.link.draw_or_ambushed(Ambush::Home),
            None => self.link.draw(),
        };
        let what = match &swap {
            Some(swap) => format!("swap {} v{}", self.id, swap.old.version),
            None => format!("read {ask:?} of {}", self.id),
        };
        let (fate, id, values) = (drawn.0, self.id.clone(), values.to_vec());
        let effect = move |cluster: &Cluster| {
            let answer = match swap {
                Some(swap) => cluster.swap(&id, (&ask, &values), swap, fate),
                None => {
                    let query = Query {
                        ask: &ask,
                        values: &values,
                        limit,
                        below,
                        fails: !fate.is_answered(),
                    };
                    cluster.read(&id, &query)
                }
            };
            (answer, String::new())
        };
        self.link.of_fate(what, drawn, effect).await?
    }
}

impl Asks for Statements<'_> {
    type More = Below;

    async fn ask(&self, ask: Cql, values: &[Value]) -> Result<Vec<Row>, Fault> {
        Ok(self.execute(ask, values, 1, None).await?.0)
    }

    async fn page(
        &self,
        ask: Cql,
        values: &[Value],
        page_rows: i32,
        from: Option<Below>,
    ) -> Result<(Vec<Row>, Option<Below>), Fault> {
        let limit = usize::try_from(page_rows).unwrap_or(1);
        let below = from.map(|Below(seq)| seq);
        let (rows, more) = self.execute(ask, values, limit, below).await?;
        Ok((rows, more.map(Below)))
    }
}

impl Cluster {
    /// What becomes of a transaction. One that is answered as applied has reached two nodes, and often not the third.
    fn reach(&self, fate: Fate) -> Reach {
        let below = |n| self.below(n);
        match (fate.is_answered(), below(8)) {
            (true, 0..2) => Reach::Decided { nodes: 2 },
            (true, _) => Reach::Decided { nodes: 3 },
            (false, 0) => Reach::Lost,
            (false, 1) => Reach::Accepted,
            (false, 2..6) => Reach::Decided { nodes: 1 },
            (false, _) => Reach::Decided { nodes: below(4) },
        }
    }

    fn swap(
        &self,
        id: &KeyId,
        statement: (&Cql, &[Value]),
        swap: KeySwap,
        fate: Fate,
    ) -> Result<Page, Fault> {
        let reach = self.reach(fate);
        // One that is slow may be sent to another node as well, whose answer comes first.
        let is_slow = matches!(fate, Fate::SlowThere(_) | Fate::SlowBack(_));
        let is_hedged = is_slow && self.below(2) == 0;
        let pick = &mut |n| self.below(n);
        let swapped = self.with_nodes(id, |nodes| {
            let swapped = nodes.swap(statement, swap.clone(), reach, pick);
            match is_hedged {
                true => of_hedged(nodes.swap(statement, swap, reach, pick)),
                false => swapped,
            }
        });
        self.note_decided(id);
        Ok((applied(swapped?), None))
    }

    fn read(&self, id: &KeyId, query: &Query<'_>) -> Result<Page, Fault> {
        let pick = &mut |n| self.below(n);
        let read = self.with_nodes(id, |nodes| nodes.read(query, pick));
        self.note_decided(id);
        read
    }
}
