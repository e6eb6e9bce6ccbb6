//! Sessions that another replica keeps, and that matter here: entries of this home live by them, or a waiter of
//! this home waits behind such an entry (I8).
//!
//! Their rows are read now and then, their replicas' heartbeats are watched: a session whose replica sent no heartbeat
//! for its TTL is closed by a swap that names the epoch it was seen with. What is told of their leases is asked of the
//! replica that keeps them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::Notify;

use super::actor::Msg;
use super::api::{EngineError, Renewed};
use super::handed_over;
use super::heartbeats;
use super::inner::Inner;
use super::leases::{EntryId, LeaseKey, NoLease};
use super::members::{Members, ObservedTime};
use super::peers::{PeerError, Presence};
use super::sessions;
use crate::lock::{KeyId, ReplicaId, SessionId};
use crate::store::{SessionRow, SessionSwap};

/// How often they are looked over.
const EVERY: Duration = Duration::from_millis(200);
/// A row is read again after this, or its TTL if that is longer: its replica tells of an end at once, so this
/// is for what it could not tell.
const READ_AGAIN: Duration = Duration::from_secs(5);
/// An observer's interest lasts so long.
const WANTED_FOR: Duration = Duration::from_secs(5);
/// How many keys are told to look once one of them was closed here; the others find out by polling.
const ANSWERED_MAX: usize = 64;
/// How many are worked at, at once.
const AT_ONCE: usize = 32;
/// Beyond the TTL and its share for clock rates: what a heartbeat takes to be seen.
const MARGIN: Duration = Duration::from_millis(100);

/// How long nothing must be heard before something with this TTL counts as down.
pub(super) fn silence_max(ttl: Duration) -> Duration {
    ttl + ttl / 10 + MARGIN
}

#[derive(Clone, Debug)]
struct KnownRow {
    keeper: ReplicaId,
    epoch: u32,
    ttl: Duration,
    /// When its row was first seen with this epoch.
    seen: ObservedTime,
}

impl KnownRow {
    fn silence_left(&self, members: &Members) -> Duration {
        let silence = members.silence(self.keeper, self.seen);
        silence_max(self.ttl).saturating_sub(silence)
    }
}

#[derive(Clone, Debug, Default)]
struct Remote {
    known: Option<KnownRow>,
    read_at: Option<Duration>,
    renewed_at: Option<Duration>,
    /// When a renewal was passed on that nobody waits for.
    passed_on_at: Option<Duration>,
    /// Its row says that it has ended.
    ended: bool,
    /// What lives by it is being evicted.
    evicting: bool,
    entries: BTreeSet<EntryId>,
    /// Keys where somebody of this home waits behind what lives by it.
    keys: BTreeSet<Arc<KeyId>>,
    wanted_until: Duration,
}

/// Sessions that other replicas keep.
#[derive(Default)]
pub(super) struct RemoteSessions {
    table: Mutex<BTreeMap<SessionId, Remote>>,
    /// Those of the table that somebody says have ended.
    hinted: Mutex<BTreeSet<SessionId>>,
    hints: Notify,
}

impl RemoteSessions {
    fn table(&self) -> MutexGuard<'_, BTreeMap<SessionId, Remote>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An entry of this home lives by it.
    pub fn attach(&self, session: SessionId, entry_id: EntryId) {
        let mut table = self.table();
        table.entry(session).or_default().entries.insert(entry_id);
    }

    /// An entry lives by it no longer.
    pub fn detach(&self, session: SessionId, entry_id: &EntryId) {
        if let Some(remote) = self.table().get_mut(&session) {
            remote.entries.remove(entry_id);
        }
    }

    /// This replica keeps it now: what lives by it here.
    pub fn take_entries(&self, session: SessionId) -> BTreeSet<EntryId> {
        let gone = self.table().remove(&session);
        gone.map_or_else(BTreeSet::new, |remote| remote.entries)
    }

    /// The TTL of one whose row was read.
    pub fn ttl_of(&self, session: SessionId) -> Option<Duration> {
        let table = self.table();
        let known = table.get(&session)?.known.as_ref()?;
        Some(known.ttl)
    }

    /// The shortest TTL of those that are watched.
    pub fn shortest_ttl(&self) -> Option<Duration> {
        let table = self.table();
        let open = table.values().filter(|remote| !remote.ended);
        let ttls = open.filter_map(|remote| Some(remote.known.as_ref()?.ttl));
        ttls.min()
    }

    pub fn entries_of(&self, session: SessionId) -> usize {
        let table = self.table();
        table.get(&session).map_or(0, |remote| remote.entries.len())
    }

