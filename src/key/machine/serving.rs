//! The state of a key at its home.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::context::{CommitRules, Context};
use super::decided::Decided;
use super::event::{
    CallId, Effect, EntryRef, EntryStatus, IoId, KeyError, LeaseSource, LeaseStatus, own_ttl,
};
use super::holder::{Claim, Critical, Holder, Phase};
use super::leases::Leases;
use super::pace::Pace;
use super::released::Released;
use super::row::KnownRow;
use super::value::Datum;
use crate::key::{Applied, Command, CommitMode, Entry, Home, KeyState, Outcome, apply};
use crate::lock::{EndReason, EndedAs, Fence, Liveness, Lookup, Seq, SessionId};
use crate::session::Observed;

/// The longest time until the row drops ended entries, and lists waiters behind a durable holder.
const TIDY_AFTER: Duration = Duration::from_secs(1);

/// A status call, answered once its entry holds the key or has ended.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Ask {
    pub call: CallId,
    pub seq: Seq,
    /// Its caller waits for the grant.
    pub waits: bool,
    pub read_value: bool,
    pub existed: bool,
}

/// A Watch call.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Watcher {
    pub call: CallId,
    pub seq: Seq,
    /// The last position sent; `None` after HELD.
    pub position: Option<usize>,
}

/// A read or a write of the value in flight.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Io {
    /// For a critical Get.
    Get {
        critical: Critical,
        /// As in [`Io::Held`].
        after: Option<u64>,
    },
    /// For an answer of HELD.
    Held {
        ask: Ask,
        grant: Fence,
        /// The last timestamp taken from the fence when the read began; `None` if a write was open then, which the read may miss.
        after: Option<u64>,
    },
    /// A write of the holder.
    Put { critical: Critical, datum: Datum },
    /// The read that settles writes of unknown outcome under this grant.
    SettleRead { grant: Fence },
    /// The rewrite of the value read.
    SettleWrite { grant: Fence, datum: Datum },
    /// The one read of a sync.
    SyncRead { fence: Fence },
    /// The rewrite of a sync.
    SyncWrite { fence: Fence },
}

/// The value of the key, if the home knows it without a read (H9): from its last acknowledged write, or a read. An open write or
/// an unclean end makes it unknown.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum KnownValue {
    #[default]
    Unknown,
    Known(Option<Datum>),
}

/// The memory of a home about its key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Serving {
    pub home: Home,
    /// The decisions of this home, ahead of the row: nobody else decides in this term (H1).
    pub state: Arc<KeyState>,
    pub row: KnownRow,
    /// `state` changed since the last commit was prepared.
    pub changed: bool,
    /// Entries ended since watchers were told their positions.
    pub moved: bool,
    /// Decisions that wait for the row, in order.
    pub decided: Vec<Decided>,
    pub holder: Option<Holder>,
    /// The inherited holder, until a call names it here.
    pub inherited: Option<Seq>,
    /// The inherited entries that no call named here.
    pub unheard: BTreeSet<Seq>,
    /// The moment when it became the home.
    pub began: Observed,
    /// The claim deadline of the first of them, if no call named it at the home before either.
    pub first_until: Option<(Seq, Observed)>,
    pub leases: Leases,
    /// The known TTLs of the sessions of live entries.
    pub session_ttls: BTreeMap<SessionId, Duration>,
    pub asks: Vec<Ask>,
    pub watchers: Vec<Watcher>,
    pub ios: Vec<(IoId, Io)>,
    /// Entries released here lately.
    pub released: Released,
    pub value: KnownValue,
    /// The next try of a grant that found no fence.
    pub grant_again: Option<Observed>,
    pub pace: Pace,
    /// Sessions of ended entries, until the row allows them to learn of the end.
    pub detaching: Vec<(SessionId, Seq)>,
    /// The latest moment of the next commit, while the row lists ended entries, or lacks waiters behind a durable holder.
    pub tidy_at: Option<Observed>,
}

