//! Keys whose memory is lost: by a panic, or because their row contradicts it. This replica answers nothing about such a key until the
//! last promise has passed. Then it takes the key over from itself (H11).

use std::sync::Arc;
use std::time::Duration;

use super::api::EngineError;
use super::shell::KeyShell;
use super::slot::{KeyCell, Silence, Slot};
use crate::key::CommitMode;
use crate::key::machine::Call;

/// After this a key whose memory was lost is taken over again, if nobody asked for it before.
const LOST_FOR: Duration = Duration::from_secs(1);

impl KeyShell {
    /// What was begun never comes back: its task panicked. The machine that waits for it goes, and the next call, or this
    /// replica after a moment, takes the key over from itself (H11).
    pub fn lost(self: &Arc<Self>, cell: &Arc<KeyCell>, generation: u64) {
        let mut slot = cell.slot();
        if slot.generation == generation {
            self.lose(cell, &mut slot);
        }
        self.leave(cell, slot);
    }

    /// Forgets what is known of a key, and sees to it that it is taken over.
    pub fn lose(self: &Arc<Self>, cell: &Arc<KeyCell>, slot: &mut Slot) {
        // One that panics again and again is not taken over again and again.
        let is_first = !slot.is_lost;
        slot.start_over();
        let lost_for = LOST_FOR.max(self.keep_silent(cell, slot));
        self.detach_lost(cell, slot);
        if !is_first {
            return;
        }
        tracing::error!(key = %cell.id, "a panic lost the state of a key: reading it again");
        self.take_over_later(cell, lost_for);
    }

    /// The row of a key is not what its machine knew.
    pub fn contradicted(self: &Arc<Self>, cell: &Arc<KeyCell>, slot: &mut Slot) {
        slot.is_lost = true;
        let lost_for = LOST_FOR.max(self.keep_silent(cell, slot));
        self.take_over_later(cell, lost_for);
    }

    /// Takes a key over from this replica itself, unless the next call does so before.
    fn take_over_later(self: &Arc<Self>, cell: &Arc<KeyCell>, after: Duration) {
        let (shell, cell) = (Arc::clone(self), Arc::clone(cell));
        tokio::spawn(async move {
            shell.local.clock.sleep(after).await;
            let call = Call::TakeOver {
                from: shell.local.id,
            };
            if let Err(error) = shell.asked(&cell.id, call).await {
                tracing::debug!(key = %cell.id, %error, "could not take over a key after a panic; its next call does");
                if matches!(error, EngineError::Elsewhere { .. }) {
                    let mut slot = cell.slot();
                    slot.is_lost = false;
                    // Of a key that is known here the sweep says that it is served.
                    shell.leave(&cell, slot);
                }
            }
        });
    }

    /// What was known of a key is lost: nothing is answered until all that was promised by memory alone is past (H11). For
    /// how long that is.
    pub fn keep_silent(&self, cell: &KeyCell, slot: &mut Slot) -> Duration {
        let promised = match self.commits.mode(&cell.id.table) {
            CommitMode::WriteThrough => Duration::ZERO,
            CommitMode::WriteBack(_) => self.local.sure_for(),
        };
        slot.silence = Silence::Until(self.local.clock.boot().saturating_add(promised));
        promised
    }

    /// What a machine that is gone had attached to sessions: the next one attaches what is still there.
    pub fn detach_lost(self: &Arc<Self>, cell: &KeyCell, slot: &mut Slot) {
        for (seq, session) in std::mem::take(&mut slot.lost_sessions) {
            self.sessions.detach(session, &cell.id, seq);
            self.sessions.forget_if_done(session);
        }
    }
}
