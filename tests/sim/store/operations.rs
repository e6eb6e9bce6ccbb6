//! The operations of the store, by the traits of the engine.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fermata::key::KeyState;
use fermata::lock::{Key, KeyId, ReplicaId, SessionId, TableName};
use fermata::store::{
    Cell, ClusterStore, DataStore, HandOverRequest, KeyStore, Listed, ReplicaRow, ReplicaState,
    SessionRow, SessionStore, SessionSwap, StateSwap, StoreCounts, StoreError, StoreHealth, Swap,
    Written,
};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::super::clocks::EPOCH_US;
use super::cluster::{COPIES, Cluster, Rows, winner};
use super::fate::{Fate, copies};
use super::keys::KeySwap;
use super::link::{Ambush, Failed, StoreLink};

impl StoreHealth for StoreLink {
    fn ready(&self) -> Result<(), StoreError> {
        match self.weather.lock().unwrap().is_cut {
            true => Err(StoreError::Unavailable("cut off".to_owned())),
            false => Ok(()),
        }
    }

    fn counts(&self) -> StoreCounts {
        StoreCounts::default()
    }
}

#[async_trait]
impl KeyStore for StoreLink {
    async fn load(&self, id: &KeyId) -> Result<Option<KeyState>, StoreError> {
        self.rows_of(&self.statements(id, None)).state().await
    }

    async fn load_settled(&self, id: &KeyId) -> Result<Option<KeyState>, StoreError> {
        self.rows_of(&self.statements(id, None)).settled().await
    }

    async fn compare_and_swap(&self, id: &KeyId, old: &KeyState, new: &KeyState) -> Swap {
        let swap = KeySwap {
            by: self.was.lock().unwrap().clone(),
            old: old.clone(),
            new: new.clone(),
        };
        let statements = self.statements(id, Some(swap));
        self.rows_of(&statements).swap(old, new).await
    }

    async fn list_live(
        &self,
        table: &TableName,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Listed>, StoreError> {
        let (of, prefix, after) = (table.clone(), prefix.to_owned(), after.cloned());
        let list = move |rows: &mut Rows| {
            let mut live = rows.live(&of, after.as_ref(), usize::MAX);
            live.retain(|key| key.as_str().starts_with(&prefix));
            live.truncate(limit);
            live
        };
        let mut live = Vec::new();
        for key in self.list("list locks", list).await? {
            let id = KeyId {
                table: table.clone(),
                key: key.clone(),
            };
            let state = self.load(&id).await?;
            let state = state.filter(|state| !state.entries.is_empty());
            live.extend(state.map(|state| Listed { key, state }));
        }
        Ok(live)
    }

    async fn each_live(
        &self,
        table: &TableName,
        visit: &(dyn Fn(Key, Option<ReplicaId>) + Sync),
    ) -> Result<(), StoreError> {
        let live = self.list_live(table, "", None, usize::MAX).await?;
        for one in live {
            visit(one.key, one.state.home.map(|home| home.replica));
        }
        Ok(())
    }
}

#[async_trait]
impl DataStore for StoreLink {
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
        let mut at_copies: [Option<Duration>; COPIES] = copies(&mut self.rng.lock().unwrap(), fate);
        {
            // One may not learn of a write that the two others make good, or much later.
            let mut rng = self.rng.lock().unwrap();
            let lags = rng.below(COPIES as u64) as usize;
            match rng.below(12) {
                0 => at_copies[lags] = None,
                1 => {
                    at_copies[lags] =
                        at_copies[lags].map(|at| at + Duration::from_millis(rng.below(4_000)))
                }
                _ => {}
            }
        }
        if is_ambushed {
            // One has it, and perhaps another much later.
            let mut rng = self.rng.lock().unwrap();
            at_copies = [None; COPIES];
            at_copies[rng.below(COPIES as u64) as usize] =
                Some(Duration::from_millis(rng.below(9_000)));
            at_copies[rng.below(COPIES as u64) as usize] = Some(Duration::from_millis(1));
        }
        let (sender, mut acknowledged) = mpsc::unbounded_channel();
        for (copy, at) in at_copies.into_iter().enumerate() {
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
        while fate.is_answered() && copies < 2 && acknowledged.recv().await.is_some() {
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

    fn ahead_us_max(&self) -> Option<u64> {
        None
    }
}

#[async_trait]
impl SessionStore for StoreLink {
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
        self.list("list sessions", list).await
    }

    async fn each_session(&self, visit: &(dyn Fn(SessionRow) + Sync)) -> Result<(), StoreError> {
        let sessions = self.list_sessions(None, usize::MAX).await?;
        sessions.into_iter().for_each(visit);
        Ok(())
    }
}

#[async_trait]
impl ClusterStore for StoreLink {
    async fn announce_replica(&self, row: &ReplicaRow) -> Result<(), StoreError> {
        let row = row.clone();
        self.was.lock().unwrap().insert(row.id);
        let what = format!("announce {}", row.id);
        let effect = move |cluster: &Cluster| {
            cluster.rows().announce(&row);
            ((), "done".to_owned())
        };
        Ok(self.operation(what, effect).await?)
    }