impl Serving {
    /// A home that begins with this state, which this row has. Every lease begins with a full TTL; only a first entry that was
    /// handed over without a call keeps the rest of its time. A holder that the home before may have answered HELD counts as
    /// claimed.
    pub fn begin(
        cx: &Context<'_>,
        home: Home,
        (state, row): (KeyState, Arc<KeyState>),
        claimed: Option<Seq>,
        out: &mut Vec<Effect>,
    ) -> Self {
        let left = Duration::from_millis(row.first_left_ms.into());
        let first = state.first().filter(|_| !left.is_zero());
        let mut serving = Serving {
            home,
            row: KnownRow::new(row),
            changed: false,
            moved: false,
            decided: Vec::new(),
            holder: None,
            inherited: claimed,
            began: cx.now,
            unheard: state.entries.iter().map(|entry| entry.seq).collect(),
            first_until: first.map(|first| (first.seq, cx.now.plus(left))),
            state: Arc::new(state),
            leases: Leases::default(),
            session_ttls: BTreeMap::new(),
            asks: Vec::new(),
            watchers: Vec::new(),
            ios: Vec::new(),
            released: Released::default(),
            value: KnownValue::Unknown,
            grant_again: None,
            pace: Pace::default(),
            detaching: Vec::new(),
            tidy_at: None,
        };
        let state = Arc::clone(&serving.state);
        for entry in &state.entries {
            serving.added(cx, entry, out);
        }
        serving.follow_holder(cx, state.entries.len() == 1, out);
        serving
    }

    /// The next moment when something is due. Commits count only if one could be sent.
    pub fn due(&self, commit: CommitRules, can_commit: bool) -> Option<Observed> {
        let holder = self.holder.as_ref();
        let claim = match holder.map(|h| (&h.claim, h.is_closing())) {
            Some((Claim::Until(at), false)) => Some(*at),
            Some(_) | None => None,
        };
        let keep = self.keep_at(commit).filter(|_| !self.is_kept());
        let to_commit = keep.into_iter().chain(self.tidy_at).min();
        let to_commit = to_commit.filter(|_| can_commit);
        let all = [self.leases.due(), claim, self.grant_again, to_commit];
        all.into_iter().flatten().min()
    }

    /// Decides one command, and follows it in memory.
    pub fn apply(&mut self, cx: &Context<'_>, command: &Command, out: &mut Vec<Effect>) -> Outcome {
        let ending = match command {
            Command::Release { seq, .. } | Command::Evict { seq, .. } => {
                self.state.entry(*seq).map(Arc::clone)
            }
            _ => None,
        };
        let held = self.state.holder().map(|holder| holder.seq);
        let state = Arc::make_mut(&mut self.state);
        let Applied { outcome, changed } = apply(state, command, cx.decider());
        self.changed |= changed;
        let was_empty = matches!(outcome, Outcome::Created { .. }) && state.entries.len() == 1;
        match (&outcome, ending) {
            (Outcome::Created { existed: false, .. }, _) => {
                if let Some(entry) = self.state.entries.back().map(Arc::clone) {
                    self.added(cx, &entry, out);
                }
            }
            (Outcome::Released | Outcome::Evicted { .. }, Some(entry)) => {
                if held == Some(entry.seq) {
                    self.pace.ended(cx.now, cx.commit.keep_after);
                }
                self.removed(cx, &entry, out);
            }
            _ => {}
        }
        self.follow_holder(cx, was_empty, out);
        outcome
    }

    fn added(&mut self, cx: &Context<'_>, entry: &Entry, out: &mut Vec<Effect>) {
        match entry.liveness {
            Liveness::Own { .. } => {
                let ttl = own_ttl(entry.liveness).unwrap_or_default();
                let until = self.first_until.filter(|(seq, _)| *seq == entry.seq);
                let left = until.map_or(ttl, |(_, until)| until.since(cx.now));
                self.leases.add(entry.seq, ttl, left, cx.now);
            }
            Liveness::Session(session) => out.push(Effect::Attach {
                session,
                seq: entry.seq,
            }),
        }
        let holder = self.holder.as_ref();
        if holder.is_some_and(|holder| self.row.may_keep(holder.seq)) {
            // `keep_after` may be long while many commits are open.
            self.tidy_by(cx, cx.commit.keep_after.min(TIDY_AFTER));
        }
    }

    fn removed(&mut self, cx: &Context<'_>, entry: &Entry, out: &mut Vec<Effect>) {
        self.forget(entry);
        self.notify_end(entry, out);
        self.moved = true;
        if self.row.may_list(entry.seq) {
            self.tidy_by(cx, TIDY_AFTER);
        }
    }

    /// With write-back the row is committed within this time.
    pub fn tidy_by(&mut self, cx: &Context<'_>, within: Duration) {
        if cx.commit.mode == CommitMode::WriteThrough {
            return;
        }
        let at = cx.now.plus(within);
        self.tidy_at = Some(self.tidy_at.map_or(at, |before| before.min(at)));
    }

