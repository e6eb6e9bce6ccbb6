//! A store in memory, and machines that reach it badly.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use uuid::Uuid;

use crate::clock::{Clock, Ids, Sleep};
use crate::lock::ReplicaId;
use crate::membership::{Membership, OpenHandOver, Options, Starter};
use crate::store::{
    ClusterStore, HandOverRequest, ReplicaRow, ReplicaState, StateSwap, StoreError,
};

/// The replica TTL of these tests.
pub const TTL: Duration = Duration::from_secs(5);

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub async fn wait(span_ms: u64) {
    tokio::time::sleep(ms(span_ms)).await;
}

/// Waits for what must become true within `span_ms`.
pub async fn within(span_ms: u64, what: &str, is_true: impl Fn() -> bool) {
    for _ in 0..span_ms / 10 {
        if is_true() {
            return;
        }
        wait(10).await;
    }
    panic!("not within {span_ms} ms: {what}");
}

#[derive(Default)]
pub struct Tables {
    pub rows: BTreeMap<ReplicaId, ReplicaRow>,
    pub request_rows: Vec<HandOverRequest>,
    /// Lives that were written, in their order.
    pub swaps: Vec<(ReplicaId, ReplicaState)>,
    /// How often all rows were read.
    pub lists: u64,
}

/// What goes wrong between one machine and the store.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    /// Nothing is answered, ever.
    pub hangs: bool,
    /// All fails at once.
    pub refuses: bool,
    /// Heartbeats get lost.
    pub loses_heartbeats: bool,
    /// Lists fail.
    pub loses_lists: bool,
    /// Reads of hand-over requests are not answered, ever.
    pub hangs_requests: bool,
    /// Swaps of incarnation get lost, and announcements.
    pub loses_swaps: bool,
    /// Swaps of incarnation, and announcements, are done, and nobody hears of it.
    pub swaps_unheard: bool,
    /// Each way takes up to this long.
    pub delay_ms_max: u64,
    /// One of so many gets lost on its way there, or on its way back.
    pub loses_one_in: Option<u64>,
}

/// One machine: its clock, its way to the store, and one process on it.
pub struct Machine {
    began: Instant,
    pub tables: Arc<Mutex<Tables>>,
    faults: Mutex<Faults>,
    running: watch::Sender<bool>,
    /// How long the clock stood still, and since when it does.
    stood_still: Mutex<(Duration, Option<Instant>)>,
    random: AtomicU64,
    pub moves: watch::Sender<bool>,
}

#[allow(clippy::disallowed_methods)] // the time that the test steers
fn now() -> Instant {
    Instant::now()
}

impl Machine {
    pub fn new(tables: &Arc<Mutex<Tables>>, seed: u64) -> Arc<Machine> {
        Arc::new(Machine {
            began: now(),
            tables: Arc::clone(tables),
            faults: Mutex::default(),
            running: watch::Sender::new(true),
            stood_still: Mutex::default(),
            random: AtomicU64::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            moves: watch::Sender::new(true),
        })
    }

