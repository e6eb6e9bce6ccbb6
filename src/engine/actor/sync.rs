//! Letting a holder in: at once if the key is synced, else after one read and one rewrite (I7).

use std::sync::Arc;

use super::super::api::{EngineError, Watched};
use super::critical::{IoDone, value_of};
use super::holding::{Entrance, Holding};
use super::intent::Intent;
use super::latest::Read;
use super::others::Looked;
use super::{Actor, LetIn, Run};
use crate::lock::Fence;
use crate::store::{Cell, StoreError, Written};

impl Actor {
    /// Lets the holder in if that is wanted and possible, and does what waited for it.
    pub(super) fn let_in(&mut self, run: &mut Run) {
        if self.stale && !self.just_read {
            return;
        }
        let Some(holding) = &mut self.holding else {
            // An earlier take-over was refused. It is tried again for as long as somebody asks.
            if !self.let_ins.is_empty() && run.store_op.is_none() && run.pause.is_none() {
                self.fail_promised(run);
                self.ask_take_over(run);
            }
            return;
        };
        let (seq, grant) = (holding.seq, holding.grant);
        if holding.is_unclaimed() {
            return;
        }
        if holding.is_open() {
            self.open_entrance(run);
        } else if matches!(holding.entrance, Entrance::Unsynced)
            && !holding.extending
            && run.pause.is_none()
        {
            let wanted = !holding.put_off.is_empty()
                || self.let_ins.iter().any(|l| l.seq == seq)
                || self
                    .watches
                    .get(&seq)
                    .is_some_and(|w| w.receiver_count() > 0);
            if wanted {
                self.start_sync(run);
            }
        }
        if let Some(holding) = &mut self.holding
            && holding.grant == grant
            && !holding.claimed
            && !holding.claim_watched
            && let Some(entry) = self.state.as_ref().and_then(|s| s.holder())
        {
            holding.claim_watched = true;
            let ttl = self.ttl_of(run, entry);
            run.inner.leases.watch_claim(&self.place(seq), grant, ttl);
        }
    }

    fn open_entrance(&mut self, run: &mut Run) {
        let Some(holding) = &mut self.holding else {
            return;
        };
        let (seq, grant) = (holding.seq, holding.grant);
        let put_off = match holding.extending {
            true => Default::default(),
            false => std::mem::take(&mut holding.put_off),
        };
        for call in put_off {
            self.begin(run, call);
        }
        let (ready, later) = std::mem::take(&mut self.let_ins)
            .into_iter()
            .partition(|l| l.seq == seq);
        self.let_ins = later;
        let ready: Vec<LetIn> = ready;
        for let_in in ready {
            if let_in.reply.is_closed() {
                continue;
            }
            if let_in.read_value {
                let (read, look) = (self.read_latest(run), self.look_beside(run));
                run.io.push(Box::pin(async move {
                    let (read, looked) = tokio::join!(read, look);
                    IoDone::LetIn {
                        grant,
                        let_in,
                        read,
                        looked,
                    }
                }));
            } else {
                self.say_held(run, let_in.reply, let_in.existed, None);
            }
        }
        if let Some(watch) = self.watches.get(&seq) {
            let now = Watched::Held { grant };
            if *watch.borrow() != now
                && watch.send(now).is_ok()
                && let Some(holding) = &mut self.holding
            {
                holding.claimed = true;
            }
        }
    }

    pub(super) fn let_in_read(&mut self, run: &mut Run, grant: Fence, let_in: LetIn, read: Read) {
        let Some(holding) = self.holding.as_mut().filter(|h| h.grant == grant) else {
            // Taken over or ended meanwhile: look again.
            if self
                .state
                .as_ref()
                .is_some_and(|s| s.entry(let_in.seq).is_some())
            {
                self.let_ins.push(let_in);
            } else {
                let over = self.state.as_ref().map(|s| s.over(let_in.seq));
                let error = over.map_or_else(super::no_answer, EngineError::Over);
                drop(let_in.reply.send(Err(error)));
            }
            return;
        };
        if holding.is_unclaimed() {
            return self.let_ins.push(let_in);
        }
        match read.noted(holding, &mut self.latest) {
            Ok(cell) => {
                let value = Some(value_of(cell));
                self.say_held(run, let_in.reply, let_in.existed, value);
            }
            Err(error) => {
                let error = EngineError::Unavailable(error.to_string());
                drop(let_in.reply.send(Err(error)));
            }
        }
    }

