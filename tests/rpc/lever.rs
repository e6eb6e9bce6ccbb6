//! A store that fails, or does not answer, while a test wants it so.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fermata::key::KeyState;
use fermata::lock::{Key, KeyId, ReplicaId, SessionId, TableName};
use fermata::store::{
    Cell, DataStore, KeyStore, Listed, SessionRow, SessionStore, SessionSwap, Store, StoreCounts,
    StoreError, StoreHealth, Swap, Written,
};
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Works,
    Fails,
    Hangs,
    /// Keys are changed no faster than [`PACE_AT_ONCE`] and [`PACE`] allow.
    Paced,
    /// It does not answer about keys that begin with [`HANGING`], and works for all else.
    HangsInPart,
}

/// How the keys begin of which [`Mode::HangsInPart`] says nothing.
pub const HANGING: &str = "hanging/";

/// So many changes at once …
const PACE_AT_ONCE: usize = 4;
/// … each of which takes so long.
const PACE: Duration = Duration::from_millis(20);

/// A store behind a lever.
pub struct Levered {
    store: Store,
    mode: watch::Receiver<Mode>,
    turns: Semaphore,
}

impl Levered {
    pub fn pair(store: Store) -> (Arc<watch::Sender<Mode>>, Store) {
        let (lever, mode) = watch::channel(Mode::Works);
        let levered = Arc::new(Levered {
            store: store.clone(),
            mode,
            turns: Semaphore::new(PACE_AT_ONCE),
        });
        let store = Store {
            health: Arc::clone(&levered) as _,
            keys: Arc::clone(&levered) as _,
            data: Arc::clone(&levered) as _,
            sessions: levered,
            ..store
        };
        (Arc::new(lever), store)
    }

    async fn pass(&self) -> Result<(), StoreError> {
        self.pass_unless(|mode: Mode| mode == Mode::Hangs).await
    }

    /// As [`Levered::pass`], of what is about this key.
    async fn pass_key(&self, id: &KeyId) -> Result<(), StoreError> {
        let is_hanging = id.key.as_str().starts_with(HANGING);
        let hangs = |mode: Mode| mode == Mode::Hangs || (is_hanging && mode == Mode::HangsInPart);
        self.pass_unless(hangs).await
    }

    async fn pass_unless(
        &self,
        hangs: impl Fn(Mode) -> bool + Send + Sync,
    ) -> Result<(), StoreError> {
        let mut mode = self.mode.clone();
        let now = *mode.wait_for(|mode| !hangs(*mode)).await.unwrap();
        if now == Mode::Fails {
            return Err(no_majority());
        }
        Ok(())
    }
}

fn no_majority() -> StoreError {
    StoreError::Unavailable("no majority".to_owned())
}

impl StoreHealth for Levered {
    fn ready(&self) -> Result<(), StoreError> {
        if !matches!(*self.mode.borrow(), Mode::Fails | Mode::Hangs) {
            self.store.health.ready()
        } else {
            Err(no_majority())
        }
    }

    fn counts(&self) -> StoreCounts {
        self.store.health.counts()
    }
}

#[async_trait]
impl KeyStore for Levered {
    async fn load(&self, id: &KeyId) -> Result<Option<KeyState>, StoreError> {
        self.pass_key(id).await?;
        self.store.keys.load(id).await
    }

    async fn load_settled(&self, id: &KeyId) -> Result<Option<KeyState>, StoreError> {
        self.pass_key(id).await?;
        self.store.keys.load_settled(id).await
    }

    async fn compare_and_swap(&self, id: &KeyId, old: &KeyState, new: &KeyState) -> Swap {
        match self.pass_key(id).await {
            Ok(()) => {
                if *self.mode.borrow() == Mode::Paced {
                    let _turn = self.turns.acquire().await.unwrap();
                    sleep(PACE).await;
                }
                self.store.keys.compare_and_swap(id, old, new).await
            }
            Err(error) => Swap::NotStarted(error),
        }
    }

    async fn list_live(
        &self,
        table: &TableName,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Listed>, StoreError> {
        self.pass().await?;
        self.store.keys.list_live(table, prefix, after, limit).await
    }

    async fn each_live(
        &self,
        table: &TableName,
        visit: &(dyn Fn(Key, Option<ReplicaId>) + Sync),
    ) -> Result<(), StoreError> {
        self.pass().await?;
        self.store.keys.each_live(table, visit).await
    }
}

#[async_trait]
impl DataStore for Levered {
    async fn read_data(&self, id: &KeyId) -> Result<Option<Cell>, StoreError> {
        self.pass_key(id).await?;
        self.store.data.read_data(id).await
    }

    async fn write_data(&self, id: &KeyId, cell: Cell) -> Written {
        match self.pass_key(id).await {
            Ok(()) => self.store.data.write_data(id, cell).await,
            Err(error) => Written::NotStarted(error),
        }
    }

    fn ahead_us_max(&self) -> Option<u64> {
        self.store.data.ahead_us_max()
    }
}

#[async_trait]
impl SessionStore for Levered {
    async fn load_session(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        self.pass().await?;
        self.store.sessions.load_session(id).await
    }

    async fn swap_session(&self, expected: u32, row: &SessionRow) -> SessionSwap {
        match self.pass().await {
            Ok(()) => self.store.sessions.swap_session(expected, row).await,
            Err(error) => SessionSwap::NotStarted(error),
        }
    }

    async fn forget_session(&self, id: SessionId) -> Result<(), StoreError> {
        self.pass().await?;
        self.store.sessions.forget_session(id).await
    }

    async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<Vec<SessionRow>, StoreError> {
        self.pass().await?;
        self.store.sessions.list_sessions(after, limit).await
    }

    async fn each_session(&self, visit: &(dyn Fn(SessionRow) + Sync)) -> Result<(), StoreError> {
        self.pass().await?;
        self.store.sessions.each_session(visit).await
    }
}
