//! Granting the lock to a holder: at once if the key is synced, else after one read and one rewrite (I7).

use std::sync::Arc;

use super::super::api::{EngineError, WatchEvent};
use super::critical::{IoDone, value_of};
use super::holding::{HolderState, SyncPhase};
use super::intent::Intent;
use super::latest::Read;
use super::remote_entries::ReRead;
use super::{Actor, GrantWaiter, Run};
use crate::lock::Fence;
use crate::store::{Cell, StoreError, Written};

impl Actor {
    /// Grants the holder the lock if that is wanted and possible, and does what waited for it.
    pub(super) fn grant_holder(&mut self, run: &mut Run) {
        if self.stale && !self.just_read {
            return;
        }
        let Some(holding) = &mut self.holding else {
            // An earlier take-over was refused. It is tried again for as long as somebody asks.
            if !self.grant_waiters.is_empty() && run.store_op.is_none() && run.pause.is_none() {
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
            self.open_sync_phase(run);
        } else if matches!(holding.sync_phase, SyncPhase::Unsynced)
            && !holding.extending
            && run.pause.is_none()
        {
            let wanted = !holding.put_off.is_empty()
                || self.grant_waiters.iter().any(|l| l.seq == seq)
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
            run.inner
                .leases
                .watch_claim(&self.entry_id(seq), grant, ttl);
        }
    }

    fn open_sync_phase(&mut self, run: &mut Run) {
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
        let (ready, later) = std::mem::take(&mut self.grant_waiters)
            .into_iter()
            .partition(|l| l.seq == seq);
        self.grant_waiters = later;
        let ready: Vec<GrantWaiter> = ready;
        for grant_waiter in ready {
            if grant_waiter.reply.is_closed() {
                continue;
            }
            if grant_waiter.read_value {
                let (read, look) = (self.read_latest(run), self.re_read_beside(run));
                run.io.push(Box::pin(async move {
                    let (read, re_read) = tokio::join!(read, look);
                    IoDone::GrantWaiter {
                        grant,
                        grant_waiter,
                        read,
                        re_read,
                    }
                }));
            } else {
                self.say_held(run, grant_waiter.reply, grant_waiter.existed, None);
            }
        }
        if let Some(watch) = self.watches.get(&seq) {
            let now = WatchEvent::Held { grant };
            if *watch.borrow() != now
                && watch.send(now).is_ok()
                && let Some(holding) = &mut self.holding
            {
                holding.claimed = true;
            }
        }
    }

    pub(super) fn grant_with_value(
        &mut self,
        run: &mut Run,
        grant: Fence,
        grant_waiter: GrantWaiter,
        read: Read,
    ) {
        let Some(holding) = self.holding.as_mut().filter(|h| h.grant == grant) else {
            // Taken over or ended meanwhile: re-read.
            if self
                .state
                .as_ref()
                .is_some_and(|s| s.entry(grant_waiter.seq).is_some())
            {
                self.grant_waiters.push(grant_waiter);
            } else {
                let ended = self.state.as_ref().map(|s| s.how_ended(grant_waiter.seq));
                let error = ended.map_or_else(super::no_answer, EngineError::Ended);
                drop(grant_waiter.reply.send(Err(error)));
            }
            return;
        };
        if holding.is_unclaimed() {
            return self.grant_waiters.push(grant_waiter);
        }
        match read.noted(holding, &mut self.latest) {
            Ok(cell) => {
                let value = Some(value_of(cell));
                self.say_held(run, grant_waiter.reply, grant_waiter.existed, value);
            }
            Err(error) => {
                let error = EngineError::Unavailable(error.to_string());
                drop(grant_waiter.reply.send(Err(error)));
            }
        }
    }

    fn start_sync(&mut self, run: &mut Run) {
        let Some(holding) = &mut self.holding else {
            return;
        };
        holding.sync_phase = SyncPhase::Reading;
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
                holding.sync_phase = SyncPhase::Unsynced;
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
            holding.sync_phase = SyncPhase::Unsynced;
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
        holding.sync_phase = SyncPhase::Writing(rewrite.clone());
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
        let read_long_ago = self.read_long_ago(run);
        let Some(holding) = self.holding.as_mut().filter(|h| h.fence == fence) else {
            return;
        };
        let SyncPhase::Writing(cell) = &holding.sync_phase else {
            return;
        };
        match written {
            Written::Done => {
                self.tries = 0;
                self.latest.know(Some(cell.clone()));
                holding.synced = true;
                if read_long_ago {
                    holding.sync_phase = SyncPhase::Looking;
                    let grant = holding.grant;
                    self.re_read_after_sync(run, grant, None);
                } else {
                    holding.sync_phase = SyncPhase::Open;
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

    fn re_read_after_sync(&self, run: &Run, grant: Fence, pause: Option<super::Sleep>) {
        let look = self.read_now(run);
        run.io.push(Box::pin(async move {
            if let Some(pause) = pause {
                pause.await;
            }
            let re_read = look.await;
            IoDone::SyncReRead { grant, re_read }
        }));
    }

    /// Nobody is granted the lock by what was known before a sync that took long (I10).
    pub(super) fn sync_re_read(&mut self, run: &mut Run, grant: Fence, re_read: ReRead) {
        let re_read = self.saw_re_read(run, re_read);
        let looking =
            |h: &&mut HolderState| h.grant == grant && matches!(h.sync_phase, SyncPhase::Looking);
        let Some(holding) = self.holding.as_mut().filter(looking) else {
            return;
        };
        match re_read {
            Ok(()) => {
                self.tries = 0;
                holding.sync_phase = SyncPhase::Open;
            }
            Err(error) => {
                let pause = run.inner.clock.sleep(run.inner.backoff(self.tries));
                self.tries = self.tries.saturating_add(1);
                self.fail_holder_calls(&error);
                self.re_read_after_sync(run, grant, Some(pause));
            }
        }
    }
}
