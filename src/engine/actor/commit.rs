//! Group commit: commands are collected while a compare-and-swap is in flight, decided together, and
//! committed in the next one. An outcome that is not known is resolved before anybody learns of it (I6).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::super::activity::Cause;
use super::super::api::EngineError;
use super::super::inner::{Counters, Inner};
use super::intent::{EvictReply, Intent};
use super::outcome::no_fence;
use super::{Actor, Run};
use crate::lock::{CoreLimits, Evidence, KeyId, Outcome, State, decide, why_not_granted};
use crate::store::{StoreError, Swap};

/// More conflicts in a row make no longer pauses than this many (some 100 ms): each means that the key got on.
const CONFLICTS_COUNTED_MAX: u32 = 5;

/// What came of the operation in flight.
pub(super) enum StoreDone {
    Loaded {
        /// When it was begun.
        begun: Duration,
        /// Whether the key was settled first.
        settles: bool,
        /// The state; where the key has no row, the timestamp of a value it may have (I2).
        loaded: Result<(Option<State>, Option<u64>), StoreError>,
    },
    /// A compare-and-swap.
    Swapped {
        swap: Swap,
        old: Arc<State>,
        new: State,
        batch: Vec<(Intent, Option<Outcome>)>,
        commands: usize,
        /// When the first try was sent that may have had this outcome, by CLOCK_BOOTTIME.
        since: Duration,
    },
}

async fn load(inner: Arc<Inner>, id: Arc<KeyId>, settles: bool) -> StoreDone {
    let begun = inner.clock.boot();
    let loaded = async {
        let state = match settles {
            true => inner.store.load_settled(&id).await?,
            false => inner.store.load(&id).await?,
        };
        match state {
            Some(state) => Ok((Some(state), None)),
            None => {
                let cell = inner.store.read_data(&id).await?;
                Ok((None, cell.map(|cell| cell.timestamp)))
            }
        }
    };
    StoreDone::Loaded {
        begun,
        settles,
        loaded: loaded.await,
    }
}

impl Actor {
    /// Starts the next operation on the store, if there is something to do. True if what was asked could
    /// be answered without the store.
    pub(super) fn ask_store(&mut self, run: &mut Run) -> bool {
        // Between two reads that calls ask for, what is to be changed has its turn.
        let reads = self.stale && (!self.just_read || self.pending.is_empty());
        self.just_read = false;
        let Some(state) = self.state.clone().filter(|_| !reads) else {
            if self.stale || !self.backlog.is_empty() || !self.pending.is_empty() {
                self.awaiting = self.backlog.len();
                let inner = Arc::clone(&run.inner);
                run.store_op = Some(Box::pin(load(inner, Arc::clone(&self.id), self.disputed)));
            }
            return false;
        };
        let (now_us, core) = (run.inner.clock.wall_us(), run.inner.core());
        let may_grant = state.awaits_grant() && self.may_grant(&state, now_us, &core);
        if self.pending.is_empty() && !may_grant {
            self.remote_entries.sent_at = None;
            return false;
        }
        let (batch, commands) = self.next_batch(&state, run.inner.replica);
        let decision = decide(&state, &commands, now_us, &core);
        let mut outcomes = decision.outcomes.into_iter();
        let batch: Vec<_> = batch
            .into_iter()
            .map(|(intent, has_command)| {
                let outcome = if has_command { outcomes.next() } else { None };
                (intent, outcome)
            })
            .collect();
        if decision.state.version == state.version {
            self.remote_entries.sent_at = None;
            // As if it had been: there was nothing left to change.
            self.settle_unclaimed(&Swap::Applied);
            self.deliver(run, batch);
            return true;
        }
        let inner = Arc::clone(&run.inner);
        let id = Arc::clone(&self.id);
        let new = decision.state;
        let commands = commands.len();
        let now = inner.clock.boot();
        let since = *self.remote_entries.sent_at.get_or_insert(now);
        run.store_op = Some(Box::pin(async move {
            let swap = inner.store.compare_and_swap(&id, &state, &new).await;
            StoreDone::Swapped {
                swap,
                old: state,
                new,
                batch,
                commands,
                since,
            }
        }));
        false
    }

