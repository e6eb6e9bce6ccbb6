//! A small lock service that is right because it does one thing at a time, and clients whose calls take their
//! time: what is asked is done later, or never, and the answer comes later still, or never. Made from a seed.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::history::{Entry, Event, Learned, Op, Outcome, Value};
use super::rng::Rng;

const CLIENTS: usize = 3;
/// How long an entry lives, in the moments of this service.
const TTL: u64 = 60;

/// What may happen.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Of a hundred calls, how many are not done at once, or not answered.
    pub lost: u64,
    /// Entries expire, and clients fall silent.
    pub expires: bool,
    /// Holders are taken over.
    pub moves: bool,
    /// The calls of a client come in their order.
    pub in_order: bool,
}

struct Live {
    entry: Entry,
    request: Uuid,
    grant: u64,
    until: u64,
}

/// A write that was given up and may still be done: the grant, and its timestamp where it has one already.
struct Late {
    entry: Entry,
    grant: u64,
    number: Option<u64>,
    value: Value,
}

#[derive(Default)]
struct Client {
    request: Option<Uuid>,
    entry: Option<Entry>,
    grant: Option<u64>,
    call: Option<Flight>,
    silent_until: u64,
}

struct Flight {
    event: Event,
    is_done: bool,
    number: u64,
}

struct Service {
    rng: Rng,
    weather: Weather,
    now: u64,
    queue: Vec<Live>,
    released: BTreeSet<Entry>,
    next: u64,
    fence: u64,
    number: u64,
    value: Value,
    /// The timestamp of the value: fence, and number.
    written: (u64, u64),
    late: Vec<Late>,
    values: u64,
}

/// The history of so many steps.
pub fn history(seed: u64, steps: usize, weather: Weather) -> Vec<Event> {
    let mut service = Service {
        rng: Rng::new(seed),
        weather,
        now: 1,
        queue: Vec::new(),
        released: BTreeSet::new(),
        next: 1,
        fence: 0,
        number: 0,
        value: None,
        written: (0, 0),
        late: Vec::new(),
        values: 0,
    };
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::default()).collect();
    let mut events = Vec::new();
    for _ in 0..steps {
        service.now += 1 + service.rng.below(3);
        service.weather();
        let who = service.rng.below(CLIENTS as u64) as usize;
        service.step(who, &mut clients[who], &mut events);
    }
    let in_flight = clients.into_iter().filter_map(|client| client.call);
    events.extend(in_flight.map(|flight| without_answer(flight.event, Duration::MAX)));
    events
}

fn at(moment: u64) -> Duration {
    Duration::from_secs(moment)
}

/// A call that was given up: nothing of its answer is known.
fn without_answer(event: Event, given_up: Duration) -> Event {
    let is_create = matches!(event.op, Op::Create { .. });
    Event {
        outcome: Outcome::Unknown(Learned::Nothing),
        grant: event.grant.filter(|_| event.held().is_none()),
        entry: event.entry.filter(|_| !is_create),
        read: None,
        until: None,
        answered: given_up,
        ..event
    }
}

