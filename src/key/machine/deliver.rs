//! What became of a batch whose outcomes stand (I6): everybody who asked is answered.

use super::Machine;
use super::event::{Answer, CallError, Context, Effect, EntryRef, KeyError, Report, fail};
use super::holder::{Critical, Phase, Resume};
use super::intent::{Intent, Wish};
use super::take_over::refused;
use crate::key::Outcome;
use crate::lock::{EndedAs, Fence};

impl Machine {
    /// Answers a batch whose outcomes stand.
    pub(super) fn deliver(
        &mut self,
        cx: &Context<'_>,
        batch: Vec<(Intent, Outcome)>,
        out: &mut Vec<Effect>,
    ) {
        for (intent, outcome) in batch {
            self.deliver_one(cx, intent, outcome, out);
        }
    }

    fn deliver_one(
        &mut self,
        cx: &Context<'_>,
        intent: Intent,
        outcome: Outcome,
        out: &mut Vec<Effect>,
    ) {
        if let Outcome::Refused(refusal) = &outcome
            && let Wish::Create { .. } | Wish::Release { .. } | Wish::Evict { .. } = intent.what
        {
            if let Some(call) = intent.call {
                fail(call, intent.failed(refused(refusal)), out);
            }
            return;
        }
        let Intent {
            call,
            in_doubt,
            was_holder: ended_holder,
            what,
        } = intent;
        let answered: Result<Answer, CallError> = match (what, outcome) {
            (Wish::Create { entry, read_value }, Outcome::Created { seq, existed }) => {
                let Some(call) = call else { return };
                let entry = EntryRef {
                    seq,
                    tag: crate::lock::Tag::of(entry.request_id),
                    grant: None,
                };
                // That it found itself may be its own earlier try.
                let existed = existed && !in_doubt;
                return self.acquire(cx, call, entry, (false, read_value), existed, out);
            }
            (Wish::Release { .. }, Outcome::Released) => Ok(Answer::Released { already: false }),
            (Wish::Release { .. }, Outcome::Gone(EndedAs::Released)) => {
                Ok(Answer::Released { already: !in_doubt })
            }
            (Wish::Release { has_written, .. }, Outcome::Gone(end)) => Err(CallError {
                why: KeyError::Ended(end),
                may_have_written: has_written,
            }),
            (Wish::Evict { entry, reason, .. }, Outcome::Evicted { was_holder }) => {
                let end = EndedAs::Lost(reason);
                out.push(Effect::Report(Report::Evicted {
                    entry,
                    end,
                    was_holder,
                }));
                Ok(Answer::Forced {
                    already: false,
                    was_holder,
                })
            }
            (Wish::Evict { entry, reason, .. }, Outcome::Gone(end)) => {
                // By its own earlier try, or by another one.
                let is_own = in_doubt && end == EndedAs::Lost(reason);
                let was_holder = is_own && ended_holder;
                if is_own {
                    out.push(Effect::Report(Report::Evicted {
                        entry,
                        end,
                        was_holder,
                    }));
                }
                Ok(Answer::Forced {
                    already: !is_own,
                    was_holder,
                })
            }
            (Wish::Grant, Outcome::Refused(refusal)) => {
                return self.grant_refused(cx, &refused(&refusal), out);
            }
            (Wish::Extend { fence, .. }, Outcome::Refused(refusal)) => {
                return self.extend_refused(cx, fence, &refused(&refusal), out);
            }
            (Wish::Grant | Wish::Extend { .. }, _) => return,
            (_, _) => Err(KeyError::ChangingHome.into()),
        };
        if let Some(call) = call {
            let answer = answered;
            out.push(Effect::Answer { call, answer });
        }
    }

    /// No fence can be taken for the first entry: whoever asks for it learns so, and may ask again. Watchers wait on.
    fn grant_refused(&mut self, cx: &Context<'_>, why: &KeyError, out: &mut Vec<Effect>) {
        let Some(serving) = self.serving_mut() else {
            return;
        };
        let Some(first) = serving.state.first() else {
            return;
        };
        let seq = first.seq;
        serving.grant_again = Some(cx.now.plus(serving.claim_ttl(cx, first)));
        let asks: Vec<_> = serving.asks.extract_if(.., |a| a.seq == seq).collect();
        for ask in asks {
            self.fail_ask(cx, ask, why.clone(), out);
        }
    }

    /// The holder gets no more timestamps: what waits for them fails, and may be asked for again.
    fn extend_refused(
        &mut self,
        cx: &Context<'_>,
        fence: Fence,
        why: &KeyError,
        out: &mut Vec<Effect>,
    ) {
        let Some(holder) = self.holder_mut().filter(|h| h.fence == fence) else {
            return;
        };
        let Phase::Extending(resume) = holder.phase else {
            return;
        };
        match resume {
            Resume::Held { .. } => {
                holder.resume(resume);
                if holder.queued.iter().any(Critical::is_release) {
                    // Its put never began: the same call may come again (I11).
                    holder.end_last_put(false);
                }
                for critical in holder.queued.drain(..) {
                    fail(critical.call, why.clone(), out);
                }
            }
            Resume::Sync => self.pause_sync(cx, None, why, out),
        }
    }
}