    /// Whether it has ended, as far as is known; from now on it is watched for a while, and this key told of its end.
    pub fn observe(&self, session: SessionId, key: &Arc<KeyId>, now: Duration) -> bool {
        self.watch_for(session, Some(key), now, WANTED_FOR)
    }

    /// It is watched for so long.
    pub fn observe_for(&self, session: SessionId, now: Duration, span: Duration) {
        self.watch_for(session, None, now, span);
    }

    fn watch_for(
        &self,
        session: SessionId,
        key: Option<&Arc<KeyId>>,
        now: Duration,
        span: Duration,
    ) -> bool {
        let mut table = self.table();
        let is_new = !table.contains_key(&session);
        let remote = table.entry(session).or_default();
        if let Some(key) = key
            && remote.keys.len() < ANSWERED_MAX
        {
            remote.keys.insert(Arc::clone(key));
        }
        remote.wanted_until = remote.wanted_until.max(now.saturating_add(span));
        let ended = remote.ended;
        drop(table);
        if is_new {
            // Its silence counts from when its row was read first.
            self.hint(session);
        }
        ended
    }

    /// After how long of further silence of its replica it counts as down; `None` of one that has ended, or whose row
    /// was not read yet.
    pub fn silence_left(&self, session: SessionId, members: &Members) -> Option<Duration> {
        let known = {
            let table = self.table();
            let remote = table.get(&session).filter(|remote| !remote.ended)?;
            remote.known.clone()?
        };
        Some(known.silence_left(members))
    }

    /// Somebody says that it has ended: it is looked at now, and not in the next round. Who waits behind its entries
    /// waits for that.
    pub fn hint(&self, session: SessionId) {
        let mut table = self.table();
        let Some(remote) = table.get_mut(&session) else {
            return;
        };
        remote.read_at = None;
        let hinted = self.hinted.lock();
        hinted
            .unwrap_or_else(PoisonError::into_inner)
            .insert(session);
        self.hints.notify_one();
    }

    fn take_hinted(&self) -> Vec<(SessionId, Remote)> {
        let table = self.table();
        let hinted = self.hinted.lock();
        let hinted = std::mem::take(&mut *hinted.unwrap_or_else(PoisonError::into_inner));
        let known = hinted.into_iter();
        let known = known.filter_map(|id| Some((id, table.get(&id)?.clone())));
        known.collect()
    }

    /// Its row is to be read in the next round: it may have changed.
    fn read_again(&self, session: SessionId) {
        if let Some(remote) = self.table().get_mut(&session) {
            remote.read_at = None;
        }
    }

    /// It moved: its row says where.
    fn forget_keeper(&self, session: SessionId) {
        if let Some(remote) = self.table().get_mut(&session) {
            remote.known = None;
            remote.read_at = None;
        }
    }

    /// Whether a renewal that nobody waits for is to be passed on now; then it is noted as that.
    fn is_due(&self, session: SessionId, now: Duration) -> bool {
        let mut table = self.table();
        let Some(remote) = table.get_mut(&session).filter(|remote| !remote.ended) else {
            return false;
        };
        let every = remote.known.as_ref().map_or(EVERY, |known| known.ttl / 10);
        let last = remote.renewed_at.max(remote.passed_on_at);
        let is_due = last.is_none_or(|at| now.saturating_sub(at) >= every);
        if is_due {
            remote.passed_on_at = Some(now);
        }
        is_due
    }

    fn saw(&self, row: &SessionRow, observed: ObservedTime, now: Duration) {
        let mut table = self.table();
        let Some(remote) = table.get_mut(&row.id) else {
            return;
        };
        remote.read_at = Some(now);
        remote.ended |= !row.open;
        let newer = remote.known.as_ref().is_none_or(|k| k.epoch < row.epoch);
        if newer {
            remote.known = Some(KnownRow {
                keeper: row.replica,
                epoch: row.epoch,
                ttl: row.ttl(),
                seen: observed,
            });
        }
    }

    fn saw_end(&self, session: SessionId, now: Duration) {
        if let Some(remote) = self.table().get_mut(&session) {
            remote.read_at = Some(now);
            remote.ended = true;
        }
    }

    /// As [`RemoteSessions::saw_end`], and who is notified of it.
    fn closed(&self, session: SessionId, now: Duration) -> BTreeSet<Arc<KeyId>> {
        self.saw_end(session, now);
        let mut table = self.table();
        let remote = table.get_mut(&session);
        remote.map_or_else(BTreeSet::new, |remote| std::mem::take(&mut remote.keys))
    }

    /// Notes that what lives by it is being evicted. False where it is not known any more.
    fn evicting(&self, session: SessionId) -> bool {
        let mut table = self.table();
        let remote = table.get_mut(&session);
        remote.map(|r| r.evicting = true).is_some()
    }

