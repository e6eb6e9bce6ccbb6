//! What can happen next, and what comes of it.

use std::sync::Arc;

use super::replica::moment;
use fermata::key::machine::{
    Call, CallId, EntryRef, Event, Loaded, PauseOf, SwapOutcome, WriteOutcome,
};
use fermata::key::{Home, KeyState, NewEntry};
use fermata::lock::{Liveness, Mode, Tag};

use super::setup::{Off, Setup};
use super::truth::Broken;
use super::world::{
    Cell, Client, NODES, REPLICAS, Step, World, mutation_of, replica_id, session_id,
};

/// The names of calls that no client makes.
pub const FORCE: CallId = CallId(1_000);
pub const HAND_OVER: CallId = CallId(1_001);
pub const TAKE_OVER: CallId = CallId(1_002);
pub const ADOPT: CallId = CallId(1_003);

fn request_of(client: usize, section: u8) -> Tag {
    Tag::from_bits(1 + client as u128 * 16 + u128::from(section))
}

/// One thing that happens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// A client makes its next call, at a replica.
    Ask(usize, usize),
    /// A client makes its next call, at a replica, and hears nothing of it.
    AskUnheard(usize, usize),
    /// A client gives its call up.
    GiveUp(usize),
    /// A replica learns that its HELD was heard by nobody: its connection ends, or the call's deadline passes.
    AnswerLost(usize),
    /// A replica is told to take the key from a home that is gone.
    TakeOver(usize),
    /// A replica learns that the key was handed to it.
    Adopt(usize),
    /// A read of the row is answered.
    Loaded(usize),
    /// A swap takes effect.
    Applies(usize),
    /// Its sender learns what became of it.
    Swapped(usize),
    /// Its sender learns that this is not known.
    SwapUnknown(usize),
    /// It is not begun, and its sender learns so.
    SwapNotStarted(usize),
    /// A read of the row fails.
    LoadFails(usize),
    /// A write lands on a node.
    Lands(usize, usize),
    /// Two nodes have it: its sender learns so.
    Written(usize),
    /// Its sender learns that this is not known.
    WriteUnknown(usize),
    /// A read of the value is answered by all nodes but this one.
    Read(usize, u64, usize),
    /// A pause has passed.
    Resume(usize, PauseOf),
    /// A replica ends.
    Ends(usize),
    /// A replica loses what it knew of the key.
    MemoryLost(usize),
    /// A replica forgets the key, which nobody uses.
    Forgets(usize),
    /// A session ends.
    SessionEnds(usize),
    /// A replica learns of it.
    SessionHeard(usize, usize),
    /// The holder is found unclaimed.
    Unclaimed(usize),
    /// So much time passes that a holder becomes durable, and that the row is tidied up.
    Passes(usize),
    /// The home is told to hand the key over.
    HandOver(usize),
    /// The home is told to hand the key over to itself, and ends then.
    Stops(usize),
    /// The home is told to end the first entry.
    Force(usize),
    /// The clock of a replica goes wrong, or right again.
    Clock(usize),
}

impl World {
    pub fn actions(&self, setup: &Setup, out: &mut Vec<Action>) {
        if self.truth.broken.is_some() {
            return;
        }
        let left = self.left;
        for (c, client) in self.clients.iter().enumerate() {
            self.client_actions(setup, c, client, out);
        }
        for (i, swap) in self.swaps.iter().enumerate() {
            if !swap.is_applied && swap.old == self.row.version {
                out.push(Action::Applies(i));
            }
            if swap.awaited.is_some() {
                if swap.is_applied || swap.old != self.row.version {
                    out.push(Action::Swapped(i));
                }
                if left.unknown_swaps > 0 {
                    out.push(Action::SwapUnknown(i));
                }
                if left.store_failures > 0 && !swap.is_applied {
                    out.push(Action::SwapNotStarted(i));
                }
            }
        }
        for (i, write) in self.writes.iter().enumerate() {
            out.extend(
                (0..NODES)
                    .filter(|n| write.reached & (1 << n) == 0)
                    .map(|n| Action::Lands(i, n)),
            );
            if write.awaited.is_some() {
                if write.reached.count_ones() >= 2 {
                    out.push(Action::Written(i));
                }
                if left.unknown_writes > 0 {
                    out.push(Action::WriteUnknown(i));
                }
            }
        }
        for r in 0..REPLICAS {
            self.replica_actions(setup, r, out);
        }
    }

