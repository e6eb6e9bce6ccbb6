//! The reference: a log of every entry that ever was, with the truth of how it ended, and the first
//! timestamp that nobody was given. Who holds, who waits and what is remembered all follow from these;
//! arithmetic has room (u128), nothing is removed, and nothing is shared with the core but its words.

use std::sync::Arc;

use fermata::lock::{
    Command, CoreLimits, Create, Created, EndReason, Ended, EndedAs, EndedEntry, Entry, Evidence,
    Fence, FenceError, Liveness, Outcome, Refusal, Released, ReplicaId, Seq, State, Tag,
};

use crate::start::Start;

/// How an entry really ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    Released,
    Otherwise(EndReason),
}

#[derive(Clone, Debug)]
pub struct Record {
    pub entry: Entry,
    pub end: Option<End>,
}

/// The timestamps of a fence.
#[derive(Clone, Copy, Debug)]
struct Slot {
    first: u64,
    width: u32,
}

#[derive(Clone, Debug)]
pub struct Model {
    pub log: Vec<Record>,
    limits: CoreLimits,
    version: u64,
    /// The number of the first entry of the log; those before it were released cleanly.
    first_seq: u64,
    slot: Slot,
    grant: u64,
    unsynced: bool,
    /// All ends other than clean releases, in their order.
    ends: Vec<EndedEntry>,
}

/// What came of one command, and whether it did anything.
pub type Effect = (Outcome, bool);

impl Model {
    pub fn new(start: &Start) -> Model {
        Model {
            log: Vec::new(),
            limits: start.limits.clone(),
            version: start.state.version,
            first_seq: start.state.next.0,
            slot: Slot {
                first: start.state.fence.0,
                width: start.state.width,
            },
            grant: 0,
            unsynced: start.state.unsynced,
            ends: Vec::new(),
        }
    }

    pub fn record(&self, seq: Seq) -> Option<&Record> {
        let at = seq.0.checked_sub(self.first_seq)?;
        self.log.get(usize::try_from(at).ok()?)
    }

    /// How an entry really ended; `None` while it lives or was never given out.
    pub fn end_of(&self, seq: Seq) -> Option<End> {
        if (1..self.first_seq).contains(&seq.0) {
            return Some(End::Released);
        }
        self.record(seq)?.end.clone()
    }

    fn next(&self) -> Seq {
        Seq(self.first_seq + self.log.len() as u64)
    }

    fn live(&self) -> impl Iterator<Item = &Record> {
        self.log.iter().filter(|r| r.end.is_none())
    }

    fn head(&self) -> Option<Seq> {
        self.live().next().map(|r| r.entry.seq)
    }

    /// The head, unless no fence could be taken for it so far.
    fn holder(&self) -> Option<Seq> {
        self.head().filter(|_| self.grant > 0)
    }

    /// The state that the core must have arrived at.
    pub fn state(&self) -> State {
        State {
            version: self.version,
            next: self.next(),
            head: self.head().unwrap_or(self.next()),
            grant: Fence(self.grant),
            fence: Fence(self.slot.first),
            width: self.slot.width,
            unsynced: self.unsynced,
            entries: self.live().map(|r| Arc::new(r.entry.clone())).collect(),
            ended: self.ended(),
        }
    }

    fn ended(&self) -> Ended {
        let kept = self.ends.len().saturating_sub(self.limits.ended_max);
        let (forgotten, kept) = self.ends.split_at(kept);
        let complete_from = forgotten.iter().map(|e| e.seq.0 + 1).max().unwrap_or(1);
        Ended {
            entries: kept.iter().cloned().collect(),
            complete_from: Seq(complete_from),
        }
    }

    /// Decides a batch on the truth.
    pub fn batch(&mut self, commands: &[Command], now_us: u64) -> Vec<Effect> {
        let holder_before = self.holder();
        let mut changed = false;
        let mut effects = Vec::new();
        for command in commands {
            let effect = match self.step(command, now_us, holder_before) {
                Ok(effect) => effect,
                Err(refusal) => (Outcome::Refused(refusal), false),
            };
            changed |= effect.1;
            if effect.1 {
                self.grant_head(now_us);
            }
            effects.push(effect);
        }
        if commands.is_empty() {
            changed = self.grant_head(now_us);
        }
        self.version += u64::from(changed);
        effects
    }

    /// The head comes to be the holder as soon as a fence can be taken.
    fn grant_head(&mut self, now_us: u64) -> bool {
        if self.head().is_none() || self.grant > 0 {
            return false;
        }
        let Ok(slot) = self.slot_after(self.limits.width_min, now_us, None) else {
            return false;
        };
        self.slot = slot;
        self.grant = slot.first;
        true
    }

