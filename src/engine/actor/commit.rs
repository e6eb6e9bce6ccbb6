//! Group commit: commands are collected while a compare-and-swap is under way, decided together, and
//! committed in the next one. An outcome that is not known is resolved before anybody hears of it (I6).

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::super::api::{EngineError, ForceReleased};
use super::super::inner::{Counters, Inner};
use super::holding::Holding;
use super::msg::{HeldReply, PlaceRef, Reply};
use super::{Actor, Run};
use crate::lock::{
    Command, Create, Evidence, Fence, KeyId, Outcome, Over, Refusal, ReplicaId, Seq, State, Tag,
    decide,
};
use crate::store::{StoreError, Swap};

/// How many commands go into one compare-and-swap.
const BATCH_MAX: usize = 256;

/// Who hears of an Evict.
pub(super) enum EvictReply {
    /// Nobody.
    None,
    /// Whoever closes a session.
    Settled(oneshot::Sender<()>),
    /// An operator.
    Force(Reply<ForceReleased>),
}

/// What the next compare-and-swap shall do. It becomes a command only when it is decided, from what is
/// known then; so after a Conflict nothing of the old state is left in it.
pub(super) enum Intent {
    Create {
        create: Box<Create>,
        read_value: bool,
        reply: HeldReply,
    },
    Release {
        place: PlaceRef,
        reply: Reply<bool>,
    },
    Evict {
        seq: Seq,
        tag: Tag,
        evidence: Evidence,
        reply: EvictReply,
    },
    TakeOver {
        seq: Seq,
        from_home: ReplicaId,
        from_fence: Fence,
    },
    Extend {
        seq: Seq,
        fence: Fence,
        past: Option<u64>,
    },
    /// Nothing; answered when all before it is done.
    Settle(oneshot::Sender<()>),
}

impl Intent {
    /// Whether it is to be done although nobody waits for it any longer: because it cleans up.
    fn is_wanted(&self) -> bool {
        match self {
            Intent::Create { reply, .. } => !reply.is_closed(),
            Intent::Evict { .. }
            | Intent::Release { .. }
            | Intent::TakeOver { .. }
            | Intent::Extend { .. }
            | Intent::Settle(_) => true,
        }
    }
}

/// What came of the operation under way.
pub(super) enum StoreDone {
    /// A load; where the key has no row, also the timestamp of a value it may have (I2).
    Loaded(Result<(Option<State>, Option<u64>), StoreError>),
    /// A compare-and-swap.
    Swapped {
        swap: Swap,
        new: State,
        batch: Vec<(Intent, Option<Outcome>)>,
        commands: usize,
    },
}

async fn load(inner: Arc<Inner>, id: Arc<KeyId>) -> StoreDone {
    let loaded = async {
        match inner.store.load(&id).await? {
            Some(state) => Ok((Some(state), None)),
            None => {
                let cell = inner.store.read_data(&id).await?;
                Ok((None, cell.map(|cell| cell.timestamp)))
            }
        }
    };
    StoreDone::Loaded(loaded.await)
}

impl Actor {
    /// Starts the next operation on the store, if there is something to do. True if what was asked could
    /// be answered without the store.
    pub(super) fn ask_store(&mut self, run: &mut Run) -> bool {
        let Some(state) = self.state.clone().filter(|_| !self.stale) else {
            if self.stale || !self.backlog.is_empty() || !self.pending.is_empty() {
                let inner = Arc::clone(&run.inner);
                run.store_op = Some(Box::pin(load(inner, Arc::clone(&self.id))));
            }
            return false;
        };
        if self.pending.is_empty() {
            return false;
        }
        let (batch, commands) = self.next_batch(&state, run.inner.replica);
        let decision = decide(
            &state,
            &commands,
            run.inner.clock.wall_us(),
            &run.inner.core,
        );
        let mut outcomes = decision.outcomes.into_iter();
        let batch: Vec<_> = batch
            .into_iter()
            .map(|(intent, has_command)| {
                let outcome = if has_command { outcomes.next() } else { None };
                (intent, outcome)
            })
            .collect();
        if decision.state.version == state.version {
            self.deliver(run, batch);
            return true;
        }
        let inner = Arc::clone(&run.inner);
        let id = Arc::clone(&self.id);
        let new = decision.state;
        let commands = commands.len();
        run.store_op = Some(Box::pin(async move {
            let swap = inner.store.compare_and_swap(&id, &state, &new).await;
            StoreDone::Swapped {
                swap,
                new,
                batch,
                commands,
            }
        }));
        false
    }