    pub fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap()
    }

    /// From here on this goes wrong, and nothing else.
    pub fn fail(&self, change: impl FnOnce(&mut Faults)) {
        let mut faults = Faults::default();
        change(&mut faults);
        *self.faults.lock().unwrap() = faults;
    }

    pub fn heal(&self) {
        self.fail(|_| ());
    }

    /// Stops the process. CLOCK_BOOTTIME goes on.
    pub fn pause(&self) {
        self.running.send_replace(false);
    }

    pub fn resume(&self) {
        let mut stood_still = self.stood_still.lock().unwrap();
        if let Some(since) = stood_still.1.take() {
            stood_still.0 += now() - since;
        }
        drop(stood_still);
        self.running.send_replace(true);
    }

    /// Stops the machine, its clock too, as a virtual machine may be.
    pub fn freeze(&self) {
        self.stood_still.lock().unwrap().1 = Some(now());
        self.pause();
    }

    pub fn below(&self, bound: u64) -> u64 {
        let mut random = self.random.load(Ordering::Relaxed);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.store(random, Ordering::Relaxed);
        (random >> 11) % bound.max(1)
    }

    async fn runs(&self) {
        let _ = self.running.subscribe().wait_for(|runs| *runs).await;
    }

    fn faults(&self) -> Faults {
        *self.faults.lock().unwrap()
    }

    /// One way between the machine and the store; false if what went it got lost.
    async fn way(&self) -> bool {
        self.runs().await;
        let faults = self.faults();
        if faults.delay_ms_max > 0 {
            wait(self.below(faults.delay_ms_max)).await;
        }
        if faults.hangs {
            std::future::pending::<()>().await;
        }
        let is_lost = faults.loses_one_in.is_some_and(|n| self.below(n) == 0);
        !(is_lost || faults.refuses)
    }

    async fn request<T>(&self, is_lost: bool, work: impl FnOnce(&mut Tables) -> T) -> Option<T> {
        if !self.way().await || is_lost {
            return None;
        }
        let done = work(&mut self.tables());
        let came = self.way().await;
        self.runs().await;
        came.then_some(done)
    }
}

fn lost() -> StoreError {
    StoreError::Unavailable("lost".to_owned())
}

impl Clock for Machine {
    fn boot(&self) -> Duration {
        let (stood_still, since) = *self.stood_still.lock().unwrap();
        let until = since.unwrap_or_else(now);
        ms(1_000_000) + (until - self.began).saturating_sub(stood_still)
    }

    fn wall_us(&self) -> u64 {
        1_700_000_000_000_000 + u64::try_from(self.boot().as_micros()).unwrap()
    }

    fn sleep(&self, span: Duration) -> Sleep {
        let mut running = self.running.subscribe();
        Box::pin(async move {
            tokio::time::sleep(span).await;
            let _ = running.wait_for(|runs| *runs).await;
        })
    }
}

impl Ids for Machine {
    fn uuid(&self) -> Uuid {
        Uuid::from_u64_pair(self.below(u64::MAX), self.below(u64::MAX))
    }

    fn below(&self, bound: u64) -> u64 {
        Machine::below(self, bound)
    }
}

#[async_trait]
impl ClusterStore for Machine {
    async fn announce_replica(&self, row: &ReplicaRow) -> Result<(), StoreError> {
        let faults = self.faults();
        let done = self.request(faults.loses_swaps, |tables| {
            match tables.rows.get_mut(&row.id) {
                Some(there) if there.state != row.state => {}
                Some(there) => there.heartbeat = there.heartbeat.max(row.heartbeat),
                None => {
                    tables.rows.insert(row.id, row.clone());
                }
            }
        });
        let done = done.await.filter(|()| !faults.swaps_unheard);
        done.ok_or_else(lost)
    }

    async fn list_replicas(&self) -> Result<Vec<ReplicaRow>, StoreError> {
        let all = |tables: &mut Tables| {
            tables.lists += 1;
            tables.rows.values().cloned().collect()
        };
        let listed = self.request(self.faults().loses_lists, all).await;
        listed.ok_or_else(lost)
    }

    async fn heartbeat(&self, id: ReplicaId, heartbeat: u64) -> Result<(), StoreError> {
        let write = |tables: &mut Tables| {
            if let Some(row) = tables.rows.get_mut(&id) {
                row.heartbeat = row.heartbeat.max(heartbeat);
            }
        };
        let written = self.request(self.faults().loses_heartbeats, write).await;
        written.ok_or_else(lost)
    }

    async fn swap_state(
        &self,
        id: ReplicaId,
        expected: ReplicaState,
        next: ReplicaState,
    ) -> StateSwap {
        let faults = self.faults();
        let swap = |tables: &mut Tables| {
            let Some(row) = tables.rows.get_mut(&id) else {
                return StateSwap::Conflict(None);
            };
            if row.state != expected {
                return StateSwap::Conflict(Some(row.state));
            }
            row.state = next;
            tables.swaps.push((id, next));
            StateSwap::Applied
        };
        let came = self.request(faults.loses_swaps, swap).await;
        let came = came.filter(|_| !faults.swaps_unheard);
        came.unwrap_or_else(|| StateSwap::Unknown(lost()))
    }

