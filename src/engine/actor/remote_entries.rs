//! What other replicas have to do with the key: their entries, whose liveness the home of a waiter watches (I8), and
//! changes that they made, which are looked for.
//!
//! Nothing of this happens in a store that one process has alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::super::activity::Cause;
use super::super::api::EngineError;
use super::super::members::ObservedTime;
use super::super::peers::Presence;
use super::super::remote::silence_max;
use super::hand_over::HandedOver;
use super::intent::{EvictReply, Intent};
use super::msg::{EntryRef, EntryStatus, HandOverAnswer, Reply};
use super::{Actor, Run};
use crate::lock::{EndedAs, Entry, Evidence, Fence, Liveness, Lookup, ReplicaId, Seq, State};
use crate::store::StoreError;

/// A home that looked at its key longer ago than this re-reads beside a critical call (I10).
const READ_AGO_MAX: Duration = Duration::from_millis(1_000);
/// What is looked for when nobody of this home is in a hurry.
const POLL_SLOWLY: Duration = Duration::from_millis(1_000);
/// What is looked for where all entries ahead are of this home too, or somebody watches the holder: others end entries
/// by force, and of closed sessions, and the hint that says so may be lost.
const POLL_RARELY: Duration = Duration::from_secs(5);
/// Where one ahead is about to be found expired, it is looked again then, but not sooner than after this.
const POLL_DUE: Duration = Duration::from_millis(50);
/// The others are looked at sooner than usual where one may be silent for long enough, unless that fails since this.
const READS_WANTED: Duration = Duration::from_secs(2);
/// For this share of its TTL a waiter without a session is left in place after anybody could evict it …
const SPARED_PER_TTL: u32 = 4;
/// … but no longer than this: who waits behind it waits for that.
const SPARED_MAX: Duration = Duration::from_secs(1);
/// How long a key is watched of which a sweep found that it has entries of replicas that are down.
const SWEPT_FOR: Duration = Duration::from_secs(60);

/// What an actor knows of other replicas.
#[derive(Default)]
pub(super) struct RemoteEntries {
    /// The key has a live entry of this home. (In a store of one process: any entry.)
    pub has_own_entry: bool,
    /// An entry of this home waits behind one of another.
    pub(super) behind: bool,
    /// An entry of this home waits.
    pub(super) waits: bool,
    /// It does so while the head of the queue has no grant.
    pub(super) ungranted: bool,
    /// Entries of others: the epoch they have, and since when it was seen.
    pub(super) seen: BTreeMap<Seq, (u32, ObservedTime)>,
    /// Entries of this home that others were promised.
    pub(super) handed_over: BTreeMap<Seq, HandedOver>,
    /// Who learns of a promise once the calls of the holder are answered.
    pub(super) hand_overs: Vec<oneshot::Sender<HandOverAnswer>>,
    /// When the state that is known was asked for, by CLOCK_BOOTTIME.
    pub read_at: Duration,
    /// When the first swap was sent of which it is not known yet what became.
    pub sent_at: Option<Duration>,
    /// Whether the present poll is of somebody who waits behind others, and whether for somebody who waits.
    pub(super) pace: (bool, bool),
    /// Looks in a row that showed nothing new.
    pub(super) quiet: u32,
    /// When the first of those ahead is found expired unless it is known, by CLOCK_BOOTTIME.
    pub(super) due_at: Option<Duration>,
    pub(super) swept_until: Duration,
    /// The state before a swap of this replica of which it is not known yet what became.
    pub unnotified: Option<Arc<State>>,
}

/// What a re-read beside a call showed; `None` where no read was needed.
pub(super) type ReRead = Option<(Duration, Result<Option<State>, StoreError>)>;

impl Actor {
    /// Whether a call can be answered from the state that is known: the entry is this home's, or over. Else the
    /// store is looked at first.
    pub(super) fn knows(&self, run: &Run, entry_ref: EntryRef) -> bool {
        let Some(state) = &self.state else {
            return false;
        };
        match state.lookup(entry_ref.seq, entry_ref.tag) {
            Lookup::Live(at) => {
                let entry = state.entries.get(at);
                // One that was handed over may be another's by now.
                entry.is_some_and(|entry| entry.home == run.inner.replica)
                    && !self.remote_entries.handed_over.contains_key(&entry_ref.seq)
            }
            Lookup::Ended(_) => true,
            Lookup::NeverIssued => false,
        }
    }

    /// Whether the grant that a critical call carries is the one that this home knows. Else the entry may have been
    /// taken over, and back: the store is looked at first (I11).
    pub(super) fn knows_grant(&self, entry_ref: EntryRef) -> bool {
        let holding = self.holding.as_ref().filter(|h| h.seq == entry_ref.seq);
        entry_ref.grant.is_none() || entry_ref.grant == holding.map(|h| h.grant)
    }

