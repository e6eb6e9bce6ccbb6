//! What a committed state means to a replica, and what it promised of it: the memory of a fence, which nothing but
//! this home has (I10).

use crate::committed::{Committed, entry, head_seq, home_of, request_of, seq_of, ts};
use crate::setup::{Rule, Setup};
use crate::world::{
    Call, HolderState, Intent, Promise, Proof, Replica, SyncPhase, Ts, World, Write,
};

impl World {
    /// A replica looks at the register.
    pub fn read(&mut self, setup: &Setup, by: u8) {
        let replica = self.replica(by);
        replica.stale = false;
        replica.hinted = false;
        let current = self.stored.clone();
        self.adopt(setup, by, current);
    }

    /// A replica takes a committed state as the latest one.
    pub fn adopt(&mut self, setup: &Setup, by: u8, new: Committed) {
        let replica = &mut self.replicas[usize::from(by)];
        let old = replica.view.replace(new.clone());
        let remembers = old.is_some();
        let old = old.unwrap_or_default();
        let stays = |entry_ref: Promise| {
            let entry = entry(&new, entry_ref.seq);
            entry.is_some_and(|e| e.epoch == u32::from(entry_ref.epoch) && home_of(e) == by)
        };
        replica.handed_over = replica.handed_over.filter(|entry_ref| stays(*entry_ref));
        replica.owes_hand_over &= replica.handed_over.is_some();
        if !remembers && setup.rule(Rule::KeptMemory) {
            // Since when it is valid for its waiters is not known any more.
            let mine = new.entries.iter().skip(1).filter(|e| home_of(e) == by);
            for seq in mine.map(|e| seq_of(e)) {
                replica.take_over(&new, seq);
            }
        }
        self.adopt_holder(setup, by, &old, &new, remembers);
        self.finish_hand_over(by);
    }

    fn adopt_holder(
        &mut self,
        setup: &Setup,
        by: u8,
        old: &Committed,
        new: &Committed,
        remembers: bool,
    ) {
        let replica = &mut self.replicas[usize::from(by)];
        let grant = ts(new.grant);
        let Some(holder) = new.holder() else {
            replica.holding = None;
            return;
        };
        let (seq, mine) = (seq_of(holder), home_of(holder) == by);
        if let Some(holding) = &mut replica.holding
            && (holding.seq, holding.grant) == (seq, grant)
            && (mine || !setup.rule(Rule::OneWriter))
        {
            if holding.fence != ts(new.fence) {
                // Extended: its ops start again (I3).
                holding.fence = ts(new.fence);
                holding.op = 0;
            }
            holding.width = new.width as u16;
            return;
        }
        replica.holding = None;
        if !mine {
            return;
        }
        let fresh = remembers && old.grant != new.grant;
        if fresh || !setup.rule(Rule::KeptMemory) {
            let was_holder = head_seq(old) == Some(seq);
            let releasing = replica.is_releasing(seq);
            let mut holding = HolderState::new(setup, new, seq);
            holding.claimed = was_holder;
            holding.releasing = releasing;
            replica.holding = Some(holding);
        } else if replica
            .handed_over
            .is_none_or(|entry_ref| entry_ref.seq != seq)
        {
            replica.take_over(new, seq);
        }
    }

    /// The promise is told once the calls of the holder are answered; from then on its fence is forgotten.
    pub fn finish_hand_over(&mut self, by: u8) {
        let replica = &self.replicas[usize::from(by)];
        let Some(entry_ref) = replica.handed_over.filter(|_| replica.owes_hand_over) else {
            return;
        };
        let grant = replica.holding.as_ref().filter(|h| h.seq == entry_ref.seq);
        if grant.is_some_and(|h| self.is_serving(by, h.grant)) {
            return;
        }
        let replica = self.replica(by);
        replica.owes_hand_over = false;
        if replica
            .holding
            .as_ref()
            .is_some_and(|h| h.seq == entry_ref.seq)
        {
            replica.holding = None;
        }
        self.hand_over = Some((1 - by, entry_ref));
    }

    /// Whether calls of this grant are in flight.
    fn is_serving(&self, by: u8, grant: Ts) -> bool {
        let writing = |w: &Write| w.awaited && w.by == by && w.grant == grant && !w.sync;
        let reading = |call: Call| matches!(call, Call::Get { at, grant: its, .. } if (at, its) == (by, grant));
        self.writes.iter().any(writing) || self.clients.iter().any(|c| reading(c.call))
    }
}

impl Replica {
    /// Asks for an entry: from the other home, or anew from itself.
    pub fn take_over(&mut self, state: &Committed, seq: u8) {
        let Some(entry) = entry(state, seq).filter(|_| !self.is_taking_over(seq)) else {
            return;
        };
        let holds = head_seq(state) == Some(seq);
        self.pending.push(Intent::TakeOver {
            seq,
            from_home: home_of(entry),
            from_fence: if holds { ts(state.fence) } else { 0 },
            from_epoch: entry.epoch as u8,
        });
    }

    /// Ends an entry, on what is known of it.
    pub fn evict(&mut self, seq: u8) {
        let Some(entry) = self.view.as_ref().and_then(|state| entry(state, seq)) else {
            return;
        };
        let unclaimed = self.holding.as_ref().filter(|h| h.seq == seq && !h.claimed);
        self.pending.push(Intent::Evict {
            seq,
            request: request_of(entry),
            proof: match unclaimed {
                Some(holding) => Proof::Unclaimed {
                    grant: holding.grant,
                },
                None => Proof::Silent {
                    epoch: entry.epoch as u8,
                },
            },
        });
    }
}

impl HolderState {
    pub fn new(setup: &Setup, state: &Committed, seq: u8) -> HolderState {
        let synced = !state.unsynced || !setup.rule(Rule::Sync);
        HolderState {
            seq,
            grant: ts(state.grant),
            fence: ts(state.grant),
            width: state.width as u16,
            op: 0,
            sync_phase: if synced {
                SyncPhase::Open
            } else {
                SyncPhase::Unsynced
            },
            synced: false,
            claimed: false,
            releasing: false,
            extending: false,
            last_call: 0,
            acked: 0,
            unknown: 0,
        }
    }
}
