//! The rules of liveness under clocks of different rates: whoever was told how long it may be sure is sure of its lock
//! for that long.
//!
//! One client has the key at its home, a replica that keeps it valid with its heartbeats; the other replica observes.
//! Heartbeats, renewals and their answers come late or never (one that never comes is one that is later than all that
//! is looked at). The home asks the real `Lease` and `Validity`, the observer the real `Observer`, and what is evicted
//! or taken over the real `decide` says. The client's clock runs at the true rate, the observer's 10 % faster, the
//! home's at either.

use std::time::Duration;

use crate::committed::{Committed, decided, entry, head_seq, home_of};
use crate::setup::Setup;
use crate::world::Intent;
use fermata::lock::State;
use fermata::session::{Lease, Observer, Validity};

pub const BELIEF: &str = "a client is sure of its lock for as long as it was told";
pub const ONE_HOME: &str = "a home that is taken for down answers no more";

pub const HOME: u8 = 0;
pub const OTHER: u8 = 1;
pub const SEQ: u8 = 1;
/// One step of true time, and the TTLs, which are no whole number of steps.
const STEP_MS: u64 = 1_000;
pub const TTL: Duration = Duration::from_millis(4_400);
/// A pause longer than this between two reads is not counted.
const GAP_MAX: Duration = Duration::from_millis(2_500);

/// What can be left out, to see that it matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Care {
    /// The client counts from when it sent its request, not from when the answer came.
    FromSending,
    /// The client takes 10 % off.
    TenPercentOff,
    /// A heartbeat counts from when it was sent, not from when it was acknowledged.
    HeartbeatFromSending,
    /// The observer waits 10 % longer than the TTL.
    TenPercentMore,
    /// Evidence names the epoch that it was seen at.
    Epoch,
    /// What may be in doubt is taken anew before anybody is told that it is safe.
    Doubt,
    /// A home answers only while its own heartbeats say that it lives.
    FencedForGood,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Heartbeat {
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
    /// The heartbeat in flight, and those that were acknowledged: when they were sent, and when the home heard.
    pub heartbeat: Heartbeat,
    pub heartbeats: Vec<(u8, u8)>,
    pub heartbeats_sent: u8,
    /// The home's lease: renewed when, and whether it has ended.
    pub renewed: u8,
    pub ended: bool,
    /// When the swap was sent that gave the entry its epoch, and one that is in flight.
    pub since: u8,
    pub anew: Option<u8>,
    /// A heartbeat landed since the observer looked, when that was, and how many steps it missed.
    pub row_changed: bool,
    pub re_read: u8,
    pub unseen: u8,
    /// Of what the observer could see: for how long no heartbeat was new, and for how long the entry had this epoch.
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
    HeartbeatSent,
    HeartbeatLands,
    HeartbeatAcknowledged,
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
    pub heartbeats: u8,
    /// How many steps the observer may miss.
    pub unseen: u8,
    /// Whether the observer looks at the entry as often as at the heartbeats.
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

    /// What the home knows of its own heartbeats.
    pub fn validity(&self, moment: &Moment) -> Validity {
        let mut validity = Validity::shared(Duration::ZERO, TTL);
        for (sent, heard) in &moment.heartbeats {
            let from = match self.takes(Care::HeartbeatFromSending) {
                true => *sent,
                false => *heard,
            };
            validity.acknowledged(moment.home_clock(from), moment.home_clock(*heard));
        }
        validity
    }

    pub fn lease(moment: &Moment) -> Lease {
        // Whatever the zero of its clock is: a lease counts spans.
        let mut lease = Lease::new(TTL, Observer::new(Duration::MAX).observe(Duration::ZERO));
        let mut clock = Observer::new(Duration::MAX);
        clock.observe(Duration::ZERO);
        lease.renew(clock.observe(moment.home_clock(moment.renewed)));
        if moment.ended {
            lease.end();
        }
        lease
    }

    /// A renewal arrives at the home, which says how long its client is safe.
    pub fn answer(&self, moment: &mut Moment, sent: u8) {
        let now = moment.home_clock(moment.now);
        let mut validity = self.validity(moment);
        if self.takes(Care::FencedForGood) && validity.is_fenced(now) {
            return;
        }
        let home = entry(&moment.stored, SEQ).map(|e| home_of(e));
        // The home may not have heard yet that the entry has ended; that it is another's it must not need to.
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
        let valid = validity.valid_for(left, moment.home_clock(moment.since), now);
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

    /// For how long a replica or an entry must be silent to be taken for down by the observer.
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

    pub fn reads(&mut self, loads: bool) {
        let clock = |at: u8| Duration::from_millis(Moment::ms(at, self.fast[2]));
        let mut observer = Observer::new(GAP_MAX);
        let before = observer.observe(clock(self.re_read));
        let heard = observer.observe(clock(self.now)).since(before);
        let heard_ms = heard.as_millis() as u64;
        self.re_read = self.now;
        self.epoch_ms += heard_ms;
        self.silent_ms += heard_ms;
        if std::mem::take(&mut self.row_changed) {
            self.silent_ms = 0;
        }
        if loads && self.epoch != self.epoch_now() {
            (self.epoch, self.epoch_ms) = (self.epoch_now(), 0);
        }
    }

    /// How long the home was silent, of what the observer saw, since it saw the entry with this epoch.
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
