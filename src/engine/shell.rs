//! Runs the machines of keys: gives them events, and carries out their effects.
//!
//! The caller of [`KeyShell::handle_event`] runs the machine in place. Slow effects (the store, pauses) run in a task of their own, whose
//! outcome is the next event. If the machine has been replaced meanwhile, the outcome is dropped.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::commits::Commits;
use super::key_io::KeyIo;
use super::keys::Keys;
use super::local::Local;
use super::reports::Reports;
use super::sessions::{Attached, AttachedKeys, Sessions};
use super::slot::{CallResult, KeyCell, Listener, PendingCall, Silence, Slot, SlotGuard};
use super::time::Time;
use super::values::Values;
use crate::key::machine::{
    Answer, Call, CallId, Context, Effect, Event, KeyError, KeyLimits, PauseOf, Report,
};
use crate::lock::{KeyId, Seq, SessionId};
use crate::session::Observed;
use crate::trace::{self, TARGET};
use fermata_guard::shares;
use tracing::{Instrument as _, Span};

/// The machines of a replica's keys, and their runtime.
pub(super) struct KeyShell {
    pub local: Arc<Local>,
    pub keys: Keys,
    pub values: Values,
    pub time: Arc<Time>,
    pub limits: KeyLimits,
    /// The shortest TTL of an entry.
    pub ttl_min: Duration,
    pub commits: Arc<Commits>,
    pub io: Arc<KeyIo>,
    pub sessions: Arc<Sessions>,
    pub reports: Reports,
}

/// Slow work in flight for a machine. If it is dropped before it came back, its task panicked.
struct Begun {
    shell: Arc<KeyShell>,
    cell: Arc<KeyCell>,
    generation: u64,
    came_back: bool,
}

impl Begun {
    fn came_back(mut self, event: Event) {
        self.shell.came_back(&self.cell, self.generation, event);
        self.came_back = true;
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        // The end of the process drops it as well: then nothing is to be done.
        if !self.came_back && std::thread::panicking() {
            self.shell.lost(&self.cell, self.generation);
        }
    }
}

impl KeyShell {
    /// Gives an event to the machine of a key.
    pub fn handle_event(self: &Arc<Self>, cell: &Arc<KeyCell>, event: Event) {
        let mut slot = cell.slot();
        self.run(cell, &mut slot, event);
        self.leave(cell, slot);
    }

    /// As [`KeyShell::handle_event`], if the machine of this generation, which began the work, is still there.
    fn came_back(self: &Arc<Self>, cell: &Arc<KeyCell>, generation: u64, event: Event) {
        let mut slot = cell.slot();
        if slot.generation == generation {
            self.run(cell, &mut slot, event);
        }
        self.leave(cell, slot);
    }

    /// Hands a call in. `Err` returns the listener if the cell was forgotten meanwhile: look the cell up anew.
    pub fn call(
        self: &Arc<Self>,
        cell: &Arc<KeyCell>,
        call: Call,
        listener: Listener,
        share_of: Option<&Arc<str>>,
    ) -> Result<CallId, Listener> {
        let mut slot = cell.slot();
        if slot.removed {
            return Err(listener);
        }
        if slot.silence == Silence::Due {
            // A panic outside of the machine lost its state.
            self.keep_silent(cell, &mut slot);
        }
        let id = CallId(slot.next_call);
        slot.next_call += 1;
        // A stopping replica would have to hand the key over again.
        let takes = matches!(call, Call::TakeOver { .. } | Call::Adopt { .. });
        if takes && self.local.is_stopping() {
            refuse(listener, "this replica is stopping");
            return Ok(id);
        }
        if slot.is_silent(self.local.clock.boot()) {
            let why =
                "the in-memory state of this key was lost; waiting for outstanding leases to lapse";
            refuse(listener, why);
            return Ok(id);
        }
        // The state of the adopted term is lost, so the key needs another term.
        let call = match call {
            Call::Adopt { .. } if slot.is_lost => Call::TakeOver {
                from: self.local.id,
            },
            call => call,
        };
        slot.used = self.local.clock.boot();
        let now = slot.used;
        if call.is_of_client() {
            slot.called = Some(now);
        }
        self.values.expire(&mut slot, now);
        let makes = match &call {
            Call::Create { entry, .. } if entry.identity.is_empty() => Some(entry.tag),
            _ => None,
        };
        if let (Some(tag), Some(share_of)) = (makes, share_of)
            && !slot.admit_to_queue(tag, share_of, self.limits.core.entries_max)
        {
            let share_used = KeyError::ShareUsed {
                what: "entries_per_key_max",
                share: shares::share(self.limits.core.entries_max),
            };
            refuse_with(listener, share_used);
            return Ok(id);
        }
        let open = PendingCall {
            listener,
            share_of: share_of.map(Arc::clone),
            makes,
        };
        slot.calls.insert(id, open);
        let of = call.of_entry();
        self.run(cell, &mut slot, Event::Call { id, call });
        if let Some(entry) = of {
            slot.note_served(entry, now);
        }
        self.leave(cell, slot);
        Ok(id)
    }