    /// Whether the holder is durable, and no other entry may be granted the key ahead of the row.
    pub fn is_kept(&self) -> bool {
        let holder = self.holder.as_ref();
        holder.is_some_and(|h| self.row.is_kept(h.seq))
    }

    /// Whether the row lists ended entries: they would come to life again at the next home.
    pub fn lists_ended(&self) -> bool {
        self.row
            .may_list_any(|entry| self.state.position(entry.seq).is_none())
    }

    /// Whether nobody locks the key or waits for it, and nothing is in flight.
    pub fn is_idle(&self) -> bool {
        let is_quiet = self.ios.is_empty() && self.decided.is_empty() && self.detaching.is_empty();
        let is_empty = self.state.entries.is_empty() && !self.lists_ended();
        is_empty && is_quiet && self.row.sent().is_none()
    }

    /// The moment when the holder is to become durable: `keep_after` after HELD (H5).
    pub fn keep_at(&self, commit: CommitRules) -> Option<Observed> {
        let since = self.holder.as_ref()?.in_use_since?;
        match commit.mode {
            CommitMode::WriteThrough => None,
            CommitMode::WriteBack(_) => Some(since.plus(commit.keep_after)),
        }
    }

    /// Makes the holder by decision the holder in memory, which waits for the row.
    fn follow_holder(&mut self, cx: &Context<'_>, at_once: bool, out: &mut Vec<Effect>) {
        let state = Arc::clone(&self.state);
        let Some(entry) = state.holder() else {
            return self.end_holder(out);
        };
        if let Some(holder) = &mut self.holder
            && holder.grant == state.grant
        {
            if holder.fence != state.fence {
                holder.extended(&state);
            }
            return;
        }
        self.end_holder(out);
        let claim = match self.inherited == Some(entry.seq) {
            true => Claim::Claimed,
            false => Claim::Until(self.claim_until(cx, entry)),
        };
        let mut holder = Holder::new(entry, &state, claim, at_once);
        holder.held_before = self.inherited == Some(entry.seq);
        if let KnownValue::Known(Some(datum)) = &self.value {
            // The timestamp may be another holder's, above this fence (I2).
            holder.saw(datum.timestamp);
        }
        self.holder = Some(holder);
        self.grant_again = None;
    }

    /// Lets the holder go on once the row allows it: its grant may be told (I4), or it writes on.
    pub fn allow_holder(&mut self, cx: &Context<'_>, out: &mut Vec<Effect>) {
        let Some(holder) = &mut self.holder else {
            return;
        };
        let is_allowed =
            self.row.allows_grant(holder.seq) && self.row.allows_fence(holder.width_end());
        match holder.phase {
            Phase::Granting if is_allowed => {
                holder.phase = match self.state.unsynced {
                    true => Phase::Unsynced,
                    false => Phase::Held { synced: false },
                };
                let (seq, report) = (holder.seq, holder.granted());
                self.wait_for_claim_anew(cx, seq);
                out.push(Effect::Report(report));
            }
            Phase::Extending(resume) if is_allowed => holder.resume(resume),
            _ => {}
        }
    }

    /// Ends the memory of a fence. Its queued calls fail.
    fn end_holder(&mut self, out: &mut Vec<Effect>) {
        let Some(mut gone) = self.holder.take() else {
            return;
        };
        if gone.writes.are_open() || self.state.unsynced {
            self.value = KnownValue::Unknown;
        }
        let why = self.why_not(gone.entry());
        for critical in gone.queued.drain(..) {
            out.push(Effect::Answer {
                call: critical.call,
                answer: Err(critical.kind.refusal(why.clone())),
            });
        }
    }

    /// The time without a call after which a first entry counts as unclaimed.
    pub fn claim_ttl(&self, cx: &Context<'_>, entry: &Entry) -> Duration {
        match entry.liveness {
            Liveness::Own { .. } => own_ttl(entry.liveness),
            Liveness::Session(session) => self.session_ttls.get(&session).copied(),
        }
        .unwrap_or(cx.limits.session_claim_ttl)
    }

    /// The claim deadline of a holder.
    pub fn claim_until(&self, cx: &Context<'_>, entry: &Entry) -> Observed {
        let until = cx.now.plus(self.claim_ttl(cx, entry));
        let unheard = self.first_until.filter(|(seq, _)| *seq == entry.seq);
        unheard.map_or(until, |(_, unheard)| unheard.min(until))
    }

