//! The value of a key, while this home knows it without reading.
//!
//! Nobody else writes while this home's holder has the key (I10), and a clean end leaves no write open (I7). So
//! what was read at QUORUM, or written and acknowledged, stays the latest value from one of our own holders to
//! the next, for as long as every change of the key's state in between was made here. It is forgotten with the
//! first quarter of a second in which nobody calls, so that idle locks cost no values.

use std::sync::Arc;

use super::holding::HolderState;
use super::{Actor, Run};
use crate::lock::{Fence, State};
use crate::store::{Cell, StoreError};

/// What the data of a key holds, where that is known for sure.
#[derive(Debug)]
pub(super) struct Latest {
    known: Option<Option<Cell>>,
    /// A longer value is not remembered, in bytes; with 0 none is.
    bytes_max: usize,
}

impl Latest {
    pub fn up_to(bytes_max: usize) -> Self {
        Latest {
            known: None,
            bytes_max,
        }
    }

    pub fn is_known(&self) -> bool {
        self.known.is_some()
    }

    pub fn forget(&mut self) {
        self.known = None;
    }

    /// What a read shows that is made now, or a write leaves that was acknowledged, no other being open.
    pub fn know(&mut self, cell: Option<Cell>) {
        let value = cell.as_ref().and_then(|cell| cell.value.as_ref());
        let bytes = value.map_or(0, |value| value.len());
        let is_kept = self.bytes_max > 0 && bytes <= self.bytes_max;
        self.known = is_kept.then_some(cell);
    }

    /// The state was read, or met by a change that was refused: whatever is newer, others made.
    pub fn met(&mut self, known: Option<u64>, state: &State) {
        if known != Some(state.version) {
            self.forget();
        }
    }
}

/// What came of a read for a holder.
#[derive(Debug)]
pub(super) struct Read {
    /// The last timestamp that the holder's fence had given out when it was begun; `None` if a write was open
    /// then, which it may show or not.
    after: Option<u64>,
    cell: Result<Option<Cell>, StoreError>,
}

impl Read {
    /// Notes what it showed for the holder that it was made for.
    pub fn noted(
        self,
        holding: &mut HolderState,
        latest: &mut Latest,
    ) -> Result<Option<Cell>, StoreError> {
        let cell = self.cell?;
        if let Some(cell) = &cell {
            holding.saw(cell.timestamp);
        }
        if self.after == Some(holding.last_timestamp()) {
            latest.know(cell.clone());
        }
        Ok(cell)
    }
}

impl Actor {
    /// The value, for a holder that was granted the lock: from memory if it is known, else read.
    pub(super) fn read_latest(&self, run: &Run) -> impl Future<Output = Read> + Send + use<> {
        let settled = self.holding.as_ref().filter(|h| !h.has_open_write());
        let after = settled.map(HolderState::last_timestamp);
        let known = self.latest.known.clone();
        let store = Arc::clone(&run.inner.store);
        let id = Arc::clone(&self.id);
        async move {
            let cell = match known {
                Some(cell) => Ok(cell),
                None => store.read_data(&id).await,
            };
            Read { after, cell }
        }
    }

    /// This actor changes the state: the value is still known unless a holder went without a clean end.
    pub(super) fn changes_to(&mut self, new: &State) {
        let grant = self.state.as_ref().map_or(Fence::NONE, |old| old.grant);
        let goes_on = grant == new.grant && new.holder().is_some();
        let is_open = self
            .holding
            .as_ref()
            .is_some_and(HolderState::has_open_write);
        if !goes_on && (new.unsynced || is_open) {
            self.latest.forget();
        }
    }
}
