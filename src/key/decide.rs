//! The rules: a batch of commands changes the state of a key.

use std::sync::Arc;

use super::command::{Command, NewEntry, Outcome, Refusal, WritesOfHolder};
use super::state::{Entry, Home, KeyState};
use crate::lock::{
    CoreLimits, EndReason, EndedEntry, Fence, Lookup, ReplicaId, Seq, Tag, next_fence,
};
use fermata_guard::shares::{self, NoShare};

/// The result of commands on a state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The state after all commands, as a write-through home commits it: one version up if any of them changed it.
    pub state: KeyState,
    /// One outcome per command, in order. A later command may have ended the same entry: the present is in `state`.
    pub outcomes: Vec<Outcome>,
}

/// The deciding replica, with its clock and its bounds.
#[derive(Clone, Copy, Debug)]
pub struct Decider<'a> {
    /// The replica.
    pub replica: ReplicaId,
    /// The wall clock in microseconds since 1970; it only moves fences forward (I2). `None` while it is known to be wrong: then
    /// no fence is taken.
    pub now_us: Option<u64>,
    /// The bounds.
    pub limits: &'a CoreLimits,
}

/// Decides commands in order on a state, as one change of the row of a write-through home.
pub fn decide(state: &KeyState, commands: &[Command], by: Decider<'_>) -> Decision {
    let mut next = state.clone();
    let mut changed = false;
    let mut outcomes = Vec::with_capacity(commands.len());
    for command in commands {
        let applied = apply(&mut next, command, by);
        changed |= applied.changed;
        outcomes.push(applied.outcome);
    }
    if changed {
        // 2^64 changes of one key cannot be reached: at 60,000 a second it takes ten million years.
        next.version = state.version.saturating_add(1);
    }
    Decision {
        state: next,
        outcomes,
    }
}

/// The result of one command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Applied {
    /// Its outcome.
    pub outcome: Outcome,
    /// The state changed.
    pub changed: bool,
}

/// Decides one command. A refused command changes nothing, and no command changes the version.
///
/// The reserve of the row plays no part here: the row must allow an outcome before it is told.
pub fn apply(state: &mut KeyState, command: &Command, by: Decider<'_>) -> Applied {
    let mut deciding = Deciding {
        state,
        first_left_ms: 0,
        changed: false,
        by,
    };
    let outcome = deciding.one(command).unwrap_or_else(Outcome::Refused);
    if deciding.changed {
        deciding.state.first_left_ms = deciding.first_left_ms;
        deciding.state.reserve_nothing();
    }
    let changed = deciding.changed;
    Applied { outcome, changed }
}

struct Deciding<'a> {
    state: &'a mut KeyState,
    first_left_ms: u32,
    changed: bool,
    by: Decider<'a>,
}

