//! A session, or a lockRef without one, that is kept alive: until when that may be believed. The renewals themselves are
//! made in `renewal.rs`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::answer::Renewed;
use super::clock::{Clock, sleep_until};
use super::connect::Client;
use super::fault::ServerError;
use super::last_failure::LastFailure;
use super::lost::Lost;
use super::renewal::Renewals;
use super::validity::Validity;

/// Whether it lives. Once ended it stays ended: who was told so has acted on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaseState {
    /// Safe from expiry for as long as the validity lasts.
    Live(Validity),
    /// Over.
    Ended(Lost),
}

/// The state, shared between the task and all guards that live by it.
pub(super) struct LeaseShared {
    clock: Arc<dyn Clock>,
    state: watch::Sender<LeaseState>,
    /// Of its renewals.
    pub(super) last_failure: LastFailure,
}

impl LeaseShared {
    /// The state now. Ends it first if its time is up, so that nobody sees a live lease that is none.
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

    fn end(&self, lost: Lost) {
        self.state.send_if_modified(|state| match state {
            LeaseState::Live(_) => {
                *state = LeaseState::Ended(lost);
                true
            }
            LeaseState::Ended(_) => false,
        });
    }
}

/// A session, or a lockRef without one, that is kept alive until this is dropped.
pub(super) struct Lease {
    shared: Arc<LeaseShared>,
    session: String,
    ttl: Duration,
    disconnect_grace: Option<Duration>,
    /// Whether a server knows the stream whose end tells that this client went, or none ever will.
    on_stream: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Lease {
    /// Keeps alive what was opened, or renewed, from now on.
    pub(super) fn start(client: &Client, opened: Renewed) -> Lease {
        let Renewed {
            session,
            ttl,
            disconnect_grace,
            validity,
            ..
        } = opened;
        let shared = Arc::new(LeaseShared {
            clock: client.shared_clock(),
            state: watch::Sender::new(LeaseState::Live(validity)),
            last_failure: LastFailure::default(),
        });
        let (attached, on_stream) = watch::channel(false);
        let renewals = Renewals::new(client, &session, ttl, disconnect_grace, attached);
        let task = tokio::spawn(keep(renewals, Arc::clone(&shared)));
        Lease {
            shared,
            session,
            ttl,
            disconnect_grace,
            on_stream,
            task,
        }
    }

    /// What KeepAlive and RenewSession take.
    pub(super) fn session(&self) -> &str {
        &self.session
    }

    /// The TTL in force.
    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// How long it lives on once its stream ends, where that matters.
    pub(super) fn disconnect_grace(&self) -> Option<Duration> {
        self.disconnect_grace
    }

    /// Returns once the server knows the stream whose end begins the disconnect_grace: of a client that is killed
    /// before, nothing tells, and what it held would stay held for the whole TTL. At once without a disconnect_grace;
    /// and where no stream can be had, after a third of the TTL at the latest.
    pub(super) async fn attached(&self) {
        if self.disconnect_grace.is_none() {
            return;
        }
        let mut on_stream = self.on_stream.clone();
        // An error says that the renewals have ended: so has the lease.
        let _ = timeout(self.ttl / 3, on_stream.wait_for(|known| *known)).await;
    }

    /// The state now.
    pub(super) fn state(&self) -> LeaseState {
        self.shared.look()
    }

    /// What the last renewal failed with, where it did.
    pub(super) fn last_failure(&self) -> Option<ServerError> {
        self.shared.last_failure.get()
    }

    /// Takes note of what another answer promised.
    pub(super) fn extend(&self, promised: Validity) {
        self.shared.extend(promised);
    }

    /// Ends it, because somebody learned that it has ended.
    pub(super) fn end(&self, lost: Lost) {
        self.shared.end(lost);
    }

    /// Tells of its end, and does not keep it alive.
    pub(super) fn watch(&self) -> LeaseWatch {
        LeaseWatch(self.shared.state.subscribe())
    }

    /// Returns when it has ended.
    pub(super) async fn ended(&self) -> Lost {
        let mut changes = self.shared.state.subscribe();
        loop {
            if let LeaseState::Ended(lost) = self.shared.look() {
                return lost;
            }
            if changes.changed().await.is_err() {
                return Lost::validity_ended(self.last_failure());
            }
        }
    }
}

/// What outlives a lease and learns of its end.
#[derive(Clone)]
pub(super) struct LeaseWatch(watch::Receiver<LeaseState>);

/// How a lease stopped being kept alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LeaseEnd {
    /// It has ended.
    Ended,
    /// Nobody keeps it alive any more: it will be, within a TTL.
    LeftAlone,
}

impl LeaseWatch {
    /// Returns when the lease ends.
    pub(super) async fn ended(mut self) -> LeaseEnd {
        let has_ended = |state: &LeaseState| matches!(state, LeaseState::Ended(_));
        match self.0.wait_for(has_ended).await {
            Ok(_) => LeaseEnd::Ended,
            Err(_dropped) => LeaseEnd::LeftAlone,
        }
    }
}

/// Runs until the lease has ended, or the task is aborted.
async fn keep(renewals: Renewals, shared: Arc<LeaseShared>) {
    tokio::select! {
        // The end of the validity is looked at first: a renewal that comes with it comes too late.
        biased;
        () = validity_end(&shared) => {}
        lost = renewals.run(&shared) => shared.end(lost),
    }
}

/// Returns once the lease has ended, by its validity or otherwise.
async fn validity_end(shared: &LeaseShared) {
    while let LeaseState::Live(validity) = shared.look() {
        let now = shared.clock.now();
        // In slices, for a lease that was extended or ended meanwhile, and for suspend.
        let slice = validity.left(now).min(Duration::from_millis(500));
        sleep_until(&*shared.clock, now.after(slice)).await;
    }
}
