//! What is asked of the key, checked against what the home knows.

use super::event::{
    Answer, Call, CallError, CallId, Context, Effect, EntryRef, EntryStatus, KeyError, fail,
};
use super::holder::{CriticalKind, Phase};
use super::intent::{Intent, Wish};
use super::serving::{Ask, Watcher};
use super::{Machine, Queued, Role};
use crate::lock::{EndReason, EndedAs};

impl Machine {
    pub(super) fn call(&mut self, cx: &Context<'_>, id: CallId, call: Call, out: &mut Vec<Effect>) {
        // Who waits for the end of a hand-over is not ended for it (I8).
        if let Role::HandingOver(serving, _) = &mut self.role
            && let Some(entry) = call.of_entry()
        {
            // Whether it lives is told once the key is served again.
            let _ = serving.live(cx, entry, out);
        }
        match self.role {
            Role::Serving(_) => self.call_home(cx, id, call, out),
            // Until this replica knows that it is the home, and while it is giving the key away, nothing is answered.
            Role::Unread | Role::Taking(_) | Role::HandingOver(..) => {
                if self.backlog.len() < cx.limits.calls_max {
                    self.backlog.push_back(Queued { id, call });
                } else {
                    fail(id, exhausted_calls(cx), out);
                }
            }
        }
    }

    /// A call at the home of the key.
    pub(super) fn call_home(
        &mut self,
        cx: &Context<'_>,
        id: CallId,
        call: Call,
        out: &mut Vec<Effect>,
    ) {
        let Role::Serving(serving) = &mut self.role else {
            return;
        };
        match call {
            Call::Create { entry, read_value } => {
                self.wish(cx, id, Wish::Create { entry, read_value }, out);
            }
            Call::Acquire {
                entry,
                wait,
                read_value,
            } => self.acquire(cx, id, entry, (wait, read_value), false, out),
            Call::Get { entry, call_no } => {
                self.critical(cx, (id, entry, call_no), CriticalKind::Get, out);
            }
            Call::Put {
                entry,
                call_no,
                value,
            } => self.critical(cx, (id, entry, call_no), CriticalKind::Put(value), out),
            Call::Release {
                entry,
                call_no,
                put,
            } => self.release(cx, (id, entry, call_no), put, out),
            Call::Watch { entry } => self.watch(cx, id, entry, out),
            Call::Renew { entry } => {
                let renewed = serving.live(cx, entry, out);
                let answer = renewed.map(|(_, lease)| Answer::Renewed { lease });
                let answer = answer.map_err(CallError::from);
                out.push(Effect::Answer { call: id, answer });
            }
            Call::Force { entry, by, why } => {
                let wish = Wish::Evict {
                    entry,
                    reason: EndReason::Forced { by, why },
                    only_under: None,
                };
                self.wish(cx, id, wish, out);
            }
            Call::TakeOver { .. } | Call::Adopt { .. } => {
                let answer = Ok(Answer::Home(serving.home));
                out.push(Effect::Answer { call: id, answer });
            }
            Call::HandOver { to } => self.begin_hand_over(cx, id, to, out),
        }
    }

    /// Adds to what the next compare-and-swap shall do.
    fn wish(&mut self, cx: &Context<'_>, id: CallId, what: Wish, out: &mut Vec<Effect>) {
        if self.pending.len() >= cx.limits.calls_max {
            return fail(id, exhausted_calls(cx), out);
        }
        self.pending.push_back(Intent::new(Some(id), what));
    }

