//! What callers learn of a batch whose outcomes stand.

use super::super::api::{EngineError, ForceReleased, describe_end};
use super::intent::{EvictReply, Intent};
use super::{Actor, Run};
use crate::lock::{EndReason, EndedAs, Evidence, FenceError, LockRef, Outcome, Refusal, Seq, Tag};

impl Actor {
    /// Answers a batch whose outcomes stand.
    pub(super) fn deliver(&mut self, run: &mut Run, batch: Vec<(Intent, Option<Outcome>)>) {
        for (intent, outcome) in batch {
            match intent {
                Intent::Create {
                    read_value,
                    reply,
                    create: _,
                    open: _,
                    _room,
                } => match outcome {
                    Some(Outcome::Created(created)) => {
                        self.created(run, created, read_value, reply);
                    }
                    other => drop(reply.send(Err(unexpected(other)))),
                },
                Intent::Release { reply, wrote, .. } => {
                    let answer = match outcome {
                        Some(Outcome::Released(_)) => Ok(false),
                        Some(Outcome::Gone(EndedAs::Released)) => Ok(true),
                        // Released through another replica. (The next holder may have read before a put of this one.)
                        Some(Outcome::Gone(EndedAs::Lost(EndReason::Foreign))) if !wrote => {
                            Ok(true)
                        }
                        other => Err(match wrote {
                            true => unexpected(other).with_write(),
                            false => unexpected(other),
                        }),
                    };
                    drop(reply.send(answer));
                }
                Intent::Evict {
                    seq,
                    tag,
                    evidence,
                    reply,
                } => match reply {
                    EvictReply::None | EvictReply::MembershipRead => {
                        self.log_eviction(seq, tag, &evidence, outcome.as_ref())
                    }
                    EvictReply::Settled(reply) => {
                        self.log_eviction(seq, tag, &evidence, outcome.as_ref());
                        // Nobody listens where the session's end is tried again.
                        let _ = reply.send(());
                    }
                    EvictReply::Force(reply) => {
                        self.log_eviction(seq, tag, &evidence, outcome.as_ref());
                        let answer = match outcome {
                            Some(Outcome::Evicted { was_holder }) => Ok(ForceReleased {
                                already_released: false,
                                was_holder,
                            }),
                            Some(Outcome::Gone(_)) => Ok(ForceReleased {
                                already_released: true,
                                was_holder: false,
                            }),
                            other => Err(unexpected(other)),
                        };
                        drop(reply.send(answer));
                    }
                },
                Intent::TakeOver {
                    reply: Some(reply), ..
                } => {
                    let answer = match outcome {
                        Some(Outcome::TakenOver) => Ok(true),
                        Some(Outcome::Refused(
                            Refusal::Overtaken | Refusal::IsHolder | Refusal::NotHolder,
                        )) => Ok(false),
                        other => Err(unexpected(other)),
                    };
                    drop(reply.send(answer));
                }
                Intent::TakeOver {
                    seq, reply: None, ..
                } => {
                    if let Some(Outcome::Refused(refusal)) = outcome {
                        tracing::warn!(key = %self.id, %seq, ?refusal, "a take-over was refused");
                        if self.holding.as_ref().is_none_or(|h| h.seq != seq) {
                            // Whoever waits for it would wait for ever; it is tried again when asked for.
                            let error = unexpected(Some(Outcome::Refused(refusal)));
                            self.fail_grant_waiters(seq, &error);
                        }
                    }
                }
                Intent::Extend { seq, fence, .. } => self.extended(run, seq, fence, outcome),
                Intent::Settle(reply) => drop(reply.send(())),
            }
        }
    }
}

impl Actor {
    /// Says that a lockRef was taken away: why a job lost its lock must be found in the log.
    fn log_eviction(&self, seq: Seq, tag: Tag, evidence: &Evidence, outcome: Option<&Outcome>) {
        let was_holder = match outcome {
            Some(Outcome::Evicted { was_holder }) => Some(*was_holder),
            // Ended so before: by a change, perhaps, of which no answer came.
            Some(Outcome::Gone(EndedAs::Lost(reason @ EndReason::Forced { .. })))
                if *reason == evidence.reason() =>
            {
                None
            }
            _ => return,
        };
        let lock_ref = LockRef {
            table: self.id.table.clone(),
            key: self.id.key.clone(),
            seq,
            tag,
            grant: None,
        };
        if let Evidence::Forced { by, why } = evidence {
            tracing::warn!(%lock_ref, %by, %why, was_holder, "an operator ended a lockRef");
            return;
        }
        let why = describe_end(&EndedAs::Lost(evidence.reason()));
        if was_holder == Some(true) {
            tracing::info!(%lock_ref, why, "a holder lost its lock");
        } else {
            tracing::debug!(%lock_ref, why, "a waiter lost its entry");
        }
    }
}

/// What a caller hears where no fence could be taken.
pub(super) fn no_fence(error: FenceError) -> EngineError {
    match error {
        FenceError::ClockOff => EngineError::ClockOff(error),
        FenceError::UsedUp
        | FenceError::TooFarAhead { .. }
        | FenceError::PastTooFarAhead { .. } => EngineError::KeyUsedUp(error.to_string()),
    }
}

/// What a caller learns of an outcome that is no success.
pub(super) fn unexpected(outcome: Option<Outcome>) -> EngineError {
    match outcome {
        Some(Outcome::Gone(ended)) => EngineError::Ended(ended),
        Some(Outcome::Refused(refusal)) => match refusal {
            Refusal::QueueFull { entries_max } => EngineError::Exhausted {
                what: "entries_per_key_max",
                limit: entries_max as u64,
            },
            Refusal::SeqUsedUp => {
                EngineError::KeyUsedUp("the numbers of this key are used up".to_owned())
            }
            Refusal::Fence(error) => no_fence(error),
            Refusal::RequestMismatch { field } => EngineError::RequestMismatch { field },
            Refusal::NeverIssued => EngineError::NeverIssued,
            Refusal::EvidenceGone | Refusal::Overtaken | Refusal::IsHolder | Refusal::NotHolder => {
                EngineError::Unavailable("the lock changed hands meanwhile".to_owned())
            }
        },
        Some(
            Outcome::Created(_)
            | Outcome::Released(_)
            | Outcome::Evicted { .. }
            | Outcome::TakenOver
            | Outcome::Extended,
        )
        | None => EngineError::Unavailable("internal: an outcome of another command".to_owned()),
    }
}