    /// The caller no longer waits for a call.
    pub fn call_gone(self: &Arc<Self>, cell: &Arc<KeyCell>, call: CallId) {
        let mut slot = cell.slot();
        if let Some(gone) = slot.calls.remove(&call) {
            slot.note_gone(gone);
            self.run(cell, &mut slot, Event::CallGone(call));
        }
        self.leave(cell, slot);
    }

    /// Sets the alarm, and forgets the key if nothing is lost by that.
    pub(super) fn leave(self: &Arc<Self>, cell: &Arc<KeyCell>, mut slot: SlotGuard<'_>) {
        self.set_alarm(cell, &mut slot);
        self.reports.note_queue(cell, &mut slot);
        slot.shrink();
        let is_forgettable = slot.is_forgettable();
        let is_removed = slot.removed;
        drop(slot);
        self.values.trim();
        if is_forgettable && !is_removed {
            self.keys.forget(cell);
        }
    }

    /// Moves the alarm only to an earlier moment: an early alarm is set again when it fires.
    fn set_alarm(&self, cell: &KeyCell, slot: &mut Slot) {
        let due = slot.machine.due(self.commits.rules(&cell.id.table));
        let is_set = |at: Observed| slot.alarm.is_some_and(|(set, _)| set <= at);
        match due {
            Some(at) if !is_set(at) => {
                if let Some(older) = slot.alarm.take() {
                    self.time.clear(older);
                }
                slot.alarm = Some(self.time.set(at, &cell.id));
            }
            Some(_) => {}
            None => {
                if let Some(older) = slot.alarm.take() {
                    self.time.clear(older);
                }
            }
        }
    }

    /// Handles the alarm of a key.
    pub fn alarm_fired(self: &Arc<Self>, id: &KeyId) {
        let Some(cell) = self.keys.find(id) else {
            return;
        };
        let mut slot = cell.slot();
        slot.alarm = None;
        self.run(&cell, &mut slot, Event::Due);
        self.leave(&cell, slot);
    }

    /// Runs the machine. A panic loses the state of this key, and harms neither the caller nor other keys.
    fn run(self: &Arc<Self>, cell: &Arc<KeyCell>, slot: &mut Slot, event: Event) {
        let run = AssertUnwindSafe(|| self.run_all(cell, slot, event));
        if catch_unwind(run).is_err() {
            self.lose(cell, slot);
        }
        let now = self.local.clock.boot();
        slot.note_home(now);
        self.keys.note_owner(cell, slot);
        if !slot.removed {
            self.values.note(cell, slot);
        }
    }

    fn run_all(self: &Arc<Self>, cell: &Arc<KeyCell>, slot: &mut Slot, event: Event) {
        self.detach_lost(cell, slot);
        let mut events = VecDeque::from([event]);
        let mut effects = Vec::new();
        let limits = &self.limits;
        let commit = self.commits.rules(&cell.id.table);
        while let Some(event) = events.pop_front() {
            if let Event::DataRead { io, cell: Ok(_) } = &event
                && slot.machine.is_read_of_holder(*io)
            {
                slot.read_at = Some(self.local.clock.boot());
            }
            let cx = Context {
                replica: self.local.id,
                now: self.time.now(),
                now_us: self.local.fence_clock_us(),
                sure_until: self.local.sure_until(),
                is_alone: self.local.is_alone(),
                value_is_due: matches!(event, Event::DataWritten { .. })
                    && slot.value_is_due(self.local.clock.boot()),
                commit,
                limits,
            };
            slot.machine.on(&cx, event, &mut effects);
            for effect in effects.drain(..) {
                events.extend(self.perform(cell, slot, effect));
            }
        }
    }

    /// Performs an effect, or begins it. Returns the event that follows at once, if any.
    fn perform(
        self: &Arc<Self>,
        cell: &Arc<KeyCell>,
        slot: &mut Slot,
        effect: Effect,
    ) -> Option<Event> {
        match effect {
            Effect::Load { settle } => self.begin(cell, slot, "load", move |io, id| async move {
                Event::Loaded(io.load(&id, settle).await)
            }),
            Effect::Swap { old, new } => {
                self.begin(cell, slot, "commit", move |io, id| async move {
                    Event::Swapped(io.swap(&id, &old, &new).await)
                })
            }
            Effect::ReadData { io: no } => {
                self.begin(cell, slot, "read value", move |io, id| async move {
                    let cell = io.read(&id).await;
                    Event::DataRead { io: no, cell }
                })
            }
            Effect::WriteData {
                io: no,
                datum,
                again,
            } => {
                self.begin(cell, slot, "write value", move |io, id| async move {
                    let outcome = match again {
                        true => io.write_again(&id, datum).await,
                        false => io.write_within_bounds(&id, datum).await,
                    };
                    Event::DataWritten { io: no, outcome }
                });
            }
            Effect::Pause { of, tries } => self.pause(cell, slot, of, tries),
            Effect::Answer { call, answer } => return self.answer(slot, call, answer),
            Effect::Notify { call, status } => return slot.notify(call, status),
            Effect::RenewSession(session) => self.sessions.renew_behind(session),
            Effect::Attach { session, seq } => return self.attach(cell, slot, session, seq),
            Effect::Detach { session, seq } => {
                slot.sessions.remove(&seq);
                self.sessions.detach(session, &cell.id, seq);
                self.sessions.forget_if_done(session);
            }
            Effect::Report(report) => {
                if let Report::Contradicted { .. } = report {
                    self.contradicted(cell, slot);
                }
                self.reports.report(cell, slot, &report);
            }
        }
        None
    }

