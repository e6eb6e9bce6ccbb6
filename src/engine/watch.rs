//! A watch of one lockRef.

use std::sync::Arc;
use std::time::Duration;

use super::api::WatchEvent;
use super::ask::Watching;
use super::sessions::Sessions;
use crate::key::machine::{EntryRef, EntryStatus};
use crate::lock::{KeyId, Liveness};

/// A watch of a lockRef. The call that began it renewed the lease; the open watch renews nothing. A drop ends it.
pub struct Watch {
    watching: Watching,
    sessions: Arc<Sessions>,
    id: Arc<KeyId>,
    entry: EntryRef,
    seen: Option<WatchEvent>,
    /// The rest of its lease when it came to hold the key.
    valid_for: Duration,
    durable: bool,
}

impl Watch {
    pub(super) fn new(
        watching: Watching,
        sessions: Arc<Sessions>,
        id: Arc<KeyId>,
        entry: EntryRef,
    ) -> Self {
        Watch {
            watching,
            sessions,
            id,
            entry,
            seen: None,
            valid_for: Duration::ZERO,
            durable: false,
        }
    }

    /// The next event: the present status first, then each change. Changes faster than the calls are merged. `None` after
    /// `Lost`, once another replica is the home, or once the engine stops.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        if matches!(self.seen, Some(WatchEvent::Lost(_))) {
            return None;
        }
        let shell = Arc::clone(&self.watching.shell);
        let mut stopping = shell.local.stopping();
        loop {
            let now = self.watching.news.borrow_and_update().clone();
            let now = match now {
                Some(EntryStatus::Waiting { position }) if position > 0 => {
                    Some(WatchEvent::Waiting {
                        position,
                        estimate: shell.reports.estimate(&self.id, position),
                    })
                }
                // The first entry before its grant has nobody ahead, and does not hold the key.
                Some(EntryStatus::Waiting { .. }) | None => None,
                Some(EntryStatus::Held { grant }) => Some(WatchEvent::Held { grant }),
                Some(EntryStatus::Ended(end)) => Some(WatchEvent::Lost(end)),
                Some(EntryStatus::Elsewhere(_)) => return None,
            };
            if let Some(now) = now
                && !self.has_seen(&now)
            {
                let is_held = matches!(now, WatchEvent::Held { .. });
                if !is_held || self.note_validity() {
                    shell.local.sure().ok()?;
                    if let WatchEvent::Held { grant } = now {
                        self.watching.heard = Some(grant);
                    }
                    self.seen = Some(now.clone());
                    return Some(now);
                }
            }
            tokio::select! {
                biased;
                changed = self.watching.news.changed() => changed.ok()?,
                _ = stopping.wait_for(|stopping| *stopping) => return None,
            }
        }
    }

    /// Whether this event was told. Another estimate of the same position is no new event.
    fn has_seen(&self, now: &WatchEvent) -> bool {
        match (&self.seen, now) {
            (
                Some(WatchEvent::Waiting { position: old, .. }),
                WatchEvent::Waiting { position: new, .. },
            ) => old == new,
            (seen, now) => seen.as_ref() == Some(now),
        }
    }

    /// The span without expiry when the lockRef came to hold the key.
    pub fn valid_for(&self) -> Duration {
        self.valid_for
    }

    /// Whether the lockRef survives a crash of its home.
    pub fn durable(&self) -> bool {
        self.durable
    }

    /// Notes the validity. False if the lockRef does not hold the key any more, as far as known here.
    fn note_validity(&mut self) -> bool {
        let shell = &self.watching.shell;
        let slot = self.watching.cell.slot();
        let holder = slot.machine.state().and_then(|state| state.holder());
        let Some(holder) = holder.filter(|holder| holder.seq == self.entry.seq) else {
            return false;
        };
        self.durable = slot.machine.is_durable(holder.seq);
        let until = (!self.durable).then(|| shell.local.sure_until());
        let left = match holder.liveness {
            Liveness::Own { .. } => {
                let lease = slot.machine.lease_left(holder.seq, shell.time.now());
                lease.map(|(_, left)| left)
            }
            Liveness::Session(session) => self.sessions.safe_for(session),
        };
        self.valid_for = shell.local.promise(left.unwrap_or_default(), until);
        tracing::trace!(key = %self.id, seq = %self.entry.seq, "a watched entry holds its key");
        true
    }
}
