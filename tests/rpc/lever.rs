//! A store that fails, or does not answer, while a test wants it so.

use std::sync::Arc;

use async_trait::async_trait;
use fermata::lock::{Key, KeyId, SessionId, State, TableName};
use fermata::store::{
    Cell, Listed, ReplicaRow, SessionRow, SessionSwap, Store, StoreError, Swap, Written,
};
use tokio::sync::watch;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Works,
    Fails,
    Hangs,
}

/// A store behind a lever.
pub struct Levered<S> {
    store: S,
    mode: watch::Receiver<Mode>,
}

impl<S: Store> Levered<S> {
    pub fn pair(store: S) -> (Arc<watch::Sender<Mode>>, Arc<dyn Store>) {
        let (lever, mode) = watch::channel(Mode::Works);
        (Arc::new(lever), Arc::new(Levered { store, mode }))
    }

    async fn pass(&self) -> Result<(), StoreError> {
        let mut mode = self.mode.clone();
        let now = *mode.wait_for(|mode| *mode != Mode::Hangs).await.unwrap();
        if now == Mode::Fails {
            return Err(no_majority());
        }
        Ok(())
    }
}

fn no_majority() -> StoreError {
    StoreError::Unavailable("no majority".to_owned())
}

#[async_trait]
impl<S: Store> Store for Levered<S> {
    fn kind(&self) -> &'static str {
        self.store.kind()
    }

    fn ready(&self) -> Result<(), StoreError> {
        if *self.mode.borrow() == Mode::Works {
            self.store.ready()
        } else {
            Err(no_majority())
        }
    }

    fn is_exclusive(&self) -> bool {
        self.store.is_exclusive()
    }

    async fn load(&self, id: &KeyId) -> Result<Option<State>, StoreError> {
        self.pass().await?;
        self.store.load(id).await
    }

    async fn compare_and_swap(&self, id: &KeyId, old: &State, new: &State) -> Swap {
        match self.pass().await {
            Ok(()) => self.store.compare_and_swap(id, old, new).await,
            Err(error) => Swap::NotStarted(error),
        }
    }

    async fn read_data(&self, id: &KeyId) -> Result<Option<Cell>, StoreError> {
        self.pass().await?;
        self.store.read_data(id).await
    }

    async fn write_data(&self, id: &KeyId, cell: Cell) -> Written {
        match self.pass().await {
            Ok(()) => self.store.write_data(id, cell).await,
            Err(error) => Written::NotStarted(error),
        }
    }

    async fn list_live(
        &self,
        table: &TableName,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Listed>, StoreError> {
        self.pass().await?;
        self.store.list_live(table, after, limit).await
    }

    async fn load_session(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        self.pass().await?;
        self.store.load_session(id).await
    }

    async fn swap_session(&self, expected: u32, row: &SessionRow) -> SessionSwap {
        match self.pass().await {
            Ok(()) => self.store.swap_session(expected, row).await,
            Err(error) => SessionSwap::NotStarted(error),
        }
    }

    async fn forget_session(&self, id: SessionId) -> Result<(), StoreError> {
        self.pass().await?;
        self.store.forget_session(id).await
    }

    async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<Vec<SessionRow>, StoreError> {
        self.pass().await?;
        self.store.list_sessions(after, limit).await
    }

    async fn announce_replica(&self, row: &ReplicaRow) -> Result<(), StoreError> {
        self.pass().await?;
        self.store.announce_replica(row).await
    }

    async fn list_replicas(&self) -> Result<Vec<ReplicaRow>, StoreError> {
        self.pass().await?;
        self.store.list_replicas().await
    }
}