    fn step(
        &mut self,
        command: &Command,
        now_us: u64,
        holder_before: Option<Seq>,
    ) -> Result<Effect, Refusal> {
        match command {
            Command::Create(create) => self.create(create, now_us),
            Command::Release {
                seq,
                tag,
                home,
                grant,
                synced,
                open_write,
            } => {
                if let Some(how_ended) = self.how_ended(*seq, Some(*tag))? {
                    return Ok((Outcome::Gone(how_ended), false));
                }
                // Nobody writes but a holder that a committed state shows.
                let was_holder = holder_before == Some(*seq);
                let clean = !was_holder
                    || (self.at(*seq).home == *home && *grant == Some(Fence(self.grant)));
                let end = match clean {
                    true => End::Released,
                    false => End::Otherwise(EndReason::Foreign),
                };
                self.end(*seq, end);
                if was_holder && (!clean || *open_write) {
                    self.unsynced = true;
                } else if was_holder && *synced {
                    self.unsynced = false;
                }
                Ok((Outcome::Released(Released { was_holder, clean }), true))
            }
            Command::Evict { seq, tag, evidence } => {
                if let Some(how_ended) = self.how_ended(*seq, Some(*tag))? {
                    return Ok((Outcome::Gone(how_ended), false));
                }
                let reason = self.proven(*seq, evidence).ok_or(Refusal::EvidenceGone)?;
                let was_holder = self.holder() == Some(*seq);
                self.end(*seq, End::Otherwise(reason));
                self.unsynced |= was_holder;
                Ok((Outcome::Evicted { was_holder }, true))
            }
            Command::TakeOver {
                seq,
                from_home,
                from_fence,
                from_epoch,
                to_home,
            } => self.take_over(
                *seq,
                (*from_home, from_fence.0, *from_epoch),
                *to_home,
                now_us,
            ),
            Command::Extend {
                seq,
                home,
                fence,
                past,
            } => {
                if let Some(how_ended) = self.how_ended(*seq, None)? {
                    return Ok((Outcome::Gone(how_ended), false));
                }
                if self.holder() != Some(*seq) {
                    return Err(Refusal::NotHolder);
                }
                let of_this_grant = (self.grant..=self.slot.first).contains(&fence.0);
                if self.at(*seq).home != *home || !of_this_grant {
                    return Err(Refusal::Overtaken);
                }
                if fence.0 != self.slot.first {
                    return Ok((Outcome::Extended, false));
                }
                let width = (self.slot.width * 8).min(self.limits.width_max);
                self.slot = self.slot_after(width, now_us, *past)?;
                Ok((Outcome::Extended, true))
            }
        }
    }

    fn create(&mut self, create: &Create, now_us: u64) -> Result<Effect, Refusal> {
        let same = |r: &&Record| r.entry.request_id == create.request_id;
        if let Some(Record { entry, .. }) = self.live().find(same) {
            let own = |l| matches!(l, Liveness::Own { .. });
            let field = if entry.liveness != create.liveness {
                match own(entry.liveness) && own(create.liveness) {
                    true => "ttl",
                    false => "session",
                }
            } else if entry.owner != create.owner {
                "owner"
            } else if entry.identity != create.identity {
                "request_id"
            } else {
                let seq = entry.seq;
                return Ok((Outcome::Created(Created { seq, existed: true }), false));
            };
            return Err(Refusal::RequestMismatch { field });
        }
        let entries_max = self.limits.entries_max;
        if self.live().count() == entries_max {
            return Err(Refusal::QueueFull { entries_max });
        }
        let seq = self.next();
        if seq.0 == i64::MAX as u64 {
            return Err(Refusal::SeqUsedUp);
        }
        if self.head().is_none() {
            self.slot = self.slot_after(self.limits.width_min, now_us, create.past)?;
            self.grant = self.slot.first;
        }
        self.log.push(Record {
            entry: Entry {
                seq,
                mode: create.mode,
                request_id: create.request_id,
                liveness: create.liveness,
                epoch: 0,
                home: create.home,
                identity: create.identity.clone(),
                owner: create.owner.clone(),
                created_at_ms: create.created_at_ms,
            },
            end: None,
        });
        let existed = false;
        Ok((Outcome::Created(Created { seq, existed }), true))
    }

