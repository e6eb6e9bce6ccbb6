//! What several replicas share: the rows of each other, hand-over requests, and a clock.

use async_trait::async_trait;

use super::CassandraStore;
use crate::lock::ReplicaId;
use crate::store::{
    ClusterStore, HandOverRequest, ReplicaRow, ReplicaState, StateSwap, StoreError,
};

#[async_trait]
impl ClusterStore for CassandraStore {
    async fn announce_replica(&self, row: &ReplicaRow) -> Result<(), StoreError> {
        self.announce(row).await
    }

    async fn list_replicas(&self) -> Result<Vec<ReplicaRow>, StoreError> {
        self.replicas().await
    }

    async fn heartbeat(&self, id: ReplicaId, heartbeat: u64) -> Result<(), StoreError> {
        self.write_heartbeat(id, heartbeat).await
    }

    async fn swap_state(
        &self,
        id: ReplicaId,
        expected: ReplicaState,
        next: ReplicaState,
    ) -> StateSwap {
        self.change_state(id, expected, next).await
    }

    async fn forget_replica(&self, id: ReplicaId) -> Result<(), StoreError> {
        self.delete_replica(id).await
    }

    async fn request_hand_over(&self, request: &HandOverRequest) -> Result<(), StoreError> {
        self.put_hand_over_request(request).await
    }

    async fn hand_over_requests(
        &self,
        home: ReplicaId,
    ) -> Result<Vec<HandOverRequest>, StoreError> {
        self.hand_over_requests_of(home).await
    }

    async fn forget_hand_over_request(&self, request: &HandOverRequest) -> Result<(), StoreError> {
        self.delete_hand_over_request(request).await
    }

    async fn clock_us(&self) -> Result<u64, StoreError> {
        self.clock().await
    }
}