    /// These entries live by it no longer. Most are detached by the actors of their keys; of the others, which ended
    /// before they were noted here, no actor knows.
    fn evicted(&self, session: SessionId, entries: &[EntryId]) {
        if let Some(remote) = self.table().get_mut(&session) {
            remote.evicting = false;
            for entry_id in entries {
                remote.entries.remove(entry_id);
            }
        }
    }

    /// Forgets what nobody cares for, and says what is left.
    fn wanted(&self, now: Duration) -> Vec<(SessionId, Remote)> {
        let mut table = self.table();
        let wanted = |r: &Remote| !r.entries.is_empty() || r.wanted_until > now;
        table.retain(|_, remote| wanted(remote));
        let all = table.iter().map(|(id, remote)| (*id, remote.clone()));
        all.collect()
    }
}

/// Watches them until this replica is fenced.
pub(super) async fn watch_on(inner: Arc<Inner>) {
    let mut ended = inner.fenced.subscribe();
    let mut round = inner.clock.sleep(EVERY);
    loop {
        let (these, is_round) = tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => return,
            () = &mut round => (inner.remote.wanted(inner.clock.boot()), true),
            () = inner.remote.hints.notified() => (inner.remote.take_hinted(), false),
        };
        futures_util::stream::iter(these)
            .for_each_concurrent(AT_ONCE, |(session, remote)| watch(&inner, session, remote))
            .await;
        if is_round {
            round = inner.clock.sleep(EVERY);
        }
    }
}

async fn watch(inner: &Arc<Inner>, session: SessionId, remote: Remote) {
    let now = inner.clock.boot();
    if remote.ended {
        return evict(inner, session, remote);
    }
    let again = remote
        .known
        .as_ref()
        .map_or(READ_AGAIN, |k| k.ttl.max(READ_AGAIN));
    let due = remote
        .read_at
        .is_none_or(|at| now.saturating_sub(at) >= again);
    let left = |known: &KnownRow| known.silence_left(&inner.members);
    let silent = remote.known.as_ref().is_some_and(|k| left(k).is_zero());
    if due || silent {
        match inner.store.load_session(session).await {
            Ok(Some(row)) => {
                let observed = inner.members.observed(inner.clock.boot());
                let same = remote.known.as_ref().is_some_and(|k| k.epoch == row.epoch);
                inner.remote.saw(&row, observed, inner.clock.boot());
                if row.open && row.replica == inner.replica {
                    // Taken over by this replica meanwhile.
                    for entry_id in &remote.entries {
                        let _ = inner.leases.attach(session, entry_id.clone());
                    }
                    handed_over::adopt(inner, row).await;
                } else if row.open && silent && same {
                    close(inner, row).await;
                } else if !row.open {
                    return evict(inner, session, remote);
                }
            }
            Ok(None) => {
                inner.remote.saw_end(session, inner.clock.boot());
                return evict(inner, session, remote);
            }
            Err(error) => tracing::debug!(%session, %error, "could not read a session"),
        }
    }
    if let Some(known) = &remote.known
        && inner.leases.has_open_call(session)
        && remote
            .renewed_at
            .is_none_or(|at| now.saturating_sub(at) >= known.ttl / 3)
        && let Err(error) = renew(inner, session).await
    {
        tracing::debug!(%session, %error, "an open call could not renew its session");
    }
}

/// Evicts what lives by a session that has ended, until nothing does: what the store refuses is tried again. In a task
/// of its own, so that no key holds up the sessions of others.
fn evict(inner: &Arc<Inner>, session: SessionId, remote: Remote) {
    if remote.evicting || remote.entries.is_empty() || !inner.remote.evicting(session) {
        return;
    }
    let inner = Arc::clone(inner);
    tokio::spawn(async move {
        let entries: Vec<EntryId> = remote.entries.into_iter().collect();
        sessions::evict_all(&inner, session, entries.clone()).await;
        inner.remote.evicted(session, &entries);
    });
}

/// Closes a session whose replica is silent.
async fn close(inner: &Arc<Inner>, row: SessionRow) {
    let session = row.id;
    let expected = row.epoch;
    let closed = SessionRow {
        open: false,
        epoch: expected.saturating_add(1),
        ..row
    };
    match inner.store.swap_session(expected, &closed).await {
        SessionSwap::Applied => {
            tracing::info!(%session, replica = %closed.replica, "a session ended with its replica");
            for key in inner.remote.closed(session, inner.clock.boot()) {
                // One that has its hands full looks by itself.
                let _ = inner.keys.notify(inner, &key, Msg::MembershipRead);
            }
        }
        // Looked at again by the next round.
        SessionSwap::Conflict(_) => inner.remote.read_again(session),
        SessionSwap::Unknown(error) | SessionSwap::NotStarted(error) => {
            tracing::debug!(%session, %error, "could not close a session");
            inner.remote.read_again(session);
        }
    }
}

