//! A replica takes an event in, its machine says what is to be done, and clients hear.

use std::time::Duration;

use fermata::key::KeyState;
use fermata::key::machine::{
    Answer, CallError, CallId, Context, Effect, Event, KeyError, Machine, Report,
};
use fermata::lock::{EndedAs, Seq, SessionId};
use fermata::session::{Observed, Observer};

use super::setup::Setup;
use super::step::{ADOPT, FORCE, HAND_OVER, TAKE_OVER};
use super::truth::Broken;
use super::world::{
    Cell, Client, REPLICAS, Step, Swap, World, Write, replica_id, session_id, value_of,
};

/// Before and after all that is waited for by time; in between what is waited for at a home only.
pub fn moment(event: &Event, in_between: bool) -> Observed {
    let mut observer = Observer::new(Duration::MAX);
    let at = match event {
        Event::Due if in_between => Duration::from_secs(10),
        Event::Due => Duration::from_secs(100),
        _ => Duration::from_secs(1),
    };
    observer.observe(at)
}

impl World {
    pub fn event(&mut self, setup: &Setup, r: usize, event: Event) {
        let now = moment(&event, false);
        self.event_at(setup, r, event, now);
    }

    pub fn event_at(&mut self, setup: &Setup, r: usize, event: Event, now: Observed) {
        let replica = &mut self.replicas[r];
        let cx = Context {
            replica: replica_id(r),
            now,
            now_us: (!replica.clock_is_wrong).then_some(0),
            sure_until: Duration::ZERO,
            is_alone: false,
            value_is_due: false,
            commit: setup.commit,
            limits: &setup.limits,
        };
        let mut effects = Vec::new();
        let before = match setup.faults.stops {
            0 => None,
            _ => replica.machine.state().map(|state| entries_of(state)),
        };
        replica.machine.on(&cx, event, &mut effects);
        for effect in effects {
            self.effect(setup, r, effect);
        }
        if self.replicas[r].stops {
            if before != Some(entries_of(&self.row)) || self.row.may_be_behind() {
                self.truth.breaks(Broken::LostAtStop);
            }
            self.forget(r, false);
        }
    }

    fn effect(&mut self, setup: &Setup, r: usize, effect: Effect) {
        let replica = &mut self.replicas[r];
        match effect {
            Effect::Load { .. } => replica.loads = true,
            Effect::Swap { old, new } => self.swaps.push(Swap {
                old: old.version,
                new,
                is_applied: false,
                awaited: Some(r),
            }),
            Effect::ReadData { io } => {
                replica.reads.insert(io.0);
            }
            Effect::WriteData { io, datum, .. } => {
                let cell = Cell::of(&datum);
                let other = |w: &Write| w.cell.timestamp == cell.timestamp && w.cell != cell;
                let is_there = |c: &Cell| c.timestamp == cell.timestamp && *c != cell;
                if self.writes.iter().any(other) || self.nodes.iter().any(is_there) {
                    self.truth.breaks(Broken::OneTimestampTwoValues);
                }
                self.writes.push(Write {
                    cell,
                    reached: 0,
                    awaited: Some((r, io.0)),
                });
            }
            Effect::Pause { of, tries: _ } => {
                if !replica.pauses.contains(&of) {
                    replica.pauses.push(of);
                }
            }
            Effect::Answer { call, answer } => self.answered(setup, r, call, answer),
            Effect::Attach { session, seq } => {
                replica.attached.insert((session_at(session), seq));
            }
            Effect::Detach { session, seq } => {
                replica.attached.remove(&(session_at(session), seq));
            }
            // Where a rule is switched off it is what clients see that counts.
            Effect::Report(Report::Deposed { .. } | Report::Contradicted { .. })
                if setup.off.is_none() =>
            {
                self.truth.breaks(Broken::Deposed);
            }
            Effect::Report(_) | Effect::RenewSession(_) | Effect::Notify { .. } => {}
        }
    }

    /// A replica ends, or its machine loses its memory: who waits there learns nothing.
    pub fn lose(&mut self, r: usize, stays: bool) {
        self.volatile_is_lost(r);
        self.forget(r, stays);
    }