impl Service {
    fn chance(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    /// What happens without anybody's call.
    fn weather(&mut self) {
        if self.weather.expires && self.chance(30) {
            let now = self.now;
            self.queue.retain(|live| live.until > now);
        }
        if self.weather.moves && self.chance(3) {
            self.fence += 16;
            if let Some(holder) = self.queue.first_mut().filter(|live| live.grant > 0) {
                holder.grant = self.fence;
            }
        }
        if !self.late.is_empty() && self.chance(20) {
            let which = self.rng.below(self.late.len() as u64) as usize;
            let late = self.late.swap_remove(which);
            let is_present = self.find(late.entry).is_some_and(|l| l.grant == late.grant);
            match late.number {
                Some(number) => self.write((late.grant, number), late.value),
                // Taken as if it came in only now.
                None if is_present => {
                    self.number += 1;
                    self.write((late.grant, self.number), late.value);
                }
                None => {}
            }
        }
    }

    fn find(&mut self, entry: Entry) -> Option<&mut Live> {
        self.queue.iter_mut().find(|live| live.entry == entry)
    }

    fn write(&mut self, timestamp: (u64, u64), value: Value) {
        if timestamp > self.written {
            self.written = timestamp;
            self.value = value;
        }
    }

    fn new_value(&mut self) -> Value {
        self.values += 1;
        Some(Bytes::from(format!("v{}", self.values)))
    }

    fn step(&mut self, who: usize, client: &mut Client, events: &mut Vec<Event>) {
        if client.silent_until > self.now {
            return;
        }
        let Some(mut flight) = client.call.take() else {
            client.call = self.ask(who, client);
            return;
        };
        let is_lost = self.chance(self.weather.lost);
        if !flight.is_done && !is_lost {
            self.act(&mut flight);
            flight.is_done = true;
            client.call = Some(flight);
            return;
        }
        flight.event.answered = at(self.now);
        if is_lost {
            if !flight.is_done && self.chance(50) {
                self.leave_behind(&flight);
            }
            flight.event = without_answer(flight.event, at(self.now));
        }
        client.hear(&flight.event);
        if self.weather.expires && self.chance(3) {
            client.silent_until = self.now + self.rng.below(3 * TTL);
        }
        events.push(flight.event);
    }

    /// It is on its way still.
    fn leave_behind(&mut self, flight: &Flight) {
        let event = &flight.event;
        if let (Op::Put(value), Some(entry), Some(grant)) = (&event.op, event.entry, event.grant) {
            self.late.push(Late {
                entry,
                grant,
                number: event.in_order.then_some(flight.number),
                value: value.clone(),
            });
        }
    }

    fn ask(&mut self, who: usize, client: &mut Client) -> Option<Flight> {
        let op = match (client.entry, client.grant) {
            (None, _) => {
                let fresh = Uuid::from_u64_pair(1, self.rng.next());
                let request = *client.request.get_or_insert(fresh);
                Op::Create { request }
            }
            (Some(_), None) => match self.rng.below(12) {
                0 => Op::Release(None),
                _ => Op::Acquire,
            },
            (Some(_), Some(_)) => match self.rng.below(9) {
                0..3 => Op::Get,
                3..6 => Op::Put(self.new_value()),
                6 => Op::Release(Some(self.new_value())),
                7 => Op::Acquire,
                _ => Op::Release(None),
            },
        };
        self.number += 1;
        Some(Flight {
            is_done: false,
            number: self.number,
            event: Event {
                client: format!("client {who}").into(),
                key: "k".into(),
                grant: match op {
                    Op::Create { .. } | Op::Acquire => None,
                    _ => client.grant,
                },
                op,
                entry: client.entry,
                session: None,
                invoked: at(self.now),
                answered: at(self.now),
                outcome: Outcome::Done,
                read: None,
                until: None,
                in_order: self.weather.in_order,
            },
        })
    }

    /// It is done, and its answer is made.
    fn act(&mut self, flight: &mut Flight) {
        let event = &mut flight.event;
        if let Op::Create { request } = event.op {
            let known = self.queue.iter().find(|live| live.request == request);
            let entry = known.map(|live| live.entry).unwrap_or_else(|| {
                let (entry, until) = (
                    Entry {
                        seq: self.next,
                        tag: 0,
                    },
                    self.now + TTL,
                );
                let live = Live {
                    entry,
                    request,
                    grant: 0,
                    until,
                };
                self.queue.push(live);
                entry
            });
            self.next = self.next.max(entry.seq + 1);
            event.entry = Some(entry);
        }
        let Some(entry) = event.entry else { return };
        let Some(at_entry) = self.queue.iter().position(|live| live.entry == entry) else {
            event.outcome = self.of_one_that_has_ended(event, entry);
            return;
        };
        let is_own = self.queue[at_entry].grant;
        if event.grant.is_some_and(|grant| grant != is_own) {
            event.outcome = Outcome::Refused(Learned::Superseded);
            return;
        }
        if self.weather.expires {
            let until = event.invoked.as_secs() + TTL;
            let live = &mut self.queue[at_entry];
            live.until = live.until.max(until);
            event.until = Some(at(until));
        }
        match event.op.clone() {
            Op::Create { .. } | Op::Acquire if at_entry == 0 => self.hold(event),
            Op::Get => event.read = Some(self.value.clone()),
            Op::Put(value) | Op::Release(Some(value)) => {
                if !event.in_order {
                    self.number += 1;
                    flight.number = self.number;
                }
                self.write((is_own, flight.number), value);
                if matches!(event.op, Op::Release(_)) {
                    self.release(at_entry);
                }
            }
            Op::Release(None) => self.release(at_entry),
            _ => {}
        }
    }

    fn release(&mut self, at_entry: usize) {
        let live = self.queue.remove(at_entry);
        self.released.insert(live.entry);
    }

    fn hold(&mut self, event: &mut Event) {
        let head = &mut self.queue[0];
        if head.grant == 0 {
            self.fence += 16;
            head.grant = self.fence;
        }
        let grant = head.grant;
        // The sync: what is late does not show from here on.
        self.written = self.written.max((grant, 0));
        event.grant = Some(grant);
        if self.rng.below(2) == 0 {
            event.read = Some(self.value.clone());
        }
    }

    fn of_one_that_has_ended(&mut self, event: &Event, entry: Entry) -> Outcome {
        let released = self.released.contains(&entry);
        match (&event.op, released) {
            (Op::Release(_), true) => event.released(true),
            (_, true) => Outcome::Refused(Learned::Released),
            // Its home may not have heard yet: the acknowledgement promises nothing.
            (Op::Put(_), false) if self.chance(30) => Outcome::Done,
            (_, false) => Outcome::Refused(Learned::Ended),
        }
    }
}

impl Client {
    fn hear(&mut self, event: &Event) {
        let leave = matches!(event.op, Op::Release(_)) && event.is_done();
        if leave || matches!(event.learned(), Learned::Ended | Learned::Released) {
            (self.request, self.entry, self.grant) = (None, None, None);
            return;
        }
        if event.learned() == Learned::Superseded {
            self.grant = None;
        }
        if event.is_done() {
            self.entry = event.entry.or(self.entry);
            self.grant = event.held().or(self.grant);
        }
    }
}
