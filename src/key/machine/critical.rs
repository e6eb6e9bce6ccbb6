//! Reads and writes of the holder, each write with the next timestamp of the fence (I3, I11).

use super::Machine;
use super::context::Context;
use super::event::{
    Answer, CallError, CallId, Effect, EntryRef, IoId, KeyError, Reason, WriteOutcome, fail,
};
use super::holder::{Critical, CriticalKind, Holder, LastPut, Phase, Resume};
use super::refusal::refused;
use super::role::Role;
use super::serving::{Io, KnownValue, Serving};
use super::value::{Datum, Value};
use crate::key::{Command, Outcome};
use crate::lock::Fence;

impl Machine {
    /// Checks and queues a critical call. The order of the checks is the order in which a client can mend mistakes.
    pub(super) fn critical(
        &mut self,
        cx: &Context<'_>,
        (id, entry, call_no): (CallId, EntryRef, u64),
        kind: CriticalKind,
        out: &mut Vec<Effect>,
    ) {
        let Role::Serving(serving) = &mut self.role else {
            return;
        };
        let (position, lease) = match serving.live(cx, entry, out) {
            Ok(live) => live,
            Err(why) => return fail(id, kind.refusal(why), out),
        };
        let in_flight = serving.critical_calls(cx.limits.critical_calls_max);
        let accepted = match (entry.grant, &mut serving.holder) {
            (None, _) => Err(KeyError::NoGrant),
            // This lockRef was never told a grant.
            (Some(_), _) if position > 0 => Err(KeyError::NoGrant),
            (Some(_), None) => Err(KeyError::GrantSuperseded),
            (Some(grant), Some(holder)) => accept(cx, holder, grant, (call_no, &kind), in_flight),
        };
        match accepted {
            Ok(holder) => holder.queued.push_back(Critical {
                call: id,
                entry,
                lease,
                kind,
            }),
            Err(why) => fail(id, kind.refusal(why), out),
        }
    }

    /// Begins queued calls, once HELD may be answered and while there are timestamps.
    pub(super) fn begin_queued(&mut self, cx: &Context<'_>, out: &mut Vec<Effect>) {
        loop {
            let Some(holder) = self.serving_mut().and_then(|s| s.holder.as_mut()) else {
                return;
            };
            let Phase::Held { synced } = holder.phase else {
                return;
            };
            let is_get = |critical: &Critical| matches!(critical.kind, CriticalKind::Get);
            if holder.writes.are_open() && holder.queued.front().is_some_and(is_get) {
                return self.settle(out);
            }
            let Some(critical) = holder.queued.pop_front() else {
                return;
            };
            if matches!(critical.kind, CriticalKind::Get) {
                self.begin_get(critical, out);
                continue;
            }
            let Some(timestamp) = holder.next_timestamp() else {
                // The order is kept: later calls do not overtake it.
                holder.queued.push_front(critical);
                let past = holder.past();
                self.extend(cx, Resume::Held { synced }, past, out);
                continue;
            };
            holder.writes.begin(timestamp);
            if critical.is_release() {
                holder.phase = Phase::LastPut { synced };
            }
            let (CriticalKind::Put(value) | CriticalKind::Release(value)) = &critical.kind else {
                return;
            };
            let value = value.clone();
            let datum = Datum { value, timestamp };
            let io = self.io();
            if let Some(serving) = self.serving_mut() {
                serving.value = KnownValue::Unknown;
                let datum = datum.clone();
                serving.ios.push((io, Io::Put { critical, datum }));
            }
            out.push(Effect::WriteData {
                io,
                datum,
                again: false,
            });
        }
    }