    /// Whether the head of the queue, which has no grant, can get one now; else tells who asks for it why not.
    fn may_grant(&mut self, state: &State, now_us: u64, core: &CoreLimits) -> bool {
        match why_not_granted(state, now_us, core) {
            Some(error) => {
                self.fail_grant_waiters(state.head, &no_fence(error));
                false
            }
            None => true,
        }
    }

    /// Takes in what came of the operation in flight.
    pub(super) fn store_done(&mut self, run: &mut Run, done: StoreDone) {
        match done {
            StoreDone::Loaded {
                begun,
                settles,
                loaded: Ok((state, past)),
            } => {
                let state = state.unwrap_or_default();
                self.tries = 0;
                if self.contradicts(run, &state) && !settles {
                    return;
                }
                self.stale = false;
                self.disputed = false;
                let cause = std::mem::replace(&mut self.read_cause, Cause::Call);
                self.past = past;
                let known = self.state.as_ref().map(|s| s.version);
                // A re-read beside a call may have shown more.
                if known.is_none_or(|known| known <= state.version) {
                    self.remote_entries.read_at = self.remote_entries.read_at.max(begun);
                    self.latest.met(known, &state);
                    self.adopt(run, state, cause);
                }
                self.notify_unnotified(run);
                let now = self.state.as_ref().map(|s| s.version);
                self.after_read(run, known != now);
                self.just_read = true;
                // What this read shows may be older than a call that came after it was begun.
                let awaiting = std::mem::take(&mut self.awaiting);
                for (at, msg) in std::mem::take(&mut self.backlog).into_iter().enumerate() {
                    self.take(run, msg, at < awaiting);
                }
            }
            StoreDone::Loaded {
                loaded: Err(error), ..
            } => {
                self.fail_callers(&error);
                self.pause(run);
            }
            StoreDone::Swapped {
                swap,
                old,
                new,
                batch,
                commands,
                since,
            } => {
                match swap {
                    Swap::Applied | Swap::Conflict(_) => {
                        self.remote_entries.read_at = self.remote_entries.read_at.max(since);
                    }
                    Swap::Unknown(_) | Swap::NotStarted(_) => {}
                }
                self.settle_unclaimed(&swap);
                self.swapped(run, swap, (old, new), batch, commands);
            }
        }
    }

    /// Whether a read shows another state than is known of its version. One of both never was, or the store lost what
    /// it had acknowledged: the key is settled before anything is done by either (I4).
    pub(super) fn contradicts(&mut self, run: &Run, read: &State) -> bool {
        let version = read.version;
        let known = self.state.as_deref();
        if !known.is_some_and(|known| known.version == version && known != read) {
            return false;
        }
        let log_throttle = &run.inner.log_throttles.contradiction;
        if let Some(times) = log_throttle.met(run.inner.clock.boot(), "") {
            tracing::error!(key = %self.id, version, times, "a read shows another state than is known of this version; settling the key");
        }
        self.stale = true;
        self.disputed = true;
        true
    }

