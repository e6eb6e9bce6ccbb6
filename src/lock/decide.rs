//! The rules: what a batch of commands makes of a state.

use std::sync::Arc;

use super::command::{Command, Create, Created, Evidence, Outcome, Refusal, Released};
use super::fence::{CoreLimits, Fence, FenceError, next_fence};
use super::lock_ref::Tag;
use super::state::{
    EndReason, EndedAs, EndedEntry, Entry, Liveness, Lookup, ReplicaId, Seq, State,
};

/// What a batch of commands makes of a state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The state after all of them, one version up if any of them changed it.
    pub state: State,
    /// One outcome a command, in their order. Each tells of the state at its turn: a later command of the
    /// batch may have ended the same entry again, so what holds now is asked of `state`.
    pub outcomes: Vec<Outcome>,
}

/// Decides commands one after the other on a state: one batch, one new state, one compare-and-swap.
///
/// `now_us` is the wall clock in microseconds since 1970; it only moves fences forward (I2). After a
/// Conflict the caller decides every command again on the state that it met. A batch gives what its
/// commands give one by one, but for an entry that becomes holder and is released within it: nobody was granted the
/// lock, so that leaves like a waiter.
///
/// The end of a holder never waits for a fence of the next one: where none can be taken the head of the queue has no
/// grant, and gets it with the next command that changes anything, or an empty batch, by whichever replica can.
pub fn decide(state: &State, commands: &[Command], now_us: u64, limits: &CoreLimits) -> Decision {
    let mut batch = Batch {
        holder_before: state.holder().map(|e| e.seq),
        state: state.clone(),
        changed: false,
        now_us,
        limits,
    };
    let outcomes = commands.iter().map(|c| batch.one(c)).collect();
    if commands.is_empty() {
        batch.grant_head();
    }
    if batch.changed {
        // 2^64 changes of one key cannot be reached: at 60,000 a second it takes ten million years.
        batch.state.version = batch.state.version.saturating_add(1);
    }
    Decision {
        state: batch.state,
        outcomes,
    }
}

/// Why the head of the queue has no grant and cannot get one; `None` if it has, or can, or there is none.
pub fn why_not_granted(state: &State, now_us: u64, limits: &CoreLimits) -> Option<FenceError> {
    let taken = || {
        let (fence, width) = (state.fence, state.width);
        next_fence(fence, width, limits.width_min, now_us, None, limits)
    };
    state.awaits_grant().then(taken)?.err()
}

struct Batch<'a> {
    /// The holder when the batch began.
    holder_before: Option<Seq>,
    state: State,
    changed: bool,
    now_us: u64,
    limits: &'a CoreLimits,
}