    /// Notes what a new state means.
    pub(super) fn note_remote_entries(&mut self, run: &Run, new: &State) {
        if !run.inner.shared {
            self.remote_entries.has_own_entry = !new.entries.is_empty();
            return;
        }
        let me = run.inner.replica;
        let mine = |entry: &Arc<Entry>| entry.home == me;
        let last_of_mine = new.entries.iter().rposition(mine);
        let first_remote_entry = new.entries.iter().position(|entry| !mine(entry));
        self.remote_entries.has_own_entry = last_of_mine.is_some();
        self.remote_entries.waits = last_of_mine.is_some_and(|at| at > 0);
        self.remote_entries.ungranted = last_of_mine.is_some() && new.awaits_grant();
        self.remote_entries.behind = match (last_of_mine, first_remote_entry) {
            (Some(last), Some(first)) => first < last,
            (None, _) | (_, None) => false,
        };
        self.remote_entries.seen.retain(|seq, (epoch, _)| {
            let entry = new.entry(*seq);
            entry.is_some_and(|entry| entry.epoch == *epoch)
        });
        self.remote_entries.handed_over.retain(|seq, handed_over| {
            let entry = new.entry(*seq);
            entry.is_some_and(|entry| entry.epoch == handed_over.epoch && entry.home == me)
        });
        self.take_over_requests.note(new);
    }

    /// Sets when to look next, if somebody of this home waits or watches.
    pub(super) fn poll_remote_entries(&mut self, run: &mut Run) {
        if run.inner.clock.boot() > self.remote_entries.swept_until {
            self.remote_entries.swept_until = Duration::ZERO;
        }
        let swept = self.remote_entries.swept_until > Duration::ZERO;
        let watched = || self.watches.values().any(|w| w.receiver_count() > 0);
        let take_over_requests = !self.take_over_requests.is_empty();
        let urgent = self.remote_entries.behind
            || self.remote_entries.ungranted
            || swept
            || take_over_requests;
        if !urgent && !(run.inner.shared && (self.remote_entries.waits || watched())) {
            run.poll = None;
            return;
        }
        let in_a_hurry = take_over_requests
            || !self.wakers.is_empty()
            || !self.grant_waiters.is_empty()
            || watched();
        let pace = (urgent, urgent && in_a_hurry);
        if self.stale || (run.poll.is_some() && self.remote_entries.pace >= pace) {
            return;
        }
        self.remote_entries.pace = pace;
        let span = match (urgent, in_a_hurry) {
            (true, true) => run.inner.backoff(self.remote_entries.quiet),
            (true, false) => POLL_SLOWLY,
            (false, _) => POLL_RARELY,
        };
        let now = run.inner.clock.boot();
        let due = self.remote_entries.due_at.filter(|_| urgent && in_a_hurry);
        let span = due.map_or(span, |at| span.min(at.saturating_sub(now).max(POLL_DUE)));
        run.poll = Some(run.inner.clock.sleep(span));
    }

    /// After a read: whether it showed anything new, and whether those ahead still live (I8, I9).
    pub(super) fn after_read(&mut self, run: &Run, news: bool) {
        self.remote_entries.quiet = match news {
            true => 0,
            false => self.remote_entries.quiet.saturating_add(1),
        };
        self.remote_entries.due_at = None;
        self.take_over_requests.forget_old(run.inner.clock.boot());
        let swept = self.remote_entries.swept_until > Duration::ZERO;
        let watches = self.remote_entries.behind || swept || !self.take_over_requests.is_empty();
        if !run.inner.shared || !watches {
            return;
        }
        let Some(state) = self.state.clone() else {
            return;
        };
        let me = run.inner.replica;
        let last_of_mine = state.entries.iter().rposition(|entry| entry.home == me);
        let watched = match swept {
            true => state.entries.len(),
            false => last_of_mine
                .unwrap_or(0)
                .max(self.take_over_requests.reach(&state)),
        };
        let mut remote_left = false;
        let mut down_left = false;
        let mut fenced = Vec::new();
        // Whether the first that stays behind the head may still be taken over from a silent home, here or elsewhere.
        let mut next_may_go = None;
        for entry in state.entries.iter().take(watched) {
            let mut may_go = false;
            if entry.home != me {
                remote_left = true;
                down_left |= run.inner.members.presence(entry.home) == Presence::Down;
                let is_asked = self.take_over_requests.has(entry.seq);
                may_go = is_asked && !self.is_taking_over(entry.seq);
                match self.evidence_against(run, entry) {
                    Some(_) if is_asked => may_go &= !self.take_silent(entry),
                    Some(_) if self.is_spared(run, entry) => may_go = true,
                    Some(evidence) => {
                        fenced.push((Arc::clone(entry), evidence));
                        continue;
                    }
                    None => {}
                }
            }
            if entry.seq != state.head {
                next_may_go.get_or_insert(may_go);
            }
        }
        // After what is taken over: as the head it could not be.
        for (entry, evidence) in fenced {
            let is_kept = entry.seq == state.head && next_may_go == Some(true);
            if !is_kept && !self.is_evicting(entry.seq) {
                self.pending.push_back(Intent::Evict {
                    seq: entry.seq,
                    tag: entry.tag(),
                    evidence,
                    reply: EvictReply::MembershipRead,
                });
            }
        }
        if !remote_left {
            self.remote_entries.swept_until = Duration::ZERO;
        } else if swept && down_left {
            // What was seen of them is kept until they have ended, however long their TTL.
            self.remote_entries.swept_until = run.inner.clock.boot().saturating_add(SWEPT_FOR);
        }
    }