    /// Takes more timestamps for the holder (I3), and goes on once the row allows them.
    pub(super) fn extend(
        &mut self,
        cx: &Context<'_>,
        resume: Resume,
        past: Option<u64>,
        out: &mut Vec<Effect>,
    ) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let Some(holder) = &mut serving.holder else {
            return;
        };
        let fence = holder.fence;
        holder.phase = Phase::Extending(resume);
        match serving.apply(cx, &Command::Extend { fence, past }, out) {
            Outcome::Refused(refusal) => self.extend_refused(cx, resume, &refused(&refusal), out),
            _ => serving.allow_holder(cx, out),
        }
    }

    /// The holder gets no more timestamps: calls that wait for them fail, and may be repeated.
    fn extend_refused(
        &mut self,
        cx: &Context<'_>,
        resume: Resume,
        why: &KeyError,
        out: &mut Vec<Effect>,
    ) {
        let Some(holder) = self.holder_mut() else {
            return;
        };
        match resume {
            Resume::Held { .. } => {
                holder.resume(resume);
                if holder.queued.iter().any(Critical::is_release) {
                    // Its put never began: the client may repeat the call (I11).
                    holder.last_put_failed();
                }
                for critical in holder.queued.drain(..) {
                    fail(critical.call, why.clone(), out);
                }
                if holder.writes.are_open() {
                    self.fail_readers(cx, why, out);
                }
            }
            Resume::Sync => self.pause_sync(cx, None, why, out),
        }
    }

    fn begin_get(&mut self, critical: Critical, out: &mut Vec<Effect>) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        if let KnownValue::Known(known) = &serving.value {
            let answer = Ok(Answer::Value {
                value: Value::of(known.clone()),
                lease: critical.lease,
            });
            let call = critical.call;
            return out.push(Effect::Answer { call, answer });
        }
        let after = settled(serving.holder.as_ref());
        let io = self.io();
        if let Some(serving) = self.serving_mut() {
            serving.ios.push((io, Io::Get { critical, after }));
        }
        out.push(Effect::ReadData { io });
    }

    /// Whether this read in flight belongs to the present holder, which notes the timestamp.
    pub fn is_read_of_holder(&self, io: IoId) -> bool {
        let (Role::Serving(serving) | Role::HandingOver(serving, _)) = &self.role else {
            return false;
        };
        let Some(holder) = &serving.holder else {
            return false;
        };
        serving.ios.iter().any(|(id, what)| {
            let is_its = match what {
                Io::Get { critical, .. } => critical.entry.grant == Some(holder.grant),
                Io::Held { grant, .. } => *grant == holder.grant,
                Io::SettleRead { grant } => *grant == holder.grant,
                Io::SyncRead { fence } => *fence == holder.fence,
                Io::Put { .. } | Io::SettleWrite { .. } | Io::SyncWrite { .. } => false,
            };
            *id == io && is_its
        })
    }

    /// The outcome of a read of the value.
    pub(super) fn data_read(
        &mut self,
        cx: &Context<'_>,
        io: IoId,
        cell: Result<Option<Datum>, Reason>,
        out: &mut Vec<Effect>,
    ) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let Some(what) = serving.take_io(io) else {
            return;
        };
        let (grant, after) = match &what {
            Io::Get { critical, after } => (critical.entry.grant, *after),
            Io::Held { grant, after, .. } => (Some(*grant), *after),
            Io::SettleRead { grant } => {
                let grant = *grant;
                return self.settle_read(cx, grant, cell, out);
            }
            Io::SyncRead { fence } => {
                let fence = *fence;
                return self.sync_read(cx, io, fence, cell, out);
            }
            Io::Put { .. } | Io::SettleWrite { .. } | Io::SyncWrite { .. } => return,
        };
        // The value may be a later holder's.
        let holder = serving.holder.as_mut().filter(|h| Some(h.grant) == grant);
        let is_current = holder.is_some();
        if let (Some(holder), Ok(datum)) = (holder, &cell) {
            if let Some(datum) = datum {
                holder.saw(datum.timestamp);
            }
            if after.is_some() && after == settled(Some(&*holder)) {
                serving.know(cx, datum.clone());
            }
        }
        match what {
            Io::Get { critical, .. } => {
                let answer = match cell {
                    _ if !is_current => Err(serving.why_not(critical.entry).into()),
                    Ok(datum) => Ok(Answer::Value {
                        value: Value::of(datum),
                        lease: critical.lease,
                    }),
                    Err(why) => Err(KeyError::StoreUnavailable(why).into()),
                };
                let call = critical.call;
                out.push(Effect::Answer { call, answer });
            }
            Io::Held { ask, .. } => match cell {
                // The entry ended or was granted anew meanwhile: its status is answered anew.
                _ if !is_current => self.ask_again(cx, ask, out),
                Ok(datum) => {
                    self.answer_held(cx, ask, Some(Value::of(datum)), out);
                }
                Err(why) => self.fail_ask(cx, ask, KeyError::StoreUnavailable(why), out),
            },
            Io::Put { .. }
            | Io::SettleRead { .. }
            | Io::SettleWrite { .. }
            | Io::SyncRead { .. }
            | Io::SyncWrite { .. } => {}
        }
    }

    /// The outcome of a write of the value.
    pub(super) fn data_written(
        &mut self,
        cx: &Context<'_>,
        io: IoId,
        outcome: WriteOutcome,
        out: &mut Vec<Effect>,
    ) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        match serving.take_io(io) {
            Some(Io::Put { critical, datum }) => self.put_done(cx, critical, datum, outcome, out),
            Some(Io::SettleWrite { grant, datum }) => {
                self.settle_written(cx, (grant, datum), outcome, out);
            }
            Some(Io::SyncWrite { fence }) => self.sync_written(cx, io, fence, outcome, out),
            Some(
                Io::Get { .. } | Io::Held { .. } | Io::SettleRead { .. } | Io::SyncRead { .. },
            )
            | None => {}
        }
    }

    /// An error says whether the write may have been done (H7).
    fn put_done(
        &mut self,
        cx: &Context<'_>,
        critical: Critical,
        datum: Datum,
        outcome: WriteOutcome,
        out: &mut Vec<Effect>,
    ) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let call = critical.call;
        let grant = critical.entry.grant;
        let Some(holder) = serving.holder.as_mut().filter(|h| Some(h.grant) == grant) else {
            // The fence ended uncleanly meanwhile: the next holder's sync decides whether this write shows (I7).
            let may_have_written = !matches!(outcome, WriteOutcome::NotStarted(_));
            let why = serving.why_not(critical.entry);
            let error = CallError {
                why,
                may_have_written,
            };
            return fail(call, error, out);
        };
        let timestamp = datum.timestamp;
        let releases = critical.is_release();
        let call_no = match holder.last_put {
            LastPut::InFlight(call_no) => call_no,
            LastPut::None | LastPut::Failed(_) => 0,
        };
        if releases && !matches!(outcome, WriteOutcome::Done) {
            holder.last_put_failed();
        }
        let failed = match outcome {
            WriteOutcome::Done => {
                holder.writes.done(timestamp);
                if holder.writes.ends_with(timestamp) {
                    serving.know(cx, Some(datum));
                }
                None
            }
            WriteOutcome::Unknown(why) => {
                holder.writes.unknown(timestamp);
                Some((why, true))
            }
            WriteOutcome::NotStarted(why) => {
                holder.writes.not_started(timestamp);
                Some((why, false))
            }
        };
        match failed {
            None if releases => self.give_back(cx, (call, critical.entry), (call_no, true), out),
            None => out.push(Effect::Answer {
                call,
                answer: Ok(Answer::Written {
                    lease: critical.lease,
                }),
            }),
            Some((why, may_have_written)) => {
                // Not released: the caller may repeat it.
                if let Some(holder) = serving.holder.as_mut()
                    && let Phase::LastPut { synced } = holder.phase
                    && releases
                {
                    holder.phase = Phase::Held { synced };
                }
                let error = CallError {
                    why: KeyError::StoreUnavailable(why),
                    may_have_written,
                };
                fail(call, error, out);
            }
        }
    }
}

