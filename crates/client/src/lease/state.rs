//! The state of a lease: live for a validity, or ended.

use std::sync::Arc;

use tokio::sync::watch;

use crate::calls::fault::LastFailure;
use crate::calls::lost::Lost;
use crate::calls::validity::Validity;
use crate::clock::{Clock, sleep_until};

/// Whether a lease lives. Once ended it stays ended, because its users have acted on the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseState {
    /// Safe from expiry for as long as the validity lasts.
    Live(Validity),
    /// Ended.
    Ended(Lost),
}

/// The state of a lease, shared by its users. It ends by the clock.
pub(crate) struct LeaseCell {
    clock: Arc<dyn Clock>,
    state: watch::Sender<LeaseState>,
    /// The failure of the last call that would have extended the lease.
    pub(crate) last_failure: LastFailure,
}

impl LeaseCell {
    pub(crate) fn new(clock: Arc<dyn Clock>, validity: Validity) -> LeaseCell {
        LeaseCell {
            clock,
            state: watch::Sender::new(LeaseState::Live(validity)),
            last_failure: LastFailure::default(),
        }
    }

    /// The state now. Ends the lease first if its time is up, so that nobody sees an ended lease as live.
    pub(crate) fn look(&self) -> LeaseState {
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

    /// Notes a promise. After the end it changes nothing.
    pub(crate) fn extend(&self, promised: Validity) {
        self.look();
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

    pub(crate) fn end(&self, lost: Lost) {
        self.state.send_if_modified(|state| match state {
            LeaseState::Live(_) => {
                *state = LeaseState::Ended(lost);
                true
            }
            LeaseState::Ended(_) => false,
        });
    }

    /// Every change of the state, except its end by the clock.
    pub(crate) fn changes(&self) -> watch::Receiver<LeaseState> {
        self.state.subscribe()
    }

    /// Returns once it has ended, by the clock or otherwise.
    pub(crate) async fn ended(&self) -> Lost {
        let mut changes = self.changes();
        loop {
            let validity = match self.look() {
                LeaseState::Live(validity) => validity,
                LeaseState::Ended(lost) => return lost,
            };
            let past = async {
                match validity.is_endless() {
                    true => std::future::pending().await,
                    false => sleep_until(&*self.clock, validity.until()).await,
                }
            };
            tokio::select! {
                biased;
                _ = changes.changed() => {}
                () = past => {}
            }
        }
    }
}