    /// The next intents, each with whether it made a command, and their commands.
    fn next_batch(
        &mut self,
        state: &State,
        replica: ReplicaId,
    ) -> (Vec<(Intent, bool)>, Vec<Command>) {
        let mut batch = Vec::new();
        let mut commands = Vec::new();
        let mut later = VecDeque::new();
        // A holder that is being taken over is released in a later batch, by the home it has then.
        let taken_over = self.is_taking_over(state.head).then_some(state.head);
        while batch.len() < BATCH_MAX
            && let Some(intent) = self.pending.pop_front()
        {
            if !intent.is_wanted() || self.was_claimed(&intent) {
                continue;
            }
            if let Intent::Release { place, .. } = &intent
                && Some(place.seq) == taken_over
            {
                later.push_back(intent);
                continue;
            }
            let command = self.command(state, &intent, replica);
            let has_command = command.is_some();
            commands.extend(command);
            batch.push((intent, has_command));
        }
        later.append(&mut self.pending);
        self.pending = later;
        (batch, commands)
    }

    /// Whether a holder that nobody had come for was claimed after all: that evidence stands no longer.
    fn was_claimed(&self, intent: &Intent) -> bool {
        let Intent::Evict {
            evidence: Evidence::Unclaimed { grant, .. },
            ..
        } = intent
        else {
            return false;
        };
        let holding = self.holding.as_ref();
        holding.is_some_and(|h| h.grant == *grant && h.claimed)
    }

    fn is_releasing(&self, of: PlaceRef) -> bool {
        let same = |i: &Intent| matches!(i, Intent::Release { place, .. } if *place == of);
        self.pending.iter().any(same)
    }

    /// Whether a TakeOver of this place is asked for.
    pub(super) fn is_taking_over(&self, place: Seq) -> bool {
        let of_place = |i: &Intent| matches!(i, Intent::TakeOver { seq, .. } if *seq == place);
        self.pending.iter().any(of_place)
    }

    fn command(&self, state: &State, intent: &Intent, replica: ReplicaId) -> Option<Command> {
        Some(match intent {
            Intent::Create { create, .. } => {
                let mut create = Create::clone(create);
                create.past = if state.version == 0 { self.past } else { None };
                Command::Create(create)
            }
            Intent::Release { place, .. } => {
                let holding = self.holding.as_ref().filter(|h| h.seq == place.seq);
                Command::Release {
                    seq: place.seq,
                    tag: place.tag,
                    home: replica,
                    grant: holding.map(|h| h.grant),
                    synced: holding.is_some_and(|h| h.synced),
                    open_write: holding.is_some_and(Holding::has_open_write),
                }
            }
            Intent::Evict {
                seq, tag, evidence, ..
            } => Command::Evict {
                seq: *seq,
                tag: *tag,
                evidence: evidence.clone(),
            },
            Intent::TakeOver {
                seq,
                from_home,
                from_fence,
            } => Command::TakeOver {
                seq: *seq,
                from_home: *from_home,
                from_fence: *from_fence,
                to_home: replica,
            },
            Intent::Extend { seq, fence, past } => Command::Extend {
                seq: *seq,
                home: replica,
                fence: *fence,
                past: *past,
            },
            Intent::Settle(_) => return None,
        })
    }

    /// Takes in what came of the operation under way.
    pub(super) fn store_done(&mut self, run: &mut Run, done: StoreDone) {
        match done {
            StoreDone::Loaded(Ok((state, past))) => {
                self.tries = 0;
                self.stale = false;
                self.past = past;
                self.adopt(run, state.unwrap_or_default());
                while let Some(msg) = self.backlog.pop_front() {
                    self.take(run, msg);
                }
            }
            StoreDone::Loaded(Err(error)) => {
                self.fail_callers(&error);
                self.pause(run);
            }
            StoreDone::Swapped {
                swap,
                new,
                batch,
                commands,
            } => self.swapped(run, swap, new, batch, commands),
        }
    }

    fn swapped(
        &mut self,
        run: &mut Run,
        swap: Swap,
        new: State,
        batch: Vec<(Intent, Option<Outcome>)>,
        commands: usize,
    ) {
        let counters = &run.inner.counters;
        match swap {
            Swap::Applied => {
                self.tries = 0;
                Counters::add(&counters.swaps, 1);
                Counters::add(&counters.commands, commands);
                self.adopt(run, new);
                self.deliver(run, batch);
            }
            Swap::Conflict(current) => {
                Counters::add(&counters.conflicts, 1);
                self.ask_again(batch);
                self.adopt(run, current.unwrap_or_default());
                self.pause(run);
            }
            Swap::Unknown(error) => {
                Counters::add(&counters.unknown, 1);
                tracing::warn!(key = %self.id, %error, "the outcome of a change is not known; looking it up");
                self.ask_again(batch);
                self.stale = true;
                self.pause(run);
            }
            Swap::NotStarted(error) => {
                self.ask_again(batch);
                self.fail_callers(&error);
                self.pause(run);
            }
        }
    }