    /// Drops the machine of a replica. To forget an idle key takes nothing from anybody (H11).
    pub fn forget(&mut self, r: usize, stays: bool) {
        let replica = &mut self.replicas[r];
        replica.is_up = stays;
        replica.machine = Machine::new();
        replica.loads = false;
        replica.reads.clear();
        replica.pauses.clear();
        replica.attached.clear();
        replica.takes = false;
        replica.given = None;
        replica.stops = false;
        for swap in self.swaps.iter_mut().filter(|s| s.awaited == Some(r)) {
            swap.awaited = None;
        }
        for write in &mut self.writes {
            write.awaited.take_if(|(of, _)| *of == r);
        }
        for client in &mut self.clients {
            client.lost_held.take_if(|(at, _)| *at == r);
            if client.call.take_if(|(_, at)| *at == r).is_some() {
                client.may_be_written |= client.value > 0;
                client.calls += 1;
            }
        }
    }

    /// Who was promised no more than this replica was sure of is not sure of the key any longer.
    fn volatile_is_lost(&mut self, r: usize) {
        if self.home() != Some(r) {
            return;
        }
        for client in &mut self.clients {
            client.is_sure &= client.is_durable;
        }
    }

    fn answered(
        &mut self,
        setup: &Setup,
        r: usize,
        call: CallId,
        answer: Result<Answer, CallError>,
    ) {
        match call {
            FORCE | ADOPT => return,
            TAKE_OVER => {
                self.replicas[r].takes = false;
                return;
            }
            HAND_OVER => {
                if let Ok(Answer::HandedOver(home)) = answer {
                    let to = (0..REPLICAS).find(|at| replica_id(*at) == home.replica);
                    match to.filter(|to| self.replicas[*to].is_up) {
                        Some(to) if to == r => self.replicas[r].stops = true,
                        Some(to) => self.replicas[to].given = Some(home.term),
                        None => {}
                    }
                }
                return;
            }
            CallId(_) => {}
        }
        let c = call.0 as usize / 64;
        let waits = |client: &Client| client.call.is_some_and(|(id, _)| id == call);
        if !self.clients.get(c).is_some_and(waits) {
            if let Ok(Answer::Held { entry, .. }) = answer {
                self.clients[c].lost_held = entry.grant.map(|grant| (r, grant));
            }
            return;
        }
        self.clients[c].call = None;
        match answer {
            Ok(answer) => self.client_hears(setup, c, answer),
            Err(error) => self.client_fails(setup, c, error),
        }
    }

    fn client_hears(&mut self, setup: &Setup, c: usize, answer: Answer) {
        self.clients[c].calls += 1;
        match answer {
            Answer::Held { entry, lease, .. } => {
                let sure = |(other, client): (usize, &Client)| other != c && client.is_sure;
                if self.clients.iter().enumerate().any(sure) {
                    self.truth.breaks(Broken::TwoHolders);
                }
                let grant = entry.grant.map_or(0, |grant| grant.0);
                self.truth.held(entry.seq.0, grant);
                let client = &mut self.clients[c];
                client.entry = Some(entry);
                client.is_durable |= lease.promised_until.is_none();
                client.is_sure = !client.session_ended
                    && !matches!(client.step, Step::Release)
                    && self.forced != Some(entry.seq);
                client.step = match client.step {
                    Step::Create | Step::Acquire if client.value > 0 && client.is_last(setup) => {
                        Step::Release
                    }
                    Step::Create | Step::Acquire if client.value > 0 => Step::Put,
                    _ => Step::Get,
                };
            }
            Answer::Waiting { entry, .. } => {
                let client = &mut self.clients[c];
                client.entry = Some(entry);
                client.step = Step::Acquire;
            }
            Answer::Value { value, lease } => {
                let client = &mut self.clients[c];
                client.is_durable |= lease.promised_until.is_none();
                let entry = client.entry;
                client.step = client.after_get(setup);
                if let Some(entry) = entry {
                    let grant = entry.grant.map_or(0, |grant| grant.0);
                    self.truth.read(grant, value_of(value.bytes.as_ref()));
                }
            }
            Answer::Written { lease } => {
                let client = &mut self.clients[c];
                client.is_durable |= lease.promised_until.is_none();
                let grant = client.entry.and_then(|e| e.grant).map_or(0, |g| g.0);
                self.truth.acknowledged(grant, client.value);
                client.puts += 1;
                client.value = 0;
                client.may_be_written = false;
                client.step = client.after_get(setup);
            }
            Answer::Released { .. } => {
                let client = &mut self.clients[c];
                if client.value > 0 {
                    self.truth.released_with(client.value);
                }
                client.next_section(setup);
            }
            Answer::Watching
            | Answer::Renewed { .. }
            | Answer::Forced { .. }
            | Answer::Home(_)
            | Answer::HandedOver(_) => {}
        }
    }

