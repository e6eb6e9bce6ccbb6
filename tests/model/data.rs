//! The data nodes, and what replicas write to and read from them: each write arrives at each node by itself, each
//! answer of a read comes by itself.

use crate::setup::{Rule, Setup};
use crate::world::{
    Call, Cell, FirstAnswer, HolderState, NODES, PutCall, SyncPhase, Ts, World, Write,
};

impl World {
    /// A write arrives at a node.
    pub fn arrives(&mut self, at: usize, node: u8) {
        let write = &mut self.writes[at];
        write.reached |= 1 << node;
        let has = &mut self.nodes[usize::from(node)];
        *has = has.newer(write.cell);
    }

    /// The home of a write learns that a majority has it.
    pub fn acknowledged(&mut self, setup: &Setup, at: usize) {
        self.writes[at].awaited = false;
        let write = self.writes[at];
        let holding = self.holding_of(&write);
        if write.sync {
            let waits = |h: &&mut HolderState| h.sync_phase == SyncPhase::Writing(write.cell);
            if let Some(holding) = holding.filter(waits) {
                holding.synced = true;
                holding.sync_phase = SyncPhase::Open;
            }
            return;
        }
        let Some(holding) = holding else {
            // The fence ended meanwhile.
            return self.put_fails(setup, write.cell.value);
        };
        holding.acked = holding.acked.max(write.cell.ts);
        if let Some(client) = self.put_is_open(setup, write.cell.value) {
            self.clients[client].call = Call::None;
            self.put_answered(setup, client, write.cell.value);
        }
    }

    /// What became of a write is not known to its home.
    pub fn write_unknown(&mut self, setup: &Setup, at: usize) {
        self.writes[at].awaited = false;
        let write = self.writes[at];
        let holding = self.holding_of(&write);
        if write.sync {
            // The rule is off: it is read again, and something else may be written. (With it the same is written
            // again, which is the same write.)
            let waits = |h: &&mut HolderState| h.sync_phase == SyncPhase::Writing(write.cell);
            if let Some(holding) = holding.filter(waits) {
                holding.sync_phase = SyncPhase::Unsynced;
            }
            return;
        }
        if let Some(holding) = holding {
            holding.unknown = holding.unknown.max(write.cell.ts);
        }
        self.put_fails(setup, write.cell.value);
    }

    fn holding_of(&mut self, write: &Write) -> Option<&mut HolderState> {
        let holding = self.replicas[usize::from(write.by)].holding.as_mut();
        holding.filter(|h| h.grant == write.grant)
    }

    /// The first answer of a sync's read.
    pub fn sync_read_begins(&mut self, by: u8, node: u8) {
        let cell = self.nodes[usize::from(node)];
        if let Some(holding) = &mut self.replicas[usize::from(by)].holding {
            holding.sync_phase = SyncPhase::Reading(FirstAnswer { node, cell });
        }
    }

    /// The second one: what was read is rewritten at op 0 of the fence.
    pub fn sync_read_ends(&mut self, by: u8, node: u8) {
        let second = self.nodes[usize::from(node)];
        let Some(holding) = &mut self.replicas[usize::from(by)].holding else {
            return;
        };
        let SyncPhase::Reading(first) = holding.sync_phase else {
            return;
        };
        let cell = Cell {
            ts: holding.fence,
            value: first.cell.newer(second).value,
        };
        holding.sync_phase = SyncPhase::Writing(cell);
        let grant = holding.grant;
        self.write(by, cell, grant, true);
    }

    fn write(&mut self, by: u8, cell: Cell, grant: Ts, sync: bool) {
        self.writes.push(Write {
            cell,
            reached: 0,
            by,
            grant,
            sync,
            awaited: true,
        });
    }

    /// A put arrives at the home of its holder, which gives it the next timestamp. If it came after its successor it
    /// is refused (I11).
    pub fn put_arrives(&mut self, setup: &Setup, at: usize, by: u8) {
        let call = self.calls.remove(at);
        let (_, number) = setup.put_of(call.value);
        let holding = self.replicas[usize::from(by)].holding.as_mut();
        let taken = holding.and_then(|holding| {
            if number <= holding.last_call && setup.rule(Rule::CallNo) {
                return None;
            }
            let ts = holding.next_timestamp()?;
            holding.last_call = holding.last_call.max(number);
            holding.op += 1;
            Some((ts, holding.grant))
        });
        match taken {
            Some((ts, grant)) => {
                let value = call.value;
                self.write(by, Cell { ts, value }, grant, false);
            }
            None => self.put_fails(setup, call.value),
        }
    }

    /// Whether a replica takes this put now.
    pub fn takes(&self, setup: &Setup, by: u8, call: &PutCall) -> Option<&HolderState> {
        let replica = &self.replicas[usize::from(by)];
        let holding = replica.holding.as_ref()?;
        let grant = match setup.rule(Rule::GrantInCall) || holding.seq != call.seq {
            true => call.grant,
            false => holding.grant,
        };
        replica.serves(grant).filter(|h| !h.extending)
    }

    /// Both answers of a read are there.
    pub fn read_ends(&mut self, setup: &Setup, client: usize, node: u8) {
        let second = self.nodes[usize::from(node)];
        let Call::Get { at, grant, first } = self.clients[client].call else {
            return;
        };
        self.clients[client].call = Call::None;
        let holding = self.replicas[usize::from(at)].holding.as_ref();
        // What was read may be of a later holder: then its caller learns that its grant has ended.
        if holding.is_some_and(|h| h.grant == grant) {
            self.read_answered(setup, client, first.cell.newer(second).value);
        }
    }

    /// Which put a client waits for.
    pub fn open_put(&self, setup: &Setup, client: usize) -> Option<u8> {
        let its = &self.clients[client];
        let value = || setup.value(client as u8, its.section, its.puts);
        (its.call == Call::Put).then(value)
    }

    /// Who waits for this put.
    fn put_is_open(&self, setup: &Setup, value: u8) -> Option<usize> {
        (0..self.clients.len()).find(|at| self.open_put(setup, *at) == Some(value))
    }

    /// Whoever waits for a put learns that it was not done, or may not have been.
    pub fn put_fails(&mut self, setup: &Setup, value: u8) {
        if let Some(client) = self.put_is_open(setup, value) {
            self.clients[client].call = Call::None;
        }
    }
}

/// Two different nodes answer a read.
pub fn other_nodes(first: FirstAnswer) -> impl Iterator<Item = u8> {
    (0..NODES as u8).filter(move |node| *node != first.node)
}
