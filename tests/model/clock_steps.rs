//! What happens over time, and the search of it.

use std::time::Duration;

use fermata::lock::State;
use fermata::session::Observer;
use stateright::{Model, Property};

use crate::clocks::{
    BELIEF, Care, Clocks, HOME, Happening, Heartbeat, Moment, ONE_HOME, OTHER, Renewal, SEQ, TTL,
};
use crate::committed::{Committed, decided, ts};
use crate::world::{Intent, Proof};

impl Model for Clocks {
    type State = Moment;
    type Action = Happening;

    fn init_states(&self) -> Vec<Moment> {
        let create = |request| Intent::Create {
            request,
            open: false,
        };
        let batch = [create(0), create(1)];
        let (stored, _) = decided(&Clocks::setup(), &State::default(), HOME, &batch);
        let stored = Committed::from(stored);
        // A client that is slow believes for longer, and a fast observer finds silence sooner: with others less goes
        // wrong. The home's clock can hurt either way.
        let rates = [[false, false, true], [false, true, true]];
        rates
            .into_iter()
            .map(|fast| Moment {
                now: 0,
                fast,
                stored: stored.clone(),
                heartbeat: Heartbeat::None,
                heartbeats: Vec::new(),
                renewed: 0,
                ended: false,
                since: 0,
                anew: None,
                heartbeats_sent: 0,
                row_changed: false,
                re_read: 0,
                unseen: 0,
                silent_ms: 0,
                epoch: 0,
                epoch_ms: 0,
                renewal: Renewal::None,
                renewals: 0,
                sure_ms: 0,
                broken: None,
            })
            .collect()
    }

    fn actions(&self, moment: &Moment, actions: &mut Vec<Happening>) {
        let sure = moment.client_ms(moment.now) < moment.sure_ms;
        let asks = moment.renewals < self.renewals || moment.renewal != Renewal::None;
        // Where nobody believes, and nobody will, there is nothing to break.
        if moment.broken.is_some() || !(sure || asks) || !(sure || moment.is_held()) {
            return;
        }
        if moment.now < self.until {
            actions.push(Happening::TimePasses);
            if moment.unseen < self.unseen {
                actions.push(Happening::TimePassesUnseen);
            }
        }
        let fenced = self
            .validity(moment)
            .is_fenced(moment.home_clock(moment.now));
        match moment.heartbeat {
            Heartbeat::None if moment.heartbeats_sent < self.heartbeats && !fenced => {
                actions.push(Happening::HeartbeatSent);
            }
            Heartbeat::None => {}
            Heartbeat::Sent { .. } => actions.push(Happening::HeartbeatLands),
            Heartbeat::Landed { .. } => actions.push(Happening::HeartbeatAcknowledged),
        }
        match moment.renewal {
            Renewal::None if moment.renewals < self.renewals => {
                actions.push(Happening::RenewalSent);
            }
            Renewal::None => {}
            Renewal::Sent { .. } => actions.push(Happening::RenewalAnswered),
            Renewal::Answered { .. } => actions.push(Happening::AnswerArrives),
        }
        if !moment.is_held() {
            return;
        }
        match moment.anew {
            // Once its client was told, a new epoch only makes it safer.
            None if !fenced && moment.epoch_now() == 0 && moment.sure_ms == 0 => {
                actions.push(Happening::AnewSent);
            }
            None => {}
            Some(_) => actions.push(Happening::AnewApplied),
        }
        let mut clock = Observer::new(Duration::MAX);
        clock.observe(Duration::ZERO);
        let now = clock.observe(moment.home_clock(moment.now));
        if !moment.ended && Clocks::lease(moment).expire(now) {
            actions.push(Happening::LeaseExpires);
        }
        if moment.silence_ms() >= self.silence_max_ms() {
            actions.push(Happening::ObserverEvicts);
        }
        if moment.silent_ms >= TTL.as_millis() as u64 {
            actions.push(Happening::ObserverTakesOver);
        }
    }

