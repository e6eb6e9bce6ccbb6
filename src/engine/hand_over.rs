//! Keys that this replica hands over: when it stops (H4), and to where they are used (H8).

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;

use super::peers::{Peer, Peers};
use super::shell::KeyShell;
use crate::key::machine::{Answer, Call};
use crate::lock::KeyId;

/// How many keys are handed over at once when this replica stops.
const AT_ONCE: usize = 64;
/// How long that may take in all, whatever the time to stop: the others take over what is left, of which a lock that only
/// memory knows keeps `stopped` from being written (H7).
const HAND_OVERS_MAX: Duration = Duration::from_secs(5);

/// Hands keys over to other replicas.
pub(super) struct KeyHandOvers {
    shell: Arc<KeyShell>,
    peers: Arc<dyn Peers>,
}

impl KeyHandOvers {
    pub fn new(shell: Arc<KeyShell>, peers: Arc<dyn Peers>) -> Self {
        KeyHandOvers { shell, peers }
    }

    /// Hands the keys with live entries over to the replicas that are ranked next, before this one stops, as far as
    /// `within` allows.
    pub async fn hand_over_all(&self, within: Duration) {
        let mut keys: Vec<(bool, Arc<KeyId>)> = Vec::new();
        for cell in self.shell.keys.all() {
            if cell.is_to_hand_over() {
                keys.push((cell.has_volatile(), Arc::clone(&cell.id)));
            }
            // There may be a million of them, and heartbeats are to be sent.
            tokio::task::consume_budget().await;
        }
        // First those that only memory knows of: while one is left, the others cannot take over at once what is left.
        keys.sort_by_key(|(is_volatile, _)| !is_volatile);
        let keys = keys.into_iter().map(|(_, id)| id);
        let all = futures_util::stream::iter(keys)
            .for_each_concurrent(AT_ONCE, |id| self.hand_over_to_next(id));
        let clock = &self.shell.local.clock;
        tokio::select! {
            biased;
            () = all => {}
            () = clock.sleep(within.min(HAND_OVERS_MAX)) => {
                tracing::warn!("not all keys were handed over in time; the other replicas take them over");
            }
        }
    }

    async fn hand_over_to_next(&self, id: Arc<KeyId>) {
        let local = &self.shell.local;
        if let Some(peer) = local.next_ranked(&id, &local.zone) {
            self.hand_over(&id, &peer, false).await;
        }
    }

    /// Hands a key over to `peer`; with `if_idle`, unless anybody locks it or waits for it. Whether `peer` is its home
    /// then.
    pub async fn hand_over(&self, id: &Arc<KeyId>, peer: &Peer, if_idle: bool) -> bool {
        let to = peer.id;
        let hand_over = Call::HandOver { to, if_idle };
        let Ok(mut asking) = self.shell.ask(id, hand_over, None) else {
            return false;
        };
        match asking.answer().await {
            Ok(Answer::HandedOver(home)) if home.replica == to => {
                self.peers.handed_over(peer, id, home.term);
                true
            }
            Ok(_) => false,
            Err(error) => {
                tracing::debug!(key = %id, ?error, "a key could not be handed over");
                false
            }
        }
    }

    /// Hands a key over to the replica that is ranked next for this zone, unless anybody locks it or waits for it.
    pub async fn follow(&self, id: &Arc<KeyId>, zone: &str) {
        let Some(peer) = self.shell.local.next_ranked(id, zone) else {
            return;
        };
        if peer.zone == zone && self.hand_over(id, &peer, true).await {
            tracing::info!(key = %id, to = %peer.id, zone, "handed a key over to where it is used");
        }
    }

    /// Whether anything was promised here by memory alone that may still count: the next home would end it at once.
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
