//! Keys that are handed over when this replica stops (H4).

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;

use super::peers::Peer;
use super::replica::Replica;
use crate::key::Home;
use crate::key::machine::{Answer, Call};
use crate::lock::KeyId;

/// How many keys are handed over at once when this replica stops.
const AT_ONCE: usize = 64;
/// How long that may take in all, whatever the time to stop: the others take over what is left, of which a lock that only
/// memory knows keeps `stopped` from being written (H7).
const HAND_OVERS_MAX: Duration = Duration::from_secs(5);

/// Hands the keys with live entries over to the replicas that are ranked next, before this one stops, as far as `within`
/// allows.
pub(super) async fn hand_over_all(replica: &Arc<Replica>, within: Duration) {
    let mut keys: Vec<(bool, Arc<KeyId>)> = Vec::new();
    for cell in replica.keys.all() {
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
        .for_each_concurrent(AT_ONCE, |id| hand_over_one(replica, id));
    tokio::select! {
        biased;
        () = all => {}
        () = replica.clock.sleep(within.min(HAND_OVERS_MAX)) => {
            tracing::warn!("not all keys were handed over in time; the other replicas take them over");
        }
    }
}

/// Whether anything was promised here by memory alone that may still count: the next home would end it at once.
pub(super) async fn keeps_volatile(replica: &Replica) -> bool {
    let now = replica.clock.boot();
    for cell in replica.keys.all() {
        if cell.is_silent(now) || cell.has_volatile() {
            return true;
        }
        tokio::task::consume_budget().await;
    }
    false
}

async fn hand_over_one(replica: &Arc<Replica>, id: Arc<KeyId>) {
    if let Some(peer) = replica
        .membership
        .next_ranked(id.name_hash(), &replica.zone)
    {
        hand_over_to(replica, &id, &peer, false).await;
    }
}

/// Hands a key over to this replica; with `if_idle`, unless anybody locks it or waits for it. Whether that is the home then.
pub(super) async fn hand_over_to(
    replica: &Arc<Replica>,
    id: &Arc<KeyId>,
    peer: &Peer,
    if_idle: bool,
) -> bool {
    let to = peer.id;
    let answered = replica.ask(id, Call::HandOver { to, if_idle }, None);
    let Ok(mut asking) = answered else {
        return false;
    };
    match asking.answer().await {
        Ok(Answer::HandedOver(home)) => {
            notify(replica, peer, id, home);
            home.replica == peer.id
        }
        Ok(_) => false,
        Err(error) => {
            tracing::debug!(key = %id, ?error, "a key could not be handed over");
            false
        }
    }
}

fn notify(replica: &Replica, peer: &Peer, id: &KeyId, home: Home) {
    if home.replica == peer.id {
        replica.peers.handed_over(peer, id, home.term);
    }
}
