//! What happened to one key, by entry and by grant.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::event::{Entry, Event, Learned, Op};

/// All of one key.
pub struct Story<'a> {
    /// By invocation.
    pub events: Vec<&'a Event>,
    pub entries: BTreeMap<Entry, Life<'a>>,
    /// By grant: the first answer that showed it.
    pub granted: BTreeMap<u64, &'a Event>,
}

/// What is known of the life of an entry.
#[derive(Clone, Copy, Default)]
pub struct Life<'a> {
    /// The first answer that said HELD.
    pub held: Option<&'a Event>,
    /// The first answer that told that it was released, by this call or before.
    pub released: Option<&'a Event>,
    /// The first answer that told that it had ended.
    pub ended: Option<&'a Event>,
    /// From when on its client does not count on it: it asked for the end, or somebody did by force, or it was told.
    pub given_up: Option<Duration>,
    /// From when on it may have been ended whatever was promised: by force, or with its session.
    pub forced: Option<Duration>,
    /// It was there until then: that was promised, and told before it was past.
    pub alive_until: Duration,
    /// Somebody was promised a time.
    pub has_until: bool,
}

fn earliest<'a>(of: &mut Option<&'a Event>, event: &'a Event) {
    if of.is_none_or(|first| event.answered < first.answered) {
        *of = Some(event);
    }
}

fn sooner(of: &mut Option<Duration>, moment: Duration) {
    *of = Some(of.map_or(moment, |first| first.min(moment)));
}

impl<'a> Life<'a> {
    fn take(&mut self, event: &'a Event) {
        if event.held().is_some() {
            earliest(&mut self.held, event);
        }
        match (&event.op, event.learned()) {
            (Op::Force, _) => {
                sooner(&mut self.forced, event.invoked);
                sooner(&mut self.given_up, event.invoked);
            }
            (Op::Release(_), _) => sooner(&mut self.given_up, event.invoked),
            _ => {}
        }
        if matches!(event.op, Op::Release(_)) && event.is_done() {
            earliest(&mut self.released, event);
        }
        match event.learned() {
            Learned::Released => {
                earliest(&mut self.released, event);
                earliest(&mut self.ended, event);
                sooner(&mut self.given_up, event.answered);
            }
            Learned::Ended => {
                earliest(&mut self.ended, event);
                sooner(&mut self.given_up, event.answered);
            }
            Learned::Superseded | Learned::Nothing => {}
        }
        if let Some(until) = event.until.filter(|_| event.shows_life()) {
            self.has_until = true;
            if event.answered < until {
                self.alive_until = self.alive_until.max(until);
            }
        }
    }
}

impl<'a> Story<'a> {
    pub fn of(mut events: Vec<&'a Event>, closed: &BTreeMap<&str, Duration>) -> Story<'a> {
        events.sort_by_key(|event| (event.invoked, event.answered));
        let mut entries: BTreeMap<Entry, Life<'a>> = BTreeMap::new();
        let mut granted: BTreeMap<u64, &Event> = BTreeMap::new();
        for event in &events {
            let Some(entry) = event.entry else { continue };
            let life = entries.entry(entry).or_default();
            life.take(event);
            let session = event
                .session
                .as_deref()
                .and_then(|session| closed.get(session));
            if let Some(closed) = session {
                sooner(&mut life.forced, *closed);
                sooner(&mut life.given_up, *closed);
            }
            if let Some(grant) = event.grant.filter(|_| event.shows_life()) {
                let first = granted.entry(grant).or_insert(event);
                if event.answered < first.answered {
                    *first = event;
                }
            }
        }
        Story {
            events,
            entries,
            granted,
        }
    }

    pub fn life(&self, event: &Event) -> Life<'a> {
        let life = event.entry.and_then(|entry| self.entries.get(&entry));
        life.copied().unwrap_or_default()
    }

    /// Whether the entry was surely there when the call was answered, so that its acknowledgement counts. What is
    /// acknowledged after the end of an entry promises nothing.
    ///
    /// Not seen: what was acknowledged when its client could not be sure any more is taken as of unknown outcome.
    pub fn counts(&self, event: &Event) -> bool {
        let life = self.life(event);
        if !event.is_done() || life.forced.is_some_and(|forced| forced < event.answered) {
            return false;
        }
        // An entry that was released was not ended by anything else before.
        life.released.is_some() || !life.has_until || event.answered < life.alive_until
    }

    /// When it was first known that this grant, or a later one, was given.
    pub fn known(&self) -> BTreeMap<u64, Duration> {
        let mut known = Duration::MAX;
        let mut all = BTreeMap::new();
        for (grant, first) in self.granted.iter().rev() {
            known = known.min(first.answered);
            all.insert(*grant, known);
        }
        all
    }
}
