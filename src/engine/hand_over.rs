//! Keys that are handed over when this replica stops (H4).

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;

use super::peers::{Peer, Peers};
use super::requests::Requests;
use super::shell::KeyShell;
use crate::key::machine::{Answer, Call};
use crate::lock::KeyId;
use crate::store::ClusterStore;

/// How many keys are handed over at once when this replica stops.
const AT_ONCE: usize = 64;
/// How long that may take in all, whatever the time to stop: the others take over what is left, of which a lock that only
/// memory knows keeps `stopped` from being written (H7).
const HAND_OVERS_MAX: Duration = Duration::from_secs(5);

/// Gives keys to other replicas, and asks them for keys.
pub(super) struct KeyHandOvers {
    pub shell: Arc<KeyShell>,
    pub peers: Arc<dyn Peers>,
    /// Where a home is asked that cannot be called.
    pub cluster: Option<Arc<dyn ClusterStore>>,
    /// What it is asked for.
    pub requests: Requests,
}

impl KeyHandOvers {
    /// Hands the keys with live entries over to the replicas that are ranked next, before this one stops, as far as
    /// `within` allows.
    pub async fn all(&self, within: Duration) {
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
            .for_each_concurrent(AT_ONCE, |id| self.to_next_ranked(id));
        let clock = &self.shell.local.clock;
        tokio::select! {
            biased;
            () = all => {}
            () = clock.sleep(within.min(HAND_OVERS_MAX)) => {
                tracing::warn!("not all keys were handed over in time; the other replicas take them over");
            }
        }
    }

    async fn to_next_ranked(&self, id: Arc<KeyId>) {
        let local = &self.shell.local;
        if let Some(peer) = local.next_ranked(&id, &local.zone) {
            self.to(&id, &peer, false).await;
        }
    }

    /// Hands a key over to this replica; with `if_idle`, unless anybody locks it or waits for it. Whether that is the home
    /// then.
    pub async fn to(&self, id: &Arc<KeyId>, peer: &Peer, if_idle: bool) -> bool {
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
