//! A lease: a session, or a lockRef without a session, kept alive.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::renewal::Renewals;
use super::state::{LeaseCell, LeaseState};
use crate::calls::answer::Renewed;
use crate::calls::client::Client;
use crate::calls::fault::ServerError;
use crate::calls::lost::Lost;
use crate::calls::validity::Validity;

/// A session, or a lockRef without a session, kept alive until this is dropped.
pub(crate) struct Lease {
    shared: Arc<LeaseCell>,
    opened: Renewed,
    /// True once a server knows the stream whose end begins the disconnect_grace, or once there will be no such stream.
    on_stream: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Lease {
    /// Keeps a session, or a lockRef, alive from now on.
    pub(crate) fn start(client: &Client, opened: Renewed) -> Lease {
        let shared = Arc::new(LeaseCell::new(client.shared_clock(), opened.validity));
        let (attached, on_stream) = watch::channel(false);
        let renewals = Renewals::new(client, &opened, attached);
        let lease = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            tokio::select! {
                // The end is looked at first: a renewal that comes with it comes too late.
                biased;
                _ = lease.ended() => {}
                lost = renewals.run(&lease) => lease.end(lost),
            }
        });
        Lease {
            shared,
            opened,
            on_stream,
            task,
        }
    }

    /// The text that KeepAlive and RenewSession take.
    pub(crate) fn session(&self) -> &str {
        &self.opened.session
    }

    /// The TTL in force.
    pub(crate) fn ttl(&self) -> Duration {
        self.opened.ttl
    }

    /// How long the session lives on after the end of its stream, if it has such a grace.
    pub(crate) fn disconnect_grace(&self) -> Option<Duration> {
        self.opened.disconnect_grace
    }

    /// Returns once the server knows the stream whose end begins the disconnect_grace. (If the client is killed before, its locks
    /// stay held for the whole TTL.) Without a disconnect_grace returns at once; without a stream after a third of the TTL at the
    /// latest.
    pub(super) async fn attached(&self) {
        if self.opened.disconnect_grace.is_none() {
            return;
        }
        let mut on_stream = self.on_stream.clone();
        // An error says that the renewals have ended: so has the lease.
        let _ = timeout(self.opened.ttl / 3, on_stream.wait_for(|known| *known)).await;
    }

    /// The state now.
    pub(crate) fn state(&self) -> LeaseState {
        self.shared.look()
    }

    /// The failure of the last renewal, if it failed.
    pub(crate) fn last_failure(&self) -> Option<ServerError> {
        self.shared.last_failure.get()
    }

    /// Notes the promise of another answer.
    pub(crate) fn extend(&self, promised: Validity) {
        self.shared.extend(promised);
    }

    /// Ends the lease, because an answer said that it has ended.
    pub(crate) fn end(&self, lost: Lost) {
        self.shared.end(lost);
    }

    /// Learns of the end of the lease, and does not keep the lease alive.
    pub(crate) fn watch(&self) -> LeaseWatch {
        LeaseWatch(self.shared.changes())
    }

    /// Returns when it has ended. (The task keeps the time.)
    pub(crate) async fn ended(&self) -> Lost {
        let mut changes = self.shared.changes();
        loop {
            if let LeaseState::Ended(lost) = self.shared.look() {
                return lost;
            }
            // (The sender lives as long as this.)
            let _ = changes.changed().await;
        }
    }
}

/// Outlives a lease, and learns of its end.
#[derive(Clone)]
pub(crate) struct LeaseWatch(watch::Receiver<LeaseState>);

impl LeaseWatch {
    /// Returns when the lease has ended, or is not kept alive any more because its session is being closed.
    pub(crate) async fn ended(mut self) {
        let has_ended = |state: &LeaseState| matches!(state, LeaseState::Ended(_));
        let _ = self.0.wait_for(has_ended).await;
    }
}