    /// Answers the status of an entry: HELD once the holder may be told so, WAITING at once.
    pub(super) fn acquire(
        &mut self,
        cx: &Context<'_>,
        id: CallId,
        entry: EntryRef,
        (wait, read_value): (bool, bool),
        existed: bool,
        out: &mut Vec<Effect>,
    ) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let (position, lease) = match serving.live(cx, entry, out) {
            Ok(live) => live,
            Err(why) => return fail(id, why, out),
        };
        let holder = serving.holder.as_ref().filter(|h| h.seq == entry.seq);
        let releases = |p: &Phase| matches!(p, Phase::Releasing { .. } | Phase::LastPut { .. });
        if holder.is_some_and(|holder| releases(&holder.phase)) {
            return fail(id, KeyError::Releasing, out);
        }
        if position > 0 && !wait {
            let answer = Ok(Answer::Waiting {
                entry: EntryRef {
                    grant: None,
                    ..entry
                },
                position,
                existed,
                lease,
            });
            return out.push(Effect::Answer { call: id, answer });
        }
        if serving.waits_of(entry.seq) >= cx.limits.waits_per_lock_ref_max {
            return fail(id, exhausted_waits(cx), out);
        }
        if serving.asks.len() >= cx.limits.calls_max {
            return fail(id, exhausted_calls(cx), out);
        }
        serving.open_call(cx, entry.seq);
        serving.asks.push(Ask {
            call: id,
            seq: entry.seq,
            read_value,
            existed,
        });
    }

    fn release(
        &mut self,
        cx: &Context<'_>,
        (id, entry, call_no): (CallId, EntryRef, u64),
        put: Option<Option<bytes::Bytes>>,
        out: &mut Vec<Effect>,
    ) {
        let Role::Serving(serving) = &mut self.role else {
            return;
        };
        let live = serving.live(cx, entry, out);
        if live == Err(KeyError::Ended(EndedAs::Released)) {
            // A repeated call: what it carries was written before the release, once.
            let answer = Ok(Answer::Released { already: true });
            return out.push(Effect::Answer { call: id, answer });
        }
        if let Some(value) = put {
            let holder = serving.holder.as_ref();
            let same = holder.filter(|h| h.seq == entry.seq && Some(h.grant) == entry.grant);
            if same.is_some_and(|h| h.has_written_last(call_no)) {
                // The same call again: its put was acknowledged, so it learns what becomes of its release.
                return match self.pending.len() < cx.limits.calls_max {
                    true => self.begin_release(id, entry, true, out),
                    false => fail(id, exhausted_calls(cx), out),
                };
            }
            let kind = CriticalKind::Release(value);
            return self.critical(cx, (id, entry, call_no), kind, out);
        }
        match live {
            Ok(_) if self.pending.len() >= cx.limits.calls_max => {
                fail(id, exhausted_calls(cx), out);
            }
            Ok(_) => self.begin_release(id, entry, false, out),
            Err(why) => fail(id, why, out),
        }
    }

    /// From here on nothing more is taken of this lockRef (I11).
    pub(super) fn begin_release(
        &mut self,
        call: CallId,
        entry: EntryRef,
        has_written: bool,
        out: &mut Vec<Effect>,
    ) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let holder = serving.holder.as_mut().filter(|h| h.seq == entry.seq);
        if let Some(holder) = holder {
            if !matches!(holder.phase, Phase::Evicting { .. }) {
                holder.begin_release();
            }
            // What was accepted before and is not begun must not land once the release is decided.
            for queued in holder.queued.drain(..) {
                let refusal = queued.kind.refusal(KeyError::Releasing);
                fail(queued.call, refusal, out);
            }
        }
        for ask in serving.asks.extract_if(.., |ask| ask.seq == entry.seq) {
            fail(ask.call, KeyError::Releasing, out);
        }
        let wish = Wish::Release { entry, has_written };
        self.pending.push_back(Intent::new(Some(call), wish));
    }

    fn watch(&mut self, cx: &Context<'_>, id: CallId, entry: EntryRef, out: &mut Vec<Effect>) {
        let Role::Serving(serving) = &mut self.role else {
            return;
        };
        let (position, lease) = match serving.live(cx, entry, out) {
            Ok(live) => live,
            Err(why) => return fail(id, why, out),
        };
        let same = |w: &&Watcher| w.seq == entry.seq;
        if serving.watchers.iter().filter(same).count() >= cx.limits.waits_per_lock_ref_max {
            return fail(id, exhausted_waits(cx), out);
        }
        if serving.watchers.len() >= cx.limits.calls_max {
            return fail(id, exhausted_calls(cx), out);
        }
        serving.open_call(cx, entry.seq);
        serving.watchers.push(Watcher {
            call: id,
            seq: entry.seq,
            position: Some(position),
        });
        let answer = Ok(Answer::Watching { lease });
        out.push(Effect::Answer { call: id, answer });
        // Until it may be answered HELD, nobody is ahead of the first one.
        out.push(Effect::Notify {
            call: id,
            status: EntryStatus::Waiting { position },
        });
    }
}

fn exhausted_calls(cx: &Context<'_>) -> KeyError {
    KeyError::Exhausted {
        what: "calls_per_key_max",
        limit: cx.limits.calls_max,
    }
}

fn exhausted_waits(cx: &Context<'_>) -> KeyError {
    KeyError::Exhausted {
        what: "waits_per_lock_ref_max",
        limit: cx.limits.waits_per_lock_ref_max,
    }
}
