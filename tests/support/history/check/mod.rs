//! Judges a history. A pure function; each rule has a file, which says what it does not see.
//!
//! Two things are taken from the service, and only they: which fence an answer carried, and until when a client
//! was told that it may be sure. Whether fences fit to what happened when is itself a rule, so that a service
//! cannot be right by its own account alone. A call is an interval: it took effect once, somewhere between its
//! invocation and its answer; one of unknown outcome at any time from its invocation on, or never.
//!
//! One sort and one sweep per key and rule. There is no search: fences say which write comes after which.

mod end;
mod excerpt;
mod fences;
mod story;
mod turns;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::event::{Event, Op, Outcome};
use story::Story;

/// What was broken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rule {
    /// Two hold a key at one time, or a write shows after a later holder was granted the lock.
    Exclusivity,
    /// A read shows something else than the latest state.
    LatestState,
    /// A fence does not rise, or is of two entries.
    Fences,
    /// A later entry came before an earlier one.
    Order,
    /// Something was taken after the end of its entry, or of its grant.
    End,
}

#[derive(Clone, Debug)]
pub struct Violation {
    pub rule: Rule,
    /// The ones that cannot all be true.
    pub events: Vec<Event>,
    pub words: String,
}

/// What is known of a history.
pub struct Checked {
    pub operations: usize,
    /// Grants that somebody was notified of.
    pub sections: usize,
    /// Operations of unknown outcome.
    pub unknown: usize,
    pub violations: Vec<Violation>,
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "history: {} operations, {} sections, {} unknown, violations {}",
            self.operations,
            self.sections,
            self.unknown,
            self.violations.len()
        )
    }
}

/// Judges what happened, in any order, to keys that had no value before.
pub fn check(events: &[Event]) -> Checked {
    let mut closed: BTreeMap<&str, Duration> = BTreeMap::new();
    let mut keys: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in events {
        match (&event.op, &event.session) {
            (Op::CloseSession, Some(session)) => {
                let first = closed.entry(session).or_insert(event.invoked);
                *first = event.invoked.min(*first);
            }
            _ => keys.entry(&event.key).or_default().push(event),
        }
    }
    let mut violations = Vec::new();
    let mut sections = 0;
    for events in keys.into_values() {
        let story = Story::of(events, &closed);
        sections += story.granted.len();
        turns::check(&story, &mut violations);
        fences::check(&story, &mut violations);
        end::check(&story, &mut violations);
        values::check(&story, &mut violations);
    }
    let is_unknown = |event: &&Event| matches!(event.outcome, Outcome::Unknown(_));
    Checked {
        operations: events.len(),
        sections,
        unknown: events.iter().filter(is_unknown).count(),
        violations,
    }
}

fn violation(rule: Rule, events: &[&Event], words: impl Into<String>) -> Violation {
    Violation {
        rule,
        events: events.iter().map(|event| (*event).clone()).collect(),
        words: words.into(),
    }
}
