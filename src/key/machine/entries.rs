//! Entries come and go. The home decides at once, and answers as soon as the row allows it (I6): with write-through after the commit,
//! with write-back within the reserve of the row.

use std::time::Duration;

use super::Machine;
use super::context::Context;
use super::decided::{CommitDependency, Decided, Reply};
use super::event::{Answer, CallError, CallId, Effect, EntryRef, KeyError, Report, fail};
use super::refusal::{exhausted_calls, refused};
use super::released::{LastWrite, ReleasedEntry};
use super::role::Role;
use super::serving::Serving;
use crate::key::{Command, NewEntry, Outcome, WritesOfHolder};
use crate::lock::{EndReason, EndedAs, Fence, Seq};

/// The longest pause before a grant refused for want of a fence is tried again: the queue behind waits, too.
const GRANT_AGAIN_MAX: Duration = Duration::from_secs(5);

impl Machine {
    /// Adds an entry, or finds that of the same request.
    pub(super) fn create(
        &mut self,
        cx: &Context<'_>,
        call: CallId,
        (new, read_value): (Box<NewEntry>, bool),
        out: &mut Vec<Effect>,
    ) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        if serving.decided.len() >= cx.limits.calls_max {
            return fail(call, exhausted_calls(cx), out);
        }
        let tag = new.tag;
        if let Some(released) = serving.released.of_tag(tag, cx.now) {
            let seq = released.seq;
            return serving.answer_released(cx, call, seq, out);
        }
        match serving.apply(cx, &Command::Create(*new), out) {
            Outcome::Created { seq, existed } => {
                let grant = None;
                let entry = EntryRef { seq, tag, grant };
                serving.decided.push(Decided {
                    call: Some(call),
                    reply: Reply::Created {
                        entry,
                        read_value,
                        existed,
                    },
                    depends_on: CommitDependency::Seq(seq),
                });
            }
            Outcome::Gone(end) => fail(call, KeyError::Ended(end), out),
            Outcome::Refused(refusal) => fail(call, refused(&refusal), out),
            _ => fail(call, KeyError::ChangingHome, out),
        }
    }

    /// Releases an entry at its client's wish. No later call of this lockRef is accepted (I11).
    pub(super) fn give_back(
        &mut self,
        cx: &Context<'_>,
        (call, entry): (CallId, EntryRef),
        (call_no, has_written): (u64, bool),
        out: &mut Vec<Effect>,
    ) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let holder = serving.holder.as_mut().filter(|h| h.seq == entry.seq);
        let mut writes = WritesOfHolder::NONE;
        let (mut grant, mut put) = (Fence::NONE, LastWrite::None);
        if let Some(holder) = holder {
            writes = holder.writes_of_holder();
            (grant, put) = (holder.grant, holder.writes.of_other_release());
            // Queued calls must not land after the release is decided.
            for queued in holder.queued.drain(..) {
                let refusal = queued.kind.refusal(KeyError::Releasing);
                fail(queued.call, refusal, out);
            }
        }
        if has_written {
            put = LastWrite::Written(call_no);
        }
        let asks: Vec<_> = serving
            .asks
            .extract_if(.., |ask| ask.seq == entry.seq)
            .collect();
        let ttl = serving.state.entry(entry.seq);
        let ttl = ttl.map_or(Duration::ZERO, |entry| serving.claim_ttl(cx, entry));
        let command = Command::Release {
            seq: entry.seq,
            tag: entry.tag,
            writes,
        };
        let already = match serving.apply(cx, &command, out) {
            Outcome::Released => {
                let released = ReleasedEntry {
                    seq: entry.seq,
                    tag: entry.tag,
                    grant,
                    put,
                    until: cx.now.plus(ttl),
                };
                serving.released.push(released, cx.now);
                false
            }
            Outcome::Gone(EndedAs::Released) => true,
            Outcome::Gone(end) => {
                let why = KeyError::Ended(end);
                let may_have_written = has_written;
                let error = CallError {
                    why,
                    may_have_written,
                };
                return fail(call, error, out);
            }
            Outcome::Refused(refusal) => return fail(call, refused(&refusal), out),
            _ => return fail(call, KeyError::ChangingHome, out),
        };
        serving.decided.push(Decided {
            call: Some(call),
            reply: Reply::Released {
                already,
                has_written,
            },
            depends_on: CommitDependency::EndOf(entry.seq),
        });
        for ask in asks {
            serving.answer_released(cx, ask.call, entry.seq, out);
        }
    }

    /// Ends an entry for an operator.
    pub(super) fn force(
        &mut self,
        cx: &Context<'_>,
        (call, seq): (CallId, Seq),
        (by, why): (Box<str>, Box<str>),
        out: &mut Vec<Effect>,
    ) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        if serving.decided.len() >= cx.limits.calls_max {
            return fail(call, exhausted_calls(cx), out);
        }
        let Some(tag) = serving.state.entry(seq).map(|entry| entry.tag) else {
            return match serving.state.has_issued(seq) {
                true => serving.decided.push(forced(call, seq, (true, false))),
                false => fail(call, KeyError::NeverIssued, out),
            };
        };
        let grant = None;
        let entry = EntryRef { seq, tag, grant };
        let reason = EndReason::Forced { by, why };
        match serving.evict(cx, entry, (reason, None), out) {
            Outcome::Evicted { was_holder } => {
                serving.decided.push(forced(call, seq, (false, was_holder)));
            }
            Outcome::Refused(refusal) => fail(call, refused(&refusal), out),
            _ => fail(call, KeyError::ChangingHome, out),
        }
    }

    /// Answers the decisions that the row allows; `true` if there were any.
    pub(super) fn answer_decided(&mut self, cx: &Context<'_>, out: &mut Vec<Effect>) -> bool {
        let Some(serving) = self.serving_mut() else {
            return false;
        };
        serving.detach_allowed(cx.commit.mode, out);
        let (row, mode) = (&serving.row, cx.commit.mode);
        let allowed = |decided: &mut Decided| match decided.depends_on {
            CommitDependency::Seq(seq) => row.allows_seq(seq),
            CommitDependency::EndOf(seq) => row.allows_end(seq, mode),
            CommitDependency::Recorded(seq) => row.is_recorded(seq),
        };
        let allowed: Vec<Decided> = serving.decided.extract_if(.., allowed).collect();
        let is_any = !allowed.is_empty();
        for decided in allowed {
            let Some(call) = decided.call else {
                continue;
            };
            let answer = match decided.reply {
                Reply::Created {
                    entry,
                    read_value,
                    existed,
                } => {
                    self.acquire(cx, call, entry, (false, read_value), existed, out);
                    continue;
                }
                Reply::Ended => {
                    fail(call, KeyError::Ended(EndedAs::Released), out);
                    continue;
                }
                Reply::Released { already, .. } => Answer::Released { already },
                Reply::Forced {
                    already,
                    was_holder,
                } => Answer::Forced {
                    already,
                    was_holder,
                },
            };
            let answer = Ok(answer);
            out.push(Effect::Answer { call, answer });
        }
        is_any
    }

    /// Grants the key to a first entry without a grant. If no fence can be taken, the next try comes after a pause, or with the
    /// next call of the entry.
    pub(super) fn grant_first(&mut self, cx: &Context<'_>, out: &mut Vec<Effect>) {
        let Role::Serving(serving) = &mut self.role else {
            return;
        };
        let Some(first) = serving.state.first() else {
            return;
        };
        let seq = first.seq;
        let is_wanted = serving.state.grant == Fence::NONE
            && (serving.grant_again.is_none() || serving.asks.iter().any(|ask| ask.seq == seq));
        if !is_wanted {
            return;
        }
        if let Outcome::Refused(refusal) = serving.apply(cx, &Command::Grant, out) {
            self.grant_refused(cx, &refused(&refusal), out);
        }
    }

    /// No fence for the first entry: its callers learn so and may ask again. Watchers wait on.
    fn grant_refused(&mut self, cx: &Context<'_>, why: &KeyError, out: &mut Vec<Effect>) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let Some(first) = serving.state.first() else {
            return;
        };
        let seq = first.seq;
        let pause = serving.claim_ttl(cx, first).min(GRANT_AGAIN_MAX);
        serving.grant_again = Some(cx.now.plus(pause));
        let asks: Vec<_> = serving.asks.extract_if(.., |a| a.seq == seq).collect();
        for ask in asks {
            self.fail_ask(cx, ask, why.clone(), out);
        }
    }
}

