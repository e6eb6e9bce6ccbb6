//! What is true whatever anybody believes: which values the holder may read, who was granted the lock last, and the
//! first promise that was broken.

use fermata::lock::Lookup;

use crate::committed::{Committed, entry, entry_of, is_step, ts};
use crate::setup::Setup;
use crate::world::{Phase, Ts, World};

/// A promise of the service (docs/design.md) that the world does not keep.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Broken {
    Exclusivity,
    LatestState,
    Order,
    /// The lock's state itself is not in order.
    State(&'static str),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Truth {
    /// The values that the holder may read, a bit each: what was acknowledged last, and what of later writes may
    /// count either way.
    may_read: u32,
    /// Values that must never be read: written by a former holder after the next one was granted the lock.
    barred: u32,
    /// The holder has put something of which it did not hear yet what became.
    unsettled: bool,
    /// The highest entry that was granted the lock.
    grant_waiter: u8,
    pub broken: Option<Broken>,
}

impl Default for Truth {
    fn default() -> Truth {
        Truth {
            may_read: 1,
            barred: 0,
            unsettled: false,
            grant_waiter: 0,
            broken: None,
        }
    }
}

const fn bit(value: u8) -> u32 {
    1 << value
}

impl World {
    /// A swap takes effect.
    pub fn commit(&mut self, new: Committed) {
        if let Err(what) = is_step(&self.stored, &new) {
            self.truth.broken = Some(Broken::State(what));
        }
        self.stored = new;
        // What can no longer take effect is gone.
        let version = self.stored.version;
        self.open.retain(|swap| swap.expected == version);
    }

    /// Whether the client has the key: the committed state says so.
    fn holds(&self, setup: &Setup, client: usize) -> bool {
        let its = &self.clients[client];
        let served = matches!(its.phase, Phase::Held | Phase::Releasing);
        let request = setup.request(client as u8, its.section);
        let entry = || entry_of(&self.stored, its.seq, request);
        served && entry() == Lookup::Live(0)
    }

    /// Somebody is answered HELD.
    pub fn answered_held(&mut self, request: u8, seq: u8, grant: Ts) {
        let truth = &mut self.truth;
        match entry_of(&self.stored, seq, request) {
            // At its turn, with a grant that was committed.
            Lookup::Live(0) if grant <= ts(self.stored.grant) => {}
            Lookup::Live(1..) => truth.broken = Some(Broken::Order),
            // Its home did not hear yet that it has ended.
            Lookup::Ended(_) => {}
            Lookup::Live(_) | Lookup::NeverIssued => truth.broken = Some(Broken::Exclusivity),
        }
        if seq < truth.grant_waiter {
            // It came late: the next one is in already. Its calls promise nothing.
            return;
        }
        truth.grant_waiter = seq;
        // What it wrote under an earlier grant is there by now, or never will be.
        truth.unsettled = false;
    }

    /// A client begins a put.
    pub fn put_begun(&mut self, setup: &Setup, client: usize, value: u8) {
        if self.clients[client].seq < self.truth.grant_waiter {
            self.truth.barred |= bit(value);
            return;
        }
        self.truth.may_read |= bit(value);
        self.truth.unsettled |= self.holds(setup, client);
    }

    /// A client learns that its put was written.
    pub fn put_answered(&mut self, setup: &Setup, client: usize, value: u8) {
        if !self.holds(setup, client) {
            // After its end that promises nothing.
            return;
        }
        let section = self.clients[client].section;
        let later = (1..=self.clients[client].puts)
            .map(|put| setup.value(client as u8, section, put))
            .filter(|other| *other > value);
        let later = later.fold(0, |bits, value| bits | bit(value));
        self.truth.may_read = bit(value) | later;
        self.truth.unsettled = later != 0;
    }

    /// A client learns what the value is.
    pub fn read_answered(&mut self, setup: &Setup, client: usize, value: u8) {
        if !self.holds(setup, client) {
            return;
        }
        let truth = &mut self.truth;
        if truth.barred & bit(value) != 0 {
            truth.broken = Some(Broken::Exclusivity);
        } else if truth.may_read & bit(value) == 0 {
            truth.broken = Some(Broken::LatestState);
        } else if !truth.unsettled {
            // From here on until it writes.
            truth.may_read = bit(value);
        }
    }

    /// The client learns that its entry has ended, if it is.
    pub fn has_ended(&self, seq: u8) -> bool {
        entry(&self.stored, seq).is_none()
    }
}
