//! The embedded store with faults on command, or at random from a seed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use fermata::key::KeyState;
use fermata::lock::{Fence, Key, KeyId, ReplicaId, SessionId, TableName};
use fermata::store::embedded::EmbeddedStore;
use fermata::store::{
    Cell, DataStore, KeyStore, Listed, SessionRow, SessionStore, SessionSwap, Store, StoreCounts,
    StoreError, StoreHealth, Swap, Written,
};
use tokio::sync::watch;

use super::rng::Rng;

/// What goes wrong with one operation.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Nothing, for once.
    None,
    /// It is not done, and the store knows it. A read fails.
    NotStarted,
    /// It is done, but the store does not know.
    UnknownDone,
    /// It is not done, and the store does not know.
    UnknownLost,
    /// The store does not know, and it is done this much later.
    UnknownLate(Duration),
    /// It takes this much longer.
    Slow(Duration),
    /// The task that asked panics.
    Panic,
}

/// What the store was asked, in order.
#[derive(Default)]
pub struct Log {
    /// Every write of data that was tried.
    pub writes: Vec<Cell>,
    /// How many reads of data were tried.
    pub reads: usize,
    /// How many reads of data were done whose answers are held back.
    pub answers_held: usize,
    /// Every state that was to be swapped in.
    pub swaps: Vec<KeyState>,
}

#[derive(Default)]
struct Plan {
    swaps: VecDeque<Fault>,
    writes: VecDeque<Fault>,
    reads: VecDeque<Fault>,
    loads: VecDeque<Fault>,
    /// How many loads show rows that are not of one state.
    torn_loads: usize,
    sessions: VecDeque<Fault>,
    random: Option<(Rng, u64)>,
}

impl Plan {
    fn random(&mut self, may_be_late: bool) -> Fault {
        let Some((rng, percent)) = &mut self.random else {
            return Fault::None;
        };
        if rng.below(100) >= *percent {
            return Fault::None;
        }
        let ms = Duration::from_millis(rng.below(20));
        match rng.below(5) {
            0 => Fault::NotStarted,
            1 => Fault::UnknownDone,
            2 => Fault::UnknownLost,
            3 if may_be_late => Fault::UnknownLate(ms),
            _ => Fault::Slow(ms),
        }
    }
}

/// What is held back until it is let go.
#[derive(Clone, Copy, Default)]
pub struct Holds {
    pub swaps: bool,
    pub writes: bool,
    pub reads: bool,
    /// Reads are done, and their answers held back.
    pub answers: bool,
    /// Listings of keys.
    pub listings: bool,
}

/// An embedded store that fails when told to.
pub struct FaultyStore {
    store: Mutex<Option<Arc<EmbeddedStore>>>,
    plan: Mutex<Plan>,
    log: Mutex<Log>,
    holds: watch::Sender<Holds>,
}

fn broken() -> StoreError {
    StoreError::Unavailable("a fault on command".to_owned())
}

impl FaultyStore {
    pub fn ended(store: EmbeddedStore) -> Arc<FaultyStore> {
        Arc::new(FaultyStore {
            store: Mutex::new(Some(Arc::new(store))),
            plan: Mutex::default(),
            log: Mutex::default(),
            holds: watch::Sender::new(Holds::default()),
        })
    }