    async fn list_replicas(&self) -> Result<Vec<ReplicaRow>, StoreError> {
        let list = |rows: &mut Rows| rows.list_replicas();
        self.list("list replicas", list).await
    }

    async fn heartbeat(&self, id: ReplicaId, heartbeat: u64) -> Result<(), StoreError> {
        if self.weather.lock().unwrap().is_mute {
            return Err(Failed::NotStarted.into());
        }
        let effect = move |cluster: &Cluster| (cluster.heartbeat(id, heartbeat), String::new());
        Ok(self
            .operation(format!("heartbeat {heartbeat}"), effect)
            .await?)
    }

    async fn swap_state(
        &self,
        id: ReplicaId,
        expected: ReplicaState,
        next: ReplicaState,
    ) -> StateSwap {
        let what = format!("state of {id}: {expected:?} to {next:?}");
        self.alive().await;
        let drawn = self.draw_or_ambushed(Ambush::ReplicaState);
        let swap = move |cluster: &Cluster| cluster.swap_state(id, expected, next);
        match self.of_fate(what, drawn, swap).await {
            Ok(swap) => swap,
            Err(Failed::NotStarted) => StateSwap::NotStarted(Failed::NotStarted.into()),
            Err(Failed::Unknown) => StateSwap::Unknown(Failed::Unknown.into()),
        }
    }

    async fn forget_replica(&self, id: ReplicaId) -> Result<(), StoreError> {
        self.rows(format!("forget {id}"), move |rows| rows.forget_replica(id))
            .await
    }

    async fn request_hand_over(&self, request: &HandOverRequest) -> Result<(), StoreError> {
        let what = format!("request {:?} of {}", request.subject, request.home);
        let request = request.clone();
        let effect = move |cluster: &Cluster| {
            cluster.rows().request_hand_over(&request);
            ((), String::new())
        };
        Ok(self.operation(what, effect).await?)
    }

    async fn hand_over_requests(
        &self,
        home: ReplicaId,
    ) -> Result<Vec<HandOverRequest>, StoreError> {
        let list = move |rows: &mut Rows| rows.hand_over_requests(home);
        self.list("list requests", list).await
    }

    async fn forget_hand_over_request(&self, request: &HandOverRequest) -> Result<(), StoreError> {
        let what = format!("forget the request of {:?}", request.subject);
        let request = request.clone();
        self.rows(what, move |rows| rows.forget_hand_over_request(&request))
            .await
    }

    async fn clock_us(&self) -> Result<u64, StoreError> {
        let log = Arc::clone(&self.cluster.log);
        let read = move |_: &mut Rows| EPOCH_US + log.now().as_micros() as u64;
        self.rows("clock".to_owned(), read).await
    }
}