    fn next_state(&self, before: &Moment, happening: Happening) -> Option<Moment> {
        let mut moment = before.clone();
        let silent = |epoch: u8| Intent::Evict {
            seq: SEQ,
            request: 0,
            proof: Proof::Silent { epoch },
        };
        let take_over = |moment: &Moment, epoch: u8| Intent::TakeOver {
            seq: SEQ,
            from_home: HOME,
            from_fence: ts(moment.stored.fence),
            from_epoch: epoch,
        };
        match (happening, moment.heartbeat, moment.renewal) {
            (Happening::TimePasses, ..) => {
                moment.now += 1;
                moment.reads(self.loads);
            }
            (Happening::TimePassesUnseen, ..) => {
                moment.now += 1;
                moment.unseen += 1;
            }
            (Happening::HeartbeatSent, ..) => {
                moment.heartbeats_sent += 1;
                moment.heartbeat = Heartbeat::Sent { at: moment.now };
            }
            (Happening::HeartbeatLands, Heartbeat::Sent { at }, _) => {
                moment.row_changed = true;
                moment.heartbeat = Heartbeat::Landed { at };
            }
            (Happening::HeartbeatAcknowledged, Heartbeat::Landed { at }, _) => {
                moment.heartbeats.push((at, moment.now));
                moment.heartbeat = Heartbeat::None;
            }
            (Happening::RenewalSent, ..) => {
                moment.renewals += 1;
                moment.renewal = Renewal::Sent { at: moment.now };
            }
            (Happening::RenewalAnswered, _, Renewal::Sent { at }) => {
                moment.renewal = Renewal::None;
                self.answer(&mut moment, at);
            }
            (Happening::AnswerArrives, _, Renewal::Answered { at, valid_ms }) => {
                self.arrives(&mut moment, at, valid_ms);
            }
            (Happening::AnewSent, ..) => moment.anew = Some(moment.now),
            (Happening::AnewApplied, ..) => {
                let intent = take_over(&moment, 0);
                let epoch = moment.epoch_now();
                Clocks::decide(&mut moment, HOME, intent);
                if let Some(sent) = moment.anew.take()
                    && moment.epoch_now() != epoch
                {
                    moment.since = sent;
                }
            }
            (Happening::LeaseExpires, ..) => {
                moment.ended = true;
                let intent = silent(moment.epoch_now());
                Clocks::decide(&mut moment, HOME, intent);
            }
            (Happening::ObserverEvicts, ..) => {
                let epoch = match self.takes(Care::Epoch) {
                    true => moment.epoch,
                    false => moment.epoch_now(),
                };
                Clocks::decide(&mut moment, OTHER, silent(epoch));
            }
            (Happening::ObserverTakesOver, ..) => {
                let intent = take_over(&moment, moment.epoch);
                Clocks::decide(&mut moment, OTHER, intent);
            }
            _ => return None,
        }
        let sure = moment.client_ms(moment.now) < moment.sure_ms;
        if sure && !moment.is_held() {
            moment.broken = Some(BELIEF);
        }
        Some(moment)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BELIEF, |_, moment: &Moment| moment.broken != Some(BELIEF)),
            Property::always(ONE_HOME, |_, moment: &Moment| {
                moment.broken != Some(ONE_HOME)
            }),
            Property::sometimes("a client is told that it is sure", |_, moment: &Moment| {
                moment.sure_ms > 0
            }),
            Property::sometimes("the next one is granted the lock", |_, moment: &Moment| {
                !moment.is_held()
            }),
        ]
    }
}

impl Moment {
    /// By all clocks, for people.
    pub fn when(&self) -> String {
        format!("step {}", self.now)
    }

    pub fn rates(&self) -> String {
        let rate = |fast: bool| if fast { "fast" } else { "true" };
        let [client, home, observer] = self.fast.map(rate);
        format!("the client's clock is {client}, the home's {home}, the observer's {observer}")
    }
}

impl Happening {
    /// What happened, for people.
    pub fn words(&self, after: &Moment) -> String {
        let text = match self {
            Happening::TimePasses => "time passes, and the observer looks",
            Happening::TimePassesUnseen => "time passes, and the observer does not look",
            Happening::HeartbeatSent => "the home sends a heartbeat",
            Happening::HeartbeatLands => "the heartbeat is in the store",
            Happening::HeartbeatAcknowledged => "the home learns that its heartbeat was written",
            Happening::RenewalSent => "the client sends a renewal",
            Happening::RenewalAnswered => match after.renewal {
                Renewal::Answered { valid_ms, .. } => {
                    return format!("the home answers: safe for {valid_ms} ms");
                }
                Renewal::None | Renewal::Sent { .. } => "the home does not answer",
            },
            Happening::AnswerArrives => {
                let left = after.sure_ms.saturating_sub(after.client_ms(after.now));
                return format!("the answer arrives: the client is sure for {left} ms");
            }
            Happening::AnewSent => "the home wants a new epoch of the entry",
            Happening::AnewApplied => "the home's swap for it takes effect",
            Happening::LeaseExpires => "the home finds the client silent, and evicts it",
            Happening::ObserverEvicts => {
                "the observer finds the home silent, and evicts the client"
            }
            Happening::ObserverTakesOver => "the observer takes the home for down",
        };
        text.to_owned()
    }
}
