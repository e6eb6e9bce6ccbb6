//! What each action makes of the world.

use crate::action::Action;
use crate::committed::{entry, head_seq, request_of, ts};
use crate::setup::{Fault, Rule, Setup};
use crate::world::{
    Call, FirstAnswer, HolderState, Intent, LastWords, Phase, Promise, PutCall, World,
};

impl World {
    /// The world after an action that was possible.
    pub fn after(&self, setup: &Setup, action: Action) -> World {
        let mut world = self.clone();
        world.happens(setup, action);
        world.make_canonical(setup);
        world
    }

    fn happens(&mut self, setup: &Setup, action: Action) {
        match action {
            Action::Create { client, at } => self.create(setup, client, at),
            Action::Held { client, by } => self.held(setup, client, by),
            Action::GetBegins { client, by, node } => {
                let client = &mut self.clients[usize::from(client)];
                let cell = self.nodes[usize::from(node)];
                client.call = Call::Get {
                    at: by,
                    grant: client.grant,
                    first: FirstAnswer { node, cell },
                };
            }
            Action::GetEnds { client, node } => {
                let by = match self.clients[usize::from(client)].call {
                    Call::Get { at, .. } => at,
                    Call::None | Call::Put => return,
                };
                self.read_ends(setup, usize::from(client), node);
                self.finish_hand_over(by);
            }
            Action::Put { client } => self.put(setup, client),
            Action::PutArrives { call, at } => self.put_arrives(setup, usize::from(call), at),
            Action::PutRefused { call } => {
                let call = self.calls.remove(usize::from(call));
                self.put_fails(setup, call.value);
            }
            Action::HandOverAnswer { client } => {
                self.faults.spend(Fault::GivenUp);
                self.clients[usize::from(client)].call = Call::None;
            }
            Action::Releases { client, at } => self.release(setup, client, at),
            Action::LearnsEnd { client } => self.end_learned(setup, usize::from(client)),
            Action::ClientCrashes { client } => {
                self.faults.spend(Fault::ClientCrash);
                let client = &mut self.clients[usize::from(client)];
                (client.phase, client.call) = (Phase::Crashed, Call::None);
                self.drop_unwanted(setup);
            }
            Action::ReRead { by } => self.read(setup, by),
            Action::Send { by } => self.send(setup, by),
            Action::SwapEnds { by } => self.swap_ends(setup, by),
            Action::SwapUnknown { by } => {
                self.faults.spend(Fault::UnknownSwap);
                self.swap_unknown(setup, by);
            }
            Action::Lands { swap } => self.lands(setup, usize::from(swap)),
            Action::SyncBegins { by, node } => self.sync_read_begins(by, node),
            Action::SyncReads { by, node } => self.sync_read_ends(by, node),
            Action::Extend { by } => self.extend(by),
            Action::Promises { from, seq } => self.promise(from, seq),
            Action::HandOverArrives => {
                if let Some((to, entry)) = self.hand_over.take() {
                    self.replicas[usize::from(to)]
                        .pending
                        .push(Intent::TakeOver {
                            seq: entry.seq,
                            from_home: 1 - to,
                            from_fence: entry.fence,
                            from_epoch: entry.epoch,
                        });
                }
            }
            Action::TakesOver { by, seq } => {
                let replica = &mut self.replicas[usize::from(by)];
                if let Some(view) = replica.view.clone() {
                    replica.take_over(&view, seq);
                }
                if self.replicas[usize::from(1 - by)].up {
                    self.faults.spend(Fault::Move);
                }
            }
            Action::TakesAnew { by } => {
                let replica = &mut self.replicas[usize::from(by)];
                if let (Some(view), Some(entry)) = (replica.view.clone(), replica.handed_over) {
                    replica.take_over(&view, entry.seq);
                }
            }
            Action::ServesAgain { by } => self.serve_again(setup, by),
            Action::Evicts { by, seq } => self.evict(setup, by, seq),
            Action::Crash { replica } => {
                self.faults.spend(Fault::Crash);
                self.forget(setup, replica);
                self.replicas[usize::from(replica)].up = false;
                self.replicas[usize::from(replica)].hinted = false;
            }
            Action::Forgets { replica } => {
                self.faults.spend(Fault::Forget);
                self.forget(setup, replica);
            }
            Action::LosesHint { to } => {
                self.faults.spend(Fault::LostHint);
                self.replicas[usize::from(to)].hinted = false;
            }
            Action::Arrives { write, node } => self.arrives(usize::from(write), node),
            Action::Acknowledged { write } => {
                let by = self.writes[usize::from(write)].by;
                self.acknowledged(setup, usize::from(write));
                self.finish_hand_over(by);
            }
            Action::WriteUnknown { write } => {
                self.faults.spend(Fault::UnknownWrite);
                let by = self.writes[usize::from(write)].by;
                self.write_unknown(setup, usize::from(write));
                self.finish_hand_over(by);
            }
        }
    }