    fn client_actions(&self, setup: &Setup, c: usize, client: &Client, out: &mut Vec<Action>) {
        if client.lost_held.is_some() {
            out.push(Action::AnswerLost(c));
        }
        if client.step == Step::Done {
            return;
        }
        if !client.session_ended && self.left.sessions > 0 {
            out.push(Action::SessionEnds(setup.session_of(c)));
        }
        if client.call.is_some() {
            if self.left.given_up > 0 {
                out.push(Action::GiveUp(c));
            }
            return;
        }
        if self.home_is_gone() {
            // Whoever is asked takes it over first.
            return;
        }
        let home = self.home();
        for r in (0..REPLICAS).filter(|r| self.replicas[*r].is_up) {
            if home.is_none_or(|home| home == r) || self.left.misrouted > 0 {
                out.push(Action::Ask(c, r));
                if self.left.answers_lost > 0 {
                    out.push(Action::AskUnheard(c, r));
                }
            }
        }
    }

    fn replica_actions(&self, setup: &Setup, r: usize, out: &mut Vec<Action>) {
        let replica = &self.replicas[r];
        if !replica.is_up {
            return;
        }
        let left = self.left;
        let is_home = self.home() == Some(r);
        if replica.loads {
            out.push(Action::Loaded(r));
            if left.store_failures > 0 {
                out.push(Action::LoadFails(r));
            }
        }
        for io in &replica.reads {
            out.extend((0..NODES).map(|n| Action::Read(r, *io, n)));
        }
        out.extend(replica.pauses.iter().map(|of| Action::Resume(r, *of)));
        for s in replica.attached.iter().map(|(session, _)| *session) {
            let heard = Action::SessionHeard(r, s);
            if self.clients[s].session_ended && out.last() != Some(&heard) {
                out.push(heard);
            }
        }
        let is_taken_for_gone = setup.off == Some(Off::H2)
            && self.row.term() < 2
            && self.home().is_some_and(|home| home != r);
        if (self.home_is_gone() || is_taken_for_gone) && !replica.takes {
            out.push(Action::TakeOver(r));
        }
        if replica.given.is_some() {
            out.push(Action::Adopt(r));
        }
        let ups = self.replicas.iter().filter(|r| r.is_up).count();
        // Somebody has to go on.
        let other = &self.replicas[1 - r];
        let may_go = other.is_up && !other.is_stopping;
        if left.ends > 0 && may_go {
            out.push(Action::Ends(r));
        }
        if left.memory_lost > 0 {
            out.push(Action::MemoryLost(r));
        }
        if is_home && left.forgotten > 0 && replica.machine.is_idle() {
            out.push(Action::Forgets(r));
        }
        let due = replica.machine.due(setup.commit);
        if is_home && due.is_some() && (left.unclaimed > 0 || self.is_first_nobodys(r)) {
            out.push(Action::Unclaimed(r));
        }
        if is_home && due.is_some_and(|at| at <= moment(&Event::Due, true)) {
            out.push(Action::Passes(r));
        }
        if is_home && left.hand_overs > 0 && ups > 1 {
            out.push(Action::HandOver(r));
        }
        if is_home && left.stops > 0 && may_go {
            out.push(Action::Stops(r));
        }
        if is_home && left.forced > 0 && self.first_at(r).is_some() {
            out.push(Action::Force(r));
        }
        if replica.clock_is_wrong || (left.wrong_clocks > 0 && setup.faults.wrong_clocks > 0) {
            out.push(Action::Clock(r));
        }
    }

