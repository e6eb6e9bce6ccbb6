//! What a violation looks like to people: the events around it, one a line, the ones that it names marked.

use std::fmt::Write as _;

use super::super::event::Event;
use super::{Checked, Violation};

/// How many violations are shown.
const SHOWN_MAX: usize = 5;
/// How many events of the key before and after each that is named.
const CONTEXT: usize = 6;

impl Checked {
    /// The violations in the history they were found in.
    pub fn excerpt(&self, events: &[Event]) -> String {
        let mut text = String::new();
        for violation in self.violations.iter().take(SHOWN_MAX) {
            let _ = writeln!(text, "{:?}: {}", violation.rule, violation.words);
            lines(violation, events, &mut text);
        }
        if let Some(more) = self
            .violations
            .len()
            .checked_sub(SHOWN_MAX)
            .filter(|n| *n > 0)
        {
            let _ = writeln!(text, "and {more} more");
        }
        text
    }
}

fn lines(violation: &Violation, events: &[Event], text: &mut String) {
    let Some(key) = violation.events.first().map(|event| &event.key) else {
        return;
    };
    let mut of_key: Vec<&Event> = events.iter().filter(|event| event.key == *key).collect();
    of_key.sort_by_key(|event| (event.invoked, event.answered));
    let named: Vec<bool> = of_key
        .iter()
        .map(|event| violation.events.contains(event))
        .collect();
    let _ = writeln!(text, "  key {key:?}, {} operations:", of_key.len());
    let mut is_gap = false;
    for (at, event) in of_key.iter().enumerate() {
        let around = at.saturating_sub(CONTEXT)..(at + CONTEXT + 1).min(named.len());
        if named[around].iter().any(|named| *named) {
            let mark = if named[at] { '>' } else { ' ' };
            let _ = writeln!(text, "{mark} {event}");
            is_gap = false;
        } else if !is_gap {
            let _ = writeln!(text, "  …");
            is_gap = true;
        }
    }
}
