//! The rules of liveness under clocks of different rates: whoever was told how long it may be sure is sure of its lock
//! for that long.
//!
//! One client has the key at its home, a replica that vouches for it with its beats; the other replica observes. Beats,
//! renewals and their answers come late or never (one that never comes is one that is later than all that is looked at). The home asks the real `Lease` and `Vouch`, the observer the real
//! `Observer`, and what is evicted or taken over the real `decide` says. The client's clock runs at the
//! true rate, the observer's 10 % faster, the home's at either.

use std::time::Duration;

use crate::committed::{Committed, decided, entry, head_seq, home_of};
use crate::setup::Setup;
use crate::world::Intent;
use fermata::lock::State;
use fermata::session::{Lease, Observer, Vouch};

pub const BELIEF: &str = "a client is sure of its lock for as long as it was told";
pub const ONE_HOME: &str = "a home that is taken for down answers no more";

pub const HOME: u8 = 0;
pub const OTHER: u8 = 1;
pub const SEQ: u8 = 1;
/// One step of true time, and the TTLs, which are no whole number of steps.
const STEP_MS: u64 = 1_000;
pub const TTL: Duration = Duration::from_millis(4_400);
/// A pause longer than this between two looks is not counted.
const GAP_MAX: Duration = Duration::from_millis(2_500);

