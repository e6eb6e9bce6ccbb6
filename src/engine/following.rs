//! A key that is used from another zone only moves there, while nobody locks it or waits for it (H8). While several zones
//! want it, it stays: one queue, one order.

use std::sync::Arc;

use super::calls::Engine;
use super::hand_over::hand_over_to;
use super::replica::Replica;
use super::users::Users;
use crate::lock::KeyId;

impl Engine {
    /// Where this replica runs; empty where that is not configured.
    pub fn zone(&self) -> Arc<str> {
        self.current()
            .map_or_else(|_| "".into(), |replica| Arc::clone(&replica.zone))
    }

    /// A call of a key was served here that came from this zone.
    pub fn served_for(&self, id: &KeyId, zone: &str) {
        let Ok(replica) = self.current() else {
            return;
        };
        if zone.is_empty() || replica.zone.is_empty() {
            return;
        }
        let Some(cell) = replica.keys.find(id) else {
            return;
        };
        let mut slot = cell.slot();
        slot.users.note(zone, &replica.zone);
        if slot.users.wanted_in().is_none() || !slot.machine.serves_nobody() {
            return;
        }
        // It is tried once: what is in the way now may be so for long.
        slot.users = Users::default();
        drop(slot);
        let (id, zone) = (Arc::clone(&cell.id), zone.to_owned());
        tokio::spawn(async move { follow(&replica, id, &zone).await });
    }
}

async fn follow(replica: &Arc<Replica>, id: Arc<KeyId>, zone: &str) {
    let Some(peer) = replica.membership.next_ranked(&id, zone) else {
        return;
    };
    if peer.zone == zone && hand_over_to(replica, &id, &peer).await {
        tracing::info!(key = %id, to = %peer.id, zone, "handed a key over to where it is used");
    }
}
