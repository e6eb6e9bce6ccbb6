//! Admission of calls under overload of this replica or its store.

use std::time::Duration;

use super::admission::{Admission, BegunCall, TooMuch};
use super::api::{Begins, EngineError};
use super::calls::Engine;
use super::replica::Replica;

impl Engine {
    /// The pause before a retry, if such a call would be refused now. A refusal before the message is read costs next to
    /// nothing.
    pub fn is_overloaded(&self, begins: Begins) -> Option<Duration> {
        let admission = match begins {
            Begins::Entry => &self.shared.begins,
            Begins::Read => &self.shared.reads,
        };
        let replica = self.current().ok()?;
        // With several replicas the home of the key decides, which may be another one.
        if !replica.local.is_alone() {
            return None;
        }
        admission
            .is_full(replica.local.clock.boot())
            .map(|TooMuch { again_after }| again_after)
    }

    /// Begins a call that has already waited for `waited`, unless too many calls are in flight.
    pub(super) fn admitted<'a>(
        admission: &'a Admission,
        replica: &'a Replica,
        waited: Duration,
    ) -> Result<BegunCall<'a>, EngineError> {
        let begun = admission.begin(&*replica.local.clock, waited);
        begun.map_err(|TooMuch { again_after }| EngineError::Overloaded { again_after })
    }
}