    /// Puts a batch back: each of it is decided again on the state that is met next.
    fn ask_again(&mut self, batch: Vec<(Intent, Option<Outcome>)>) {
        for (intent, _) in batch.into_iter().rev() {
            self.pending.push_front(intent);
        }
    }

    /// Leaves the store alone for a moment, longer after each failure in a row.
    pub(super) fn pause(&mut self, run: &mut Run) {
        run.pause = Some(run.inner.clock.sleep(run.inner.backoff(self.tries)));
        self.tries = self.tries.saturating_add(1);
    }

    /// Tells those who wait that the store did not do it. What cleans up stays, and is tried again.
    fn fail_callers(&mut self, error: &StoreError) {
        let failed = || EngineError::Unavailable(error.to_string());
        self.fail_holder_calls(&failed());
        for msg in std::mem::take(&mut self.backlog) {
            if let Some(kept) = msg.fail(failed()) {
                self.backlog.push_back(kept);
            }
        }
        for intent in std::mem::take(&mut self.pending) {
            match intent {
                Intent::Create { reply, .. } => drop(reply.send(Err(failed()))),
                // Its caller hears of it and may ask again; the place goes on being released.
                Intent::Release { place, reply } => {
                    drop(reply.send(Err(failed())));
                    if !self.is_releasing(place) {
                        let (reply, _) = oneshot::channel();
                        self.pending.push_back(Intent::Release { place, reply });
                    }
                }
                Intent::Evict {
                    seq,
                    tag,
                    evidence: Evidence::Forced { .. },
                    reply: EvictReply::Force(reply),
                } => {
                    tracing::debug!(key = %self.id, %seq, %tag, "a forced release was not started");
                    drop(reply.send(Err(failed())));
                }
                Intent::Evict { .. }
                | Intent::TakeOver { .. }
                | Intent::Extend { .. }
                | Intent::Settle(_) => self.pending.push_back(intent),
            }
        }
    }

    /// Answers a batch whose outcomes stand.
    fn deliver(&mut self, run: &mut Run, batch: Vec<(Intent, Option<Outcome>)>) {
        for (intent, outcome) in batch {
            match intent {
                Intent::Create {
                    read_value,
                    reply,
                    create: _,
                } => match outcome {
                    Some(Outcome::Created(created)) => {
                        self.created(run, created, read_value, reply);
                    }
                    other => drop(reply.send(Err(unexpected(other)))),
                },
                Intent::Release { reply, .. } => {
                    let answer = match outcome {
                        Some(Outcome::Released(_)) => Ok(false),
                        Some(Outcome::Gone(Over::Released)) => Ok(true),
                        other => Err(unexpected(other)),
                    };
                    drop(reply.send(answer));
                }
                Intent::Evict { reply, .. } => match reply {
                    EvictReply::None => {}
                    EvictReply::Settled(reply) => drop(reply.send(())),
                    EvictReply::Force(reply) => {
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
                Intent::TakeOver { seq, .. } => {
                    if let Some(Outcome::Refused(refusal)) = outcome {
                        tracing::warn!(key = %self.id, %seq, ?refusal, "a take-over was refused");
                        if self.holding.as_ref().is_none_or(|h| h.seq != seq) {
                            // Whoever waits for it would wait for ever; it is tried again when asked for.
                            let error = unexpected(Some(Outcome::Refused(refusal)));
                            self.fail_let_ins(seq, &error);
                        }
                    }
                }
                Intent::Extend { seq, fence, .. } => self.extended(run, seq, fence, outcome),
                Intent::Settle(reply) => drop(reply.send(())),
            }
        }
    }
}

/// What a caller hears of an outcome that is no success.
pub(super) fn unexpected(outcome: Option<Outcome>) -> EngineError {
    match outcome {
        Some(Outcome::Gone(over)) => EngineError::Over(over),
        Some(Outcome::Refused(refusal)) => match refusal {
            Refusal::QueueFull { places_max } => EngineError::Exhausted {
                what: "places_per_key_max",
                limit: places_max as u64,
            },
            Refusal::SeqUsedUp => {
                EngineError::KeyUsedUp("the numbers of this key are used up".to_owned())
            }
            Refusal::Fence(error) => EngineError::KeyUsedUp(error.to_string()),
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
