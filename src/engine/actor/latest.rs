//! The value of a key, while this home knows it without reading.
//!
//! Nobody else writes while this home's holder has the key (I10), and a clean end leaves no write open (I7). So
//! what was read at QUORUM, or written and acknowledged, stays the latest value from one of our own holders to
//! the next, for as long as every change of the key's state in between was made here. It is forgotten with the
//! first quarter of a second in which nothing happens, so that idle locks cost no values.

use std::sync::Arc;

use super::holding::Holding;
use super::{Actor, Run};
use crate::lock::State;
use crate::store::{Cell, StoreError};

/// A longer value is not remembered, in bytes.
const REMEMBERED_MAX: usize = 64 * 1_024;

/// What the data of a key holds, where that is known for sure.
#[derive(Debug, Default)]
pub(super) struct Latest(Option<Option<Cell>>);

impl Latest {
    pub fn forget(&mut self) {
        self.0 = None;
    }

    /// What a read shows that is made now, or a write leaves that was acknowledged, no other being open.
    pub fn know(&mut self, cell: Option<Cell>) {
        let value = cell.as_ref().and_then(|cell| cell.value.as_ref());
        let is_short = value.is_none_or(|value| value.len() <= REMEMBERED_MAX);
        self.0 = is_short.then_some(cell);
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
        holding: &mut Holding,
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
    /// The value, for a holder that was let in: from memory if it is known, else read.
    pub(super) fn read_latest(&self, run: &Run) -> impl Future<Output = Read> + Send + use<> {
        let settled = self.holding.as_ref().filter(|h| !h.has_open_write());
        let after = settled.map(Holding::last_timestamp);
        let known = self.latest.0.clone();
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

    /// This actor changed the state: the value is still known unless a holder went without a clean end.
    pub(super) fn changed(&mut self, old: &State, new: &State) {
        let goes_on = old.grant == new.grant && new.holder().is_some();
        let is_open = self.holding.as_ref().is_some_and(Holding::has_open_write);
        if !goes_on && (new.unsynced || is_open) {
            self.latest.forget();
        }
    }
}