/// What can be left out, to see that it matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Care {
    /// The client counts from when it sent its request, not from when the answer came.
    FromSending,
    /// The client takes 10 % off.
    TenPercentOff,
    /// A beat counts from when it was sent, not from when it was acknowledged.
    BeatFromSending,
    /// The observer waits 10 % longer than the TTL.
    TenPercentMore,
    /// Evidence names the epoch that it was seen at.
    Epoch,
    /// What may be in doubt is taken anew before anybody is told that it is safe.
    Doubt,
    /// A home answers only while its own beats say that it lives.
    DeadForGood,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Beat {
    None,
    Sent { at: u8 },
    Landed { at: u8 },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Renewal {
    None,
    Sent {
        at: u8,
    },
    /// What the client is told.
    Answered {
        at: u8,
        valid_ms: u64,
    },
}

/// Times are in steps of true time; each machine reads its own clock from them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Moment {
    pub now: u8,
    /// Which clocks are fast: the client's, the home's, the observer's.
    pub fast: [bool; 3],
    pub stored: Committed,
    /// The beat under way, and those that were acknowledged: when they were sent, and when the home heard.
    pub beat: Beat,
    pub beats: Vec<(u8, u8)>,
    pub beats_sent: u8,
    /// The home's lease: renewed when, and whether it is over.
    pub renewed: u8,
    pub over: bool,
    /// When the swap was sent that gave the place its epoch, and one that is under way.
    pub since: u8,
    pub anew: Option<u8>,
    /// A beat landed since the observer looked, when that was, and how many steps it missed.
    pub row_changed: bool,
    pub looked: u8,
    pub unseen: u8,
    /// Of what the observer could see: for how long no beat was new, and for how long the place had this epoch.
    pub silent_ms: u64,
    pub epoch: u8,
    pub epoch_ms: u64,
    pub renewal: Renewal,
    pub renewals: u8,
    /// Until when the client is sure, by its own clock.
    pub sure_ms: u64,
    pub broken: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Happening {
    TimePasses,
    TimePassesUnseen,
    BeatSent,
    BeatLands,
    BeatAcknowledged,
    RenewalSent,
    RenewalAnswered,
    AnswerArrives,
    AnewSent,
    AnewApplied,
    LeaseExpires,
    ObserverEvicts,
    ObserverTakesOver,
}

/// The search.
pub struct Clocks {
    pub until: u8,
    pub renewals: u8,
    pub beats: u8,
    /// How many steps the observer may miss.
    pub unseen: u8,
    /// Whether the observer looks at the place as often as at the beats.
    pub loads: bool,
    pub left_out: Option<Care>,
}

impl Clocks {
    pub fn takes(&self, care: Care) -> bool {
        self.left_out != Some(care)
    }

    pub fn setup() -> Setup {
        Setup::new("clocks")
    }

    pub fn decide(moment: &mut Moment, by: u8, intent: Intent) {
        let (new, _): (State, _) = decided(&Clocks::setup(), &moment.stored, by, &[intent]);
        moment.stored = new.into();
    }

    /// What the home knows of its own beats.
    pub fn vouch(&self, moment: &Moment) -> Vouch {
        let mut vouch = Vouch::beating(Duration::ZERO, TTL);
        for (sent, heard) in &moment.beats {
            let from = match self.takes(Care::BeatFromSending) {
                true => *sent,
                false => *heard,
            };
            vouch.acknowledged(moment.home_clock(from), moment.home_clock(*heard));
        }
        vouch
    }

    pub fn lease(moment: &Moment) -> Lease {
        // Whatever the zero of its clock is: a lease counts spans.
        let mut lease = Lease::new(TTL, Observer::new(Duration::MAX).observe(Duration::ZERO));
        let mut clock = Observer::new(Duration::MAX);
        clock.observe(Duration::ZERO);
        lease.renew(clock.observe(moment.home_clock(moment.renewed)));
        if moment.over {
            lease.end();
        }
        lease
    }

    /// A renewal arrives at the home, which says how long its client is safe.
    pub fn answer(&self, moment: &mut Moment, sent: u8) {
        let now = moment.home_clock(moment.now);
        let mut vouch = self.vouch(moment);
        if self.takes(Care::DeadForGood) && vouch.is_dead(now) {
            return;
        }
        let home = entry(&moment.stored, SEQ).map(|e| home_of(e));
        // The home may not have heard yet that the place is over; that it is another's it must not need to.
        if home == Some(OTHER) {
            moment.broken = Some(ONE_HOME);
            return;
        }
        let mut lease = Clocks::lease(moment);
        let mut clock = Observer::new(Duration::MAX);
        clock.observe(Duration::ZERO);
        let Some(left) = lease.renew(clock.observe(now)) else {
            return;
        };
        moment.renewed = moment.now;
        let valid = vouch.valid_for(left, moment.home_clock(moment.since), now);
        let valid = match self.takes(Care::Doubt) {
            true => valid,
            false => Some(left),
        };
        if let Some(valid) = valid {
            moment.renewal = Renewal::Answered {
                at: sent,
                valid_ms: valid.as_millis() as u64,
            };
        }
    }

    pub fn arrives(&self, moment: &mut Moment, sent: u8, valid_ms: u64) {
        let from = match self.takes(Care::FromSending) {
            true => sent,
            false => moment.now,
        };
        let off = match self.takes(Care::TenPercentOff) {
            true => valid_ms / 10,
            false => 0,
        };
        let until = moment.client_ms(from) + valid_ms - off;
        moment.sure_ms = moment.sure_ms.max(until);
        moment.renewal = Renewal::None;
    }

    /// For how long a replica or a place must be silent to be taken for dead by the observer.
    pub fn silence_max_ms(&self) -> u64 {
        let ttl = TTL.as_millis() as u64;
        match self.takes(Care::TenPercentMore) {
            true => ttl + ttl / 10,
            false => ttl,
        }
    }
}

impl Moment {
    fn ms(steps: u8, fast: bool) -> u64 {
        u64::from(steps)
            * if fast {
                STEP_MS + STEP_MS / 10
            } else {
                STEP_MS
            }
    }

    pub fn client_ms(&self, at: u8) -> u64 {
        Moment::ms(at, self.fast[0])
    }

    pub fn home_clock(&self, at: u8) -> Duration {
        Duration::from_millis(Moment::ms(at, self.fast[1]))
    }

    pub fn looks(&mut self, loads: bool) {
        let clock = |at: u8| Duration::from_millis(Moment::ms(at, self.fast[2]));
        let mut observer = Observer::new(GAP_MAX);
        let before = observer.observe(clock(self.looked));
        let heard = observer.observe(clock(self.now)).since(before);
        let heard_ms = heard.as_millis() as u64;
        self.looked = self.now;
        self.epoch_ms += heard_ms;
        self.silent_ms += heard_ms;
        if std::mem::take(&mut self.row_changed) {
            self.silent_ms = 0;
        }
        if loads && self.epoch != self.epoch_now() {
            (self.epoch, self.epoch_ms) = (self.epoch_now(), 0);
        }
    }

    /// How long the home was silent, of what the observer saw, since it saw the place with this epoch.
    pub fn silence_ms(&self) -> u64 {
        self.silent_ms.min(self.epoch_ms)
    }

    pub fn is_held(&self) -> bool {
        head_seq(&self.stored) == Some(SEQ)
    }

    pub fn epoch_now(&self) -> u8 {
        entry(&self.stored, SEQ).map_or(0, |e| e.epoch as u8)
    }
}