    /// Whether this is something that need not happen.
    pub fn is_fault(&self, action: Action) -> bool {
        match action {
            Action::AskUnheard(..)
            | Action::GiveUp(_)
            | Action::SwapUnknown(_)
            | Action::SwapNotStarted(_)
            | Action::LoadFails(_)
            | Action::WriteUnknown(_)
            | Action::Ends(_)
            | Action::MemoryLost(_)
            | Action::Forgets(_)
            | Action::SessionEnds(_)
            | Action::HandOver(_)
            | Action::Stops(_)
            | Action::Force(_) => true,
            Action::Clock(r) => !self.replicas[r].clock_is_wrong,
            Action::Unclaimed(r) => !self.is_first_nobodys(r),
            Action::Ask(_, r) => self.home().is_some_and(|home| home != r),
            Action::AnswerLost(_)
            | Action::TakeOver(_)
            | Action::Adopt(_)
            | Action::Loaded(_)
            | Action::Applies(_)
            | Action::Swapped(_)
            | Action::Lands(..)
            | Action::Written(_)
            | Action::Read(..)
            | Action::Resume(..)
            | Action::Passes(_)
            | Action::SessionHeard(..) => false,
        }
    }

    /// The first entry of the queue, as this replica knows it.
    fn first_at(&self, r: usize) -> Option<EntryRef> {
        let first = self.replicas[r].machine.state()?.first()?;
        Some(EntryRef {
            seq: first.seq,
            tag: first.tag,
            grant: None,
        })
    }

    /// Whether no client goes on with the first entry: it was given back, and came to life again with another home.
    fn is_first_nobodys(&self, r: usize) -> bool {
        let Some(first) = self.first_at(r) else {
            return false;
        };
        let clients = self.clients.iter().enumerate();
        let mut of_it = clients.filter(|(c, client)| {
            let known = client.entry.is_some_and(|entry| entry.seq == first.seq);
            let asked = request_of(*c, client.section);
            client.step != Step::Done && (known || asked == first.tag)
        });
        of_it.next().is_none()
    }

    pub fn after(&self, setup: &Setup, action: Action) -> World {
        let mut world = self.clone();
        if world.is_fault(action) {
            world.pay(action);
        }
        world.act(setup, action);
        if let Err(why) = world.row.check() {
            world.truth.breaks(Broken::Row(why));
        }
        world.tidy();
        world
    }

    fn pay(&mut self, action: Action) {
        let left = &mut self.left;
        let of = match action {
            Action::GiveUp(_) => &mut left.given_up,
            Action::AskUnheard(..) => &mut left.answers_lost,
            Action::SwapUnknown(_) => &mut left.unknown_swaps,
            Action::SwapNotStarted(_) | Action::LoadFails(_) => &mut left.store_failures,
            Action::WriteUnknown(_) => &mut left.unknown_writes,
            Action::Ends(_) => &mut left.ends,
            Action::MemoryLost(_) => &mut left.memory_lost,
            Action::Forgets(_) => &mut left.forgotten,
            Action::SessionEnds(_) => &mut left.sessions,
            Action::Unclaimed(_) => &mut left.unclaimed,
            Action::HandOver(_) => &mut left.hand_overs,
            Action::Stops(_) => &mut left.stops,
            Action::Force(_) => &mut left.forced,
            Action::Clock(_) => &mut left.wrong_clocks,
            _ => &mut left.misrouted,
        };
        *of = of.saturating_sub(1);
    }