    fn swapped(
        &mut self,
        run: &mut Run,
        swap: Swap,
        (old, new): (Arc<State>, State),
        batch: Vec<(Intent, Option<Outcome>)>,
        commands: usize,
    ) {
        // A re-read beside a call may have shown more than what the swap was decided on.
        let known = self.state.as_ref().map_or(0, |s| s.version);
        let counters = &run.inner.counters;
        match swap {
            Swap::Applied => {
                self.tries = 0;
                self.conflicts = 0;
                Counters::add(&counters.swaps, 1);
                Counters::add(&counters.commands, commands);
                let old = self.remote_entries.unnotified.take().unwrap_or(old);
                // A re-read beside a call may have shown it already, and more.
                if new.version > known {
                    self.changes_to(&new);
                    self.adopt(run, new, Cause::Change);
                }
                self.remote_entries.sent_at = None;
                self.deliver(run, batch);
                self.notify_homes(run, &old);
            }
            Swap::Conflict(current) => {
                Counters::add(&counters.conflicts, 1);
                self.remote_entries.sent_at = None;
                self.ask_again(batch, false);
                let current = current.unwrap_or_default();
                if current.version > known {
                    self.latest.met(Some(known), &current);
                    self.adopt(run, current, Cause::Call);
                } else {
                    self.contradicts(run, &current);
                }
                self.notify_unnotified(run);
                self.make_way(run);
            }
            Swap::Unknown(error) => {
                Counters::add(&counters.unknown, 1);
                let log_throttle = &run.inner.log_throttles.unknown_outcome;
                if let Some(times) = log_throttle.met(run.inner.clock.boot(), &error.to_string()) {
                    tracing::warn!(key = %self.id, %error, times, "the outcome of a compare-and-swap is unknown; reading the key");
                }
                self.ask_again(batch, true);
                self.remote_entries.unnotified.get_or_insert(old);
                self.stale = true;
                self.pause(run);
            }
            Swap::NotStarted(error) => {
                self.ask_again(batch, false);
                self.fail_callers(&error);
                self.pause(run);
            }
        }
    }

    /// Another replica changed the key. At first what it made of it is tried at once: it is as fresh as can be. After
    /// that this one waits a little, longer each time, and reads the key again: by what it knew before the pause it
    /// would never get through to a key that another one changes all the time.
    fn make_way(&mut self, run: &mut Run) {
        let conflicts = self.conflicts;
        self.conflicts = conflicts.saturating_add(1);
        if conflicts > 0 {
            let span = run.inner.backoff(conflicts.min(CONFLICTS_COUNTED_MAX));
            run.pause = Some(run.inner.clock.sleep(span));
        }
    }

    /// The pause has passed.
    pub(super) fn go_on(&mut self, run: &mut Run) {
        run.pause = None;
        // Not before: until now calls could be served by what is known.
        self.stale |= self.conflicts > 1;
    }

    /// Puts a batch back: each of it is decided again on the state that is met next.
    fn ask_again(&mut self, batch: Vec<(Intent, Option<Outcome>)>, unknown: bool) {
        for (mut intent, _) in batch.into_iter().rev() {
            if let Intent::Create { open, .. } = &mut intent {
                *open |= unknown;
            }
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
                Intent::Create {
                    create,
                    read_value,
                    reply,
                    open,
                    _room,
                } => {
                    drop(reply.send(Err(failed())));
                    if open {
                        let (reply, _) = oneshot::channel();
                        self.pending.push_back(Intent::Create {
                            create,
                            read_value,
                            reply,
                            open,
                            _room,
                        });
                    }
                }
                Intent::TakeOver {
                    reply: Some(reply), ..
                } => drop(reply.send(Err(failed()))),
                // Its caller learns of it and may ask again; the entry goes on being released.
                Intent::Release {
                    entry_ref,
                    wrote,
                    reply,
                } => {
                    let error = match wrote {
                        true => failed().with_write(),
                        false => failed(),
                    };
                    drop(reply.send(Err(error)));
                    if !self.is_releasing(entry_ref) {
                        let (reply, _) = oneshot::channel();
                        self.pending.push_back(Intent::Release {
                            entry_ref,
                            wrote,
                            reply,
                        });
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
                // It was to come after a take-over, which is not tried again: alone it would make a head of that entry.
                Intent::Evict {
                    reply: EvictReply::MembershipRead,
                    ..
                } => {}
                Intent::Evict { .. }
                | Intent::TakeOver { .. }
                | Intent::Extend { .. }
                | Intent::Settle(_) => self.pending.push_back(intent),
            }
        }
    }
}
