//! A read of the holder while one of its writes is in doubt. Before any answer, the value read is written again under the next
//! timestamp. So it stays, however late the doubtful write arrives.
//!
//! Meanwhile no other operation of the holder begins: a write between the read and the rewrite would be lost.

use super::Machine;
use super::context::Context;
use super::event::{Effect, KeyError, Reason, WriteOutcome, fail};
use super::holder::{Critical, CriticalKind, Phase, Resume};
use super::serving::{Ask, Io, Serving};
use super::value::Datum;
use crate::lock::Fence;

impl Machine {
    /// Begins to settle for a reader, once no write is in flight.
    pub(super) fn settle(&mut self, out: &mut Vec<Effect>) {
        let io = self.io();
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let Some(holder) = &mut serving.holder else {
            return;
        };
        let Phase::Held { synced } = holder.phase else {
            return;
        };
        if holder.writes.are_in_flight() {
            return;
        }
        holder.phase = Phase::Settling { synced };
        let grant = holder.grant;
        serving.ios.push((io, Io::SettleRead { grant }));
        out.push(Effect::ReadData { io });
    }

    pub(super) fn settle_read(
        &mut self,
        cx: &Context<'_>,
        grant: Fence,
        cell: Result<Option<Datum>, Reason>,
        out: &mut Vec<Effect>,
    ) {
        let io = self.io();
        let Some(serving) = self.serving_mut() else {
            return;
        };
        // Otherwise the lock is released or lost: the next holder syncs the value (I7).
        let Some(holder) = serving.holder.as_mut().filter(|h| h.grant == grant) else {
            return;
        };
        let Phase::Settling { synced } = holder.phase else {
            return;
        };
        let read = match cell {
            Ok(read) => read,
            Err(why) => {
                holder.phase = Phase::Held { synced };
                return self.fail_readers(cx, &KeyError::StoreUnavailable(why), out);
            }
        };
        if let Some(datum) = &read {
            holder.saw(datum.timestamp);
        }
        let Some(timestamp) = holder.next_timestamp() else {
            // It begins anew with more timestamps.
            holder.phase = Phase::Held { synced };
            let past = holder.past();
            return self.extend(cx, Resume::Held { synced }, past, out);
        };
        holder.writes.begin(timestamp);
        let value = read.and_then(|datum| datum.value);
        let datum = Datum { value, timestamp };
        let rewrite = datum.clone();
        let settles = Io::SettleWrite {
            grant,
            datum: rewrite,
        };
        serving.ios.push((io, settles));
        out.push(Effect::WriteData {
            io,
            datum,
            again: true,
        });
    }

    pub(super) fn settle_written(
        &mut self,
        cx: &Context<'_>,
        (grant, datum): (Fence, Datum),
        outcome: WriteOutcome,
        out: &mut Vec<Effect>,
    ) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let Some(holder) = serving.holder.as_mut().filter(|h| h.grant == grant) else {
            return;
        };
        if let Phase::Settling { synced } = holder.phase {
            holder.phase = Phase::Held { synced };
        }
        let timestamp = datum.timestamp;
        let why = match outcome {
            WriteOutcome::Done => {
                holder.writes.done(timestamp);
                if holder.writes.ends_with(timestamp) {
                    serving.know(cx, Some(datum));
                }
                return;
            }
            WriteOutcome::Unknown(why) => {
                holder.writes.unknown(timestamp);
                why
            }
            WriteOutcome::NotStarted(why) => {
                holder.writes.not_started(timestamp);
                why
            }
        };
        self.fail_readers(cx, &KeyError::StoreUnavailable(why), out);
    }

    /// Fails reads, which may be repeated. Writes behind them go on.
    pub(super) fn fail_readers(&mut self, cx: &Context<'_>, why: &KeyError, out: &mut Vec<Effect>) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let Some(holder) = &mut serving.holder else {
            return;
        };
        let seq = holder.seq;
        let is_get = |critical: &Critical| matches!(critical.kind, CriticalKind::Get);
        while holder.queued.front().is_some_and(is_get)
            && let Some(get) = holder.queued.pop_front()
        {
            fail(get.call, why.clone(), out);
        }
        let reads = |ask: &mut Ask| ask.seq == seq && ask.read_value;
        let asks: Vec<Ask> = serving.asks.extract_if(.., reads).collect();
        for ask in asks {
            self.fail_ask(cx, ask, why.clone(), out);
        }
    }
}

impl Serving {
    /// Whether a write of the holder may yet take effect: the value may change after a read.
    pub fn has_open_writes(&self) -> bool {
        let holder = self.holder.as_ref();
        holder.is_some_and(|holder| holder.writes.are_open())
    }
}
