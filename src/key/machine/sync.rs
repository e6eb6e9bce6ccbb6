//! From a grant to HELD: at once if the key is synced, else after one read and one rewrite of its value (I7).

use super::Machine;
use super::context::Context;
use super::critical::settled;
use super::event::{
    Answer, Effect, EntryStatus, IoId, KeyError, PauseOf, Reason, WriteOutcome, fail,
};
use super::holder::{Holder, Phase, Resume};
use super::role::Role;
use super::serving::{Ask, Io, KnownValue};
use super::value::{Datum, Value};
use crate::lock::Fence;

impl Machine {
    /// Begins the next work of the holder's phase.
    pub(super) fn advance_holder(&mut self, cx: &Context<'_>, out: &mut Vec<Effect>) {
        // During a hand-over nothing begins, and nothing is answered.
        let Role::Serving(serving) = &mut self.role else {
            return;
        };
        serving.allow_holder(cx, out);
        let Some(holder) = &serving.holder else {
            return;
        };
        let seq = holder.seq;
        if holder.is_held() {
            self.begin_queued(cx, out);
            self.answer_asks(cx, out);
        } else if holder.phase == Phase::Unsynced
            && (!holder.queued.is_empty()
                || serving.asks.iter().any(|ask| ask.seq == seq)
                || serving.watchers.iter().any(|w| w.seq == seq))
        {
            let io = self.io();
            if let Some(serving) = self.serving_mut()
                && let Some(holder) = &mut serving.holder
            {
                holder.phase = Phase::SyncRead(io);
                let fence = holder.fence;
                serving.ios.push((io, Io::SyncRead { fence }));
                out.push(Effect::ReadData { io });
            }
        }
    }

    /// Writes the value from the one read of this fence, the first time or again.
    fn write_sync(&mut self, datum: Datum, out: &mut Vec<Effect>) {
        let io = self.io();
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let Some(holder) = &mut serving.holder else {
            return;
        };
        let fence = holder.fence;
        let of = datum.clone();
        holder.phase = Phase::SyncWrite { io, datum: of };
        serving.ios.push((io, Io::SyncWrite { fence }));
        out.push(Effect::WriteData {
            io,
            datum,
            again: true,
        });
    }

    /// The pause of a sync has ended.
    pub(super) fn resume_sync(&mut self, grant: Fence, out: &mut Vec<Effect>) {
        let may_be_given = self.may_be_given();
        let Some(holder) = self.holder_mut().filter(|h| h.grant == grant) else {
            return;
        };
        let tries = holder.sync_tries;
        let Phase::SyncPaused { rewrite, .. } = &mut holder.phase else {
            return;
        };
        if may_be_given {
            // The next home may have begun: no write until it is known that it has not.
            holder.sync_tries = tries.saturating_add(1);
            let of = PauseOf::Sync(grant);
            return out.push(Effect::Pause { of, tries });
        }
        match rewrite.take() {
            Some(datum) => self.write_sync(datum, out),
            None => holder.phase = Phase::Unsynced,
        }
    }

