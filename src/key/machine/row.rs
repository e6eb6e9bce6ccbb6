//! The home's knowledge of the row in the store, and the answers that it allows (H5, I4, I6). A change in doubt counts as applied and as
//! not applied, whichever allows less.

use std::sync::Arc;

use crate::key::{CommitMode, Entry, KeyState};
use crate::lock::Seq;

/// A sent change that may yet apply. It is sent again unchanged until a later version is known: so only one content in flight can
/// become the next version.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct SentChange {
    pub state: Arc<KeyState>,
    /// An earlier try had an unknown outcome.
    pub in_doubt: bool,
}

/// The row of the key at its home.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct KnownRow {
    known: Arc<KeyState>,
    sent: Option<SentChange>,
}

impl KnownRow {
    /// A row as it was acknowledged or read.
    pub fn new(known: Arc<KeyState>) -> Self {
        KnownRow { known, sent: None }
    }

    /// The latest known version.
    pub fn known(&self) -> &Arc<KeyState> {
        &self.known
    }

    /// The sent change, which may yet apply.
    pub fn sent(&self) -> Option<&SentChange> {
        self.sent.as_ref()
    }

    pub fn send(&mut self, state: Arc<KeyState>) {
        let in_doubt = false;
        self.sent = Some(SentChange { state, in_doubt });
    }

    /// The outcome is unknown.
    pub fn doubt(&mut self) {
        if let Some(sent) = &mut self.sent {
            sent.in_doubt = true;
        }
    }

    /// This try was not begun. `false` if an earlier one may apply.
    pub fn take_back(&mut self) -> bool {
        self.sent.take_if(|sent| !sent.in_doubt).is_some()
    }

    /// It took effect.
    pub fn settle(&mut self) {
        if let Some(sent) = self.sent.take() {
            self.known = sent.state;
        }
    }

    /// Whether this row, as read, is the sent change.
    pub fn is_sent(&self, state: &KeyState) -> bool {
        self.sent.as_ref().is_some_and(|sent| *sent.state == *state)
    }

    /// The versions that the row may have.
    fn each(&self) -> impl Iterator<Item = &KeyState> {
        let sent = self.sent.iter().map(|sent| &*sent.state);
        std::iter::once(&*self.known).chain(sent)
    }

    /// Whether this entry may hold the key: as the durable holder, or by a grant ahead of the row.
    pub fn allows_grant(&self, seq: Seq) -> bool {
        self.each()
            .all(|row| seq < row.reserved.volatile_end || row.kept == Some(seq))
    }

    /// Whether a client may learn of this seq.
    pub fn allows_seq(&self, seq: Seq) -> bool {
        seq < self.known.reserved.seq_end
    }

    /// Whether timestamps below this end may be used.
    pub fn allows_fence(&self, end: u64) -> bool {
        end <= self.known.reserved.fence_end
    }

    /// Whether this entry may be the durable holder.
    pub fn may_keep(&self, seq: Seq) -> bool {
        self.each().any(|row| row.kept == Some(seq))
    }

    /// Whether the row may list this entry.
    pub fn may_list(&self, seq: Seq) -> bool {
        self.each().any(|row| row.position(seq).is_some())
    }

    /// Whether the next home knows of the end of this entry.
    pub fn is_recorded(&self, seq: Seq) -> bool {
        seq < self.known.next && !self.may_list(seq)
    }

    /// Whether the row may list an entry with this property.
    pub fn may_list_any(&self, is_so: impl Fn(&Entry) -> bool) -> bool {
        self.each()
            .any(|row| row.entries.iter().any(|entry| is_so(entry)))
    }

    /// Whether the end of this entry may be told. With write-through: once the row lacks the entry. With write-back: at once,
    /// except for a durable holder, which would go on holding the key at the next home.
    pub fn allows_end(&self, seq: Seq, mode: CommitMode) -> bool {
        match mode {
            CommitMode::WriteThrough => !self.may_list(seq),
            CommitMode::WriteBack(_) => !self.may_keep(seq),
        }
    }

    /// Whether this entry is the durable holder, in every version.
    pub fn is_kept(&self, seq: Seq) -> bool {
        self.each().all(|row| row.kept == Some(seq))
    }

    /// Whether this entry survives the home in its role: the holder, or a waiter at its place in the queue.
    pub fn is_durable(&self, seq: Seq) -> bool {
        self.each().all(|row| row.keeps(seq))
    }
}
