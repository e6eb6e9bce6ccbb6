//! Polls of keys with waiters: one a key and replica, however many wait there.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::clock::{Clock, Ids};
use crate::engine::EngineError;
use crate::lock::KeyId;

/// The pause after a poll that showed a change.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause. It doubles while polls show no change.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// What the last poll of a key showed.
pub type Polled<T> = watch::Receiver<Option<Result<Arc<T>, EngineError>>>;

/// The polls of this replica. A poll shows a `T`.
#[derive(Debug)]
pub struct Polls<T> {
    running: Arc<Mutex<HashMap<KeyId, Polled<T>>>>,
}

impl<T> Default for Polls<T> {
    fn default() -> Self {
        Polls {
            running: Arc::default(),
        }
    }
}

impl<T: PartialEq + Send + Sync + 'static> Polls<T> {
    /// Joins the poll of this key, or begins one that reads in this way. It ends once nobody is left.
    pub fn join<F>(
        &self,
        id: &KeyId,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn Ids>,
        read: impl Fn() -> F + Send + 'static,
    ) -> Polled<T>
    where
        F: Future<Output = Result<T, EngineError>> + Send,
    {
        let mut running = self.running.lock();
        // A poll that ended without its last words is begun again.
        if let Some(polled) = running.get(id)
            && polled.has_changed().is_ok()
        {
            let mut joined = polled.clone();
            // What was seen before is no news for an entry that may be newer.
            joined.mark_unchanged();
            return joined;
        }
        let (sender, polled) = watch::channel(None);
        running.insert(id.clone(), polled.clone());
        let (all, id) = (Arc::clone(&self.running), id.clone());
        tokio::spawn(async move {
            let mut pause = PAUSE_MIN;
            loop {
                let seen = read().await.map(Arc::new);
                let is_same = matches!(
                    (&seen, sender.borrow().as_ref()),
                    (Ok(new), Some(Ok(old))) if new == old
                );
                pause = if is_same {
                    (2 * pause).min(PAUSE_MAX)
                } else {
                    PAUSE_MIN
                };
                sender.send_replace(Some(seen));
                let jitter = u64::try_from(pause.as_micros() / 2).unwrap_or(u64::MAX);
                let pause = pause / 2 + Duration::from_micros(2 * ids.below(jitter.max(1)));
                clock.sleep(pause).await;
                // The map keeps one receiver. Nobody joins while it is locked.
                let mut all = all.lock();
                if sender.receiver_count() <= 1 {
                    all.remove(&id);
                    return;
                }
            }
        });
        polled
    }
}
