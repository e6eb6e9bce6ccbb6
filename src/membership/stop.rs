//! Swaps the state of this replica to Stopped, for good (H2).

use super::declare::pauses;
use super::lease::StopOutcome;
use super::shell::MembershipShared;
use crate::store::{ReplicaState, StateSwap, StoreError};

impl MembershipShared {
    pub async fn stop(&self) -> Result<(), StoreError> {
        let Some(mut expected) = self.judge(|lease, _| lease.stop()) else {
            return Ok(());
        };
        let mut last = StoreError::Unavailable("the row changed at every try".to_owned());
        let mut failed = false;
        for pause in pauses() {
            if std::mem::take(&mut failed) {
                self.clock.sleep(pause).await;
            }
            let came = self.swap_state(self.me, ReplicaState::Up(expected), ReplicaState::Stopped);
            let came = came.await;
            match self.judge(|lease, _| lease.stopped(&came)) {
                StopOutcome::Done => return Ok(()),
                StopOutcome::Again(incarnation) => expected = incarnation,
            }
            if let StateSwap::Unknown(error) | StateSwap::NotStarted(error) = came {
                tracing::warn!(%error, "could not mark this replica as stopped");
                (last, failed) = (error, true);
            }
        }
        Err(last)
    }
}
