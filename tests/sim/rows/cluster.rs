//! Modelled nodes on which others read and change the key meanwhile.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use fermata::key::KeyState;
use fermata::lock::KeyId;
use fermata::store::cassandra::modelled::{Asks, Change, Cql};
use fermata_cassandra::{Fault, Order, Row, Value};

use super::super::nodes::{Nodes, Query, Reach, ReadRepair, applied, of_hedged};
use super::super::rng::Rng;
use super::chance::Chance;

pub struct World {
    nodes: Nodes<KeyState>,
    /// Every state that was ever committed, by its version.
    committed: BTreeMap<u64, KeyState>,
    /// What the transaction that comes next makes of the state.
    proposed: Option<KeyState>,
    pub chance: Chance,
}

pub struct Cluster {
    world: Mutex<World>,
    id: KeyId,
}

/// The seq below which a read goes on.
pub struct Below(i64);

impl Cluster {
    pub fn new(id: &KeyId, read_repair: ReadRepair, seed: u64) -> Cluster {
        Cluster {
            world: Mutex::new(World {
                nodes: Nodes::new(read_repair),
                committed: BTreeMap::new(),
                proposed: None,
                chance: Chance(Rng::new(seed)),
            }),
            id: id.clone(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    /// The next transaction is to make this state.
    pub fn propose(&self, new: &KeyState) {
        self.lock().proposed = Some(new.clone());
    }

    /// What others do meanwhile.
    fn meanwhile(&self, world: &mut World) {
        while world.chance.one_in(3) {
            match world.chance.below(4) {
                0 => world.nodes.deliver(&mut |n| world.chance.below(n)),
                1 => {
                    // Somebody changes the key.
                    let old = world.newest();
                    let new = world.chance.successor(&old);
                    self.change(world, &old, &new);
                }
                _ => {
                    // Somebody reads a part of it.
                    let table = self.id.table.clone();
                    let head = world.newest().head().0.cast_signed();
                    let key = Value::text(self.id.key.as_str());
                    let (ask, values) = match world.chance.below(3) {
                        0 => (Cql::First(table), vec![key, Value::BigInt(0)]),
                        1 => (Cql::EntryRows(table), vec![key, Value::BigInt(head)]),
                        _ => (Cql::Keys(table), Vec::new()),
                    };
                    let limit = world.chance.page();
                    let _ = world.read(&ask, &values, limit, None);
                }
            }
        }
    }

    fn change(&self, world: &mut World, old: &KeyState, new: &KeyState) {
        let change = Change::between(old, new).unwrap();
        let shape = change.shape();
        let values = change.values(self.id.key.as_str(), shape);
        let _ = world.swap(
            &Cql::Swap(self.id.table.clone(), shape, Order::First),
            &values,
            new,
        );
    }
}

impl World {
    pub fn committed(&self, version: u64) -> Option<&KeyState> {
        self.committed.get(&version)
    }

    fn newest(&self) -> KeyState {
        let newest = self.committed.last_key_value();
        newest.map(|(_, state)| state.clone()).unwrap_or_default()
    }

    fn note_decided(&mut self) {
        for state in self.nodes.take_decided() {
            self.committed.insert(state.version, state);
        }
    }

    fn swap(&mut self, ask: &Cql, values: &[Value], new: &KeyState) -> Result<bool, Fault> {
        let reach = match self.chance.below(8) {
            0 => Reach::Lost,
            1 => Reach::Accepted,
            2..=4 => Reach::Decided { nodes: 1 },
            5 => Reach::Decided { nodes: 0 },
            _ => Reach::Decided {
                nodes: self.chance.below(2) + 2,
            },
        };
        let pick = &mut |n| self.chance.below(n);
        let swapped = self.nodes.swap((ask, values), new.clone(), reach, pick);
        self.note_decided();
        swapped
    }

    /// A page of a read, and the seq below which the next one begins.
    fn read(
        &mut self,
        ask: &Cql,
        values: &[Value],
        limit: usize,
        below: Option<i64>,
    ) -> Result<(Vec<Row>, Option<i64>), Fault> {
        let query = Query {
            ask,
            values,
            limit,
            below,
            fails: self.chance.one_in(20),
        };
        let read = self.nodes.read(&query, &mut |n| self.chance.below(n));
        self.note_decided();
        read
    }
}

impl Asks for Cluster {
    type More = Below;

    async fn ask(&self, ask: Cql, values: &[Value]) -> Result<Vec<Row>, Fault> {
        let world = &mut *self.lock();
        self.meanwhile(world);
        if !matches!(ask, Cql::Swap(..)) {
            return Ok(world.read(&ask, values, 100, None)?.0);
        }
        let new = world.proposed.take().unwrap();
        let mut swapped = world.swap(&ask, values, &new);
        if world.chance.one_in(4) {
            // Its node was silent for a while: another one was asked as well, and answered first.
            swapped = of_hedged(world.swap(&ask, values, &new));
        }
        Ok(applied(swapped?))
    }

    async fn page(
        &self,
        ask: Cql,
        values: &[Value],
        page_rows: i32,
        from: Option<Below>,
    ) -> Result<(Vec<Row>, Option<Below>), Fault> {
        let world = &mut *self.lock();
        self.meanwhile(world);
        let limit = usize::try_from(page_rows).unwrap();
        let below = from.map(|Below(seq)| seq);
        let (rows, more) = world.read(&ask, values, limit, below)?;
        Ok((rows, more.map(Below)))
    }
}