/// The answer to an operator waits until the row has the end: the next home must know of it, too.
fn forced(call: CallId, seq: Seq, (already, was_holder): (bool, bool)) -> Decided {
    Decided {
        call: Some(call),
        reply: Reply::Forced {
            already,
            was_holder,
        },
        depends_on: CommitDependency::Recorded(seq),
    }
}

impl Serving {
    /// Tells a caller that its entry was released, once the row allows it.
    pub fn answer_released(
        &mut self,
        cx: &Context<'_>,
        call: CallId,
        seq: Seq,
        out: &mut Vec<Effect>,
    ) {
        if self.row.allows_end(seq, cx.commit.mode) {
            fail(call, KeyError::Ended(EndedAs::Released), out);
        } else if self.decided.len() >= cx.limits.calls_max {
            fail(call, exhausted_calls(cx), out);
        } else {
            self.decided.push(Decided {
                call: Some(call),
                reply: Reply::Ended,
                depends_on: CommitDependency::EndOf(seq),
            });
        }
    }

    /// Ends an entry for any reason but its client's wish.
    pub fn evict(
        &mut self,
        cx: &Context<'_>,
        entry: EntryRef,
        (reason, only_under): (EndReason, Option<Fence>),
        out: &mut Vec<Effect>,
    ) -> Outcome {
        let command = Command::Evict {
            seq: entry.seq,
            tag: entry.tag,
            reason: reason.clone(),
            only_under,
        };
        let outcome = self.apply(cx, &command, out);
        if let Outcome::Evicted { was_holder } = outcome {
            let end = EndedAs::Lost(reason);
            out.push(Effect::Report(Report::Evicted {
                entry,
                end,
                was_holder,
            }));
        }
        outcome
    }
}
