//! Worlds that cannot be told apart by what may happen in them are made one: nodes and messages in one order,
//! messages dropped that can do nothing more, versions counted from the oldest that still matters.

use fermata::lock::State;

use crate::committed::Committed;
use crate::setup::{Rule, Setup};
use crate::world::{Call, Cell, HolderState, NODES, Phase, SyncPhase, World};

impl World {
    pub fn make_canonical(&mut self, setup: &Setup) {
        self.drop_calls(setup);
        self.settle_writes(setup);
        self.sort_nodes();
        self.rest_crashed();
        self.count_versions_anew();
    }

    /// A put that was given up is refused for good once nobody serves its grant.
    fn drop_calls(&mut self, setup: &Setup) {
        if World::grants_end(setup) {
            let waits: Vec<_> = (0..self.clients.len())
                .filter_map(|client| self.open_put(setup, client))
                .collect();
            let replicas = &self.replicas;
            self.calls.retain(|call| {
                let (_, number) = setup.put_of(call.value);
                let may_take = |h: &HolderState| {
                    h.grant == call.grant
                        && (number > h.last_call || !setup.rule(Rule::CallNo))
                        && !h.releasing
                };
                let held = replicas
                    .iter()
                    .any(|r| r.holding.as_ref().is_some_and(may_take));
                held || waits.contains(&call.value)
            });
        }
        self.calls.sort_unstable();
    }

    /// Where a node has something newer a write changes nothing, and may as well have arrived.
    fn settle_writes(&mut self, setup: &Setup) {
        let nodes = self.nodes;
        let waits: Vec<_> = (0..self.clients.len())
            .filter_map(|client| self.open_put(setup, client))
            .collect();
        for write in &mut self.writes {
            // Nobody learns of it any more, and its home has another fence.
            let holding = self.replicas[usize::from(write.by)].holding.as_ref();
            let noted = holding.is_some_and(|h| h.grant == write.grant);
            let heard = !write.sync && waits.contains(&write.cell.value);
            write.awaited &= noted || heard;
        }
        for write in &mut self.writes {
            for (node, has) in nodes.iter().enumerate() {
                if !write.cell.shows_end(*has) {
                    write.reached |= 1 << node;
                }
            }
        }
        let everywhere = (1 << NODES) - 1;
        self.writes.retain(|w| w.awaited || w.reached != everywhere);
    }

    /// Nodes are alike.
    fn sort_nodes(&mut self) {
        self.writes
            .sort_unstable_by_key(|w| (w.cell.ts, w.cell.value, w.by, w.awaited, w.grant, w.sync));
        let mut order: [u8; NODES] = std::array::from_fn(|node| node as u8);
        let key = |node: u8| {
            let cell = self.nodes[usize::from(node)];
            let reached = self
                .writes
                .iter()
                .fold(0u32, |bits, w| bits << 1 | u32::from(w.reached >> node & 1));
            let mut read = 0u32;
            for client in &self.clients {
                let first = matches!(client.call, Call::Get { first, .. } if first.node == node);
                read = read << 1 | u32::from(first);
            }
            for replica in &self.replicas {
                let sync_phase = replica.holding.as_ref().map(|h| h.sync_phase);
                let first = matches!(sync_phase, Some(SyncPhase::Reading(f)) if f.node == node);
                read = read << 1 | u32::from(first);
            }
            (cell.ts, cell.value, reached, read)
        };
        order.sort_by_key(|node| key(*node));
        if order.is_sorted() {
            return;
        }
        let entry = |node: u8| order.iter().position(|old| *old == node).unwrap_or(0) as u8;
        let cells: [Cell; NODES] = std::array::from_fn(|at| self.nodes[usize::from(order[at])]);
        self.nodes = cells;
        for write in &mut self.writes {
            let bits = (0..NODES as u8).filter(|node| write.reached & (1 << node) != 0);
            write.reached = bits.fold(0, |bits, node| bits | 1 << entry(node));
        }
        for client in &mut self.clients {
            if let Call::Get { first, .. } = &mut client.call {
                first.node = entry(first.node);
            }
        }
        for replica in &mut self.replicas {
            if let Some(holding) = &mut replica.holding
                && let SyncPhase::Reading(first) = &mut holding.sync_phase
            {
                first.node = entry(first.node);
            }
        }
    }

    /// What a client that is through remembers is of no use to anybody.
    fn rest_crashed(&mut self) {
        for client in &mut self.clients {
            if matches!(client.phase, Phase::Done | Phase::Lost | Phase::Crashed) {
                (client.seq, client.grant, client.puts) = (0, 0, 0);
            }
        }
    }

    /// Counts versions anew. All are of states that are or were committed, and only whether one is that of the present
    /// state matters to anybody: so only which are equal, and which is higher, is kept.
    fn count_versions_anew(&mut self) {
        let mut versions = vec![self.stored.version];
        versions.extend(self.open.iter().map(|swap| swap.expected));
        for replica in &self.replicas {
            versions.extend(replica.view.iter().map(|view| view.version));
            versions.extend(replica.swap.iter().map(|swap| swap.expected));
        }
        versions.sort_unstable();
        versions.dedup();
        let anew = |version: u64| {
            let at = versions.iter().position(|v| *v == version).unwrap_or(0);
            // A key without a row stays one.
            at as u64 + u64::from(versions[0] != 0)
        };
        let renumber = |state: &mut Committed| {
            let version = anew(state.version);
            if version != state.version {
                let state_of = State::clone(state);
                *state = State {
                    version,
                    ..state_of
                }
                .into();
            }
        };
        renumber(&mut self.stored);
        for swap in &mut self.open {
            swap.expected = anew(swap.expected);
        }
        for replica in &mut self.replicas {
            replica.view.iter_mut().for_each(renumber);
            if let Some(swap) = &mut replica.swap {
                swap.expected = anew(swap.expected);
            }
        }
    }
}
