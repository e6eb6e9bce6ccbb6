//! Admission of calls under overload of this replica or its store.

use std::time::Duration;

use super::admission::{Admission, BegunCall, TooMuch};
use super::api::{Begins, EngineError};
use super::calls::Engine;
use super::replica::Replica;

impl Engine {
    /// When to come again, where a call that begins an entry or a session (`Begins::Entry`), or reads without a lock, would be
    /// refused now. Refused before it is read, it costs next to nothing.
    pub fn is_overloaded(&self, begins: Begins) -> Option<Duration> {
        let admission = match begins {
            Begins::Entry => &self.shared.begins,
            Begins::Read => &self.shared.reads,
        };
        let replica = self.current().ok()?;
        // Of several replicas the home of a key decides, which may be another one.
        if !replica.local.is_alone() {
            return None;
        }
        admission
            .is_full(replica.local.clock.boot())
            .map(|TooMuch { again_after }| again_after)
    }

    /// Begins a call that waited for so long to be, unless there is too much in flight.
    pub(super) fn admitted<'a>(
        admission: &'a Admission,
        replica: &'a Replica,
        waited: Duration,
    ) -> Result<BegunCall<'a>, EngineError> {
        let begun = admission.begin(&*replica.local.clock, waited);
        begun.map_err(|TooMuch { again_after }| EngineError::Overloaded { again_after })
    }
}