impl Deciding<'_> {
    fn one(&mut self, command: &Command) -> Result<Outcome, Refusal> {
        if let Command::TakeOver { from, to, past } = command {
            return self.take_over(*from, *to, *past);
        }
        // H1: only the home decides.
        if self.state.home.map(|home| home.replica) != Some(self.by.replica) {
            return Err(Refusal::NotHome(self.state.home));
        }
        match command {
            Command::TakeOver { .. } => Err(Refusal::NotHome(self.state.home)),
            Command::Create(entry) => self.create(entry),
            Command::Release { seq, tag, writes } => self.release(*seq, *tag, *writes),
            Command::Evict {
                seq,
                tag,
                reason,
                only_under,
            } => self.evict(*seq, *tag, reason, *only_under),
            Command::Grant => self.grant_first().map(|()| Outcome::Granted),
            Command::Extend { fence, past } => self.extend(*fence, *past),
            Command::HandOver {
                to,
                holder,
                left_ms,
            } => self.hand_over(*to, *holder, *left_ms),
        }
    }

    /// H3 and H6.
    fn take_over(
        &mut self,
        from: Option<Home>,
        to: ReplicaId,
        past: Option<u64>,
    ) -> Result<Outcome, Refusal> {
        if let Some(home) = self.state.home
            && home.replica == to
            && from.is_none_or(|from| from.term < home.term)
        {
            // An earlier try, of unknown outcome, took effect.
            return Ok(Outcome::Home(home));
        }
        if self.state.home != from {
            return Err(Refusal::NotHome(self.state.home));
        }
        let home = Home {
            replica: to,
            term: self.state.term().saturating_add(1),
        };
        match from {
            None => {
                // No write has a fence of this row: the first fence lies above the data.
                if let Some(past) = past {
                    self.check_past(past)?;
                    self.state.fence = self.state.fence.max(Fence(past));
                }
            }
            Some(_) => self.leave_behind(past)?,
        }
        self.state.home = Some(home);
        self.changed = true;
        if self.state.grant == Fence::NONE {
            // Without a fence the first entry waits, and the key has a home all the same.
            let _ = self.grant_first();
        }
        Ok(Outcome::Home(home))
    }

    /// Skips all numbers and timestamps that a gone home may have used ahead of the row. Its volatile entries end with it. Its
    /// durable holder stays, under a new grant. The key is unsynced if anybody may have held it (I7).
    fn leave_behind(&mut self, past: Option<u64>) -> Result<(), Refusal> {
        let may_be_behind = self.state.may_be_behind();
        let may_have_held =
            self.state.grant != Fence::NONE || self.state.reserved.volatile_end > self.state.head();
        let kept = self.state.kept;
        let fence_end = self.state.reserved.fence_end.max(self.state.width_end());
        // Taken before any change, since it may be refused.
        let fence = match kept {
            Some(_) => Some(self.fence_from(fence_end, self.by.limits.width_min, past)?),
            None => None,
        };
        let volatile_end = self.state.reserved.volatile_end;
        let is_lost = |e: &Entry| e.seq < volatile_end && Some(e.seq) != kept;
        let first_lost = self.state.entries.iter().find(|e| is_lost(e));
        let unknown_from = first_lost.map_or(self.state.next, |lost| lost.seq);
        self.state.entries.retain(|e| !is_lost(e));
        self.state.next = self.state.next.max(self.state.reserved.seq_end);
        if may_be_behind {
            // These were released, or lost with the home. Entries before them that the row had not listed were released.
            let unknown = unknown_from..self.state.next;
            self.state.ended.forget(unknown);
        }
        self.state.unsynced |= may_have_held;
        match fence {
            Some(fence) => self.set_grant(fence),
            None => {
                self.state.grant = Fence::NONE;
                self.state.fence = Fence(fence_end.max(past.unwrap_or(0)));
                self.state.width = 0;
            }
        }
        Ok(())
    }

    /// Whether the queue has room for one more entry of this identity. Without an identity only a full queue refuses here: the
    /// engine knows the client's machine.
    fn admit(&self, identity: &str) -> Result<(), Refusal> {
        let entries_max = self.by.limits.entries_max;
        let entries = &self.state.entries;
        let of_same = |entry: &&Arc<Entry>| *entry.identity == *identity;
        let counts = !identity.is_empty() && shares::is_scarce(entries.len(), entries_max);
        let have = match counts {
            true => entries.iter().filter(of_same).count(),
            false => 0,
        };
        shares::admit(entries.len(), have, entries_max).map_err(|no_share| match no_share {
            NoShare::Full => Refusal::QueueFull { entries_max },
            NoShare::ShareUsed => Refusal::QueueShareUsed {
                share: shares::share(entries_max),
            },
        })
    }

    /// One entry a request (I5), at the end of the queue (I1).
    fn create(&mut self, new: &NewEntry) -> Result<Outcome, Refusal> {
        let same = |e: &&Arc<Entry>| e.tag == new.tag;
        if let Some(entry) = self.state.entries.iter().find(same) {
            return match new.differs_from(entry) {
                Some(field) => Err(Refusal::RequestMismatch { field }),
                None => Ok(Outcome::Created {
                    seq: entry.seq,
                    existed: true,
                }),
            };
        }
        if let Some(end) = self.state.ended.of_tag(new.tag) {
            return Ok(Outcome::Gone(end));
        }
        self.admit(&new.identity)?;
        let seq = self.state.next;
        if seq > Seq::LAST {
            return Err(Refusal::SeqUsedUp);
        }
        // Refused before an entry exists that could not be granted.
        let fence = match self.state.entries.is_empty() {
            true => Some(self.new_fence(self.by.limits.width_min, None)?),
            false => None,
        };
        self.state.next = Seq(seq.0 + 1);
        self.state.entries.push_back(Arc::new(Entry {
            seq,
            mode: new.mode,
            tag: new.tag,
            liveness: new.liveness,
            identity: new.identity.clone(),
            owner: new.owner.clone(),
            created_at_ms: new.created_at_ms,
        }));
        if let Some(fence) = fence {
            self.set_grant(fence);
        }
        self.changed = true;
        Ok(Outcome::Created {
            seq,
            existed: false,
        })
    }

    fn release(&mut self, seq: Seq, tag: Tag, writes: WritesOfHolder) -> Result<Outcome, Refusal> {
        let at = match self.live(seq, tag)? {
            Ok(at) => at,
            Err(gone) => return Ok(gone),
        };
        if at == 0 && self.state.grant != Fence::NONE {
            self.note_writes(writes);
        }
        self.end(at);
        Ok(Outcome::Released)
    }

    fn evict(
        &mut self,
        seq: Seq,
        tag: Tag,
        reason: &EndReason,
        only_under: Option<Fence>,
    ) -> Result<Outcome, Refusal> {
        let at = match self.live(seq, tag)? {
            Ok(at) => at,
            Err(gone) => return Ok(gone),
        };
        if let Some(grant) = only_under
            && (at > 0 || self.state.grant != grant)
        {
            return Err(Refusal::OtherGrant);
        }
        let was_holder = at == 0 && self.state.grant != Fence::NONE;
        let Some(entry) = self.end(at) else {
            return Err(Refusal::NeverIssued);
        };
        if was_holder {
            self.state.unsynced = true;
        }
        let ended = EndedEntry {
            seq,
            tag: entry.tag,
            reason: reason.clone(),
        };
        self.state.ended.push(ended, self.by.limits.ended_max);
        Ok(Outcome::Evicted { was_holder })
    }

    /// I3.
    fn extend(&mut self, fence: Fence, past: Option<u64>) -> Result<Outcome, Refusal> {
        if self.state.grant == Fence::NONE || fence < self.state.grant || fence > self.state.fence {
            return Err(Refusal::OtherGrant);
        }
        if fence < self.state.fence {
            return Ok(Outcome::Extended);
        }
        let width = self
            .state
            .width
            .saturating_mul(8)
            .min(self.by.limits.width_max)
            .max(self.by.limits.width_min);
        // The holder stays the same: its fence need not follow the clock, only exceed its used timestamps (I2).
        let now_us = self.by.now_us.unwrap_or(self.state.fence.0);
        self.state.fence = self.fence_at(now_us, width, past)?;
        self.state.width = width;
        self.changed = true;
        Ok(Outcome::Extended)
    }

    /// H4.
    fn hand_over(
        &mut self,
        to: ReplicaId,
        holder: Option<WritesOfHolder>,
        left_ms: u32,
    ) -> Result<Outcome, Refusal> {
        if self.state.grant != Fence::NONE {
            match holder {
                Some(writes) => {
                    let fence = self.new_fence(self.by.limits.width_min, None)?;
                    self.note_writes(writes);
                    self.set_grant(fence);
                }
                None => self.state.grant = Fence::NONE,
            }
        }
        self.first_left_ms = left_ms;
        self.state.home = Some(Home {
            replica: to,
            term: self.state.term().saturating_add(1),
        });
        self.changed = true;
        Ok(Outcome::HandedOver)
    }

    /// The index of a live entry, or its end.
    fn live(&self, seq: Seq, tag: Tag) -> Result<Result<usize, Outcome>, Refusal> {
        match self.state.lookup(seq, tag) {
            Lookup::Live(at) => Ok(Ok(at)),
            Lookup::Ended(end) => Ok(Err(Outcome::Gone(end))),
            Lookup::NeverIssued => Err(Refusal::NeverIssued),
        }
    }

    /// Takes an entry out of the queue; if it was the first, the next one is granted the key, or waits for a fence.
    fn end(&mut self, at: usize) -> Option<Arc<Entry>> {
        let entry = self.state.entries.remove(at)?;
        self.changed = true;
        if at == 0 {
            self.state.grant = Fence::NONE;
            let _ = self.grant_first();
        }
        Some(entry)
    }

    /// Notes whether the next holder must rewrite the value (I7).
    fn note_writes(&mut self, writes: WritesOfHolder) {
        if writes.open {
            self.state.unsynced = true;
        } else if writes.synced {
            self.state.unsynced = false;
        }
    }

    fn grant_first(&mut self) -> Result<(), Refusal> {
        if self.state.entries.is_empty() || self.state.grant != Fence::NONE {
            return Ok(());
        }
        let fence = self.new_fence(self.by.limits.width_min, None)?;
        self.set_grant(fence);
        self.changed = true;
        Ok(())
    }

    fn new_fence(&self, width: u32, past: Option<u64>) -> Result<Fence, Refusal> {
        self.fence_at(self.now_us()?, width, past)
    }

    fn fence_at(&self, now_us: u64, width: u32, past: Option<u64>) -> Result<Fence, Refusal> {
        next_fence(
            self.state.fence,
            self.state.width,
            width,
            now_us,
            past,
            self.by.limits,
        )
        .map_err(Refusal::Fence)
    }

    /// As `new_fence`, above all that a gone home may have used.
    fn fence_from(&self, end: u64, width: u32, past: Option<u64>) -> Result<Fence, Refusal> {
        let now_us = self.now_us()?;
        let last_used = Fence(end.saturating_sub(1).max(self.state.fence.0));
        next_fence(last_used, 1, width, now_us, past, self.by.limits).map_err(Refusal::Fence)
    }

    /// Whether a first fence can lie above the data.
    fn check_past(&self, past: u64) -> Result<(), Refusal> {
        let now_us = self.now_us()?;
        let width = self.by.limits.width_min;
        next_fence(Fence::NONE, 0, width, now_us, Some(past), self.by.limits)
            .map(|_| ())
            .map_err(Refusal::Fence)
    }

    fn now_us(&self) -> Result<u64, Refusal> {
        self.by.now_us.ok_or(Refusal::ClockIsWrong)
    }

    /// A new grant: a new fence with the least width.
    fn set_grant(&mut self, fence: Fence) {
        self.state.grant = fence;
        self.state.fence = fence;
        self.state.width = self.by.limits.width_min;
    }
}

#[cfg(test)]
mod tests;