    /// Does slow work in a task of its own; `what` names it in traces.
    fn begin<W, F>(self: &Arc<Self>, cell: &Arc<KeyCell>, slot: &Slot, what: &'static str, work: W)
    where
        W: FnOnce(Arc<KeyIo>, Arc<KeyId>) -> F,
        F: Future<Output = Event> + Send + 'static,
    {
        let begun = Begun {
            shell: Arc::clone(self),
            cell: Arc::clone(cell),
            generation: slot.generation,
            came_back: false,
        };
        let work = work(Arc::clone(&self.io), Arc::clone(&cell.id));
        // In the trace of the call that caused it. Work that no call caused is in no trace.
        let span = match trace::is_active() {
            false => Span::none(),
            true => tracing::debug_span!(
                target: TARGET, "store", otel.name = what, fermata.table = %cell.id.table,
            ),
        };
        let work = async move {
            let event = work.await;
            // In the span: the requests that follow from the event belong to the same trace.
            begun.came_back(event);
        };
        tokio::spawn(work.instrument(span));
    }

    fn pause(self: &Arc<Self>, cell: &Arc<KeyCell>, slot: &Slot, of: PauseOf, tries: u32) {
        let pause = self.local.back_off(tries);
        self.begin(cell, slot, "pause", move |_, _| async move {
            pause.await;
            Event::Resume(of)
        });
    }

    /// Answers a call. Returns an event if nobody received a HELD, or the begin of a watch.
    fn answer(&self, slot: &mut Slot, call: CallId, answer: CallResult) -> Option<Event> {
        let held = match &answer {
            Ok(Answer::Held { entry, .. }) => Some(*entry),
            Ok(_) | Err(_) => None,
        };
        if let Ok(Answer::Held { entry, .. } | Answer::Waiting { entry, .. }) = &answer {
            let open = slot.calls.get_mut(&call);
            if let Some(share_of) = open.and_then(|open| open.share_of.take()) {
                slot.note_share(entry.seq, share_of);
            }
        }
        let is_watching = matches!(answer, Ok(Answer::Watching));
        let is_lost = match slot.calls.get_mut(&call).map(|open| &mut open.listener) {
            Some(Listener::Watch { begun, .. }) if is_watching => {
                let begun = begun.take();
                if begun.is_none_or(|begun| begun.send(answer).is_err()) {
                    slot.calls.remove(&call);
                    return Some(Event::CallGone(call));
                }
                false
            }
            Some(_) => match slot.calls.remove(&call).map(|open| open.listener) {
                Some(
                    Listener::Answer(reply)
                    | Listener::Watch {
                        begun: Some(reply), ..
                    },
                ) => reply.send(answer).is_err(),
                Some(Listener::Watch { begun: None, .. }) | None => true,
            },
            None => true,
        };
        let held = held?;
        if is_lost {
            return held.grant.map(|grant| Event::AnswerLost { grant });
        }
        slot.note_served(held, self.local.clock.boot());
        None
    }

    fn attach(
        self: &Arc<Self>,
        cell: &Arc<KeyCell>,
        slot: &mut Slot,
        session: SessionId,
        seq: Seq,
    ) -> Option<Event> {
        slot.sessions.insert(seq, session);
        match self.sessions.attach(session, &cell.id, seq) {
            Attached::Ok => {
                let ttl = self.sessions.table.ttl_of(session)?;
                Some(Event::SessionTtl { session, ttl })
            }
            // A replica without others knows each open session.
            Attached::Unknown if self.local.is_alone() => {
                self.sessions
                    .table
                    .ended_elsewhere(session, self.local.clock.boot());
                Some(Event::SessionEnded(session))
            }
            Attached::Unknown => {
                self.sessions.read_behind(session);
                None
            }
            Attached::Ended => Some(Event::SessionEnded(session)),
        }
    }
}

impl AttachedKeys for KeyShell {
    fn notify(self: Arc<Self>, id: &KeyId, event: Event) {
        if let Some(cell) = self.keys.find(id) {
            self.handle_event(&cell, event);
        }
    }
}

/// Refuses a call before the machine gets it.
fn refuse(listener: Listener, why: &str) {
    refuse_with(listener, KeyError::StoreUnavailable(why.into()));
}

fn refuse_with(listener: Listener, why: KeyError) {
    let (Listener::Answer(reply)
    | Listener::Watch {
        begun: Some(reply), ..
    }) = listener
    else {
        return;
    };
    // The caller may be gone.
    let _ = reply.send(Err(why.into()));
}
