//! Hand-overs of keys: when this replica stops (H4), and to the zone that uses the key (H8).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;

use super::drain::{Drained, drain};
use super::limits::{HAND_OVERS_MAX, STORE_OPS_AT_ONCE};
use super::peers::{Peer, Peers};
use super::shell::KeyShell;
use crate::key::Home;
use crate::key::machine::{Answer, Call};
use crate::lock::{KeyId, ReplicaId};

/// A key without a call for this time is not in use.
const CALLED_WITHIN: Duration = Duration::from_secs(5);
/// Tries to hand a key over while nobody locks it, and the pause between them. Then it goes with its holder.
const IDLE_TRIES: u32 = 3;
const IDLE_TRIED_EVERY: Duration = Duration::from_millis(10);
/// The longest time that one key occupies a hand-over in flight when this replica stops.
const KEY_TAKES_MAX: Duration = Duration::from_secs(2);

/// Hands keys over to other replicas.
pub(super) struct KeyHandOvers {
    shell: Arc<KeyShell>,
    peers: Arc<dyn Peers>,
}

impl KeyHandOvers {
    pub fn new(shell: Arc<KeyShell>, peers: Arc<dyn Peers>) -> Self {
        KeyHandOvers { shell, peers }
    }

    /// Hands the keys with live entries over to the next ranked replicas before this one stops, for `within` at most. Without
    /// other replicas it commits them for the next start.
    pub async fn hand_over_all(&self, within: Duration) {
        let mut keys: Vec<(bool, Arc<KeyId>)> = Vec::new();
        let has_peers = !self.shell.local.membership.peers().is_empty();
        for cell in self.shell.keys.all() {
            let is_to_give = has_peers && cell.is_to_hand_over();
            if is_to_give || cell.is_ahead_of_row() {
                keys.push((cell.has_volatile(), Arc::clone(&cell.id)));
            }
            // There may be a million keys, and heartbeats must go on.
            tokio::task::consume_budget().await;
        }
        // Volatile locks first: while one is left, the others cannot take the rest over at once.
        keys.sort_by_key(|(is_volatile, _)| !is_volatile);
        let keys = keys.into_iter().map(|(_, id)| id);
        let all = futures_util::stream::iter(keys)
            .for_each_concurrent(STORE_OPS_AT_ONCE, |id| self.hand_over_to_next(id));
        let clock = &self.shell.local.clock;
        tokio::select! {
            biased;
            () = all => {}
            () = clock.sleep(within.min(HAND_OVERS_MAX)) => {
                let what_follows = match has_peers {
                    true => "the other replicas take them over",
                    false => "volatile locks and entries end",
                };
                tracing::warn!("not all keys were handed over in time: {what_follows}");
            }
        }
    }

    /// Tells the other replicas that this one leaves, so that it becomes the home of no more keys. Returns those that answered
    /// `within` that time.
    pub async fn note_leaving(&self, within: Duration) -> BTreeSet<ReplicaId> {
        let local = &self.shell.local;
        let peers = local.membership.peers();
        if !peers.is_empty() {
            local.membership.note_leaving(local.id);
        }
        let notified = peers.iter().map(|peer| async move {
            tokio::select! {
                biased;
                notified = self.peers.leaving(peer, local.id) => notified.is_ok().then_some(peer.id),
                () = local.clock.sleep(within) => None,
            }
        });
        join_all(notified).await.into_iter().flatten().collect()
    }

    /// Hands the keys in use over to replicas in `to`, the last called first, while calls are served. So no call has to wait
    /// for a take-over after the stop. A key that came here since `leaving` is in use as well.
    pub async fn hand_over_in_use(
        &self,
        to: &BTreeSet<ReplicaId>,
        leaving: Duration,
        within: Duration,
    ) {
        let clock = &*self.shell.local.clock;
        let find = || self.in_use(leaving);
        let give = |id| self.hand_over_one_in_use(id, to);
        let Drained { found, done } = drain(clock, within, find, give).await;
        if found > 0 {
            tracing::info!(
                keys = found,
                handed_over = done,
                "handed keys in use over before calls end"
            );
        }
    }

