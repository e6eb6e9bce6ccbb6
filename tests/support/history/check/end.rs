//! Nothing is taken after the end: of an entry once it was released or told to have ended, of a grant once a newer
//! one of its entry was told.
//!
//! Not seen: what is taken after a release whose answer is not known, and what was in flight when the end was told.

use std::collections::BTreeMap;

use super::super::event::{Entry, Event, Op};
use super::story::Story;
use super::{Rule, Violation, violation};

pub fn check(story: &Story<'_>, violations: &mut Vec<Violation>) {
    let newer = newer_grants(story);
    for event in story.events.iter().filter(|event| event.shows_life()) {
        let life = story.life(event);
        let ended = [
            (life.released, "was taken though its entry was released"),
            (
                life.ended,
                "was taken though its entry was told to have ended",
            ),
            (
                next_grant(&newer, event),
                "was taken under a grant that has a newer one",
            ),
        ];
        let found = ended.into_iter().find_map(|(ended, words)| {
            let ended = ended.filter(|ended| ended.answered < event.invoked)?;
            Some(violation(Rule::End, &[ended, event], words))
        });
        violations.extend(found);
    }
}

type ByEntry<'a> = BTreeMap<(Entry, u64), &'a Event>;

/// By entry and grant, who first learned of this one or a later one of that entry.
fn newer_grants<'a>(story: &Story<'a>) -> ByEntry<'a> {
    let mut all: ByEntry<'a> = BTreeMap::new();
    for event in &story.events {
        if let (Some(entry), Some(grant)) = (event.entry, event.held()) {
            let first = all.entry((entry, grant)).or_insert(event);
            if event.answered < first.answered {
                *first = event;
            }
        }
    }
    let mut after: Option<(Entry, &Event)> = None;
    for ((entry, _), first) in all.iter_mut().rev() {
        if let Some((_, sooner)) =
            after.filter(|(of, later)| of == entry && later.answered < first.answered)
        {
            *first = sooner;
        }
        after = Some((*entry, *first));
    }
    all
}

fn next_grant<'a>(newer: &ByEntry<'a>, event: &Event) -> Option<&'a Event> {
    let entry = event.entry?;
    let grant = event
        .grant
        .filter(|_| matches!(event.op, Op::Get | Op::Put(_)))?;
    let mut later = newer.range((entry, grant + 1)..=(entry, u64::MAX));
    later.next().map(|(_, event)| *event)
}