    /// As the death of the process: from here on nothing reaches the disk. The directory is free once
    /// what had reached the store is done.
    pub fn cut(&self) {
        self.store.lock().unwrap().take();
        self.plan().random = None;
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap()
    }

    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap()
    }

    pub fn forget_log(&self) {
        *self.log() = Log::default();
    }

    pub fn fail_swaps(&self, faults: impl IntoIterator<Item = Fault>) {
        self.plan().swaps.extend(faults);
    }

    pub fn fail_writes(&self, faults: impl IntoIterator<Item = Fault>) {
        self.plan().writes.extend(faults);
    }

    pub fn fail_reads(&self, faults: impl IntoIterator<Item = Fault>) {
        self.plan().reads.extend(faults);
    }

    pub fn fail_loads(&self, faults: impl IntoIterator<Item = Fault>) {
        self.plan().loads.extend(faults);
    }

    /// So many loads show a fence that was taken back, unless the key is settled first.
    pub fn tear_loads(&self, count: usize) {
        self.plan().torn_loads = count;
    }

    pub fn fail_sessions(&self, faults: impl IntoIterator<Item = Fault>) {
        self.plan().sessions.extend(faults);
    }

    /// From now on this many of a hundred operations fail.
    pub fn fail_randomly(&self, seed: u64, percent: u64) {
        self.plan().random = Some((Rng::new(seed), percent));
    }

    pub fn hold(&self, change: impl FnOnce(&mut Holds)) {
        self.holds.send_modify(change);
    }

    async fn until(&self, free: impl FnMut(&Holds) -> bool) {
        self.holds.subscribe().wait_for(free).await.unwrap();
    }

    /// The store below, which never fails.
    pub fn real(&self) -> Result<Arc<EmbeddedStore>, StoreError> {
        let store = self.store.lock().unwrap().clone();
        store.ok_or_else(|| StoreError::Closed("the process is down".to_owned()))
    }

    /// The handles of it.
    pub fn handles(self: &Arc<Self>) -> Store {
        Store {
            kind: "faulty",
            health: Arc::clone(self) as _,
            keys: Arc::clone(self) as _,
            data: Arc::clone(self) as _,
            sessions: Arc::clone(self) as _,
            backups: None,
            cluster: None,
        }
    }

    /// Where the key's writes are, by timestamp, from a fence on.
    pub fn writes_from(&self, fence: Fence) -> Vec<Cell> {
        let log = self.log();
        let from = |c: &&Cell| c.timestamp >= fence.0;
        log.writes.iter().filter(from).cloned().collect()
    }
}

/// Why nobody knows that it was done.
enum Failed {
    NotStarted,
    Unknown,
}

/// What becomes of a change under a fault.
async fn changed<T: Send + 'static>(
    fault: Fault,
    change: impl Future<Output = T> + Send + 'static,
) -> Result<T, Failed> {
    match fault {
        Fault::None => Ok(change.await),
        Fault::Slow(span) => {
            tokio::time::sleep(span).await;
            Ok(change.await)
        }
        Fault::NotStarted => Err(Failed::NotStarted),
        Fault::UnknownLost => Err(Failed::Unknown),
        Fault::UnknownDone => {
            change.await;
            Err(Failed::Unknown)
        }
        Fault::UnknownLate(span) => {
            tokio::spawn(async move {
                tokio::time::sleep(span).await;
                change.await;
            });
            Err(Failed::Unknown)
        }
        Fault::Panic => std::panic::resume_unwind(Box::new("a panic on command")),
    }
}

async fn read_fault(fault: Fault) -> Result<(), StoreError> {
    match fault {
        Fault::None => Ok(()),
        Fault::Slow(span) => {
            tokio::time::sleep(span).await;
            Ok(())
        }
        Fault::Panic => std::panic::resume_unwind(Box::new("a panic on command")),
        _ => Err(broken()),
    }
}

impl StoreHealth for FaultyStore {
    fn ready(&self) -> Result<(), StoreError> {
        self.real()?.ready()
    }

    fn counts(&self) -> StoreCounts {
        StoreCounts::default()
    }
}

#[async_trait]
impl KeyStore for FaultyStore {
    async fn fence_floor(&self) -> Result<u64, StoreError> {
        self.real()?.fence_floor().await
    }

    async fn load(&self, id: &KeyId) -> Result<Option<KeyState>, StoreError> {
        let fault = self.plan().loads.pop_front();
        let fault = fault.unwrap_or_else(|| self.plan().random(false));
        read_fault(fault).await?;
        let mut loaded = self.real()?.load(id).await?;
        let mut plan = self.plan();
        if plan.torn_loads > 0
            && let Some(state) = &mut loaded
        {
            plan.torn_loads -= 1;
            state.fence.0 -= 1_000;
            state.grant.0 -= 1_000;
        }
        Ok(loaded)
    }

