//! A holder reads what the last acknowledged write before it left, and goes on reading it until it writes itself.
//!
//! Grant by grant, in the order of their fences, this keeps the values that may be in the key. An acknowledged write
//! leaves only itself and what may have come after it. A read leaves only what it saw and what may still come. A write
//! of unknown outcome may come at any time until a later holder is granted the lock; it then either stands there, or
//! never will.
//!
//! Not seen: which of several writes of one value was read, so values should be unique; whether the writes that
//! were not read came in the order of their calls; a read of a holder that could not be sure of its entry any more
//! is held only against what was ever written; that the value changed between a holder's grant and its first read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::event::{Event, Outcome, Value, shown};
use super::story::Story;
use super::{Rule, Violation, violation};

/// A value that may be in the key.
#[derive(Clone, Copy)]
struct May<'a> {
    value: &'a Value,
    by: Option<&'a Event>,
    since: Since,
    /// It does not stand there any more, as became known then.
    gone: Option<Duration>,
}

/// When a value came to are in the key.
#[derive(Clone, Copy, PartialEq)]
enum Since {
    /// Before the grant.
    Ever,
    /// By then.
    By(Duration),
    /// Not yet, as far as is known.
    Unknown,
}

impl May<'_> {
    fn stands_before(&self, moment: Duration) -> bool {
        match self.since {
            Since::Ever => true,
            Since::By(by) => by < moment,
            Since::Unknown => false,
        }
    }

    /// A write that was given up before then, and comes before whatever is asked for then, if it comes.
    fn comes_before(&self, moment: Duration) -> bool {
        let given_up = |by: &&Event| by.in_order && by.answered < moment;
        self.since == Since::Unknown && self.by.as_ref().is_some_and(given_up)
    }
}

/// One grant.
struct Section<'s, 'a> {
    story: &'s Story<'a>,
    may_be: Vec<May<'a>>,
    /// What settled that.
    settled_by: Option<&'a Event>,
}

pub fn check(story: &Story<'_>, violations: &mut Vec<Violation>) {
    let known = story.known();
    let mut by_grant: BTreeMap<u64, Vec<&Event>> = BTreeMap::new();
    for event in &story.events {
        if let Some(grant) = event.grant {
            by_grant.entry(grant).or_default().push(event);
        }
    }
    let mut section = Section {
        story,
        may_be: vec![May {
            value: &None,
            by: None,
            since: Since::Ever,
            gone: None,
        }],
        settled_by: None,
    };
    for (grant, events) in by_grant {
        let grant_waiter = known.range(grant..).next().map(|(_, known)| *known);
        section.begin(grant_waiter.unwrap_or(Duration::MAX));
        for (moment, is_answer, event) in moments(&events) {
            match is_answer {
                false => section.asked(event),
                true => violations.extend(section.answered(event, moment, &known)),
            }
        }
    }
    never_written(story, violations);
}

/// Invocations and answers in their order; what happens at one moment happens at one time.
fn moments<'a>(events: &[&'a Event]) -> Vec<(Duration, bool, &'a Event)> {
    let asked = events.iter().map(|event| (event.invoked, false, *event));
    let answered = events.iter().map(|event| (event.answered, true, *event));
    let mut all: Vec<_> = asked.chain(answered).collect();
    all.sort_by_key(|(moment, is_answer, _)| (*moment, *is_answer));
    all
}