    fn take_over(
        &mut self,
        seq: Seq,
        (from_home, from_fence, from_epoch): (ReplicaId, u64, u32),
        to_home: ReplicaId,
        now_us: u64,
    ) -> Result<Effect, Refusal> {
        if let Some(how_ended) = self.how_ended(seq, None)? {
            return Ok((Outcome::Gone(how_ended), false));
        }
        let (home, epoch) = (self.at(seq).home, self.at(seq).epoch);
        let holds = self.holder() == Some(seq);
        let newer = from_fence == 0 || self.grant > from_fence;
        if home == to_home && epoch > from_epoch && newer {
            return Ok((Outcome::TakenOver, false));
        }
        if holds && from_fence == 0 {
            return Err(Refusal::IsHolder);
        }
        let present = if holds { self.slot.first } else { 0 };
        if (home, epoch, present) != (from_home, from_epoch, from_fence) {
            return Err(Refusal::Overtaken);
        }
        if holds {
            self.slot = self.slot_after(self.limits.width_min, now_us, None)?;
            self.grant = self.slot.first;
            self.unsynced = true;
        }
        let entry = self.at_mut(seq);
        entry.home = to_home;
        entry.epoch += 1;
        Ok((Outcome::TakenOver, true))
    }

    /// `None` for a live entry; how it ended, as far as it is still known, for one that has ended.
    fn how_ended(&self, seq: Seq, tag: Option<Tag>) -> Result<Option<EndedAs>, Refusal> {
        if seq.0 == 0 || seq >= self.next() {
            return Err(Refusal::NeverIssued);
        }
        let wrong = |known: Tag| tag.is_some_and(|tag| tag != known);
        if let Some(Record { entry, end: None }) = self.record(seq) {
            return match wrong(entry.tag()) {
                true => Err(Refusal::NeverIssued),
                false => Ok(None),
            };
        }
        let ended = self.ended();
        match ended.entries.iter().find(|e| e.seq == seq) {
            Some(entry) if wrong(entry.tag) => Err(Refusal::NeverIssued),
            Some(entry) => Ok(Some(EndedAs::Lost(entry.reason.clone()))),
            None if seq >= ended.complete_from => Ok(Some(EndedAs::Released)),
            None => Ok(Some(EndedAs::NoLongerKept)),
        }
    }

    fn proven(&self, seq: Seq, evidence: &Evidence) -> Option<EndReason> {
        let entry = self.at(seq);
        let holds = self.holder() == Some(seq);
        match evidence {
            Evidence::Silent { epoch } => match entry.liveness {
                Liveness::Own { .. } if entry.epoch == *epoch => Some(EndReason::Expired),
                _ => None,
            },
            Evidence::SessionEnded(session) => match entry.liveness {
                Liveness::Session(its) if its == *session => Some(EndReason::SessionClosed),
                _ => None,
            },
            Evidence::Unclaimed { home, grant } => {
                let stands = holds && entry.home == *home && self.grant == grant.0;
                stands.then_some(EndReason::Unclaimed)
            }
            Evidence::Forced { by, why } => Some(EndReason::Forced {
                by: by.clone(),
                why: why.clone(),
            }),
        }
    }

    fn end(&mut self, seq: Seq, end: End) {
        if self.head() == Some(seq) {
            self.grant = 0;
        }
        if let End::Otherwise(reason) = &end {
            self.ends.push(EndedEntry {
                seq,
                tag: self.at(seq).tag(),
                reason: reason.clone(),
            });
        }
        let at = (seq.0 - self.first_seq) as usize;
        self.log[at].end = Some(end);
    }

    fn slot_after(&self, width: u32, now_us: u64, past: Option<u64>) -> Result<Slot, Refusal> {
        let unused = u128::from(self.slot.first) + u128::from(self.slot.width).max(1);
        let above_past = past.map_or(0, |past| u128::from(past) + 1);
        let first = unused.max(above_past).max(now_us.into());
        if first + u128::from(width) > i64::MAX as u128 {
            return Err(Refusal::Fence(FenceError::UsedUp));
        }
        let ahead_us = (first - u128::from(now_us)) as u64;
        match self.limits.ahead_us_max {
            Some(limit_us) if ahead_us > limit_us => Err(Refusal::Fence(match past {
                Some(past_us) if above_past > unused => FenceError::PastTooFarAhead {
                    past_us,
                    ahead_us: past_us.saturating_sub(now_us),
                    limit_us,
                },
                _ => FenceError::TooFarAhead { ahead_us, limit_us },
            })),
            _ => Ok(Slot {
                first: first as u64,
                width,
            }),
        }
    }

    fn at(&self, seq: Seq) -> &Entry {
        &self.log[(seq.0 - self.first_seq) as usize].entry
    }

    fn at_mut(&mut self, seq: Seq) -> &mut Entry {
        &mut self.log[(seq.0 - self.first_seq) as usize].entry
    }
}