    async fn load_settled(&self, id: &KeyId) -> Result<Option<KeyState>, StoreError> {
        self.real()?.load(id).await
    }

    async fn compare_and_swap(&self, id: &KeyId, old: &KeyState, new: &KeyState) -> Swap {
        self.log().swaps.push(new.clone());
        let fault = self.plan().swaps.pop_front();
        let fault = fault.unwrap_or_else(|| self.plan().random(true));
        self.until(|h| !h.swaps).await;
        let store = match self.real() {
            Ok(store) => store,
            Err(error) => return Swap::NotStarted(error),
        };
        let (id, old, new) = (id.clone(), old.clone(), new.clone());
        let swap = async move { store.compare_and_swap(&id, &old, &new).await };
        match changed(fault, swap).await {
            Ok(swap) => swap,
            Err(Failed::NotStarted) => Swap::NotStarted(broken()),
            Err(Failed::Unknown) => Swap::Unknown(broken()),
        }
    }

    async fn list_live(
        &self,
        table: &TableName,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Listed>, StoreError> {
        self.until(|holds| !holds.listings).await;
        self.real()?.list_live(table, prefix, after, limit).await
    }

    async fn each_live(
        &self,
        table: &TableName,
        visit: &(dyn Fn(Key, Option<ReplicaId>) + Sync),
    ) -> Result<(), StoreError> {
        self.real()?.each_live(table, visit).await
    }
}

#[async_trait]
impl DataStore for FaultyStore {
    async fn read_data(&self, id: &KeyId) -> Result<Option<Cell>, StoreError> {
        self.log().reads += 1;
        let fault = self.plan().reads.pop_front();
        let fault = fault.unwrap_or_else(|| self.plan().random(false));
        self.until(|h| !h.reads).await;
        read_fault(fault).await?;
        let read = self.real()?.read_data(id).await;
        if self.holds.borrow().answers {
            self.log().answers_held += 1;
            self.until(|h| !h.answers).await;
        }
        read
    }

    async fn write_data(&self, id: &KeyId, cell: Cell) -> Written {
        self.log().writes.push(cell.clone());
        let fault = self.plan().writes.pop_front();
        let fault = fault.unwrap_or_else(|| self.plan().random(true));
        self.until(|h| !h.writes).await;
        let store = match self.real() {
            Ok(store) => store,
            Err(error) => return Written::NotStarted(error),
        };
        let id = id.clone();
        let write = async move { store.write_data(&id, cell).await };
        match changed(fault, write).await {
            Ok(written) => written,
            Err(Failed::NotStarted) => Written::NotStarted(broken()),
            Err(Failed::Unknown) => Written::Unknown(broken()),
        }
    }

    fn ahead_us_max(&self) -> Option<u64> {
        None
    }
}

#[async_trait]
impl SessionStore for FaultyStore {
    async fn load_session(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        self.real()?.load_session(id).await
    }

    async fn swap_session(&self, expected: u32, row: &SessionRow) -> SessionSwap {
        let fault = self.plan().sessions.pop_front();
        let store = match self.real() {
            Ok(store) => store,
            Err(error) => return SessionSwap::NotStarted(error),
        };
        let row = row.clone();
        let swap = async move { store.swap_session(expected, &row).await };
        match changed(fault.unwrap_or(Fault::None), swap).await {
            Ok(swap) => swap,
            Err(Failed::NotStarted) => SessionSwap::NotStarted(broken()),
            Err(Failed::Unknown) => SessionSwap::Unknown(broken()),
        }
    }

    async fn forget_session(&self, id: SessionId) -> Result<(), StoreError> {
        self.real()?.forget_session(id).await
    }

    async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<Vec<SessionRow>, StoreError> {
        self.real()?.list_sessions(after, limit).await
    }

    async fn each_session(&self, visit: &(dyn Fn(SessionRow) + Sync)) -> Result<(), StoreError> {
        self.real()?.each_session(visit).await
    }
}
