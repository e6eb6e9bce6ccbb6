//! A key moves to the zone that sends most of its calls, while no client locks it or waits for it (H8). It stays if no zone sends
//! most of the calls, for a second after a move, and for a while after it was fetched from a home that cannot be called from
//! here.

use std::sync::Arc;

use super::api::KeyHome;
use super::calls::Engine;
use crate::lock::KeyId;

impl Engine {
    /// The configured zone of this replica; empty: none.
    pub fn zone(&self) -> Arc<str> {
        self.current()
            .map_or_else(|_| "".into(), |replica| Arc::clone(&replica.local.zone))
    }

    /// Notes a call from this zone that was served here. Returns the home of the key if it is this replica.
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
        // One try: an obstacle may stay for long.
        slot.users.forget();
        drop(slot);
        let (id, zone) = (Arc::clone(&cell.id), zone.to_owned());
        let hand_overs = Arc::clone(&replica.hand_overs);
        tokio::spawn(async move { hand_overs.follow(&id, &zone).await });
        home
    }
}