    fn act(&mut self, setup: &Setup, action: Action) {
        match action {
            Action::Ask(c, r) => self.ask(setup, c, r, true),
            Action::AskUnheard(c, r) => {
                self.ask(setup, c, r, false);
                let client = &mut self.clients[c];
                client.may_be_written |= client.value > 0;
                client.calls += 1;
            }
            Action::AnswerLost(c) => {
                if let Some((r, grant)) = self.clients[c].lost_held.take() {
                    self.event(setup, r, Event::AnswerLost { grant });
                }
            }
            Action::GiveUp(c) => {
                let Some((call, r)) = self.clients[c].call.take() else {
                    return;
                };
                self.clients[c].may_be_written |= self.clients[c].value > 0;
                self.clients[c].calls += 1;
                self.clients[c].release_no = 0;
                self.clients[c].put_in_doubt(setup);
                self.event(setup, r, Event::CallGone(call));
            }
            Action::TakeOver(r) => {
                let Some(home) = self.row.home else { return };
                self.replicas[r].takes = true;
                let from = home.replica;
                let call = Call::TakeOver { from };
                self.event(
                    setup,
                    r,
                    Event::Call {
                        id: TAKE_OVER,
                        call,
                    },
                );
            }
            Action::Adopt(r) => {
                if let Some(term) = self.replicas[r].given.take() {
                    let call = Call::Adopt { term };
                    self.event(setup, r, Event::Call { id: ADOPT, call });
                }
            }
            Action::Loaded(r) => {
                self.replicas[r].loads = false;
                let state = self.row_at(setup, r);
                let past = None;
                self.event(setup, r, Event::Loaded(Ok(Loaded { state, past })));
            }
            Action::Applies(i) => {
                self.swaps[i].is_applied = true;
                let old = std::mem::replace(&mut self.row, self.swaps[i].new.clone());
                self.check_kept(&old);
            }
            Action::Swapped(i) => {
                let swap = self.swaps.remove(i);
                let Some(r) = swap.awaited else { return };
                let outcome = match swap.is_applied {
                    true => SwapOutcome::Applied,
                    false => SwapOutcome::Conflict(self.row_at(setup, r)),
                };
                self.event(setup, r, Event::Swapped(outcome));
            }
            Action::SwapUnknown(i) => {
                if let Some(r) = self.swaps[i].awaited.take() {
                    let outcome = SwapOutcome::Unknown("late".into());
                    self.event(setup, r, Event::Swapped(outcome));
                }
            }
            Action::SwapNotStarted(i) => {
                if let Some(r) = self.swaps.remove(i).awaited {
                    let outcome = SwapOutcome::NotStarted("down".into());
                    self.event(setup, r, Event::Swapped(outcome));
                }
            }
            Action::LoadFails(r) => {
                self.replicas[r].loads = false;
                self.event(setup, r, Event::Loaded(Err("down".into())));
            }
            Action::Lands(i, n) => {
                let write = &mut self.writes[i];
                write.reached |= 1 << n;
                self.nodes[n] = self.nodes[n].newer(write.cell);
            }
            Action::Written(i) => self.written(setup, i, WriteOutcome::Done),
            Action::WriteUnknown(i) => {
                self.written(setup, i, WriteOutcome::Unknown("late".into()));
            }
            Action::Read(r, io, but) => self.read(setup, r, io, but),
            Action::Resume(r, of) => {
                self.replicas[r].pauses.retain(|other| *other != of);
                self.event(setup, r, Event::Resume(of));
            }
            Action::Ends(r) => self.lose(r, false),
            Action::MemoryLost(r) => self.lose(r, true),
            Action::Forgets(r) => self.forget(r, true),
            Action::SessionEnds(s) => {
                let clients = self.clients.iter_mut().enumerate();
                for (_, client) in clients.filter(|(c, _)| setup.session_of(*c) == s) {
                    client.session_ended = true;
                    client.is_sure = false;
                }
            }
            Action::SessionHeard(r, s) => {
                let attached = &mut self.replicas[r].attached;
                attached.retain(|(session, _)| *session != s);
                self.event(setup, r, Event::SessionEnded(session_id(s)));
            }
            Action::Unclaimed(r) => self.event(setup, r, Event::Due),
            Action::Passes(r) => self.event_at(setup, r, Event::Due, moment(&Event::Due, true)),
            Action::HandOver(r) => self.hand_over(setup, r, 1 - r),
            Action::Stops(r) => {
                self.replicas[r].is_stopping = true;
                self.hand_over(setup, r, r);
            }
            Action::Force(r) => {
                let Some(entry) = self.first_at(r) else {
                    return;
                };
                self.forced = Some(entry.seq);
                for client in &mut self.clients {
                    client.is_sure &= client.entry.is_none_or(|e| e.seq != entry.seq);
                }
                let (by, why) = ("o".into(), "w".into());
                let seq = entry.seq;
                let call = Call::Force { seq, by, why };
                self.event(setup, r, Event::Call { id: FORCE, call });
            }
            Action::Clock(r) => {
                let replica = &mut self.replicas[r];
                replica.clock_is_wrong = !replica.clock_is_wrong;
            }
        }
    }