    /// The time that the first entry has for a call at the next home, in milliseconds, rounded up, at least 1: the rest of its
    /// lease or of its claim time. 0 means a whole TTL, since a call named it here.
    pub fn first_left_ms(&self, now: Observed) -> u32 {
        let first = self.state.first().map(|first| first.seq);
        let Some(seq) = first.filter(|seq| self.unheard.contains(seq)) else {
            return 0;
        };
        let left = match (self.leases.get(seq), &self.holder) {
            (Some(lease), _) => Some(lease.left(now)),
            (None, Some(holder)) => match holder.claim {
                Claim::Until(at) => Some(at.since(now)),
                Claim::Claimed | Claim::Answered(_) => None,
            },
            (None, None) => self.first_until.map(|(_, until)| until.since(now)),
        };
        let left = left.map(|left| left.as_micros().div_ceil(1_000));
        left.map_or(0, |left| u32::try_from(left).unwrap_or(u32::MAX).max(1))
    }

    /// Whether an entry lives by this session.
    pub fn has_session(&self, session: SessionId) -> bool {
        let by_it = |entry: &Arc<Entry>| entry.liveness == Liveness::Session(session);
        self.state.entries.iter().any(by_it)
    }

    fn forget(&mut self, entry: &Entry) {
        self.unheard.remove(&entry.seq);
        self.first_until.take_if(|(of, _)| *of == entry.seq);
        match entry.liveness {
            Liveness::Own { .. } => self.leases.remove(entry.seq),
            Liveness::Session(session) => {
                if self.session_ttls.contains_key(&session) && !self.has_session(session) {
                    self.session_ttls.remove(&session);
                }
                self.detaching.push((session, entry.seq));
            }
        }
    }

    /// Detaches ended entries from their sessions, once the row allows their ends to be told.
    pub fn detach_allowed(&mut self, mode: CommitMode, out: &mut Vec<Effect>) {
        let row = &self.row;
        let allowed = self
            .detaching
            .extract_if(.., |(_, seq)| row.allows_end(*seq, mode));
        out.extend(allowed.map(|(session, seq)| Effect::Detach { session, seq }));
    }

    /// Tells the status calls and watchers of an entry how it ended.
    fn notify_end(&mut self, entry: &Entry, out: &mut Vec<Effect>) {
        let end = self.state.end_of(entry.seq);
        for ask in self.asks.extract_if(.., |ask| ask.seq == entry.seq) {
            out.push(Effect::Answer {
                call: ask.call,
                answer: Err(KeyError::Ended(end.clone()).into()),
            });
        }
        for watcher in self.watchers.extract_if(.., |w| w.seq == entry.seq) {
            out.push(Effect::Notify {
                call: watcher.call,
                status: EntryStatus::Ended(end.clone()),
            });
        }
    }

    /// Tells watchers their new positions.
    pub fn notify_positions(&mut self, out: &mut Vec<Effect>) {
        if !std::mem::take(&mut self.moved) {
            return;
        }
        for watcher in &mut self.watchers {
            let position = self.state.position(watcher.seq);
            // A grant is told once HELD may be answered.
            if let Some(position) = position.filter(|position| *position > 0)
                && watcher.position != Some(position)
            {
                watcher.position = Some(position);
                out.push(Effect::Notify {
                    call: watcher.call,
                    status: EntryStatus::Waiting { position },
                });
            }
        }
    }

    /// The end of an entry, as its client is told: RELEASING while the row does not allow the end.
    pub fn ended(&self, cx: &Context<'_>, seq: Seq, end: EndedAs) -> KeyError {
        match end {
            EndedAs::Released if !self.row.allows_end(seq, cx.commit.mode) => KeyError::Releasing,
            end => KeyError::Ended(end),
        }
    }

    /// The position and the lease of a live entry, renewed by this call. A call that names the grant in force claims it (I5).
    pub fn live(
        &mut self,
        cx: &Context<'_>,
        entry: EntryRef,
        out: &mut Vec<Effect>,
    ) -> Result<(usize, LeaseStatus), KeyError> {
        let position = match self.state.lookup(entry.seq, entry.tag) {
            Lookup::Live(position) => position,
            Lookup::Ended(end) => return Err(self.ended(cx, entry.seq, end)),
            Lookup::NeverIssued => return Err(KeyError::NeverIssued),
        };
        if let Some(holder) = self.holder.as_mut().filter(|h| h.seq == entry.seq)
            && entry.grant == Some(holder.grant)
        {
            holder.claim = Claim::Claimed;
            holder.note_in_use(cx.now);
        }
        let lease = self.renew(cx, entry.seq, out)?;
        if self.unheard.remove(&entry.seq) {
            self.came_along(cx, entry.seq);
        }
        Ok((position, lease))
    }

