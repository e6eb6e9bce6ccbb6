//! Nothing is taken after the end: of a place once it was released or told to be over, of a grant once a newer
//! one of its place was told.
//!
//! Not seen: what is taken after a release whose answer is not known, and what was under way when the end was told.

use std::collections::BTreeMap;

use super::super::event::{Event, Op, Place};
use super::story::Story;
use super::{Rule, Violation, violation};

pub fn check(story: &Story<'_>, violations: &mut Vec<Violation>) {
    let newer = newer_grants(story);
    for event in story.events.iter().filter(|event| event.shows_life()) {
        let life = story.life(event);
        let ended = [
            (life.released, "was taken though its place was released"),
            (life.over, "was taken though its place was told to be over"),
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

type ByPlace<'a> = BTreeMap<(Place, u64), &'a Event>;

/// By place and grant, who first heard of this one or a later one of that place.
fn newer_grants<'a>(story: &Story<'a>) -> ByPlace<'a> {
    let mut all: ByPlace<'a> = BTreeMap::new();
    for event in &story.events {
        if let (Some(place), Some(grant)) = (event.place, event.held()) {
            let first = all.entry((place, grant)).or_insert(event);
            if event.answered < first.answered {
                *first = event;
            }
        }
    }
    let mut after: Option<(Place, &Event)> = None;
    for ((place, _), first) in all.iter_mut().rev() {
        if let Some((_, sooner)) =
            after.filter(|(of, later)| of == place && later.answered < first.answered)
        {
            *first = sooner;
        }
        after = Some((*place, *first));
    }
    all
}

fn next_grant<'a>(newer: &ByPlace<'a>, event: &Event) -> Option<&'a Event> {
    let place = event.place?;
    let grant = event
        .grant
        .filter(|_| matches!(event.op, Op::Get | Op::Put(_)))?;
    let mut later = newer.range((place, grant + 1)..=(place, u64::MAX));
    later.next().map(|(_, event)| *event)
}
