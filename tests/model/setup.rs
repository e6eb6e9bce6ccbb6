//! What a search is about: how many clients, how much may go wrong, and which rule is switched off.

use fermata::lock::CoreLimits;

/// A rule that lives in the engine and not in `decide`. One at a time can be switched off, to see that the
/// search finds what it is there for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rule {
    /// Only the home of a holder serves it (I10).
    OneWriter,
    /// A holder whose home is up is taken over only with that home's agreement (I10).
    HandOver,
    /// A home that agreed never serves that fence again (I10).
    FinalHandOver,
    /// A home without its memory of a fence serves the holder only under a new one (I10).
    KeptMemory,
    /// An unsynced key is synced before its holder is granted the lock (I7).
    Sync,
    /// A fence is synced from one read (I7).
    OneSyncRead,
    /// A release says that a write of unknown outcome was left (I7).
    OpenWriteTold,
    /// Nobody is granted the lock by a swap of unknown outcome (I4, I6).
    CommittedGrant,
    /// After a conflict every command is decided again (design, section 3).
    DecidedAgain,
    /// A call whose number is not above the last is refused (I11).
    CallNo,
    /// A critical call carries the grant it belongs to (I11).
    GrantInCall,
    /// A waiter's home looks by itself, since the hint may be lost (section 7).
    Polling,
}

/// What may go wrong, each as often as the setup says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// A live client's entry is ended.
    Evict,
    /// A client is gone.
    ClientCrash,
    /// A replica is gone.
    Crash,
    /// An entry moves to the other replica, with its home's agreement.
    Move,
    /// The task of a key at a replica crashes, with its memory.
    Forget,
    /// The outcome of a swap is not known; it may yet take effect.
    UnknownSwap,
    /// The outcome of a write is not known; it may yet arrive.
    UnknownWrite,
    /// A client gives a put up; the call may yet arrive.
    GivenUp,
    /// A client asks another replica for the entry that it asked for.
    Retry,
    /// A waiter releases its entry.
    Leave,
    /// A holder is released by a replica that is not its home.
    Foreign,
    /// A hint gets lost.
    LostHint,
}

pub const FAULTS: usize = 12;

/// How much of each may still go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Faults([u8; FAULTS]);

impl Faults {
    pub fn with(mut self, fault: Fault, times: u8) -> Faults {
        self.0[fault as usize] = times;
        self
    }

    pub fn left(&self, fault: Fault) -> bool {
        self.0[fault as usize] > 0
    }

    pub fn spend(&mut self, fault: Fault) {
        self.0[fault as usize] -= 1;
    }
}

/// One search.
#[derive(Clone, Debug)]
pub struct Setup {
    pub name: &'static str,
    pub clients: u8,
    /// Sections of each client, one after the other.
    pub sections: u8,
    /// Puts of each section, at most.
    pub puts: u8,
    /// Whether holders read.
    pub gets: bool,
    pub faults: Faults,
    pub off: Option<Rule>,
    /// What the wall clocks of the replicas show.
    pub clocks: [u16; 2],
    pub limits: CoreLimits,
    /// After how many steps the search stops; `None` if it is to be closed.
    pub steps_max: Option<usize>,
}

impl Setup {
    /// Two clients, one put each, nothing goes wrong.
    pub fn new(name: &'static str) -> Setup {
        Setup {
            name,
            clients: 2,
            sections: 1,
            puts: 1,
            gets: true,
            faults: Faults::default(),
            off: None,
            clocks: [0, 0],
            limits: CoreLimits {
                width_min: 4,
                width_max: 8,
                ended_max: 16,
                entries_max: 16,
                ahead_us_max: None,
                clock_off: false,
            },
            steps_max: None,
        }
    }

    pub fn clients(mut self, clients: u8) -> Setup {
        self.clients = clients;
        self
    }

    pub fn sections(mut self, sections: u8) -> Setup {
        self.sections = sections;
        self
    }

    pub fn puts(mut self, puts: u8) -> Setup {
        self.puts = puts;
        self
    }

    /// Fences so narrow that the second put needs an Extend.
    pub fn narrow(mut self) -> Setup {
        self.limits.width_min = 2;
        self
    }

    pub fn clocks(mut self, clocks: [u16; 2]) -> Setup {
        self.clocks = clocks;
        self
    }

    pub fn fault(mut self, fault: Fault, times: u8) -> Setup {
        self.faults = self.faults.with(fault, times);
        self
    }

    pub fn off(mut self, rule: Rule) -> Setup {
        self.off = Some(rule);
        self
    }

    /// A search that does not end by itself. It goes for the ends of whole runs first, since there are too many
    /// short ones to get that far with all of them.
    pub fn bounded(mut self, steps: usize) -> Setup {
        self.steps_max = Some(steps);
        self
    }

    pub fn rule(&self, rule: Rule) -> bool {
        self.off != Some(rule)
    }

    /// What the request of a client's section is called.
    pub fn request(&self, client: u8, section: u8) -> u8 {
        client * self.sections + section
    }

    pub fn client_of(&self, request: u8) -> usize {
        usize::from(request / self.sections)
    }

    /// The number that stands for what a put writes; 0 is what was there at first.
    pub fn value(&self, client: u8, section: u8, put: u8) -> u8 {
        self.request(client, section) * self.puts + put
    }

    /// Whose put that was, and which of its section.
    pub fn put_of(&self, value: u8) -> (usize, u8) {
        let at = value - 1;
        (self.client_of(at / self.puts), at % self.puts + 1)
    }
}