    fn start_sync(&mut self, run: &mut Run) {
        let Some(holding) = &mut self.holding else {
            return;
        };
        holding.entrance = Entrance::Reading;
        let fence = holding.fence;
        let store = Arc::clone(&run.inner.store);
        let id = Arc::clone(&self.id);
        run.io.push(Box::pin(async move {
            let cell = store.read_data(&id).await;
            IoDone::SyncRead { fence, cell }
        }));
    }

    pub(super) fn sync_read(
        &mut self,
        run: &mut Run,
        fence: Fence,
        cell: Result<Option<Cell>, StoreError>,
    ) {
        let Some(holding) = self.holding.as_mut().filter(|h| h.fence == fence) else {
            return;
        };
        let cell = match cell {
            Ok(cell) => cell,
            Err(error) => {
                // Nothing was written from this read, so it may be read again (I7).
                holding.entrance = Entrance::Unsynced;
                self.fail_holder_calls(&EngineError::Unavailable(error.to_string()));
                self.pause(run);
                return;
            }
        };
        if let Some(cell) = &cell
            && cell.timestamp >= fence.0
        {
            // The rewrite would not show above what is there: take a fence that does, and read again
            // under that one.
            holding.entrance = Entrance::Unsynced;
            holding.extending = true;
            self.pending.push_back(Intent::Extend {
                seq: holding.seq,
                fence,
                past: Some(cell.timestamp),
            });
            return;
        }
        let rewrite = Cell {
            value: cell.and_then(|cell| cell.value),
            timestamp: fence.0,
        };
        holding.entrance = Entrance::Writing(rewrite.clone());
        Self::write_sync(run, &self.id, fence, rewrite, None);
    }

    fn write_sync(
        run: &mut Run,
        id: &Arc<crate::lock::KeyId>,
        fence: Fence,
        cell: Cell,
        pause: Option<super::Sleep>,
    ) {
        let store = Arc::clone(&run.inner.store);
        let id = Arc::clone(id);
        run.io.push(Box::pin(async move {
            if let Some(pause) = pause {
                pause.await;
            }
            let written = store.write_data(&id, cell).await;
            IoDone::SyncWrote { fence, written }
        }));
    }

    pub(super) fn sync_wrote(&mut self, run: &mut Run, fence: Fence, written: Written) {
        let looked_long_ago = self.looked_long_ago(run);
        let Some(holding) = self.holding.as_mut().filter(|h| h.fence == fence) else {
            return;
        };
        let Entrance::Writing(cell) = &holding.entrance else {
            return;
        };
        match written {
            Written::Done => {
                self.tries = 0;
                self.latest.know(Some(cell.clone()));
                holding.synced = true;
                if looked_long_ago {
                    holding.entrance = Entrance::Looking;
                    let grant = holding.grant;
                    self.look_after_sync(run, grant, None);
                } else {
                    holding.entrance = Entrance::Open;
                }
            }
            Written::Unknown(error) | Written::NotStarted(error) => {
                // Again, with the same content: a fence is synced from one read (I7).
                let cell = cell.clone();
                let pause = run.inner.clock.sleep(run.inner.backoff(self.tries));
                self.tries = self.tries.saturating_add(1);
                self.fail_holder_calls(&EngineError::Unavailable(error.to_string()));
                Self::write_sync(run, &self.id, fence, cell, Some(pause));
            }
        }
    }

    fn look_after_sync(&self, run: &Run, grant: Fence, pause: Option<super::Sleep>) {
        let look = self.look_now(run);
        run.io.push(Box::pin(async move {
            if let Some(pause) = pause {
                pause.await;
            }
            let looked = look.await;
            IoDone::SyncLooked { grant, looked }
        }));
    }

    /// Nobody is let in by what was known before a sync that took long (I10).
    pub(super) fn sync_looked(&mut self, run: &mut Run, grant: Fence, looked: Looked) {
        let looked = self.saw_beside(run, looked);
        let looking =
            |h: &&mut Holding| h.grant == grant && matches!(h.entrance, Entrance::Looking);
        let Some(holding) = self.holding.as_mut().filter(looking) else {
            return;
        };
        match looked {
            Ok(()) => {
                self.tries = 0;
                holding.entrance = Entrance::Open;
            }
            Err(error) => {
                let pause = run.inner.clock.sleep(run.inner.backoff(self.tries));
                self.tries = self.tries.saturating_add(1);
                self.fail_holder_calls(&error);
                self.look_after_sync(run, grant, Some(pause));
            }
        }
    }
}
