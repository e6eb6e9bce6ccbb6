//! What can happen next.

use crate::committed::{entry, head_seq, home_of, request_of, seq_of};
use crate::data::other_nodes;
use crate::setup::{Fault, Rule, Setup};
use crate::world::{Call, Intent, NODES, Phase, REPLICAS, SyncPhase, World};

/// One thing that happens. Clients are counted from 0; writes, calls and open swaps by their place in the world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Create { client: u8, at: u8 },
    Held { client: u8, by: u8 },
    GetBegins { client: u8, by: u8, node: u8 },
    GetEnds { client: u8, node: u8 },
    Put { client: u8 },
    PutArrives { call: u8, at: u8 },
    PutRefused { call: u8 },
    HandOverAnswer { client: u8 },
    Releases { client: u8, at: u8 },
    LearnsEnd { client: u8 },
    ClientCrashes { client: u8 },
    ReRead { by: u8 },
    Send { by: u8 },
    SwapEnds { by: u8 },
    SwapUnknown { by: u8 },
    Lands { swap: u8 },
    SyncBegins { by: u8, node: u8 },
    SyncReads { by: u8, node: u8 },
    Extend { by: u8 },
    Promises { from: u8, seq: u8 },
    HandOverArrives,
    TakesOver { by: u8, seq: u8 },
    TakesAnew { by: u8 },
    ServesAgain { by: u8 },
    Evicts { by: u8, seq: u8 },
    Crash { replica: u8 },
    Forgets { replica: u8 },
    LosesHint { to: u8 },
    Arrives { write: u8, node: u8 },
    Acknowledged { write: u8 },
    WriteUnknown { write: u8 },
}

impl Action {
    /// Whether this only happens because something goes wrong, or may as well never happen: nobody may rely on it
    /// to get the lock.
    pub fn is_chance(self, world: &World, setup: &Setup) -> bool {
        match self {
            Action::HandOverAnswer { .. }
            | Action::ClientCrashes { .. }
            | Action::SwapUnknown { .. }
            | Action::Lands { .. }
            | Action::Promises { .. }
            | Action::Crash { .. }
            | Action::Forgets { .. }
            | Action::LosesHint { .. }
            | Action::WriteUnknown { .. }
            | Action::ServesAgain { .. } => true,
            Action::Evicts { by, seq } => !world.is_left_behind(setup, by, seq),
            Action::Releases { client, at } => {
                let client = &world.clients[usize::from(client)];
                client.phase == Phase::Waiting || !world.is_home(at, client.seq)
            }
            Action::Create { client, at } => {
                let phase = world.clients[usize::from(client)].phase;
                let up = |at: u8| world.replicas[usize::from(at)].up;
                matches!(phase, Phase::Creating { at: asked } if asked != at && up(asked))
            }
            Action::TakesOver { by, .. } => world.replicas[usize::from(1 - by)].up,
            _ => false,
        }
    }
}

impl Action {
    /// Whether a client may as well do without it.
    pub fn is_optional(self) -> bool {
        matches!(self, Action::GetBegins { .. } | Action::Put { .. })
    }
}

impl World {
    /// Whether a replica is home to an entry, as it knows.
    pub fn is_home(&self, by: u8, seq: u8) -> bool {
        let view = self.replicas[usize::from(by)].view.as_ref();
        let entry = view.and_then(|state| entry(state, seq));
        entry.is_some_and(|e| home_of(e) == by)
    }

    /// Whether nobody claims an entry any more, and this replica may say so: its home, or the other one where the
    /// home is gone.
    fn is_left_behind(&self, setup: &Setup, by: u8, seq: u8) -> bool {
        let view = self.replicas[usize::from(by)].view.as_ref();
        let Some(entry) = view.and_then(|state| entry(state, seq)) else {
            return false;
        };
        let home = home_of(entry);
        !self.is_wanted(setup, request_of(entry), seq)
            && (home == by || !self.replicas[usize::from(home)].up)
    }

    pub fn actions(&self, setup: &Setup, actions: &mut Vec<Action>) {
        if self.truth.broken.is_some() || self.is_finished() {
            return;
        }
        for client in 0..self.clients.len() as u8 {
            self.client_actions(setup, client, actions);
        }
        for by in 0..REPLICAS as u8 {
            if self.replicas[usize::from(by)].up {
                self.replica_actions(setup, by, actions);
                self.entry_actions(setup, by, actions);
            }
        }
        self.data_actions(setup, actions);
        for swap in 0..self.open.len() as u8 {
            actions.push(Action::Lands { swap });
        }
        if let Some((to, _)) = self.hand_over
            && self.replicas[usize::from(to)].up
        {
            actions.push(Action::HandOverArrives);
        }
    }