impl Serving {
    /// Reads and writes of the holder, in flight or queued. Those of earlier holders count only above three times `most`.
    pub fn critical_calls(&self, most: usize) -> usize {
        let Some(holder) = &self.holder else {
            return 0;
        };
        let is_own = |(_, io): &&(IoId, Io)| match io {
            Io::Get { critical, .. } | Io::Put { critical, .. } => {
                critical.entry.grant == Some(holder.grant)
            }
            Io::Held { .. }
            | Io::SettleRead { .. }
            | Io::SettleWrite { .. }
            | Io::SyncRead { .. }
            | Io::SyncWrite { .. } => false,
        };
        let own = self.ios.iter().filter(is_own).count() + holder.queued.len();
        own.max(self.ios.len().saturating_sub(most.saturating_mul(3)))
    }
}

fn accept<'a>(
    cx: &Context<'_>,
    holder: &'a mut Holder,
    grant: Fence,
    (call_no, kind): (u64, &CriticalKind),
    in_flight: usize,
) -> Result<&'a mut Holder, KeyError> {
    if holder.grant != grant {
        return Err(KeyError::GrantSuperseded);
    }
    if holder.is_closing() {
        return Err(KeyError::Releasing);
    }
    if in_flight >= cx.limits.critical_calls_max {
        return Err(KeyError::Exhausted {
            what: "critical_calls_per_lock_ref_max",
            limit: cx.limits.critical_calls_max,
        });
    }
    let releases = matches!(kind, CriticalKind::Release(_));
    let is_again = releases && holder.last_put == LastPut::Failed(call_no);
    if call_no > 0 && !is_again {
        if call_no <= holder.last_call_no {
            return Err(KeyError::CallNoNotAbove {
                given: call_no,
                last: holder.last_call_no,
            });
        }
        holder.last_call_no = call_no;
    }
    holder.last_put = match releases {
        true => LastPut::InFlight(call_no),
        false => LastPut::None,
    };
    Ok(holder)
}

/// The last timestamp of the fence, while no write of it is open. A read that begins and ends with the same one shows the latest
/// value.
pub(super) fn settled(holder: Option<&Holder>) -> Option<u64> {
    holder
        .filter(|holder| !holder.writes.are_open())
        .map(Holder::last_timestamp)
}
