//! The way of one replica to the store: where its operations meet their fates.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fermata::lock::{Key, KeyId, ReplicaId, SessionId, State, TableName};
use fermata::store::{
    Cell, HandOverRequest, Listed, ReplicaRow, SessionRow, SessionSwap, Store, StoreError, Swap,
    Written,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::super::clocks::{EPOCH_US, HostClock};
use super::super::rng::Rng;
use super::cluster::{COPIES, Cluster, Rows, winner};
use super::fate::{Fate, Weather, copies};

pub struct StoreLink {
    cluster: Arc<Cluster>,
    name: String,
    /// The host's; closed while that is stopped.
    clock: Arc<HostClock>,
    rng: Mutex<Rng>,
    weather: Mutex<Weather>,
    ambush: Mutex<Option<(Ambush, oneshot::Sender<()>)>>,
    is_fenced: AtomicBool,
}

/// An operation in the middle of which something is to happen: it is half done, and nobody learns of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ambush {
    Swap,
    Write,
}

/// Why there is no answer.
enum Failed {
    NotStarted,
    Unknown,
}

impl From<Failed> for StoreError {
    fn from(failed: Failed) -> StoreError {
        StoreError::Unavailable(match failed {
            Failed::NotStarted => "refused".to_owned(),
            Failed::Unknown => "no answer".to_owned(),
        })
    }
}

impl StoreLink {
    pub fn new(
        cluster: &Arc<Cluster>,
        name: String,
        clock: &Arc<HostClock>,
        rng: Rng,
    ) -> Arc<StoreLink> {
        Arc::new(StoreLink {
            cluster: Arc::clone(cluster),
            name,
            clock: Arc::clone(clock),
            rng: Mutex::new(rng),
            weather: Mutex::default(),
            ambush: Mutex::default(),
            is_fenced: AtomicBool::new(false),
        })
    }

    pub fn set(&self, change: impl FnOnce(&mut Weather)) {
        change(&mut self.weather.lock().unwrap());
    }

    /// The process is gone: it asks nothing more, and hears no answer.
    pub fn kill(&self) {
        self.is_fenced.store(true, Ordering::Relaxed);
    }

    /// Resolves in the middle of the next operation of this kind.
    pub fn ambush(&self, kind: Ambush) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        *self.ambush.lock().unwrap() = Some((kind, sender));
        receiver
    }

    /// Whether this operation is the one.
    fn is_ambushed(&self, kind: Ambush) -> bool {
        let mut ambush = self.ambush.lock().unwrap();
        match ambush.take_if(|(of, _)| *of == kind) {
            Some((_, now)) => now.send(()).is_ok(),
            None => false,
        }
    }

    async fn alive(&self) {
        if self.is_fenced.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        self.clock.awake.passed().await;
    }

    fn draw(&self) -> (Fate, Duration, Duration) {
        let weather = *self.weather.lock().unwrap();
        let mut rng = self.rng.lock().unwrap();
        let fate = Fate::draw(&mut rng, weather);
        (fate, fate.there(&mut rng), fate.back(&mut rng))
    }

    /// What goes wrong is noted; what goes well is if it changes something.
    fn note(&self, fate: Fate, what: &str) {
        self.cluster.log.operation();
        match fate {
            Fate::Good => {}
            fate => self
                .cluster
                .log
                .fault(&self.name, format_args!("{what}: {fate:?}")),
        }
    }

    /// What an answer becomes on its way back.
    async fn back<T>(&self, fate: Fate, back: Duration, answer: T) -> Result<T, Failed> {
        sleep(back).await;
        self.alive().await;
        let is_cut = self.weather.lock().unwrap().is_cut;
        match fate {
            Fate::NotStarted => Err(Failed::NotStarted),
            Fate::Good | Fate::SlowThere(_) | Fate::SlowBack(_) if !is_cut => Ok(answer),
            _ => Err(Failed::Unknown),
        }
    }

    /// One operation. What it does is done even where nobody waits for it any more.
    async fn operation<T: Send + 'static>(
        &self,
        what: String,
        effect: impl FnOnce(&Cluster) -> (T, String) + Send + 'static,
    ) -> Result<T, Failed> {
        self.alive().await;
        let drawn = self.draw();
        self.of_fate(what, drawn, effect).await
    }

    async fn of_fate<T: Send + 'static>(
        &self,
        what: String,
        (fate, there, back): (Fate, Duration, Duration),
        effect: impl FnOnce(&Cluster) -> (T, String) + Send + 'static,
    ) -> Result<T, Failed> {
        self.note(fate, &what);
        let (sender, answer) = oneshot::channel();
        if !matches!(fate, Fate::NotStarted | Fate::UnknownLost) {
            let (cluster, name) = (Arc::clone(&self.cluster), self.name.clone());
            tokio::spawn(async move {
                sleep(there).await;
                let (done, words) = effect(&cluster);
                if !words.is_empty() {
                    cluster.log.note(&name, format_args!("{what}: {words}"));
                }
                let _ = sender.send(done);
            });
        }
        let answer = match fate {
            Fate::Good | Fate::SlowThere(_) | Fate::SlowBack(_) => answer.await.ok(),
            _ => None,
        };
        match self.back(fate, back, answer).await? {
            Some(answer) => Ok(answer),
            None => Err(Failed::Unknown),
        }
    }

    async fn rows<T: Send + 'static>(
        &self,
        what: String,
        effect: impl FnOnce(&mut Rows) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let quiet = |cluster: &Cluster| (effect(&mut cluster.rows()), String::new());
        Ok(self.operation(what, quiet).await?)
    }
}