    /// Whether an entry of another home is down, as far as this observer saw.
    fn evidence_against(&mut self, run: &Run, entry: &Entry) -> Option<Evidence> {
        let inner = &run.inner;
        match entry.liveness {
            Liveness::Own { ttl_ms } => {
                let now = (entry.epoch, inner.members.observed(inner.clock.boot()));
                let seen = self.remote_entries.seen.entry(entry.seq).or_insert(now);
                if seen.0 != entry.epoch {
                    *seen = now;
                }
                // From when this observer saw it: a home may have made it, and told of it, after its last heartbeat.
                let silence = inner.members.silence(entry.home, seen.1);
                let ttl = Duration::from_millis(u64::from(ttl_ms));
                let left = silence_max(ttl).saturating_sub(silence);
                self.note_due(run, left);
                (left.is_zero()).then_some(Evidence::Silent { epoch: entry.epoch })
            }
            Liveness::Session(session) => {
                let key = super::LeaseKey::Session(session);
                if inner.leases.left(&key).is_some() {
                    // Kept here: it is ended here.
                    return None;
                }
                let ended = inner.remote.observe(session, &self.id, inner.clock.boot());
                if let Some(left) = inner.remote.silence_left(session, &inner.members) {
                    self.note_due(run, left);
                    if left.is_zero() {
                        // Closed now, and not in the next round; then this key is told to look.
                        inner.remote.hint(session);
                    }
                }
                ended.then_some(Evidence::SessionEnded(session))
            }
        }
    }

    /// Whether a waiter that could be ended is left in place for a moment: its client may be at another replica, which
    /// takes it over then, and observes it since a little later than this one. Once its home is down there is no hurry.
    fn is_spared(&mut self, run: &Run, entry: &Entry) -> bool {
        let Liveness::Own { ttl_ms } = entry.liveness else {
            return false;
        };
        let is_head = self.state.as_ref().is_some_and(|s| s.head == entry.seq);
        let members = &run.inner.members;
        let seen = self.remote_entries.seen.get(&entry.seq);
        let Some((_, seen)) =
            seen.filter(|_| !is_head && members.presence(entry.home) != Presence::Down)
        else {
            return false;
        };
        let ttl = Duration::from_millis(u64::from(ttl_ms));
        let most = silence_max(ttl) + SPARED_MAX.min(ttl / SPARED_PER_TTL);
        let left = most.saturating_sub(members.silence(entry.home, *seen));
        self.note_due(run, left);
        !left.is_zero()
    }

    /// One of those ahead is found expired after this, unless it is known.
    fn note_due(&mut self, run: &Run, left: Duration) {
        if left.is_zero() {
            // It was found expired: what is left is to end it, which takes as long as it takes.
            return;
        }
        let now = run.inner.clock.boot();
        let unseen = run.inner.members.unseen(now);
        if left <= unseen && unseen < READS_WANTED {
            // It may be so already: the next read of the rows says.
            run.inner.read_sooner.notify_one();
        }
        // Where the rows cannot be looked at, looks at the key show nothing sooner.
        let soon = POLL_DUE.max(unseen.min(POLL_SLOWLY) / 4);
        let at = now.saturating_add(left.saturating_sub(unseen).max(soon));
        let sooner = self.remote_entries.due_at.is_none_or(|due| at < due);
        if sooner {
            self.remote_entries.due_at = Some(at);
        }
    }

    fn is_evicting(&self, entry_ref: Seq) -> bool {
        let of_entry = |i: &Intent| matches!(i, Intent::Evict { seq, .. } if *seq == entry_ref);
        self.pending.iter().any(of_entry)
    }