    /// Tells HELD to the callers and watchers of the holder.
    fn answer_asks(&mut self, cx: &Context<'_>, out: &mut Vec<Effect>) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let Some(holder) = serving.holder.as_mut().filter(|h| h.is_held()) else {
            return;
        };
        let (seq, grant) = (holder.seq, holder.grant);
        for watcher in serving.watchers.iter_mut().filter(|w| w.seq == seq) {
            if watcher.position.take().is_some() {
                holder.claim.answered();
                holder.note_in_use(cx.now);
                out.push(Effect::Notify {
                    call: watcher.call,
                    status: EntryStatus::Held { grant },
                });
            }
        }
        let asks: Vec<Ask> = serving.asks.extract_if(.., |a| a.seq == seq).collect();
        for ask in asks {
            let Some(serving) = self.serving_mut() else {
                return;
            };
            let known = match (&serving.value, ask.read_value) {
                (_, false) => Some(None),
                (KnownValue::Known(known), true) => Some(Some(Value::of(known.clone()))),
                (KnownValue::Unknown, true) => None,
            };
            match known {
                Some(value) => self.answer_held(cx, ask, value, out),
                None if serving.has_open_writes() => {
                    serving.asks.push(ask);
                    self.settle(out);
                }
                None => {
                    let after = settled(serving.holder.as_ref());
                    let io = self.io();
                    if let Some(serving) = self.serving_mut() {
                        serving.ios.push((io, Io::Held { ask, grant, after }));
                    }
                    out.push(Effect::ReadData { io });
                }
            }
        }
    }

    /// Answers HELD: the grant counts as claimed (I5), unless every such answer is lost.
    pub(super) fn answer_held(
        &mut self,
        cx: &Context<'_>,
        ask: Ask,
        value: Option<Value>,
        out: &mut Vec<Effect>,
    ) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let holder = serving.holder.as_ref().filter(|h| h.seq == ask.seq);
        if holder.is_some_and(|holder| !holder.is_held()) {
            // It is answered after the Extend, or after the outcome of its last put.
            return serving.asks.push(ask);
        }
        let lease = match serving.lease(cx, ask.seq) {
            Ok(lease) => lease,
            Err(why) => return fail(ask.call, why, out),
        };
        let Some(holder) = serving.holder.as_mut().filter(|h| h.seq == ask.seq) else {
            return fail(ask.call, KeyError::ChangingHome, out);
        };
        holder.claim.answered();
        holder.note_in_use(cx.now);
        let answer = Ok(Answer::Held {
            entry: holder.entry(),
            value,
            existed: ask.existed,
            lease,
        });
        out.push(Effect::Answer {
            call: ask.call,
            answer,
        });
    }

    /// Answers a status call of an ended grant by the present state.
    pub(super) fn ask_again(&mut self, cx: &Context<'_>, ask: Ask, out: &mut Vec<Effect>) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        if serving.state.entry(ask.seq).is_some() {
            serving.asks.push(ask);
        } else {
            let end = serving.state.end_of(ask.seq);
            let why = serving.ended(cx, ask.seq, end);
            serving.fail_of_entry(cx, (ask.call, ask.seq), why, out);
        }
    }

    /// Fails a status call. Its client was there, so the claim deadline starts anew (I5).
    pub(super) fn fail_ask(
        &mut self,
        cx: &Context<'_>,
        ask: Ask,
        why: KeyError,
        out: &mut Vec<Effect>,
    ) {
        if let Some(serving) = self.serving_mut() {
            serving.wait_for_claim_anew(cx, ask.seq);
        }
        fail(ask.call, why, out);
    }

    pub(super) fn sync_read(
        &mut self,
        cx: &Context<'_>,
        io: IoId,
        fence: Fence,
        cell: Result<Option<Datum>, Reason>,
        out: &mut Vec<Effect>,
    ) {
        let reads = |h: &&mut Holder| h.fence == fence && h.phase == Phase::SyncRead(io);
        if self.holder_mut().filter(reads).is_none() {
            return;
        }
        match cell {
            // No write followed this read, so it may be repeated (I7).
            Err(why) => self.pause_sync(cx, None, &KeyError::StoreUnavailable(why), out),
            // The rewrite would not show above this value: take a higher fence, and read again under it.
            Ok(Some(datum)) if datum.timestamp >= fence.0 => {
                self.extend(cx, Resume::Sync, Some(datum.timestamp), out);
            }
            Ok(read) => {
                let value = read.and_then(|datum| datum.value);
                let timestamp = fence.0;
                self.write_sync(Datum { value, timestamp }, out);
            }
        }
    }

    pub(super) fn sync_written(
        &mut self,
        cx: &Context<'_>,
        io: IoId,
        fence: Fence,
        outcome: WriteOutcome,
        out: &mut Vec<Effect>,
    ) {
        let Some(holder) = self.holder_mut().filter(|h| h.fence == fence) else {
            return;
        };
        let Phase::SyncWrite { io: this, datum } = &holder.phase else {
            return;
        };
        if *this != io {
            return;
        }
        let datum = datum.clone();
        match outcome {
            WriteOutcome::Done => {
                holder.phase = Phase::Held { synced: true };
                if let Some(serving) = self.serving_mut() {
                    serving.know(cx, Some(datum));
                }
            }
            // Again, with the same content: a fence is synced from one read (I7).
            WriteOutcome::Unknown(why) | WriteOutcome::NotStarted(why) => {
                self.pause_sync(cx, Some(datum), &KeyError::StoreUnavailable(why), out);
            }
        }
    }

    /// Goes on with the sync after a pause. Calls that wait for it fail.
    pub(super) fn pause_sync(
        &mut self,
        cx: &Context<'_>,
        rewrite: Option<Datum>,
        why: &KeyError,
        out: &mut Vec<Effect>,
    ) {
        if let Some(holder) = self.holder_mut() {
            let of = PauseOf::Sync(holder.grant);
            let tries = holder.sync_tries;
            holder.sync_tries = tries.saturating_add(1);
            holder.phase = Phase::SyncPaused { rewrite };
            out.push(Effect::Pause { of, tries });
        }
        self.fail_for_sync(cx, why, out);
    }

    /// Fails the calls that wait for the holder's sync; they may be repeated.
    fn fail_for_sync(&mut self, cx: &Context<'_>, why: &KeyError, out: &mut Vec<Effect>) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let Some(holder) = &mut serving.holder else {
            return;
        };
        let seq = holder.seq;
        for critical in holder.queued.drain(..) {
            fail(critical.call, why.clone(), out);
        }
        let asks: Vec<Ask> = serving.asks.extract_if(.., |a| a.seq == seq).collect();
        for ask in asks {
            self.fail_ask(cx, ask, why.clone(), out);
        }
    }
}