impl<'a> Section<'_, 'a> {
    /// Somebody is granted the lock, as was known at a moment. What was asked for under earlier grants after it never
    /// shows.
    fn begin(&mut self, known: Duration) {
        let mut seen: BTreeSet<&Value> = BTreeSet::new();
        let in_time =
            |may: &May<'_>| may.since == Since::Ever || may.by.is_none_or(|by| by.invoked < known);
        self.may_be.retain(|may| may.gone.is_none());
        // Where all came too late another rule is broken: go on from what there is.
        let is_any_in_time = self.may_be.iter().any(in_time);
        self.may_be = std::mem::take(&mut self.may_be)
            .into_iter()
            .filter(|may| in_time(may) || !is_any_in_time)
            .filter(|may| seen.insert(may.value))
            .map(|may| May {
                since: Since::Ever,
                ..may
            })
            .collect();
    }

    fn asked(&mut self, event: &'a Event) {
        if let Some(value) = event.writes().filter(|_| !is_refused(event)) {
            self.may_be.push(May {
                value,
                by: Some(event),
                since: Since::Unknown,
                gone: None,
            });
        }
    }

    fn answered(
        &mut self,
        event: &'a Event,
        moment: Duration,
        known: &BTreeMap<u64, Duration>,
    ) -> Option<Violation> {
        if !self.story.counts(event) {
            return None;
        }
        if event.writes().is_some() {
            self.wrote(event, moment);
        }
        let value = event.read.as_ref()?;
        let is_there =
            |may: &May<'_>| may.value == value && may.gone.is_none_or(|gone| gone >= event.invoked);
        if self.may_be.iter().any(is_there) {
            self.saw(event, value, moment);
            return None;
        }
        let violation = self.broken(event, value, known);
        // Go on from what was read, so that one mistake is told once.
        self.may_be = vec![May {
            value,
            by: Some(event),
            since: Since::Ever,
            gone: None,
        }];
        self.settled_by = Some(event);
        Some(violation)
    }

    /// It stands there, or what came after it.
    fn wrote(&mut self, event: &'a Event, moment: Duration) {
        for may in self.may_be.iter_mut().filter(|may| may.gone.is_none()) {
            if may.by.is_some_and(|by| std::ptr::eq(by, event)) {
                if may.since == Since::Unknown {
                    may.since = Since::By(moment);
                }
            } else if may.stands_before(event.invoked) || may.comes_before(event.invoked) {
                may.gone = Some(moment);
            }
        }
        self.settled_by = Some(event);
    }

    /// It stood there at some time of the call: what stood there before the call does no more.
    fn saw(&mut self, event: &'a Event, value: &'a Value, moment: Duration) {
        let there = |may: &&mut May<'a>| may.gone.is_none();
        for may in self.may_be.iter_mut().filter(there) {
            if may.value != value && may.stands_before(event.invoked) {
                may.gone = Some(moment);
            }
        }
        let mut same: Vec<&mut May<'a>> = self.may_be.iter_mut().filter(there).collect();
        same.retain(|may| may.value == value);
        let mut written = None;
        if let [only] = &mut same[..] {
            if only.since == Since::Unknown {
                only.since = Since::By(moment);
            }
            written = only.by.filter(|by| by.in_order).map(|by| by.invoked);
        } else if !same.is_empty() && same.iter().all(|may| may.since == Since::Unknown) {
            // One of them stands there, and the others may still come.
            let seen = May {
                since: Since::By(moment),
                ..*same[0]
            };
            self.may_be.push(seen);
        }
        if let Some(written) = written {
            for may in self.may_be.iter_mut().filter(there) {
                if may.value != value && may.comes_before(written) {
                    may.gone = Some(moment);
                }
            }
        }
        self.settled_by = Some(event);
    }

    fn broken(&self, event: &Event, value: &Value, known: &BTreeMap<u64, Duration>) -> Violation {
        let story = self.story;
        let wrote = |e: &&&Event| e.writes() == Some(value) && e.invoked <= event.answered;
        let writes: Vec<&Event> = story.events.iter().filter(wrote).copied().collect();
        let fenced_off = |write: &&&Event| {
            let grant_waiter = known.get(&event.grant.unwrap_or_default());
            write.grant < event.grant
                && grant_waiter.is_some_and(|grant_waiter| *grant_waiter <= write.invoked)
        };
        let late = writes.iter().find(fenced_off);
        let (rule, words) = match late {
            Some(_) => (
                Rule::Exclusivity,
                "was asked for when the reader was granted the lock already, and shows".to_owned(),
            ),
            None if writes.iter().any(|write| !is_refused(write)) => {
                (Rule::LatestState, "is not the latest state".to_owned())
            }
            None if !writes.is_empty() => (Rule::LatestState, "was refused, and shows".to_owned()),
            None => (Rule::LatestState, "was never written".to_owned()),
        };
        let mut events: Vec<&Event> = Vec::new();
        events.extend(late.copied().or(writes.last().copied()));
        events.extend(self.settled_by);
        events.push(event);
        let could: Vec<String> = self.status().map(shown).collect();
        let words = format!("{:?} {words}; it could be one of {could:?}", shown(value));
        violation(rule, &events, words)
    }

    fn status(&self) -> impl Iterator<Item = &'a Value> {
        let there = self.may_be.iter().filter(|may| may.gone.is_none());
        there.map(|may| may.value)
    }
}

fn is_refused(event: &Event) -> bool {
    matches!(event.outcome, Outcome::Refused(_))
}

/// What is read by those that could not be sure any more was at least written by somebody.
fn never_written(story: &Story<'_>, violations: &mut Vec<Violation>) {
    let mut written: BTreeMap<&Value, Duration> = BTreeMap::new();
    for event in story.events.iter().filter(|event| !is_refused(event)) {
        if let Some(value) = event.writes() {
            let first = written.entry(value).or_insert(event.invoked);
            *first = event.invoked.min(*first);
        }
    }
    let unsure = |event: &&&Event| event.is_done() && !story.counts(event);
    for event in story.events.iter().filter(unsure) {
        let Some(value) = event.read.as_ref().filter(|value| value.is_some()) else {
            continue;
        };
        if written
            .get(value)
            .is_none_or(|first| *first > event.answered)
        {
            let words = format!("{:?} was never written", shown(value));
            violations.push(violation(Rule::LatestState, &[event], words));
        }
    }
}
