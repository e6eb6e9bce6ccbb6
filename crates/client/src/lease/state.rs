//! The state of a lease: until when it may be believed in.

use std::sync::Arc;

use tokio::sync::watch;

use crate::calls::fault::LastFailure;
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

/// A state that its users share, and that ends by the clock.
pub(crate) struct LeaseCell {
    clock: Arc<dyn Clock>,
    state: watch::Sender<LeaseState>,
    /// Of the calls that would extend it.
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

    /// Takes note of a promise. One that comes after the end brings nothing back.
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

    /// Every change of it but its end by the clock.
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
