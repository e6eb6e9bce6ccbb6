//! A watch of one lockRef.

use std::sync::Arc;
use std::time::Duration;

use super::actor::WatchHandle;
use super::api::WatchEvent;
use super::inner::Inner;
use super::leases::LeaseKey;
use super::remote;

/// A watched lockRef. While it lives the lockRef is kept alive; dropping it ends the watch.
pub struct Watch {
    inner: Arc<Inner>,
    handle: WatchHandle,
    answered: Option<WatchEvent>,
    /// What the replica that keeps its session said last.
    remote: Option<Duration>,
}

impl Watch {
    pub(super) fn new(inner: Arc<Inner>, handle: WatchHandle) -> Self {
        Watch {
            inner,
            handle,
            answered: None,
            remote: None,
        }
    }

    /// The next thing worth telling: the present status first, then each change. Changes that come
    /// faster than they are asked for are merged. `None` after `Lost`, or once the engine stops.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        if matches!(self.answered, Some(WatchEvent::Lost(_))) {
            return None;
        }
        let mut stopping = self.inner.stopping.subscribe();
        loop {
            let now = self.handle.seen.borrow_and_update().clone();
            // A head that is not granted the lock yet has nobody ahead, and does not hold the key.
            let worth_sending = !matches!(now, WatchEvent::Waiting { position: 0, .. });
            if worth_sending && self.answered.as_ref() != Some(&now) {
                if matches!(now, WatchEvent::Held { .. }) {
                    self.ask_keeper().await;
                }
                self.inner.alive().ok()?;
                self.answered = Some(now.clone());
                return Some(now);
            }
            tokio::select! {
                biased;
                changed = self.handle.seen.changed() => changed.ok()?,
                _ = stopping.wait_for(|stopping| *stopping) => return None,
            }
        }
    }

    /// How long the lockRef is safe from expiry, from now: an open watch is a renewal.
    pub fn valid_for(&self) -> Duration {
        let renewed = self.inner.leases.renew(&self.handle.lease).ok();
        let here = renewed.map(|renewed| renewed.valid_for);
        here.or(self.remote).unwrap_or(Duration::ZERO)
    }

    async fn ask_keeper(&mut self) {
        if self.inner.leases.renew(&self.handle.lease).is_err()
            && let LeaseKey::Session(session) = self.handle.lease
            && self.inner.shared
        {
            let renewed = remote::renew(&self.inner, session).await.ok();
            self.remote = renewed.map(|renewed| renewed.valid_for);
        }
    }
}