#[async_trait]
impl Store for StoreLink {
    fn kind(&self) -> &'static str {
        "simulated"
    }

    fn ready(&self) -> Result<(), StoreError> {
        match self.weather.lock().unwrap().is_cut {
            true => Err(StoreError::Unavailable("cut off".to_owned())),
            false => Ok(()),
        }
    }

    fn is_exclusive(&self) -> bool {
        false
    }

    async fn load(&self, id: &KeyId) -> Result<Option<State>, StoreError> {
        let id = id.clone();
        let what = format!("load {id}");
        self.rows(what, move |rows| rows.state(&id)).await
    }

    async fn compare_and_swap(&self, id: &KeyId, old: &State, new: &State) -> Swap {
        let what = format!("swap {id} v{}", old.version);
        let (id, old, new) = (id.clone(), old.clone(), new.clone());
        self.alive().await;
        let (mut fate, there, back) = self.draw();
        if self.is_ambushed(Ambush::Swap) {
            fate = match self.rng.lock().unwrap().below(3) {
                0 => Fate::UnknownLost,
                _ => Fate::UnknownDone,
            };
        }
        let swap = move |cluster: &Cluster| cluster.swap(&id, &old, &new);
        match self.of_fate(what, (fate, there, back), swap).await {
            Ok(swap) => swap,
            Err(Failed::NotStarted) => Swap::NotStarted(Failed::NotStarted.into()),
            Err(Failed::Unknown) => Swap::Unknown(Failed::Unknown.into()),
        }
    }

    /// Of two of the copies, each looked at by itself. What is older there stays: nothing here rests on a repair.
    async fn read_data(&self, id: &KeyId) -> Result<Option<Cell>, StoreError> {
        self.alive().await;
        let (fate, there, back) = self.draw();
        let what = format!("read {id}");
        self.note(fate, &what);
        let (skipped, apart) = {
            let mut rng = self.rng.lock().unwrap();
            let apart = match rng.below(20) {
                0 => rng.below(500),
                _ => rng.below(3),
            };
            (rng.below(COPIES as u64) as usize, apart)
        };
        sleep(there).await;
        let copies: Vec<usize> = (0..COPIES).filter(|copy| *copy != skipped).collect();
        let first = self.cluster.rows().copy(id, copies[0]);
        sleep(Duration::from_millis(apart)).await;
        let cell = winner(first, self.cluster.rows().copy(id, copies[1]));
        let read = self.back(fate, back, cell).await?;
        let words = read.as_ref().map_or(0, |cell| cell.timestamp);
        self.cluster.log.note(
            &self.name,
            format_args!("{what}: {words} of copies {copies:?}"),
        );
        Ok(read)
    }

    async fn write_data(&self, id: &KeyId, cell: Cell) -> Written {
        self.alive().await;
        let (mut fate, _, back) = self.draw();
        let is_ambushed = self.is_ambushed(Ambush::Write);
        if is_ambushed {
            fate = Fate::UnknownDone;
        }
        let what = format!("write {id} at {}", cell.timestamp);
        self.note(fate, &what);
        let mut log_tap: [Option<Duration>; COPIES] = copies(&mut self.rng.lock().unwrap(), fate);
        {
            // One may not learn of a write that the two others make good, or much later.
            let mut rng = self.rng.lock().unwrap();
            let lags = rng.below(COPIES as u64) as usize;
            match rng.below(12) {
                0 => log_tap[lags] = None,
                1 => {
                    log_tap[lags] =
                        log_tap[lags].map(|at| at + Duration::from_millis(rng.below(4_000)))
                }
                _ => {}
            }
        }
        if is_ambushed {
            // One has it, and perhaps another much later.
            let mut rng = self.rng.lock().unwrap();
            log_tap = [None; COPIES];
            log_tap[rng.below(COPIES as u64) as usize] =
                Some(Duration::from_millis(rng.below(9_000)));
            log_tap[rng.below(COPIES as u64) as usize] = Some(Duration::from_millis(1));
        }
        let (sender, mut acknowledged) = mpsc::unbounded_channel();
        for (copy, at) in log_tap.into_iter().enumerate() {
            let Some(at) = at else { continue };
            let (cluster, name, sender) =
                (Arc::clone(&self.cluster), self.name.clone(), sender.clone());
            let (id, cell, what) = (id.clone(), cell.clone(), what.clone());
            tokio::spawn(async move {
                sleep(at).await;
                cluster.rows().write(&id, copy, &cell);
                cluster.log.note(&name, format_args!("{what}: copy {copy}"));
                let _ = sender.send(());
            });
        }
        drop(sender);
        let mut copies = 0;
        let is_told = matches!(fate, Fate::Good | Fate::SlowThere(_) | Fate::SlowBack(_));
        while is_told && copies < 2 && acknowledged.recv().await.is_some() {
            copies += 1;
        }
        match self.back(fate, back, copies).await {
            Ok(2) => Written::Done,
            Ok(_) => {
                // Its coordinator gives up.
                sleep(Duration::from_millis(2_000)).await;
                self.alive().await;
                Written::Unknown(Failed::Unknown.into())
            }
            Err(Failed::NotStarted) => Written::NotStarted(Failed::NotStarted.into()),
            Err(Failed::Unknown) => Written::Unknown(Failed::Unknown.into()),
        }
    }

    async fn list_live(
        &self,
        table: &TableName,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Listed>, StoreError> {
        let (table, after) = (table.clone(), after.cloned());
        let list = move |rows: &mut Rows| rows.live(&table, after.as_ref(), limit);
        self.rows("list locks".to_owned(), list).await
    }

    async fn load_session(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        self.rows(format!("load session {id}"), move |rows| rows.session(id))
            .await
    }

    async fn swap_session(&self, expected: u32, row: &SessionRow) -> SessionSwap {
        let row = row.clone();
        let what = format!("swap session {} epoch {expected}", row.id);
        let effect = move |cluster: &Cluster| cluster.rows().swap_session(expected, &row);
        match self.operation(what, effect).await {
            Ok(swap) => swap,
            Err(Failed::NotStarted) => SessionSwap::NotStarted(Failed::NotStarted.into()),
            Err(Failed::Unknown) => SessionSwap::Unknown(Failed::Unknown.into()),
        }
    }

    async fn forget_session(&self, id: SessionId) -> Result<(), StoreError> {
        self.rows(format!("forget session {id}"), move |rows| {
            rows.forget_session(id)
        })
        .await
    }

    async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<Vec<SessionRow>, StoreError> {
        let list = move |rows: &mut Rows| rows.list_sessions(after, limit);
        self.rows("list sessions".to_owned(), list).await
    }

    async fn announce_replica(&self, row: &ReplicaRow) -> Result<(), StoreError> {
        let row = row.clone();
        let what = format!("announce {}", row.id);
        let effect = move |cluster: &Cluster| {
            cluster.rows().announce(&row);
            ((), "done".to_owned())
        };
        Ok(self.operation(what, effect).await?)
    }

    async fn list_replicas(&self) -> Result<Vec<ReplicaRow>, StoreError> {
        let list = |rows: &mut Rows| rows.list_replicas();
        self.rows("list replicas".to_owned(), list).await
    }

    async fn heartbeat(
        &self,
        id: ReplicaId,
        heartbeat: u64,
        stopped: bool,
    ) -> Result<(), StoreError> {
        if self.weather.lock().unwrap().is_mute {
            return Err(Failed::NotStarted.into());
        }
        self.rows(format!("heartbeat {heartbeat}"), move |rows| {
            rows.heartbeat(id, heartbeat, stopped)
        })
        .await
    }

    async fn forget_replica(&self, id: ReplicaId) -> Result<(), StoreError> {
        self.rows(format!("forget {id}"), move |rows| rows.forget_replica(id))
            .await
    }

    async fn request_hand_over(&self, request: &HandOverRequest) -> Result<(), StoreError> {
        let asked = request.clone();
        let effect = move |cluster: &Cluster| {
            cluster.rows().ask(&asked);
            ((), format!("{:?}", asked.target))
        };
        Ok(self
            .operation(format!("ask {}", request.home), effect)
            .await?)
    }

    async fn hand_over_requests(
        &self,
        home: ReplicaId,
    ) -> Result<Vec<HandOverRequest>, StoreError> {
        self.rows("hand_over_requests".to_owned(), move |rows| {
            rows.hand_over_requests(home)
        })
        .await
    }

    async fn agree_to_hand_over(&self, request: &HandOverRequest) -> Result<(), StoreError> {
        let asked = request.clone();
        let effect = move |cluster: &Cluster| {
            cluster.rows().answer(&asked, true);
            ((), format!("{:?}", asked.target))
        };
        Ok(self.operation("hand_over".to_owned(), effect).await?)
    }

    async fn decline_hand_over(&self, request: &HandOverRequest) -> Result<(), StoreError> {
        let asked = request.clone();
        self.rows("decline".to_owned(), move |rows| rows.answer(&asked, false))
            .await
    }

    async fn hand_over_agreed(
        &self,
        request: &HandOverRequest,
    ) -> Result<Option<bool>, StoreError> {
        let asked = request.clone();
        self.rows("answer".to_owned(), move |rows| rows.answered(&asked))
            .await
    }

    async fn clock_us(&self) -> Result<Option<u64>, StoreError> {
        let log = Arc::clone(&self.cluster.log);
        let read = move |_: &mut Rows| Some(EPOCH_US + log.now().as_micros() as u64);
        self.rows("clock".to_owned(), read).await
    }
}
