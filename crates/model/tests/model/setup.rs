//! What one search looks at: how many clients, what they do, and how often what may go wrong.

use std::time::Duration;

use fermata::key::machine::{CommitRules, KeyLimits};
use fermata::key::{CommitMode, Reserve};
use fermata::lock::CoreLimits;

/// What may go wrong, each so many times.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Faults {
    /// A replica ends; what it sent may land later.
    pub ends: u8,
    /// A replica loses what it knew of the key, and goes on.
    pub memory_lost: u8,
    /// A replica forgets a key that nobody uses, to have room for others.
    pub forgotten: u8,
    /// The session of a client ends.
    pub sessions: u8,
    /// A holder is found unclaimed.
    pub unclaimed: u8,
    /// A key is handed over.
    pub hand_overs: u8,
    /// A home stops: it hands the key over to itself, which leaves nothing to memory alone.
    pub stops: u8,
    /// A compare-and-swap has an unknown outcome.
    pub unknown_swaps: u8,
    /// A write of the value has an unknown outcome.
    pub unknown_writes: u8,
    /// A client gives a call up, and makes it again.
    pub given_up: u8,
    /// A client hears nothing of a call, whose answer was given or is given later, and makes it again.
    pub answers_lost: u8,
    /// A call goes to a replica that is not the home.
    pub misrouted: u8,
    /// The home takes the holder's entry by force.
    pub forced: u8,
    /// The clock of the home is wrong for a while: no fence is taken.
    pub wrong_clocks: u8,
    /// The store fails to read the row, or does not begin a compare-and-swap.
    pub store_failures: u8,
}

/// A rule that nobody keeps, to see that the others rest on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Off {
    /// A replica that reads that the row names another decides about the key, and answers.
    H1,
    /// The key is taken from a home that goes on answering.
    H2,
}

/// One search.
#[derive(Clone, Debug)]
pub struct Setup {
    pub name: &'static str,
    pub clients: usize,
    pub sections: u8,
    pub puts: u8,
    /// Clients whose last put rides with their release, by bit.
    pub carry: u8,
    /// All clients are one session's.
    pub one_session: bool,
    /// A client takes a release that is refused for what the refusal says, whatever became of an earlier try.
    pub trusts_refusals: bool,
    /// A client whose put is in doubt reads what became of it, and writes something else.
    pub reads_in_doubt: bool,
    pub faults: Faults,
    pub limits: KeyLimits,
    pub commit: CommitRules,
    pub off: Option<Off>,
    /// It ends after so many steps; `None`: once all was seen.
    pub steps_max: Option<usize>,
}

impl Setup {
    pub fn new(name: &'static str) -> Setup {
        Setup {
            name,
            clients: 2,
            sections: 1,
            puts: 1,
            carry: 0,
            one_session: false,
            trusts_refusals: false,
            reads_in_doubt: false,
            faults: Faults::default(),
            limits: KeyLimits {
                core: CoreLimits {
                    width_min: 4,
                    width_max: 8,
                    ended_max: 8,
                    entries_max: 8,
                    ahead_us_max: None,
                },
                calls_max: 8,
                waits_per_lock_ref_max: 4,
                critical_calls_max: 4,
                known_value_bytes_max: 8,
                session_claim_ttl: Duration::from_secs(50),
            },
            commit: CommitRules {
                mode: CommitMode::WriteThrough,
                keep_after: Duration::from_millis(100),
            },
            off: None,
            steps_max: None,
        }
    }

    pub fn clients(self, clients: usize) -> Setup {
        Setup { clients, ..self }
    }

    pub fn sections(self, sections: u8) -> Setup {
        Setup { sections, ..self }
    }

    pub fn puts(self, puts: u8) -> Setup {
        Setup { puts, ..self }
    }

    pub fn carry(self, carry: u8) -> Setup {
        Setup { carry, ..self }
    }

    pub fn one_session(self) -> Setup {
        Setup {
            one_session: true,
            ..self
        }
    }

    pub fn trusts_refusals(self) -> Setup {
        Setup {
            trusts_refusals: true,
            ..self
        }
    }

    pub fn reads_in_doubt(self) -> Setup {
        Setup {
            reads_in_doubt: true,
            ..self
        }
    }

    /// The session of a client.
    pub fn session_of(&self, client: usize) -> usize {
        if self.one_session { 0 } else { client }
    }

    /// The home answers from memory, within small reserves.
    pub fn write_back(mut self) -> Setup {
        self.commit.mode = CommitMode::WriteBack(Reserve {
            seqs: 2,
            fence_us: 8,
            fence_us_if_far: 8,
            far_us: 1_000,
        });
        self
    }

    /// A fence has one timestamp for a put: the next one needs an Extend.
    pub fn narrow(mut self) -> Setup {
        self.limits.core.width_min = 2;
        self
    }

    /// The home reads the value at each call.
    pub fn without_known_value(mut self) -> Setup {
        self.limits.known_value_bytes_max = 0;
        self
    }

    pub fn faults(self, change: impl FnOnce(&mut Faults)) -> Setup {
        let mut setup = self;
        change(&mut setup.faults);
        setup
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