    fn client_actions(&self, setup: &Setup, client: u8, actions: &mut Vec<Action>) {
        let its = &self.clients[usize::from(client)];
        let up = |at: &u8| self.replicas[usize::from(*at)].up;
        let replicas = || (0..REPLICAS as u8).filter(up);
        match its.phase {
            Phase::Idle => {
                // Clients are alike, and so are replicas until one is asked.
                let first = &self.clients[..usize::from(client)];
                if first
                    .iter()
                    .any(|c| c.phase == Phase::Idle && c.section == 0)
                {
                    return;
                }
                let alike = client == 0 && its.section == 0 && setup.clocks[0] == setup.clocks[1];
                let alike = alike && replicas().count() == REPLICAS;
                let asked = replicas().take(if alike { 1 } else { REPLICAS });
                actions.extend(asked.map(|at| Action::Create { client, at }));
            }
            Phase::Creating { at } => {
                let again = !up(&at) || self.faults.left(Fault::Retry);
                let others = replicas().filter(|other| again && *other != at);
                actions.extend(others.map(|at| Action::Create { client, at }));
                let lost = self.creates_nothing(setup, client, at);
                if up(&at) && lost {
                    actions.push(Action::Create { client, at });
                }
            }
            Phase::Waiting | Phase::Held | Phase::Releasing => {
                self.entry_owner_actions(setup, client, actions);
            }
            Phase::Done | Phase::Lost | Phase::Crashed => return,
        }
        if self.faults.left(Fault::ClientCrash) {
            actions.push(Action::ClientCrashes { client });
        }
    }

    /// Whether what a client asked for was lost with the memory of the replica that it asked.
    fn creates_nothing(&self, setup: &Setup, client: u8, at: u8) -> bool {
        let mine = setup.request(client, self.clients[usize::from(client)].section);
        let replica = &self.replicas[usize::from(at)];
        let in_flight = replica.swap.iter().flat_map(|swap| &swap.batch);
        let creates = |i: &Intent| matches!(i, Intent::Create { request, .. } if *request == mine);
        !replica.pending.iter().chain(in_flight).any(creates)
    }

    fn entry_owner_actions(&self, setup: &Setup, client: u8, actions: &mut Vec<Action>) {
        let its = &self.clients[usize::from(client)];
        if self.has_ended(its.seq) {
            actions.push(Action::LearnsEnd { client });
        }
        match its.call {
            Call::None => {}
            Call::Get { first, .. } => {
                actions.extend(other_nodes(first).map(|node| Action::GetEnds { client, node }));
                return;
            }
            Call::Put => {
                if self.faults.left(Fault::GivenUp) {
                    actions.push(Action::HandOverAnswer { client });
                }
                return;
            }
        }
        for by in 0..REPLICAS as u8 {
            let replica = &self.replicas[usize::from(by)];
            if !replica.up {
                continue;
            }
            let holding = replica.holding.as_ref().filter(|h| h.seq == its.seq);
            let serving = holding.filter(|h| replica.serves(h.grant).is_some());
            if let Some(holding) = serving
                && its.phase != Phase::Releasing
            {
                if its.phase == Phase::Waiting || its.grant != holding.grant {
                    actions.push(Action::Held { client, by });
                } else if setup.gets {
                    let nodes = 0..NODES as u8;
                    actions.extend(nodes.map(|node| Action::GetBegins { client, by, node }));
                }
            }
            if self.may_release(client, by) {
                actions.push(Action::Releases { client, at: by });
            }
        }
        if its.phase == Phase::Held && its.puts < setup.puts {
            actions.push(Action::Put { client });
        }
    }

    fn may_release(&self, client: u8, at: u8) -> bool {
        let its = &self.clients[usize::from(client)];
        let replica = &self.replicas[usize::from(at)];
        let known = replica
            .view
            .as_ref()
            .and_then(|state| entry(state, its.seq));
        if known.is_none() || replica.stale {
            return false;
        }
        if !self.is_home(at, its.seq) {
            return self.faults.left(Fault::Foreign) && its.phase == Phase::Held;
        }
        let asked = self.replicas.iter().any(|r| r.is_releasing(its.seq));
        let handed_over = replica
            .handed_over
            .is_some_and(|entry| entry.seq == its.seq);
        !asked
            && !handed_over
            && match its.phase {
                Phase::Waiting => self.faults.left(Fault::Leave),
                Phase::Held | Phase::Releasing => true,
                _ => false,
            }
    }