/// A renewal of a session that another replica keeps, by a call that may yet fail: passed on to that one now and
/// then, and nobody waits for it.
pub(super) fn pass_on(inner: &Arc<Inner>, session: SessionId) {
    if !inner.remote.is_due(session, inner.clock.boot()) {
        return;
    }
    let inner = Arc::clone(inner);
    tokio::spawn(async move {
        if let Err(error) = renew(&inner, session).await {
            tracing::debug!(%session, %error, "a renewal could not be passed on");
        }
    });
}

/// A renewal for a session that another replica keeps, passed on to it: what may be told of it.
pub(super) async fn renew(inner: &Arc<Inner>, session: SessionId) -> Result<Renewed, EngineError> {
    let unreachable = |why: String| EngineError::Unavailable(format!("the session's {why}"));
    for _ in 0..4 {
        match inner.leases.renew(&LeaseKey::Session(session)) {
            Err(NoLease::Unknown) => {}
            Ok(renewed) => return Ok(renewed),
            Err(_) => match sessions::renew(inner, session).await {
                // Not what the caller asks for: who keeps it is asked below.
                Err(EngineError::Elsewhere { .. }) => {}
                renewed => return renewed,
            },
        }
        let known = {
            let table = inner.remote.table();
            table.get(&session).and_then(|remote| remote.known.clone())
        };
        let known = match known {
            Some(known) => known,
            None => {
                let row = inner.store.load_session(session).await;
                let row = row.map_err(|error| EngineError::Unavailable(error.to_string()))?;
                let Some(row) = row.filter(|row| row.open) else {
                    inner.remote.saw_end(session, inner.clock.boot());
                    return Err(EngineError::SessionEnded);
                };
                let now = inner.clock.boot();
                let observed = inner.members.observed(now);
                inner.remote.saw(&row, observed, now);
                KnownRow {
                    keeper: row.replica,
                    epoch: row.epoch,
                    ttl: row.ttl(),
                    seen: observed,
                }
            }
        };
        let peer = match heartbeats::presence_of(inner, known.keeper).await {
            Presence::Live(peer) => peer,
            Presence::Local => match sessions::renew(inner, session).await {
                Err(EngineError::Elsewhere { .. }) => {
                    inner.remote.forget_keeper(session);
                    continue;
                }
                renewed => return renewed,
            },
            // Its client lives, and nobody else takes it over before that client asks for it by name.
            Presence::Down => match sessions::take(inner, session, known.keeper).await {
                Ok(()) | Err(EngineError::Elsewhere { .. }) => {
                    inner.remote.forget_keeper(session);
                    continue;
                }
                Err(error) => return Err(error),
            },
            Presence::Unsure => {
                inner.remote.read_again(session);
                return Err(unreachable("replica is not known".to_owned()));
            }
        };
        match inner.peers.renew_session(&peer, session).await {
            Ok(renewed) => {
                if let Some(remote) = inner.remote.table().get_mut(&session) {
                    remote.renewed_at = Some(inner.clock.boot());
                }
                return Ok(renewed);
            }
            Err(PeerError::Refused(EngineError::SessionEnded)) => {
                inner.remote.read_again(session);
                return Err(EngineError::SessionEnded);
            }
            Err(PeerError::Refused(EngineError::Elsewhere { .. })) => {
                inner.remote.forget_keeper(session);
            }
            Err(PeerError::Refused(error)) => return Err(error),
            Err(PeerError::Unreachable(why)) => {
                return Err(unreachable(format!("replica cannot be called: {why}")));
            }
        }
    }
    Err(unreachable("replica changes too fast".to_owned()))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::lock::{Key, Seq, TableName};

    #[test]
    fn a_session_is_forgotten_once_what_lived_by_it_was_evicted() {
        let sessions = RemoteSessions::default();
        let session = SessionId(Uuid::from_u128(1));
        let entry_id = EntryId {
            id: Arc::new(KeyId {
                table: TableName::default_table(),
                key: Key::parse("k", 9).unwrap(),
            }),
            seq: Seq::FIRST,
        };
        sessions.attach(session, entry_id.clone());
        sessions.saw_end(session, Duration::ZERO);
        assert!(sessions.evicting(session));
        assert_eq!(sessions.wanted(Duration::ZERO).len(), 1);
        // No actor detached it: it had ended before it was attached.
        sessions.evicted(session, &[entry_id]);
        assert!(sessions.wanted(Duration::ZERO).is_empty());
    }
}
