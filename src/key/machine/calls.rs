//! Calls to the key, checked against the knowledge of the home.

use super::Machine;
use super::context::Context;
use super::decided::{CommitDependency, Decided, Reply};
use super::event::{
    Answer, Call, CallError, CallId, Effect, EntryRef, EntryStatus, KeyError, fail,
};
use super::holder::CriticalKind;
use super::refusal::{exhausted_calls, exhausted_waits};
use super::released::PutOfRepeat;
use super::role::{Queued, Role};
use super::serving::{Ask, Serving, Watcher};
use super::value::Mutation;
use crate::lock::{EndedAs, Lookup, Seq};

impl Machine {
    pub(super) fn call(&mut self, cx: &Context<'_>, id: CallId, call: Call, out: &mut Vec<Effect>) {
        // A client that waits for the end of a hand-over keeps its entry meanwhile (I8).
        if let Role::HandingOver(serving, _) = &mut self.role
            && let Some(entry) = call.of_entry()
        {
            // An error is answered once the key is served again.
            let _ = serving.live(cx, entry, out);
        }
        match self.role {
            Role::Serving(_) => self.call_home(cx, id, call, out),
            // No answer before this replica is the home, nor during a hand-over.
            Role::Unread | Role::Taking(_) | Role::HandingOver(..) => {
                if self.backlog.len() < cx.limits.calls_max {
                    self.backlog.push_back(Queued { id, call });
                } else {
                    fail(id, exhausted_calls(cx), out);
                }
            }
        }
    }

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
            Call::Create { entry, read_value } => self.create(cx, id, (entry, read_value), out),
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
            } => self.critical(
                cx,
                (id, entry, call_no),
                CriticalKind::Put(value.into_value()),
                out,
            ),
            Call::Release {
                entry,
                call_no,
                put,
            } => self.release(cx, (id, entry, call_no), put.map(Mutation::into_value), out),
            Call::Watch { entry } => self.watch(cx, id, entry, out),
            Call::Renew { entry } => match serving.live(cx, entry, out) {
                Ok((_, lease)) => {
                    let answer = Ok(Answer::Renewed { lease });
                    out.push(Effect::Answer { call: id, answer });
                }
                Err(why) => serving.fail_of_entry(cx, (id, entry.seq), why, out),
            },
            Call::Force { seq, by, why } => self.force(cx, (id, seq), (by, why), out),
            Call::TakeOver { .. } | Call::Adopt { .. } => {
                let answer = Ok(Answer::Home(serving.home));
                out.push(Effect::Answer { call: id, answer });
            }
            Call::HandOver { to, if_idle } => {
                self.begin_hand_over(cx, id, (to, if_idle), out);
            }
        }
    }

    /// Answers the status of an entry: WAITING at once unless `wait` is set, HELD as soon as the grant may be answered.
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
            Err(why) => return serving.fail_of_entry(cx, (id, entry.seq), why, out),
        };
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
        serving.asks.push(Ask {
            call: id,
            seq: entry.seq,
            waits: wait,
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
        if serving.decided.len() >= cx.limits.calls_max {
            return fail(id, exhausted_calls(cx), out);
        }
        if serving.state.lookup(entry.seq, entry.tag) == Lookup::Ended(EndedAs::Released) {
            return serving.release_again(cx, (id, entry, call_no), put.is_some(), out);
        }
        if let Some(value) = put {
            let kind = CriticalKind::Release(value);
            return self.critical(cx, (id, entry, call_no), kind, out);
        }
        match serving.live(cx, entry, out) {
            Ok(_) => self.give_back(cx, (id, entry), (call_no, false), out),
            Err(why) => fail(id, why, out),
        }
    }

    fn watch(&mut self, cx: &Context<'_>, id: CallId, entry: EntryRef, out: &mut Vec<Effect>) {
        let Role::Serving(serving) = &mut self.role else {
            return;
        };
        let position = match serving.live(cx, entry, out) {
            Ok((position, _)) => position,
            Err(why) => return serving.fail_of_entry(cx, (id, entry.seq), why, out),
        };
        let same = |w: &&Watcher| w.seq == entry.seq;
        if serving.watchers.iter().filter(same).count() >= cx.limits.waits_per_lock_ref_max {
            return fail(id, exhausted_waits(cx), out);
        }
        if serving.watchers.len() >= cx.limits.calls_max {
            return fail(id, exhausted_calls(cx), out);
        }
        serving.watchers.push(Watcher {
            call: id,
            seq: entry.seq,
            position: Some(position),
        });
        let answer = Ok(Answer::Watching);
        out.push(Effect::Answer { call: id, answer });
        // The first entry is told position 0 until it may be told HELD.
        out.push(Effect::Notify {
            call: id,
            status: EntryStatus::Waiting { position },
        });
    }
}

impl Serving {
    /// Fails a call about an entry that is not live. A status call that met a release is answered once the row allows it.
    pub(super) fn fail_of_entry(
        &mut self,
        cx: &Context<'_>,
        (call, seq): (CallId, Seq),
        why: KeyError,
        out: &mut Vec<Effect>,
    ) {
        match why {
            KeyError::Releasing => self.answer_released(cx, call, seq, out),
            why => fail(call, why, out),
        }
    }

    /// Answers a repeated release: released already, unless it carries a put that the first one did not write at this home.
    fn release_again(
        &mut self,
        cx: &Context<'_>,
        (call, entry, call_no): (CallId, EntryRef, u64),
        has_put: bool,
        out: &mut Vec<Effect>,
    ) {
        let before = self.released.of_seq(entry.seq);
        if before.is_some_and(|before| before.tag != entry.tag) {
            return fail(call, KeyError::NeverIssued, out);
        }
        let put = before.map_or(PutOfRepeat::Unknown, |before| {
            before.put_of_repeat(entry.grant, call_no)
        });
        if has_put && put != PutOfRepeat::Written {
            let error = CallError {
                why: self.ended(cx, entry.seq, EndedAs::Released),
                may_have_written: put == PutOfRepeat::Unknown,
            };
            return fail(call, error, out);
        }
        self.decided.push(Decided {
            call: Some(call),
            reply: Reply::Released {
                already: true,
                has_written: has_put,
            },
            depends_on: CommitDependency::EndOf(entry.seq),
        });
    }
}