    fn create(&mut self, setup: &Setup, client: u8, at: u8) {
        let its = &mut self.clients[usize::from(client)];
        if let Phase::Creating { at: asked } = its.phase
            && asked != at
            && self.replicas[usize::from(asked)].up
        {
            self.faults.spend(Fault::Retry);
        }
        its.phase = Phase::Creating { at };
        let request = setup.request(client, its.section);
        self.drop_unwanted(setup);
        self.replicas[usize::from(at)].pending.push(Intent::Create {
            request,
            open: false,
        });
    }

    fn held(&mut self, setup: &Setup, client: u8, by: u8) {
        let Some(holding) = &mut self.replicas[usize::from(by)].holding else {
            return;
        };
        holding.claimed = true;
        let (seq, grant) = (holding.seq, holding.grant);
        let its = &mut self.clients[usize::from(client)];
        (its.phase, its.grant) = (Phase::Held, grant);
        let request = setup.request(client, its.section);
        self.answered_held(request, seq, grant);
    }

    fn put(&mut self, setup: &Setup, client: u8) {
        let its = &mut self.clients[usize::from(client)];
        its.puts += 1;
        its.call = Call::Put;
        let value = setup.value(client, its.section, its.puts);
        self.calls.push(PutCall {
            value,
            seq: its.seq,
            grant: its.grant,
        });
        self.put_begun(setup, usize::from(client), value);
    }

    fn release(&mut self, setup: &Setup, client: u8, at: u8) {
        let its = &mut self.clients[usize::from(client)];
        let (seq, request) = (its.seq, setup.request(client, its.section));
        let waits = its.phase == Phase::Waiting;
        its.phase = Phase::Releasing;
        if waits {
            self.faults.spend(Fault::Leave);
        } else if !self.is_home(at, seq) {
            self.faults.spend(Fault::Foreign);
        }
        let replica = &mut self.replicas[usize::from(at)];
        if let Some(holding) = replica.holding.as_mut().filter(|h| h.seq == seq) {
            // From here on nothing more is taken (I11).
            holding.releasing = true;
        }
        replica.pending.push(Intent::Release {
            seq,
            request,
            words: LastWords::default(),
        });
    }

    fn extend(&mut self, by: u8) {
        let replica = &mut self.replicas[usize::from(by)];
        if let Some(holding) = &mut replica.holding {
            holding.extending = true;
            let (seq, fence) = (holding.seq, holding.fence);
            replica.pending.push(Intent::Extend { seq, fence });
        }
    }

    /// A home hands over an entry to the other replica, which asked for it.
    fn promise(&mut self, from: u8, seq: u8) {
        self.faults.spend(Fault::Move);
        let replica = &mut self.replicas[usize::from(from)];
        let Some(view) = &replica.view else { return };
        let Some(entry) = entry(view, seq) else {
            return;
        };
        let holds = head_seq(view) == Some(seq);
        replica.handed_over = Some(Promise {
            seq,
            fence: if holds { ts(view.fence) } else { 0 },
            epoch: entry.epoch as u8,
        });
        replica.owes_hand_over = true;
        self.finish_hand_over(from);
    }

    /// The rule is off: a replica serves the holder by what it reads in the state.
    fn serve_again(&mut self, setup: &Setup, by: u8) {
        let replica = &mut self.replicas[usize::from(by)];
        let Some((view, seq)) = replica
            .view
            .as_ref()
            .and_then(|view| Some((view, head_seq(view)?)))
        else {
            return;
        };
        replica.holding = Some(HolderState::new(setup, view, seq));
        replica.handed_over = None;
    }

    fn evict(&mut self, setup: &Setup, by: u8, seq: u8) {
        let view = self.replicas[usize::from(by)].view.as_ref();
        let entry = view.and_then(|state| entry(state, seq));
        let request = entry.map(|entry| request_of(entry));
        if request.is_some_and(|request| self.is_wanted(setup, request, seq)) {
            self.faults.spend(Fault::Evict);
        }
        self.replicas[usize::from(by)].evict(seq);
    }

    /// Whether late calls are refused for good once no home serves their grant.
    pub fn grants_end(setup: &Setup) -> bool {
        [
            Rule::OneWriter,
            Rule::FinalHandOver,
            Rule::KeptMemory,
            Rule::GrantInCall,
        ]
        .iter()
        .all(|rule| setup.rule(*rule))
    }
}