    /// The keys in use, the last called first.
    async fn in_use(&self, leaving: Duration) -> Vec<Arc<KeyId>> {
        let clock = &self.shell.local.clock;
        let since = clock.boot().saturating_sub(CALLED_WITHIN);
        let mut keys = Vec::new();
        for cell in self.shell.keys.all() {
            if let Some(called) = cell.in_use_at(leaving).filter(|called| *called >= since) {
                keys.push((called, Arc::clone(&cell.id)));
            }
            tokio::task::consume_budget().await;
        }
        keys.sort_by(|(one, _), (other, _)| other.cmp(one));
        keys.into_iter().map(|(_, id)| id).collect()
    }

    /// Hands a key over, if possible while nobody holds it, because a holder would need another grant. True if it did.
    async fn hand_over_one_in_use(&self, id: Arc<KeyId>, to: &BTreeSet<ReplicaId>) -> bool {
        let local = &self.shell.local;
        let mut tries = 0;
        loop {
            let next = local.next_ranked(&id, &local.zone);
            let Some(peer) = next.filter(|peer| to.contains(&peer.id)) else {
                return false;
            };
            let if_idle = tries < IDLE_TRIES;
            if self.hand_over(&id, peer, if_idle).await {
                return true;
            }
            if !if_idle {
                return false;
            }
            local.clock.sleep(IDLE_TRIED_EVERY).await;
            tries += 1;
        }
    }

    async fn hand_over_to_next(&self, id: Arc<KeyId>) {
        let local = &self.shell.local;
        let given = async {
            match local.next_ranked(&id, &local.zone) {
                Some(peer) => {
                    self.hand_over(&id, peer, false).await;
                }
                None => self.commit_volatile(&id).await,
            }
        };
        tokio::select! {
            biased;
            () = given => {}
            // The hand-over goes on, and keys on other nodes of the store get their turn.
            () = local.clock.sleep(KEY_TAKES_MAX) => {}
        }
    }

    /// Commits what only memory knows of a key, by a hand-over to this replica itself, since there is no other replica.
    async fn commit_volatile(&self, id: &Arc<KeyId>) {
        let cell = self.shell.keys.find(id);
        if !cell.is_some_and(|cell| cell.is_ahead_of_row()) {
            return;
        }
        give(&self.shell, id, self.shell.local.id, false).await;
    }

    /// Hands a key over to `peer`; with `if_idle`, only if nobody locks it or waits for it. True if `peer` is its home then.
    /// Runs in a task of its own, so that `peer` is notified even if the caller is gone.
    pub async fn hand_over(&self, id: &Arc<KeyId>, peer: Arc<Peer>, if_idle: bool) -> bool {
        let shell = Arc::clone(&self.shell);
        let (peers, id) = (Arc::clone(&self.peers), Arc::clone(id));
        let given = tokio::spawn(async move {
            let home = give(&shell, &id, peer.id, if_idle).await;
            match home.filter(|home| home.replica == peer.id) {
                Some(home) => {
                    peers.handed_over(&peer, &id, home.term);
                    true
                }
                None => false,
            }
        });
        given.await.unwrap_or(false)
    }

    /// Hands a key over to the next ranked replica of this zone, unless a client locks it or waits for it.
    pub async fn follow(&self, id: &Arc<KeyId>, zone: &str) {
        let Some(peer) = self.shell.local.next_ranked(id, zone) else {
            return;
        };
        let to = peer.id;
        if peer.zone == zone && self.hand_over(id, peer, true).await {
            tracing::info!(key = %id, %to, zone, "handed a key over to the zone that uses it");
        }
    }

    /// Whether a volatile promise may still count here: the next home would end it at once.
    pub async fn keeps_volatile(&self) -> bool {
        let now = self.shell.local.clock.boot();
        for cell in self.shell.keys.all() {
            if cell.is_silent(now) || cell.has_volatile() {
                return true;
            }
            tokio::task::consume_budget().await;
        }
        false
    }
}

/// Asks the machine of a key to hand it over to `to`. Returns the home after that.
async fn give(
    shell: &Arc<KeyShell>,
    id: &Arc<KeyId>,
    to: ReplicaId,
    if_idle: bool,
) -> Option<Home> {
    let hand_over = Call::HandOver { to, if_idle };
    let mut asking = shell.ask(id, hand_over, None).ok()?;
    match asking.answer().await {
        Ok(Answer::HandedOver(home)) => Some(home),
        Ok(_) => None,
        Err(error) => {
            tracing::debug!(key = %id, %to, ?error, "could not hand a key over");
            None
        }
    }
}