    fn replica_actions(&self, setup: &Setup, by: u8, actions: &mut Vec<Action>) {
        let replica = &self.replicas[usize::from(by)];
        if replica.swap.is_some() {
            actions.push(Action::SwapEnds { by });
            if self.faults.left(Fault::UnknownSwap) {
                actions.push(Action::SwapUnknown { by });
            }
        } else {
            if self.may_look(setup, by) {
                actions.push(Action::ReRead { by });
            }
            if !replica.stale && replica.view.is_some() && !replica.pending.is_empty() {
                actions.push(Action::Send { by });
            }
        }
        if let Some(holding) = &replica.holding
            && !replica.stale
        {
            match holding.sync_phase {
                SyncPhase::Unsynced => {
                    let nodes = 0..NODES as u8;
                    actions.extend(nodes.map(|node| Action::SyncBegins { by, node }));
                }
                SyncPhase::Reading(first) => {
                    actions.extend(other_nodes(first).map(|node| Action::SyncReads { by, node }));
                }
                SyncPhase::Writing(_) | SyncPhase::Open => {}
            }
        }
        for (call, put) in self.calls.iter().enumerate() {
            let call = call as u8;
            match self.takes(setup, by, put).map(|h| h.next_timestamp()) {
                Some(Some(_)) => actions.push(Action::PutArrives { call, at: by }),
                Some(None) => actions.push(Action::Extend { by }),
                None => {}
            }
        }
        if self.faults.left(Fault::Crash) && self.replicas.iter().all(|r| r.up) {
            actions.push(Action::Crash { replica: by });
        }
        if self.faults.left(Fault::Forget) && replica.view.is_some() {
            actions.push(Action::Forgets { replica: by });
        }
        if replica.hinted && self.faults.left(Fault::LostHint) {
            actions.push(Action::LosesHint { to: by });
        }
    }

    /// Whether a replica has a reason to look at the register, and would see something.
    fn may_look(&self, setup: &Setup, by: u8) -> bool {
        let replica = &self.replicas[usize::from(by)];
        let Some(view) = &replica.view else {
            return true;
        };
        if replica.stale {
            return true;
        }
        if *view == self.stored {
            return false;
        }
        if !setup.rule(Rule::Polling) {
            return replica.hinted;
        }
        // Its own entries, and those that calls are passed on for.
        let entries = view.entries.iter().chain(&self.stored.entries);
        let its_own = entries.into_iter().any(|e| home_of(e) == by);
        let moves = [Fault::Move, Fault::Evict, Fault::Foreign];
        its_own
            || !replica.pending.is_empty()
            || !self.replicas[usize::from(1 - by)].up
            || moves.iter().any(|fault| self.faults.left(*fault))
    }

    /// What a replica may do about the entries that it knows of.
    fn entry_actions(&self, setup: &Setup, by: u8, actions: &mut Vec<Action>) {
        let replica = &self.replicas[usize::from(by)];
        let Some(view) = replica.view.as_ref().filter(|_| !replica.stale) else {
            return;
        };
        for entry in &view.entries {
            let (seq, home) = (seq_of(entry), home_of(entry));
            let wanted = self.is_wanted(setup, request_of(entry), seq);
            let free = !replica.is_taking_over(seq) && !replica.is_evicting(seq);
            let left_behind = self.is_left_behind(setup, by, seq);
            if free && (left_behind || (wanted && self.faults.left(Fault::Evict))) {
                actions.push(Action::Evicts { by, seq });
            }
            let unasked = !setup.rule(Rule::HandOver) && self.faults.left(Fault::Move);
            let down = !self.replicas[usize::from(home)].up;
            if free && wanted && home != by && (down || unasked) {
                actions.push(Action::TakesOver { by, seq });
            }
            let other = &self.replicas[usize::from(1 - by)];
            let may_move = self.faults.left(Fault::Move) && self.hand_over.is_none() && other.up;
            if may_move && wanted && home == by && replica.handed_over.is_none() {
                actions.push(Action::Promises { from: by, seq });
            }
        }
        let given = replica.handed_over.filter(|_| !replica.owes_hand_over);
        if let Some(entry) = given.filter(|entry| !replica.is_taking_over(entry.seq)) {
            actions.push(Action::TakesAnew { by });
            if !setup.rule(Rule::FinalHandOver) && head_seq(view) == Some(entry.seq) {
                actions.push(Action::ServesAgain { by });
            }
        }
        if let Some(holder) = view.holder()
            && !setup.rule(Rule::OneWriter)
            && home_of(holder) != by
            && replica.holding.is_none()
        {
            actions.push(Action::ServesAgain { by });
        }
    }

    fn data_actions(&self, setup: &Setup, actions: &mut Vec<Action>) {
        for (at, write) in self.writes.iter().enumerate() {
            let at = at as u8;
            let missing = (0..NODES as u8).filter(|node| write.reached & (1 << node) == 0);
            actions.extend(missing.map(|node| Action::Arrives { write: at, node }));
            if !write.awaited {
                continue;
            }
            if write.reached.count_ones() >= 2 {
                actions.push(Action::Acknowledged { write: at });
            }
            let same_again = write.sync && setup.rule(Rule::OneSyncRead);
            if self.faults.left(Fault::UnknownWrite) && !same_again {
                actions.push(Action::WriteUnknown { write: at });
            }
        }
        for (at, call) in self.calls.iter().enumerate() {
            let served = |by: u8| {
                let replica = &self.replicas[usize::from(by)];
                replica.serves(call.grant).is_some()
            };
            if !(0..REPLICAS as u8).any(served) {
                actions.push(Action::PutRefused { call: at as u8 });
            }
        }
    }
}
