//! What a call says by coming, whatever becomes of it: its client is there.
//!
//! A call that has to wait for the store may fail for want of it. It renews what its lockRef lives by when it comes
//! (I9), and counts as a claim of a holder that was not granted the lock yet (I5): who asks is not to be ended for an
//! outage.

use super::super::leases::{LeaseKey, NoLease};
use super::super::remote;
use super::intent::Intent;
use super::msg::{EntryRef, Msg};
use super::{Actor, Run};
use crate::lock::{Entry, Evidence, Liveness, Lookup, Seq};

impl Actor {
    /// A message waits until the state was read.
    pub(super) fn put_off(&mut self, run: &Run, msg: Msg) {
        if let Some(entry_ref) = msg.entry_ref() {
            self.note_renewal(run, entry_ref);
        }
        if let Msg::Acquire {
            entry_ref, reply, ..
        } = &msg
            && !reply.is_closed()
            && self.is_live(*entry_ref)
        {
            self.came_for(entry_ref.seq);
        }
        self.backlog.push_back(msg);
    }

    fn entry_of(&self, entry_ref: EntryRef) -> Option<&Entry> {
        let state = self.state.as_ref()?;
        match state.lookup(entry_ref.seq, entry_ref.tag) {
            Lookup::Live(at) => state.entries.get(at).map(|entry| &**entry),
            Lookup::Ended(_) | Lookup::NeverIssued => None,
        }
    }

    fn is_live(&self, entry_ref: EntryRef) -> bool {
        self.entry_of(entry_ref).is_some()
    }

    /// Renews what a lockRef lives by. What may be told of that is found out once the call is served.
    fn note_renewal(&self, run: &Run, entry_ref: EntryRef) {
        let leases = &run.inner.leases;
        match self.entry_of(entry_ref).map(|entry| entry.liveness) {
            Some(Liveness::Session(session)) => {
                let renewed = leases.renew(&LeaseKey::Session(session));
                if renewed == Err(NoLease::Unknown) && run.inner.shared {
                    remote::pass_on(&run.inner, session);
                }
            }
            // Its tag is looked at there, too.
            Some(Liveness::Own { .. }) | None => {
                let _ = leases.renew_entry(self.entry_id(entry_ref.seq), entry_ref.tag);
            }
        }
    }

    /// Somebody came for a holder that was not told yet, and listens: from now on it has one TTL more to be claimed.
    pub(super) fn came_for(&mut self, seq: Seq) {
        let Some(holding) = self.holding.as_mut() else {
            return;
        };
        // Once it is being evicted that goes its way.
        if holding.seq != seq || holding.claimed || holding.is_unclaimed() {
            return;
        }
        holding.claim_watched = false;
        let is_unclaimed = |intent: &Intent| {
            matches!(
                intent,
                Intent::Evict { seq: of, evidence: Evidence::Unclaimed { .. }, .. } if *of == seq
            )
        };
        self.pending.retain(|intent| !is_unclaimed(intent));
    }
}
