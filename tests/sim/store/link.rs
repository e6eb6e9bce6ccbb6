//! The way of one replica to the store: where its operations meet their fates.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fermata::lock::ReplicaId;
use fermata::store::cassandra::modelled::InDoubtSwaps;
use fermata::store::{Store, StoreError};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::super::clocks::HostClock;
use super::super::rng::Rng;
use super::cluster::{Cluster, Rows};
use super::fate::{Fate, Weather};

pub struct StoreLink {
    pub(super) cluster: Arc<Cluster>,
    pub(super) name: String,
    /// The host's; closed while that is stopped.
    clock: Arc<HostClock>,
    pub(super) rng: Mutex<Rng>,
    pub(super) weather: Mutex<Weather>,
    /// The replicas that the process was: it begins under a new id where it was declared down.
    pub(super) was: Mutex<BTreeSet<ReplicaId>>,
    /// What the process remembers of its swaps.
    pub(super) in_doubt: InDoubtSwaps,
    pub(super) page_rows: u16,
    ambush: Mutex<Option<(Ambush, oneshot::Sender<()>)>>,
    is_fenced: AtomicBool,
}

/// An operation in the middle of which something is to happen: it is half done, and nobody learns of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ambush {
    Swap,
    /// A swap that changes the home of a key.
    Home,
    Write,
    ReplicaState,
}

/// Why there is no answer.
pub(super) enum Failed {
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
        mut rng: Rng,
    ) -> Arc<StoreLink> {
        Arc::new(StoreLink {
            cluster: Arc::clone(cluster),
            name,
            clock: Arc::clone(clock),
            in_doubt: InDoubtSwaps::default(),
            page_rows: [2, 5, 100][rng.below(3) as usize],
            rng: Mutex::new(rng),
            weather: Mutex::default(),
            was: Mutex::default(),
            ambush: Mutex::default(),
            is_fenced: AtomicBool::new(false),
        })
    }

    /// The store as an engine takes it.
    pub fn store(self: &Arc<Self>) -> Store {
        Store {
            kind: "simulated",
            health: Arc::clone(self) as _,
            keys: Arc::clone(self) as _,
            data: Arc::clone(self) as _,
            sessions: Arc::clone(self) as _,
            backups: None,
            cluster: Some(Arc::clone(self) as _),
        }
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
    pub(super) fn is_ambushed(&self, kind: Ambush) -> bool {
        let mut ambush = self.ambush.lock().unwrap();
        match ambush.take_if(|(of, _)| *of == kind) {
            Some((_, now)) => now.send(()).is_ok(),
            None => false,
        }
    }

    pub(super) async fn alive(&self) {
        if self.is_fenced.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        self.clock.awake.passed().await;
    }

    pub(super) fn draw(&self) -> (Fate, Duration, Duration) {
        let weather = *self.weather.lock().unwrap();
        let mut rng = self.rng.lock().unwrap();
        let fate = Fate::draw(&mut rng, weather);
        (fate, fate.there(&mut rng), fate.back(&mut rng))
    }

    /// Where it is the operation that was waited for, it is half done, or not at all, and nobody learns of it.
    pub(super) fn draw_or_ambushed(&self, kind: Ambush) -> (Fate, Duration, Duration) {
        let drawn @ (_, _, back) = self.draw();
        let percent = self.weather.lock().unwrap().percent_of_swaps;
        let is_ambushed = self.is_ambushed(kind);
        let mut rng = self.rng.lock().unwrap();
        let is_lost = kind != Ambush::ReplicaState && rng.below(100) < percent;
        if !is_ambushed && !is_lost {
            return drawn;
        }
        let met = match rng.below(4) {
            0 => Fate::UnknownLost,
            1 => Fate::UnknownLate(rng.ms(10, 6_000)),
            _ => Fate::UnknownDone,
        };
        (met, met.there(&mut rng), back)
    }

    /// A list, which takes long while lists are slow.
    pub(super) async fn list<T: Send + 'static>(
        &self,
        what: &str,
        effect: impl FnOnce(&mut Rows) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let lists_slowly = self.weather.lock().unwrap().lists_slowly;
        let slower = match lists_slowly {
            true => self.rng.lock().unwrap().ms(0, 3_000),
            false => Duration::ZERO,
        };
        let listed = self.rows(what.to_owned(), effect).await?;
        sleep(slower).await;
        self.alive().await;
        Ok(listed)
    }

    /// What goes wrong is noted; what goes well is if it changes something.
    pub(super) fn note(&self, fate: Fate, what: &str) {
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
    pub(super) async fn back<T>(&self, fate: Fate, back: Duration, answer: T) -> Result<T, Failed> {
        sleep(back).await;
        self.alive().await;
        let is_cut = self.weather.lock().unwrap().is_cut;
        match fate {
            Fate::NotStarted => Err(Failed::NotStarted),
            fate if fate.is_answered() && !is_cut => Ok(answer),
            _ => Err(Failed::Unknown),
        }
    }

    /// One operation. What it does is done even where nobody waits for it any more.
    pub(super) async fn operation<T: Send + 'static>(
        &self,
        what: String,
        effect: impl FnOnce(&Cluster) -> (T, String) + Send + 'static,
    ) -> Result<T, Failed> {
        self.alive().await;
        let drawn = self.draw();
        self.of_fate(what, drawn, effect).await
    }

    pub(super) async fn of_fate<T: Send + 'static>(
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
            fate if fate.is_answered() => answer.await.ok(),
            _ => None,
        };
        match self.back(fate, back, answer).await? {
            Some(answer) => Ok(answer),
            None => Err(Failed::Unknown),
        }
    }

    pub(super) async fn rows<T: Send + 'static>(
        &self,
        what: String,
        effect: impl FnOnce(&mut Rows) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let quiet = |cluster: &Cluster| (effect(&mut cluster.rows()), String::new());
        Ok(self.operation(what, quiet).await?)
    }
}