    /// A sweep found entries of replicas that are down.
    pub(super) fn sweep(&mut self, run: &Run) {
        if run.inner.shared {
            self.remote_entries.swept_until = run.inner.clock.boot().saturating_add(SWEPT_FOR);
            self.read_for(Cause::Poll);
        }
    }

    /// Reads the key again before anything else.
    pub(super) fn read_for(&mut self, cause: Cause) {
        self.stale = true;
        // A hint that has come says more than that it is time.
        if self.read_cause != Cause::Hint {
            self.read_cause = cause;
        }
    }

    /// Looks at once, and soon again.
    pub(super) fn read_soon(&mut self) {
        self.remote_entries.quiet = 0;
        self.read_for(Cause::Poll);
    }

    /// Another replica says that the key has this version.
    pub(super) fn hinted(&mut self, version: u64) {
        if self.state.as_ref().is_some_and(|s| s.version < version) {
            self.remote_entries.quiet = 0;
            self.read_for(Cause::Hint);
        }
    }

    /// Who has an entry. The state was just read.
    pub(super) fn entry_status(&self, entry_ref: EntryRef) -> Result<EntryStatus, EngineError> {
        let state = self.state.as_ref().ok_or(EngineError::NeverIssued)?;
        let at = match state.lookup(entry_ref.seq, entry_ref.tag) {
            Lookup::Live(at) => at,
            Lookup::Ended(ended) => return Err(EngineError::Ended(ended)),
            Lookup::NeverIssued => return Err(EngineError::NeverIssued),
        };
        let Some(entry) = state.entries.get(at) else {
            return Err(EngineError::NeverIssued);
        };
        let holds = state.is_holder(entry_ref.seq);
        Ok(EntryStatus {
            home: entry.home,
            epoch: entry.epoch,
            fence: if holds { state.fence } else { Fence::NONE },
            needs_hand_over: holds || matches!(entry.liveness, Liveness::Own { .. }),
            version: state.version,
        })
    }

    /// Takes an entry over from a home that is down, or agreed.
    pub(super) fn take_from(
        &mut self,
        seq: Seq,
        from_home: ReplicaId,
        (from_fence, from_epoch): (Fence, u32),
        reply: Reply<bool>,
    ) {
        self.pending.push_back(Intent::TakeOver {
            seq,
            from_home,
            from_fence,
            from_epoch,
            reply: Some(reply),
        });
        if self.take_over_requests.has(seq) {
            // Those ahead that were found expired meanwhile end with that.
            self.read_for(Cause::Poll);
        }
    }

    /// Whether this home's last read of its key is too long ago to grant anybody the lock, or to answer, by it (I4,
    /// I10).
    pub(super) fn read_long_ago(&self, run: &Run) -> bool {
        let ago = run
            .inner
            .clock
            .boot()
            .saturating_sub(self.remote_entries.read_at);
        run.inner.shared && ago > READ_AGO_MAX
    }

    /// The read beside a critical call, where this home's last read is too long ago (I10).
    pub(super) fn re_read_beside(&self, run: &Run) -> impl Future<Output = ReRead> + Send + use<> {
        let due = self.read_long_ago(run);
        let look = self.read_now(run);
        async move {
            match due {
                true => look.await,
                false => None,
            }
        }
    }

    /// A read beside whatever else goes on, as of when it is begun.
    pub(super) fn read_now(&self, run: &Run) -> impl Future<Output = ReRead> + Send + use<> {
        let inner = Arc::clone(&run.inner);
        let id = Arc::clone(&self.id);
        async move {
            let now = inner.clock.boot();
            Some((now, inner.store.load(&id).await))
        }
    }

    /// Takes in what a re-read beside a call showed.
    pub(super) fn saw_re_read(
        &mut self,
        run: &mut Run,
        re_read: ReRead,
    ) -> Result<(), EngineError> {
        let Some((at, state)) = re_read else {
            return Ok(());
        };
        let state = state.map_err(|error| EngineError::Unavailable(error.to_string()))?;
        let state = state.unwrap_or_default();
        let known = self.state.as_ref().map_or(0, |s| s.version);
        if state.version > known {
            self.latest.met(Some(known), &state);
            self.adopt(run, state, Cause::Call);
        } else if self.contradicts(run, &state) {
            let why = "the state of the key is in doubt".to_owned();
            return Err(EngineError::Unavailable(why));
        }
        self.remote_entries.read_at = self.remote_entries.read_at.max(at);
        Ok(())
    }
}

/// What is told of an entry whose session has ended, and which is not evicted yet.
pub(super) fn session_closed() -> EngineError {
    EngineError::Ended(EndedAs::Lost(crate::lock::EndReason::SessionClosed))
}
