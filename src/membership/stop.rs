//! This replica's life is swapped to Stopped, for good (H2).

use super::declare::pauses;
use super::shell::MembershipShared;
use super::surety::StopOutcome;
use crate::store::{Life, LifeSwap, StoreError};

impl MembershipShared {
    pub async fn stop(&self) -> Result<(), StoreError> {
        let Some(mut expected) = self.judge(|surety, _| surety.stop()) else {
            return Ok(());
        };
        let mut last = StoreError::Unavailable("the row changed at every try".to_owned());
        let mut failed = false;
        for pause in pauses() {
            if std::mem::take(&mut failed) {
                self.clock.sleep(pause).await;
            }
            let came = self.swap_life(self.me, Life::Up(expected), Life::Stopped);
            let came = came.await;
            match self.judge(|surety, _| surety.stopped(&came)) {
                StopOutcome::Done => return Ok(()),
                StopOutcome::Again(life) => expected = life,
            }
            if let LifeSwap::Unknown(error) | LifeSwap::NotStarted(error) = came {
                tracing::warn!(%error, "could not mark this replica as stopped");
                (last, failed) = (error, true);
            }
        }
        Err(last)
    }
}