    /// An inherited entry made its first call here.
    fn came_along(&mut self, cx: &Context<'_>, seq: Seq) {
        self.inherited.take_if(|of| *of == seq);
        if self.first_until.take_if(|(of, _)| *of == seq).is_some() {
            self.wait_for_claim_anew(cx, seq);
        }
    }

    /// Renews the lease of a live entry (I8).
    pub fn renew(
        &mut self,
        cx: &Context<'_>,
        seq: Seq,
        out: &mut Vec<Effect>,
    ) -> Result<LeaseStatus, KeyError> {
        if let Some(lease) = self.leases.get_mut(seq) {
            lease.renew(cx.now);
        } else if let Some(entry) = self.state.entry(seq)
            && let Liveness::Session(session) = entry.liveness
        {
            out.push(Effect::RenewSession(session));
        }
        self.lease(cx, seq)
    }

    /// The lease of a live entry, for an answer. The call renewed it; the answer does not, as the client counts from when it sent
    /// the call.
    pub fn lease(&self, cx: &Context<'_>, seq: Seq) -> Result<LeaseStatus, KeyError> {
        let expired = || KeyError::Ended(EndedAs::Lost(EndReason::Expired));
        let durable = self.row.is_durable(seq);
        // A waiter may become the holder by memory alone before its next call.
        let is_bounded = cx.commit.mode != CommitMode::WriteThrough && !self.row.is_kept(seq);
        let promised_until = (is_bounded || !durable).then_some(cx.sure_until);
        let status = |source| LeaseStatus {
            source,
            durable,
            promised_until,
        };
        match self.state.entry(seq).map(|entry| entry.liveness) {
            None => Err(KeyError::NeverIssued),
            Some(Liveness::Session(session)) => Ok(status(LeaseSource::Session(session))),
            Some(Liveness::Own { .. }) => {
                let lease = self.leases.get(seq).filter(|lease| !lease.has_ended());
                let lease = lease.ok_or_else(expired)?;
                let (ttl, valid_for) = (lease.ttl(), lease.safe_for_most());
                Ok(status(LeaseSource::Own { ttl, valid_for }))
            }
        }
    }

    pub fn shrink(&mut self) {
        fn shrink<T>(list: &mut Vec<T>) {
            if list.is_empty() {
                *list = Vec::new();
            }
        }
        shrink(&mut self.decided);
        shrink(&mut self.asks);
        shrink(&mut self.watchers);
        shrink(&mut self.ios);
        shrink(&mut self.detaching);
        self.holder.iter_mut().for_each(Holder::shrink);
    }

    /// The error for a call of an ended entry or a superseded grant.
    pub fn why_not(&self, entry: EntryRef) -> KeyError {
        match self.state.lookup(entry.seq, entry.tag) {
            Lookup::Ended(end) => KeyError::Ended(end),
            Lookup::Live(_) => KeyError::GrantSuperseded,
            Lookup::NeverIssued => KeyError::NeverIssued,
        }
    }

    pub fn take_io(&mut self, io: IoId) -> Option<Io> {
        let at = self.ios.iter().position(|(id, _)| *id == io)?;
        Some(self.ios.swap_remove(at).1)
    }

    /// Calls that wait for HELD of this entry.
    pub fn waits_of(&self, seq: Seq) -> usize {
        let held = |(_, io): &&(IoId, Io)| matches!(io, Io::Held { ask, .. } if ask.seq == seq);
        let reads = self.ios.iter().filter(held).count();
        reads + self.asks.iter().filter(|ask| ask.seq == seq).count()
    }

    /// Remembers the value, read with no write open or acknowledged last. It is copied, since its buffer may be a whole request.
    pub fn know(&mut self, cx: &Context<'_>, mut datum: Option<Datum>) {
        let value = datum.as_mut().and_then(|datum| datum.value.as_mut());
        let bytes = value.as_ref().map_or(0, |value| value.len());
        let most = cx.limits.known_value_bytes_max;
        if most == 0 || bytes > most || cx.value_is_due {
            self.value = KnownValue::Unknown;
            return;
        }
        if let Some(value) = value {
            *value = Bytes::copy_from_slice(value);
        }
        self.value = KnownValue::Known(datum);
    }
}
