//! stub
use crate::clock::{Clock, Ids};
use crate::lock::*;
use crate::store::*;
use std::sync::Arc;
use tokio::sync::mpsc;
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    pub id: ReplicaId,
    pub name: String,
    pub zone: String,
    pub address: String,
    pub peer_address: String,
}
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Presence {
    Local,
    Live(Arc<Peer>),
    Silent,
    Down,
    Unsure,
}
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ranked {
    Local,
    Remote(Arc<Peer>),
}
pub enum NotSure {
    Silent,
    Fenced,
}
#[derive(Default)]
pub struct Joining;
pub struct Membership {
    row: ReplicaRow,
}
impl Membership {
    pub async fn join(
        _c: Option<Arc<dyn ClusterStore>>,
        row: ReplicaRow,
        _j: &Joining,
        _cl: Arc<dyn Clock>,
        _i: Arc<dyn Ids>,
    ) -> Result<(Arc<Membership>, mpsc::Receiver<HandOverRequest>), StoreError> {
        let (_s, r) = mpsc::channel(1);
        Ok((Arc::new(Membership { row }), r))
    }
    pub fn me(&self) -> ReplicaId {
        self.row.id
    }
    pub fn row(&self) -> &ReplicaRow {
        &self.row
    }
    pub fn is_sure(&self) -> Result<(), NotSure> {
        Ok(())
    }
    pub fn is_clock_off(&self) -> bool {
        false
    }
    pub fn presence(&self, _id: ReplicaId) -> Presence {
        Presence::Local
    }
    pub async fn presence_after_read(&self, _id: ReplicaId) -> Presence {
        Presence::Local
    }
    pub async fn confirm_down(&self, _id: ReplicaId) -> Presence {
        Presence::Down
    }
    pub fn peers(&self) -> Vec<Arc<Peer>> {
        vec![]
    }
    pub fn ranked(&self, _k: &KeyId) -> Ranked {
        Ranked::Local
    }
    pub fn next_ranked(&self, _k: &KeyId) -> Option<Arc<Peer>> {
        None
    }
    pub async fn fenced(&self) {}
    pub async fn stop(&self) {}
}
