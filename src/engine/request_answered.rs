//! Requests of other replicas, through the store, for keys and sessions of this one (H4).

use std::sync::Arc;
use std::time::Duration;

use super::api::EngineError;
use super::peers::Presence;
use super::sessions::{self, Sessions};
use super::shell::KeyShell;
use super::slot::Slot;
use crate::key::machine::{Answer, Call};
use crate::lock::{KeyId, Seq};
use crate::membership::OpenHandOver;
use crate::store::HandOverSubject;

/// The longest look at a requested key.
const ASKED_FOR: Duration = Duration::from_secs(5);
/// The pause between looks.
const REREAD_EVERY: Duration = Duration::from_millis(20);
/// A holder with a call at this home within this time keeps the key here.
const SERVED_LATELY: Duration = Duration::from_secs(1);

/// Answers a request: hands the key over when that is due, or the session at once.
pub(super) async fn answer(shell: &Arc<KeyShell>, sessions: &Arc<Sessions>, open: OpenHandOver) {
    match open.request.subject.clone() {
        HandOverSubject::Key { key, term } => give_key(shell, open, key, term).await,
        HandOverSubject::Session { session, epoch } => {
            let to = open.request.to;
            match sessions::give(sessions, session, epoch, to).await {
                Ok(()) => forget(open).await,
                Err(error) => {
                    tracing::debug!(%session, %error, "could not hand a session over");
                }
            }
        }
    }
}

async fn forget(open: OpenHandOver) {
    if let Err(error) = open.forget().await {
        tracing::debug!(%error, "could not delete a hand-over request");
    }
}

async fn give_key(shell: &Arc<KeyShell>, open: OpenHandOver, key: KeyId, mut term: u64) {
    let request = &open.request;
    let id = Arc::new(key);
    let asked_at = shell.local.clock.boot();
    let mut first_holder = None;
    loop {
        let now = shell.local.clock.boot();
        let cell = shell.keys.find(&id);
        let seen = cell.and_then(|cell| KeyUse::of(&cell.slot()));
        let asked_for = now.saturating_sub(asked_at);
        match seen {
            // The key was handed or taken over since.
            Some(seen) if seen.term > term => return forget(open).await,
            Some(seen) if seen.term < term => return,
            Some(seen) => {
                let first = *first_holder.get_or_insert(seen.holder);
                if seen.is_due(now, asked_for, first) {
                    break;
                }
            }
            // Forgotten, or never known (H11): only this replica can hand it over, so it takes it over from itself.
            None => {
                let from = shell.local.id;
                match shell.asked(&id, Call::TakeOver { from }).await {
                    Ok(Answer::Home(home)) if home.term == term.saturating_add(1) => {
                        term = home.term;
                    }
                    // Another replica is the home by now: the request is stale.
                    Err(EngineError::Elsewhere { .. }) => return forget(open).await,
                    Ok(_) | Err(_) => return,
                }
            }
        }
        if asked_for >= ASKED_FOR {
            // A standing request comes again.
            return;
        }
        shell.local.clock.sleep(REREAD_EVERY).await;
    }
    match shell.local.presence(request.to) {
        Presence::Live(_) => {}
        // Another replica may request the key, too.
        Presence::Local | Presence::Down => return forget(open).await,
        Presence::Suspected | Presence::Unsure => return,
    }
    let hand_over = Call::HandOver {
        to: request.to,
        if_idle: false,
    };
    match shell.asked(&id, hand_over).await {
        Ok(_) => {
            tracing::info!(key = %id, to = %request.to, "handed a key over on request");
            forget(open).await;
        }
        Err(error) => tracing::debug!(key = %id, %error, "could not hand a key over"),
    }
}

/// The use of a requested key.
#[derive(Clone, Copy, Debug)]
struct KeyUse {
    term: u64,
    holder: Option<Seq>,
    /// The last call of the holder here, by CLOCK_BOOTTIME.
    served_at: Option<Duration>,
    /// The moment when this replica became the home, by CLOCK_BOOTTIME.
    home_since: Duration,
    /// The holder held the key before that, and has made no call here.
    is_inherited: bool,
}

impl KeyUse {
    /// `None` if this replica does not serve the key.
    fn of(slot: &Slot) -> Option<KeyUse> {
        let state = slot.machine.state()?;
        let holder = state.holder().map(|holder| holder.seq);
        let served = slot.served.filter(|(seq, _)| Some(*seq) == holder);
        Some(KeyUse {
            term: state.term(),
            holder,
            served_at: served.map(|(_, at)| at),
            home_since: slot.home_since?,
            is_inherited: slot.machine.has_inherited_holder(),
        })
    }

    /// A key is handed over while nobody holds it, or while its holder makes no calls here. Otherwise it goes at the end of a
    /// holder, once the request is as old as a holder may be silent.
    fn is_due(&self, now: Duration, asked_for: Duration, first_holder: Option<Seq>) -> bool {
        let lately = |at: Duration| now.saturating_sub(at) < SERVED_LATELY;
        if self.holder.is_none() {
            return true;
        }
        if self.is_inherited {
            // Its client may be on its way here.
            return !lately(self.home_since);
        }
        let is_served = self.served_at.is_some_and(lately);
        !is_served || (self.holder != first_holder && asked_for >= SERVED_LATELY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn ago(ms: u64) -> Duration {
        NOW - Duration::from_millis(ms)
    }

    fn seen(served_at: Option<Duration>) -> KeyUse {
        KeyUse {
            term: 3,
            holder: Some(Seq(7)),
            served_at,
            home_since: ago(60_000),
            is_inherited: false,
        }
    }

    #[test]
    fn a_key_is_given_unless_its_holder_is_served_here_or_may_still_come() {
        let free = KeyUse {
            holder: None,
            ..seen(None)
        };
        let served = |before| seen(Some(ago(before)));
        let came = |before| KeyUse {
            is_inherited: true,
            home_since: ago(before),
            ..seen(None)
        };
        for (what, key, asked_ms, first_holder, is_due) in [
            ("nobody holds it", free, 0, None, true),
            (
                "its holder is served here",
                served(900),
                4_000,
                Some(7),
                false,
            ),
            ("its holder is silent", served(1_100), 0, Some(7), true),
            ("it is never free", served(5), 900, Some(6), false),
            ("a holder has ended", served(5), 1_000, Some(6), true),
            ("granted here, nobody comes", seen(None), 0, Some(6), true),
            ("a holder came with the key", came(900), 0, None, false),
            ("that one does not come", came(1_100), 0, None, true),
        ] {
            let asked_for = Duration::from_millis(asked_ms);
            let first_holder = first_holder.map(Seq);
            assert_eq!(key.is_due(NOW, asked_for, first_holder), is_due, "{what}");
        }
    }
}
