//! A key moves to the zone that sends most of its calls, while no client locks it or waits for it (H8). It stays where it is if no zone
//! has most of the calls, for a second after a move, and for a while after it was fetched from a zone whose clients can call no
//! other home.

use std::sync::Arc;

use super::api::KeyHome;
use super::calls::Engine;
use crate::lock::KeyId;

impl Engine {
    /// Where this replica runs; empty where that is not configured.
    pub fn zone(&self) -> Arc<str> {
        self.current()
            .map_or_else(|_| "".into(), |replica| Arc::clone(&replica.local.zone))
    }

    /// A call of a key was served here that came from this zone: who serves the key since, where that is this replica.
    pub fn served_here(&self, id: &KeyId, zone: &str) -> Option<KeyHome> {
        let replica = self.current().ok()?;
        let local = &replica.local;
        let cell = replica.shell.keys.find(id)?;
        let mut slot = cell.slot();
        let home = slot.machine.state().map(|state| KeyHome {
            id: local.id,
            address: replica.row.address.clone(),
            term: state.term(),
        });
        let term = home.as_ref().map(|home| home.term);
        let Some(term) = term.filter(|_| !zone.is_empty() && !local.zone.is_empty()) else {
            return home;
        };
        let now = local.clock.boot();
        slot.users.note(zone, &local.zone, term, now);
        let wanted = slot.users.wanted_in(now);
        if wanted.is_none() || !slot.machine.serves_nobody() {
            return home;
        }
        // It is tried once: what is in the way now may be so for long.
        slot.users.forget();
        drop(slot);
        let (id, zone) = (Arc::clone(&cell.id), zone.to_owned());
        let hand_overs = Arc::clone(&replica.hand_overs);
        tokio::spawn(async move { hand_overs.follow(&id, &zone).await });
        home
    }
}
