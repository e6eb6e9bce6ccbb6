//! Renewals at the keepers of sessions. Concurrent callers share one renewal of a session (H10), because one call may renew a
//! thousand entries of it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::Shared;
use parking_lot::{Mutex, MutexGuard};

use crate::engine::api::{EngineError, Renewed};
use crate::lock::SessionId;

/// A renewal on its way to a keeper.
pub type Ask = Pin<Box<dyn Future<Output = Result<Renewed, EngineError>> + Send>>;

/// The renewals on their way to keepers. Each runs to its end even if its callers are gone. Their number is bounded,
/// because a client can invent sessions.
pub struct KeeperAsks {
    open: Arc<Mutex<OpenAsks>>,
    max: usize,
}

type OpenAsks = BTreeMap<SessionId, OpenAsk>;

struct OpenAsk {
    ask: Shared<Ask>,
    began: Duration,
}

fn open(asks: &Mutex<OpenAsks>) -> MutexGuard<'_, OpenAsks> {
    // Nothing below panics between two dependent changes.
    asks.lock()
}

impl KeeperAsks {
    /// At most `max` at once.
    pub fn new(max: usize) -> KeeperAsks {
        KeeperAsks {
            open: Arc::default(),
            max,
        }
    }

    /// The outcome of the session's renewal in flight, or of a new one.
    pub async fn join(
        &self,
        session: SessionId,
        boot: Duration,
        begin: impl FnOnce() -> Ask,
    ) -> Result<Renewed, EngineError> {
        let (ask, began) = self.find_or_begin(session, boot, begin)?;
        let renewed = ask.await?;
        // The keeper's answer counts from when it was asked.
        let joined_after = boot.saturating_sub(began);
        Ok(Renewed {
            valid_for: renewed.valid_for.saturating_sub(joined_after),
            ..renewed
        })
    }

    fn find_or_begin(
        &self,
        session: SessionId,
        boot: Duration,
        begin: impl FnOnce() -> Ask,
    ) -> Result<(Shared<Ask>, Duration), EngineError> {
        let mut asks = open(&self.open);
        if asks.len() >= self.max && !asks.contains_key(&session) {
            let words = "too many sessions are being looked up";
            return Err(EngineError::Unavailable(words.to_owned()));
        }
        let found = asks.entry(session).or_insert_with(|| {
            let ask = begin().shared();
            let (to_its_end, asks) = (ask.clone(), Arc::clone(&self.open));
            let ending = Ending { asks, session };
            tokio::spawn(async move {
                let _ending = ending;
                // The callers get the outcome.
                let _ = to_its_end.await;
            });
            OpenAsk { ask, began: boot }
        });
        Ok((found.ask.clone(), found.began))
    }
}

/// Removes the renewal, even if it panics.
struct Ending {
    asks: Arc<Mutex<OpenAsks>>,
    session: SessionId,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let done = open(&self.asks).remove(&self.session);
        drop(done);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use tokio::time::{sleep, timeout};
    use uuid::Uuid;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const SESSION: SessionId = SessionId(Uuid::from_u128(7));

    /// A keeper that promises 10 s after a second, and counts its calls.
    fn ask(asked: &Arc<AtomicUsize>) -> Ask {
        let asked = Arc::clone(asked);
        Box::pin(async move {
            asked.fetch_add(1, Ordering::Relaxed);
            sleep(SECOND).await;
            Ok(Renewed {
                ttl: 10 * SECOND,
                disconnect_grace: None,
                valid_for: 10 * SECOND,
                durable: false,
            })
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_keeper_is_asked_once_by_those_that_come_at_the_same_time() {
        let (asks, asked) = (KeeperAsks::new(10), Arc::default());
        let joined = (0..100).map(|_| asks.join(SESSION, SECOND, || ask(&asked)));
        let said = join_all(joined).await;
        assert!(
            said.iter()
                .all(|said| said.as_ref().unwrap().valid_for == 10 * SECOND)
        );
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        sleep(SECOND / 2).await;
        assert!(open(&asks.open).is_empty());
        asks.join(SESSION, SECOND, || ask(&asked)).await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 2, "nobody asked any more");
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_are_asked_for_than_there_may_be() {
        let (asks, asked) = (KeeperAsks::new(2), Arc::default());
        let other = |number| SessionId(Uuid::from_u128(number));
        let first = asks.join(SESSION, SECOND, || ask(&asked));
        let second = asks.join(other(8), SECOND, || ask(&asked));
        let third = asks.join(other(9), SECOND, || ask(&asked));
        let joined = asks.join(SESSION, SECOND, || ask(&asked));
        let (first, second, third, joined) = tokio::join!(first, second, third, joined);
        assert!(first.is_ok() && second.is_ok() && joined.is_ok());
        assert!(matches!(third, Err(EngineError::Unavailable(_))));
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn who_joins_later_is_promised_less() {
        let (asks, asked) = (KeeperAsks::new(10), Arc::default());
        let first = asks.join(SESSION, SECOND, || ask(&asked));
        let later = asks.join(SESSION, 3 * SECOND, || ask(&asked));
        let (first, later) = tokio::join!(first, later);
        assert_eq!(first.unwrap().valid_for, 10 * SECOND);
        assert_eq!(later.unwrap().valid_for, 8 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_ends_the_asking_for_no_other() {
        let (asks, asked) = (KeeperAsks::new(10), Arc::default());
        let gone = timeout(SECOND / 2, asks.join(SESSION, SECOND, || ask(&asked)));
        let stays = asks.join(SESSION, SECOND, || ask(&asked));
        let (gone, stays) = tokio::join!(gone, stays);
        assert!(gone.is_err());
        assert_eq!(stays.unwrap().valid_for, 10 * SECOND);
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        // It goes on without callers: the next one finds it.
        sleep(SECOND / 2).await;
        let gone = timeout(SECOND / 2, asks.join(SESSION, SECOND, || ask(&asked)));
        assert!(gone.await.is_err());
        asks.join(SESSION, SECOND, || ask(&asked)).await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }
}
