//! What is begun, where more is asked for than this replica and its store can do.

use std::time::Duration;

use super::admission::{Admission, BegunCall, TooMuch};
use super::api::{Begins, EngineError};
use super::calls::Engine;
use super::replica::Replica;

/// When to come again where the processor does not keep up.
const PACED_AGAIN_AFTER: Duration = Duration::from_secs(1);

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
        let now = replica.local.clock.boot();
        if self.shared.pace.is_full(now) {
            return Some(PACED_AGAIN_AFTER);
        }
        admission
            .is_full(now)
            .map(|TooMuch { again_after }| again_after)
    }

    /// A task of the process that serves this waited for so long for its turn.
    pub fn note_wait(&self, waited: Duration) {
        if let Ok(replica) = self.current() {
            let now = replica.local.clock.boot();
            self.shared.pace.note_wait(now, waited);
        }
    }

    /// Begins a call that waited for so long to be, unless there is too much in flight.
    pub(super) fn admitted<'a>(
        &self,
        admission: &'a Admission,
        replica: &'a Replica,
        waited: Duration,
    ) -> Result<BegunCall<'a>, EngineError> {
        let clock = &*replica.local.clock;
        let overloaded = |again_after| EngineError::Overloaded { again_after };
        let begun = admission.begin(clock, waited);
        let begun = begun.map_err(|TooMuch { again_after }| overloaded(again_after))?;
        if !self.shared.pace.begin(clock.boot()) {
            begun.refused();
            return Err(overloaded(PACED_AGAIN_AFTER));
        }
        Ok(begun)
    }
}