    /// The row, as a replica takes it.
    fn row_at(&self, setup: &Setup, r: usize) -> Arc<KeyState> {
        let mut state = self.row.clone();
        if let (Some(Off::H1), Some(home)) = (setup.off, state.home) {
            let replica = replica_id(r);
            Arc::make_mut(&mut state).home = Some(Home { replica, ..home });
        }
        state
    }

    /// A durable holder stays in the row until its entry has ended at its home.
    fn check_kept(&mut self, old: &KeyState) {
        let Some(kept) = old.kept.filter(|kept| self.row.kept != Some(*kept)) else {
            return;
        };
        let knows = |r: &usize| {
            let state = self.replicas[*r].machine.state();
            state.is_some_and(|state| state.position(kept).is_some())
        };
        // A hand-over leaves out one that was never answered.
        let is_listed = self.row.holder().is_some_and(|holder| holder.seq == kept);
        if is_listed || (old.home == self.row.home && self.home().as_ref().is_some_and(knows)) {
            self.truth.breaks(Broken::HolderLetGo);
        }
    }

    fn hand_over(&mut self, setup: &Setup, r: usize, to: usize) {
        let to = replica_id(to);
        let call = Call::HandOver { to, if_idle: false };
        let id = HAND_OVER;
        self.event(setup, r, Event::Call { id, call });
    }

    fn written(&mut self, setup: &Setup, i: usize, outcome: WriteOutcome) {
        if let Some((r, io)) = self.writes[i].awaited.take() {
            let io = World::io(io);
            self.event(setup, r, Event::DataWritten { io, outcome });
        }
    }

    /// All nodes but one answer, and are repaired.
    fn read(&mut self, setup: &Setup, r: usize, io: u64, but: usize) {
        self.replicas[r].reads.remove(&io);
        let asked = (0..NODES).filter(|n| *n != but);
        let newest = asked.clone().map(|n| self.nodes[n]);
        let newest = newest.fold(Cell::default(), Cell::newer);
        for n in asked {
            self.nodes[n] = newest;
        }
        let io = World::io(io);
        let cell = Ok(newest.datum());
        self.event(setup, r, Event::DataRead { io, cell });
    }

    /// A client makes its next call, and waits for the answer or hears nothing of it.
    fn ask(&mut self, setup: &Setup, c: usize, r: usize, waits: bool) {
        let client = &mut self.clients[c];
        let id = CallId(c as u64 * 64 + client.calls);
        client.call = waits.then_some((id, r));
        let mut call_no = client.calls + 1;
        if client.step == Step::Release {
            call_no = match client.release_no {
                0 => call_no,
                again => again,
            };
            client.release_no = call_no;
        }
        let releases_with_put = setup.carry >> c & 1 == 1;
        let needs_value = match client.step {
            Step::Put => true,
            Step::Release => releases_with_put,
            Step::Create | Step::Acquire | Step::Get | Step::Done => false,
        };
        if needs_value && client.value == 0 {
            self.values += 1;
            client.value = self.values;
        }
        let value = client.value;
        let call = match (client.step, client.entry) {
            (Step::Create, _) => Call::Create {
                entry: Box::new(NewEntry {
                    tag: request_of(c, client.section),
                    mode: Mode::Exclusive,
                    liveness: Liveness::Session(session_id(setup.session_of(c))),
                    identity: "".into(),
                    owner: "".into(),
                    created_at_ms: 0,
                }),
                read_value: false,
            },
            (Step::Acquire, Some(entry)) => Call::Acquire {
                entry,
                wait: true,
                read_value: false,
            },
            (Step::Get, Some(entry)) => Call::Get { entry, call_no },
            (Step::Put, Some(entry)) => {
                self.truth.sent(value);
                Call::Put {
                    entry,
                    call_no,
                    value: mutation_of(value),
                }
            }
            (Step::Release, Some(entry)) => {
                client.is_sure = false;
                if releases_with_put {
                    self.truth.sent(value);
                }
                Call::Release {
                    entry,
                    call_no,
                    put: releases_with_put.then(|| mutation_of(value)),
                }
            }
            (_, None) | (Step::Done, _) => return,
        };
        self.event(setup, r, Event::Call { id, call });
    }
}
