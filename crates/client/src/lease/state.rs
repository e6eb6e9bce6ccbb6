//! The state of a lease: until when it may be believed in.

use std::sync::Arc;

use tokio::sync::watch;

use crate::calls::last_failure::LastFailure;
use crate::calls::lost::Lost;
use crate::calls::validity::Validity;
use crate::clock::{Clock, sleep_until};

/// Whether a lease lives. Once ended it stays ended: its users have acted on that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseState {
    /// Safe from expiry for as long as the validity lasts.
    Live(Validity),
    /// Over.
    Ended(Lost),
}

/// The state, shared between the task and all guards that live by it.
pub(super) struct LeaseShared {
    clock: Arc<dyn Clock>,
    pub(super) state: watch::Sender<LeaseState>,
    /// Of its renewals.
    pub(super) last_failure: LastFailure,
}

impl LeaseShared {
    pub(super) fn new(clock: Arc<dyn Clock>, validity: Validity) -> LeaseShared {
        LeaseShared {
            clock,
            state: watch::Sender::new(LeaseState::Live(validity)),
            last_failure: LastFailure::default(),
        }
    }

    /// The state now. Ends the lease first if its time is up, so that nobody sees an ended lease as live.
    pub(super) fn look(&self) -> LeaseState {
        let now = self.clock.now();
        self.state.send_if_modified(|state| match state {
            LeaseState::Live(validity) if validity.has_ended(now) => {
                *state = LeaseState::Ended(Lost::validity_ended(self.last_failure.get()));
                true
            }
            LeaseState::Live(_) | LeaseState::Ended(_) => false,
        });
        self.state.borrow().clone()
    }

    /// Takes note of a promise. One that comes after the end brings nothing back.
    pub(super) fn extend(&self, promised: Validity) {
        if let LeaseState::Ended(_) = self.look() {
            return;
        }
        let has_grown = self.state.send_if_modified(|state| match state {
            LeaseState::Live(validity) => {
                let later = validity.or_later(promised);
                let changed = later != *validity;
                *validity = later;
                changed
            }
            LeaseState::Ended(_) => false,
        });
        if has_grown {
            self.last_failure.forget();
        }
    }

    pub(super) fn end(&self, lost: Lost) {
        self.state.send_if_modified(|state| match state {
            LeaseState::Live(_) => {
                *state = LeaseState::Ended(lost);
                true
            }
            LeaseState::Ended(_) => false,
        });
    }

    /// Returns once it has ended, by the clock or otherwise.
    pub(super) async fn ended(&self) {
        let mut changes = self.state.subscribe();
        while let LeaseState::Live(validity) = self.look() {
            tokio::select! {
                biased;
                _ = changes.changed() => {}
                () = sleep_until(&*self.clock, validity.until()) => {}
            }
        }
    }
}
