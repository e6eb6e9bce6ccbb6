//! Keys with lost memory: after a panic, or because the row contradicts the memory. This replica answers nothing about such a key
//! until the last promise has passed. Then it takes the key over from itself (H11).

use std::sync::Arc;
use std::time::Duration;

use super::api::EngineError;
use super::shell::KeyShell;
use super::slot::{KeyCell, Silence, Slot};
use crate::key::CommitMode;
use crate::key::machine::Call;

/// The pause before a lost key without a call is taken over again.
const LOST_FOR: Duration = Duration::from_secs(1);

impl KeyShell {
    /// Handles slow work whose task panicked. The waiting machine goes, and the next call, or this replica after a moment,
    /// takes the key over from itself (H11).
    pub fn lost(self: &Arc<Self>, cell: &Arc<KeyCell>, generation: u64) {
        let mut slot = cell.slot();
        if slot.generation == generation {
            self.lose(cell, &mut slot);
        }
        self.leave(cell, slot);
    }

    /// Forgets the state of a key, and has it taken over.
    pub fn lose(self: &Arc<Self>, cell: &Arc<KeyCell>, slot: &mut Slot) {
        // A key that panics again and again is taken over once.
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

    /// Handles a row that contradicts the machine of its key.
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
                    // Forget the cell if possible: the sweep takes a known key for served.
                    shell.leave(&cell, slot);
                }
            }
        });
    }

    /// Silences a key whose state is lost until its volatile promises have passed (H11). Returns the span of the silence.
    pub fn keep_silent(&self, cell: &KeyCell, slot: &mut Slot) -> Duration {
        let promised = match self.commits.mode(&cell.id.table) {
            CommitMode::WriteThrough => Duration::ZERO,
            CommitMode::WriteBack(_) => self.local.sure_for(),
        };
        slot.silence = Silence::Until(self.local.clock.boot().saturating_add(promised));
        promised
    }

    /// Detaches the entries of a lost machine from their sessions. The next machine attaches the live ones.
    pub fn detach_lost(self: &Arc<Self>, cell: &KeyCell, slot: &mut Slot) {
        for (seq, session) in std::mem::take(&mut slot.lost_sessions) {
            self.sessions.detach(session, &cell.id, seq);
            self.sessions.forget_if_done(session);
        }
    }
}