    async fn forget_replica(&self, id: ReplicaId) -> Result<(), StoreError> {
        let forget = |tables: &mut Tables| {
            let row = tables.rows.get(&id);
            if row.is_some_and(|row| !matches!(row.state, ReplicaState::Up(_))) {
                tables.rows.remove(&id);
            }
        };
        self.request(false, forget).await.ok_or_else(lost)
    }

    async fn request_hand_over(&self, request: &HandOverRequest) -> Result<(), StoreError> {
        let add = |tables: &mut Tables| tables.request_rows.push(request.clone());
        self.request(false, add).await.ok_or_else(lost)
    }

    async fn hand_over_requests(
        &self,
        home: ReplicaId,
    ) -> Result<Vec<HandOverRequest>, StoreError> {
        if self.faults().hangs_requests {
            std::future::pending::<()>().await;
        }
        let list = |tables: &mut Tables| {
            let rows = tables.request_rows.iter();
            rows.filter(|row| row.home == home).cloned().collect()
        };
        self.request(false, list).await.ok_or_else(lost)
    }

    async fn forget_hand_over_request(&self, request: &HandOverRequest) -> Result<(), StoreError> {
        let forget = |tables: &mut Tables| tables.request_rows.retain(|row| row != request);
        self.request(false, forget).await.ok_or_else(lost)
    }

    async fn clock_us(&self) -> Result<u64, StoreError> {
        let wall_us = self.wall_us();
        self.request(false, |_| wall_us).await.ok_or_else(lost)
    }
}

/// One machine with a replica on it.
pub struct Replica {
    pub machine: Arc<Machine>,
    pub membership: Arc<Membership>,
    pub hand_overs: mpsc::Receiver<OpenHandOver>,
}

impl Replica {
    pub fn id(&self) -> ReplicaId {
        self.membership.id()
    }

    pub fn is_sure(&self) -> bool {
        self.membership.is_sure().is_ok()
    }

    pub fn is_fenced(&self) -> bool {
        *self.membership.fenced().borrow()
    }

    /// What its row says.
    pub fn state(&self) -> Option<ReplicaState> {
        self.machine
            .tables()
            .rows
            .get(&self.id())
            .map(|row| row.state)
    }
}

pub fn options(machine: &Arc<Machine>, name: &str) -> (Options, mpsc::Receiver<OpenHandOver>) {
    let (sender, receiver) = mpsc::channel(2);
    let moves = machine.moves.subscribe();
    let options = Options {
        store: Arc::clone(machine) as Arc<dyn ClusterStore>,
        clock: Arc::clone(machine) as Arc<dyn Clock>,
        ids: Arc::clone(machine) as Arc<dyn Ids>,
        name: name.to_owned(),
        zone: String::new(),
        address: format!("{name}:1"),
        peer_address: format!("{name}:2"),
        version: "1".to_owned(),
        replica_ttl: TTL,
        moved: Arc::new(move || *moves.borrow()),
        hand_overs: sender,
    };
    (options, receiver)
}

pub async fn start_on(machine: &Arc<Machine>, name: &str) -> Replica {
    let (options, hand_overs) = options(machine, name);
    let membership = Starter::new(options).unwrap().start().await.unwrap();
    Replica {
        machine: Arc::clone(machine),
        membership,
        hand_overs,
    }
}

/// So many replicas on one store, which have read of each other.
pub async fn start(count: u64) -> Vec<Replica> {
    let tables = Arc::default();
    let mut all = Vec::new();
    for n in 1..=count {
        let machine = Machine::new(&tables, n);
        all.push(start_on(&machine, &format!("fermata-{n}")).await);
    }
    wait(1_000).await;
    all
}