    fn client_fails(&mut self, setup: &Setup, c: usize, error: CallError) {
        let client = &mut self.clients[c];
        let has_grant = client.entry.is_some_and(|entry| entry.grant.is_some());
        let is_waiter = client.step == Step::Acquire && !has_grant && !client.session_ended;
        let was_taken_in = matches!(error.why, KeyError::StoreUnavailable(_));
        // What is refused since an earlier try may be in flight was not taken in.
        let is_refused = matches!(error.why, KeyError::Releasing);
        let may_count = error.may_have_written && !is_refused;
        client.calls += u64::from(was_taken_in || may_count);
        // A home that does not know the grant says nothing of a try before.
        let says_all = setup.trusts_refusals
            && client.step == Step::Release
            && !matches!(error.why, KeyError::GrantSuperseded);
        if says_all {
            client.may_be_written = false;
        }
        client.may_be_written |= error.may_have_written;
        let is_write = client.value > 0 && matches!(client.step, Step::Put | Step::Release);
        if is_write && !client.may_be_written {
            // It is told that no try of it was written.
            self.truth.denied(client.value);
        }
        match error.why {
            KeyError::GrantSuperseded | KeyError::NoGrant => {
                client.step = Step::Acquire;
                client.release_no = 0;
            }
            // A waiter whose entry was lost with its home asks for another one.
            KeyError::Ended(EndedAs::NoLongerKept) if is_waiter => {
                client.entry = None;
                client.is_durable = false;
                client.step = Step::Create;
            }
            KeyError::Ended(_) | KeyError::NeverIssued => {
                client.is_sure = false;
                client.step = Step::Done;
            }
            KeyError::StoreUnavailable(_) if error.may_have_written => client.put_in_doubt(setup),
            // An earlier try is in flight, or a release: it asks again.
            _ => {}
        }
    }
}

impl Client {
    fn is_last(&self, setup: &Setup) -> bool {
        self.puts >= setup.puts
    }

    fn after_get(&self, setup: &Setup) -> Step {
        match self.is_last(setup) {
            true => Step::Release,
            false => Step::Put,
        }
    }

    /// Whether a try of its put was written it is not told.
    pub fn put_in_doubt(&mut self, setup: &Setup) {
        if setup.reads_in_doubt && self.step == Step::Put {
            self.step = Step::Get;
            self.value = 0;
            self.may_be_written = false;
        }
    }

    fn next_section(&mut self, setup: &Setup) {
        let section = self.section + 1;
        *self = Client {
            step: match section < setup.sections {
                true => Step::Create,
                false => Step::Done,
            },
            section,
            puts: 0,
            call: None,
            calls: self.calls,
            release_no: 0,
            lost_held: self.lost_held,
            entry: None,
            is_sure: false,
            is_durable: false,
            value: 0,
            may_be_written: false,
            session_ended: self.session_ended,
        };
    }
}

/// Who is in the queue.
fn entries_of(state: &KeyState) -> Vec<Seq> {
    state.entries.iter().map(|entry| entry.seq).collect()
}

fn session_at(session: SessionId) -> usize {
    (0..64).find(|at| session_id(*at) == session).unwrap_or(0)
}
