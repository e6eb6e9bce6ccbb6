//! What one search looks at: how many clients, what they do, and how often what may go wrong.

use super::call::Kind;
use super::off::Off;

/// What may go wrong, each so many times.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Faults {
    /// A client crashes, and its call stops where it is.
    pub crashes: u8,
    /// A call is cut, and repeated at another replica.
    pub cuts: u8,
    /// A call goes on unheard, and is repeated at another replica.
    pub unheard: u8,
    /// A write has an unknown outcome.
    pub unknown_writes: u8,
    /// A swap has an unknown outcome.
    pub unknown_swaps: u8,
    /// The TTL of a client passes that has not crashed.
    pub expiries: u8,
    /// A client chooses for too long.
    pub late: u8,
    /// So much of a TTL passes that it is renewed.
    pub ages: u8,
    /// A node misses all writes from now on.
    pub lags: u8,
}

/// What a holder does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// It asks again whether it holds the key.
    Acquire,
    Get,
    Put,
}

/// One search.
#[derive(Clone, Debug)]
pub struct Setup {
    pub name: &'static str,
    pub kind: Kind,
    pub clients: usize,
    /// What each holder does before its release.
    pub plan: &'static [Op],
    /// A put rides with each release.
    pub carry: bool,
    /// A client whose put is in doubt reads what became of it.
    pub reads_in_doubt: bool,
    /// All contenders draw the same random number.
    pub same_ids: bool,
    pub faults: Faults,
    pub off: Option<Off>,
    /// It ends after so many steps; `None`: once all was seen.
    pub steps_max: Option<usize>,
}

impl Setup {
    fn new(name: &'static str, kind: Kind, plan: &'static [Op]) -> Setup {
        Setup {
            name,
            kind,
            clients: 2,
            plan,
            carry: false,
            reads_in_doubt: false,
            same_ids: false,
            faults: Faults::default(),
            off: None,
            steps_max: None,
        }
    }

    pub fn bakery(name: &'static str) -> Setup {
        Setup::new(name, Kind::Bakery, &[Op::Acquire])
    }

    pub fn music(name: &'static str, plan: &'static [Op]) -> Setup {
        Setup::new(name, Kind::Music, plan)
    }

    pub fn clients(self, clients: usize) -> Setup {
        Setup { clients, ..self }
    }

    pub fn plan(self, plan: &'static [Op]) -> Setup {
        Setup { plan, ..self }
    }

    pub fn carry(self) -> Setup {
        Setup {
            carry: true,
            ..self
        }
    }

    pub fn reads_in_doubt(self) -> Setup {
        Setup {
            reads_in_doubt: true,
            ..self
        }
    }

    pub fn same_ids(self) -> Setup {
        Setup {
            same_ids: true,
            ..self
        }
    }

    pub fn faults(mut self, change: impl FnOnce(&mut Faults)) -> Setup {
        change(&mut self.faults);
        self
    }

    pub fn off(self, rule: Off) -> Setup {
        Setup {
            off: Some(rule),
            ..self
        }
    }

    pub fn bounded(self, steps_max: usize) -> Setup {
        Setup {
            steps_max: Some(steps_max),
            ..self
        }
    }
}