impl Batch<'_> {
    fn one(&mut self, command: &Command) -> Outcome {
        let outcome = match command {
            Command::Create(create) => self.create(create),
            Command::Release {
                seq,
                tag,
                home,
                grant,
                synced,
                open_write,
            } => self.release(*seq, *tag, *home, *grant, *synced, *open_write),
            Command::Evict { seq, tag, evidence } => self.evict(*seq, *tag, evidence),
            Command::TakeOver {
                seq,
                from_home,
                from_fence,
                from_epoch,
                to_home,
            } => self.take_over(*seq, *from_home, *from_fence, *from_epoch, *to_home),
            Command::Extend {
                seq,
                home,
                fence,
                past,
            } => self.extend(*seq, *home, *fence, *past),
        };
        if outcome.is_ok() && self.changed {
            self.grant_head();
        }
        outcome.unwrap_or_else(Outcome::Refused)
    }

    /// Gives the head of the queue a grant if it has none, and one can be taken.
    fn grant_head(&mut self) {
        if self.state.awaits_grant()
            && let Ok(fence) = self.new_fence(self.limits.width_min, None)
        {
            self.grant(fence);
            self.changed = true;
        }
    }

    fn create(&mut self, create: &Create) -> Result<Outcome, Refusal> {
        let same = |e: &&Arc<Entry>| e.request_id == create.request_id;
        if let Some(entry) = self.state.entries.iter().find(same) {
            return match create.differs_from(entry) {
                Some(field) => Err(Refusal::RequestMismatch { field }),
                None => Ok(Outcome::Created(Created {
                    seq: entry.seq,
                    existed: true,
                })),
            };
        }
        if self.state.entries.len() >= self.limits.entries_max {
            return Err(Refusal::QueueFull {
                entries_max: self.limits.entries_max,
            });
        }
        let seq = self.state.next;
        if seq > Seq::LAST {
            return Err(Refusal::SeqUsedUp);
        }
        if self.state.entries.is_empty() {
            let fence = self.new_fence(self.limits.width_min, create.past)?;
            self.grant(fence);
        }
        self.state.next = Seq(seq.0 + 1);
        self.state.entries.push_back(Arc::new(Entry {
            seq,
            mode: create.mode,
            request_id: create.request_id,
            liveness: create.liveness,
            epoch: 0,
            home: create.home,
            identity: create.identity.clone(),
            owner: create.owner.clone(),
            created_at_ms: create.created_at_ms,
        }));
        self.move_head();
        self.changed = true;
        Ok(Outcome::Created(Created {
            seq,
            existed: false,
        }))
    }

    fn release(
        &mut self,
        seq: Seq,
        tag: Tag,
        home: ReplicaId,
        grant: Option<Fence>,
        synced: bool,
        open_write: bool,
    ) -> Result<Outcome, Refusal> {
        let at = match self.live(seq, tag)? {
            Ok(at) => at,
            Err(ended) => return Ok(Outcome::Gone(ended)),
        };
        // What became holder within this batch holds the key in no committed state: nobody was granted the lock
        // (I4), so it leaves like a waiter, whoever asks.
        if self.holder_before != Some(seq) {
            self.end(at);
            return Ok(Outcome::Released(Released {
                was_holder: false,
                clean: true,
            }));
        }
        // The holder may have written: only its home, with the grant it was granted the lock with, knows what (I7).
        let from_home = self.state.holder().is_some_and(|e| e.home == home);
        let clean = from_home && grant == Some(self.state.grant);
        self.end(at);
        if !clean {
            self.state.unsynced = true;
            self.remember(seq, tag, EndReason::Foreign);
        } else if open_write {
            self.state.unsynced = true;
        } else if synced {
            self.state.unsynced = false;
        }
        Ok(Outcome::Released(Released {
            was_holder: true,
            clean,
        }))
    }

    fn evict(&mut self, seq: Seq, tag: Tag, evidence: &Evidence) -> Result<Outcome, Refusal> {
        let at = match self.live(seq, tag)? {
            Ok(at) => at,
            Err(ended) => return Ok(Outcome::Gone(ended)),
        };
        let Some(entry) = self.state.entries.get(at) else {
            return Err(Refusal::NeverIssued);
        };
        let holds = match evidence {
            Evidence::Silent { epoch } => {
                matches!(entry.liveness, Liveness::Own { .. }) && entry.epoch == *epoch
            }
            Evidence::SessionEnded(session) => entry.liveness == Liveness::Session(*session),
            Evidence::Unclaimed { home, grant } => {
                self.state.is_holder(seq) && entry.home == *home && self.state.grant == *grant
            }
            Evidence::Forced { .. } => true,
        };
        if !holds {
            return Err(Refusal::EvidenceGone);
        }
        let was_holder = self.state.is_holder(seq);
        self.end(at);
        if was_holder {
            self.state.unsynced = true;
        }
        self.remember(seq, tag, evidence.reason());
        Ok(Outcome::Evicted { was_holder })
    }

    fn take_over(
        &mut self,
        seq: Seq,
        from_home: ReplicaId,
        from_fence: Fence,
        from_epoch: u32,
        to_home: ReplicaId,
    ) -> Result<Outcome, Refusal> {
        let Some(at) = self.state.position(seq) else {
            return Ok(Outcome::Gone(self.gone(seq)?));
        };
        let Some(entry) = self.state.entries.get(at).cloned() else {
            return Err(Refusal::NeverIssued);
        };
        // Only a TakeOver raises the epoch: an earlier try of this command, of then unknown outcome, was
        // applied. (Or another one to the same home, which serves as well.)
        let of_waiter = from_fence == Fence::NONE;
        if entry.home == to_home
            && entry.epoch > from_epoch
            && (of_waiter || self.state.grant > from_fence)
        {
            return Ok(Outcome::TakenOver);
        }
        let holds = self.state.is_holder(seq);
        if holds && of_waiter {
            return Err(Refusal::IsHolder);
        }
        if entry.home != from_home || entry.epoch != from_epoch || holds == of_waiter {
            return Err(Refusal::Overtaken);
        }
        if holds {
            if self.state.fence != from_fence {
                return Err(Refusal::Overtaken);
            }
            let fence = self.new_fence(self.limits.width_min, None)?;
            self.grant(fence);
            self.state.unsynced = true;
        }
        let mut entry = Entry::clone(&entry);
        entry.home = to_home;
        // As with version: one change a step, so it cannot be reached.
        entry.epoch = entry.epoch.saturating_add(1);
        if let Some(slot) = self.state.entries.get_mut(at) {
            *slot = Arc::new(entry);
        }
        self.changed = true;
        Ok(Outcome::TakenOver)
    }

    fn extend(
        &mut self,
        seq: Seq,
        home: ReplicaId,
        fence: Fence,
        past: Option<u64>,
    ) -> Result<Outcome, Refusal> {
        if self.state.position(seq).is_none() {
            return Ok(Outcome::Gone(self.gone(seq)?));
        }
        if !self.state.is_holder(seq) {
            return Err(Refusal::NotHolder);
        }
        if self.state.entries.front().map(|e| e.home) != Some(home) {
            return Err(Refusal::Overtaken);
        }
        // Below the grant is a fence from before a TakeOver: its writer has ended, be it at the same home (I10).
        if fence < self.state.grant || fence > self.state.fence {
            return Err(Refusal::Overtaken);
        }
        if fence < self.state.fence {
            return Ok(Outcome::Extended);
        }
        let width = self
            .state
            .width
            .saturating_mul(8)
            .min(self.limits.width_max)
            .max(self.limits.width_min);
        self.state.fence = self.new_fence(width, past)?;
        self.state.width = width;
        self.changed = true;
        Ok(Outcome::Extended)
    }

    /// The index of a live entry, or how it ended.
    fn live(&self, seq: Seq, tag: Tag) -> Result<Result<usize, EndedAs>, Refusal> {
        match self.state.lookup(seq, tag) {
            Lookup::Live(at) => Ok(Ok(at)),
            Lookup::Ended(ended) => Ok(Err(ended)),
            Lookup::NeverIssued => Err(Refusal::NeverIssued),
        }
    }

    /// How an entry that is not live ended, where its tag is not known.
    fn gone(&self, seq: Seq) -> Result<EndedAs, Refusal> {
        if seq < Seq::FIRST || seq >= self.state.next {
            return Err(Refusal::NeverIssued);
        }
        Ok(self.state.how_ended(seq))
    }

    /// Takes an entry out of the queue. If it was the holder's, the next one becomes holder, now or once a fence can be
    /// taken for it.
    fn end(&mut self, at: usize) {
        self.state.entries.remove(at);
        if at == 0 {
            self.state.grant = Fence::NONE;
            self.move_head();
        }
        self.changed = true;
    }

    fn new_fence(&self, width: u32, past: Option<u64>) -> Result<Fence, Refusal> {
        next_fence(
            self.state.fence,
            self.state.width,
            width,
            self.now_us,
            past,
            self.limits,
        )
        .map_err(Refusal::Fence)
    }

    /// A new grant: a fence of its own, its slot at the least width.
    fn grant(&mut self, fence: Fence) {
        self.state.grant = fence;
        self.state.fence = fence;
        self.state.width = self.limits.width_min;
    }

    fn move_head(&mut self) {
        self.state.head = self
            .state
            .entries
            .front()
            .map_or(self.state.next, |e| e.seq);
    }

    fn remember(&mut self, seq: Seq, tag: Tag, reason: EndReason) {
        let entry = EndedEntry { seq, tag, reason };
        self.state.ended.push(entry, self.limits.ended_max);
    }
}

#[cfg(test)]
mod tests;
