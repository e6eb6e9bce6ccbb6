//! Fences rise: from place to place, from grant to grant of one place, and in the time of the clients. A seq is
//! one place, a request has one place, and places follow their creates.
//!
//! Not seen: creates that were under way at one time may have come in any order; a place whose lockRef no client
//! was told of; a grant that no client was told of.

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

use super::super::event::{Event, Op, Place};
use super::story::Story;
use super::{Rule, Violation, violation};

pub fn check(story: &Story<'_>, violations: &mut Vec<Violation>) {
    one_place_each(story, violations);
    rise_by_place(story, violations);
    rise_in_time(story, violations);
    follow_their_creates(story, violations);
}

/// What showed a grant.
fn shown<'a>(story: &Story<'a>) -> impl Iterator<Item = (Place, u64, &'a Event)> {
    let shows = |event: &&'a Event| {
        let grant = event.grant.filter(|_| event.shows_life())?;
        Some((event.place?, grant, *event))
    };
    story.events.iter().filter_map(shows)
}

fn one_place_each(story: &Story<'_>, violations: &mut Vec<Violation>) {
    let mut by_grant: BTreeMap<u64, (Place, &Event)> = BTreeMap::new();
    for (place, grant, event) in shown(story) {
        let (first, told) = by_grant.entry(grant).or_insert((place, event));
        if *first != place {
            let words = format!("fence {grant} is of #{} and of #{}", first.seq, place.seq);
            violations.push(violation(Rule::Fences, &[told, event], words));
        }
    }
    let mut by_seq: BTreeMap<u64, (Place, &Event)> = BTreeMap::new();
    let mut by_request: BTreeMap<Uuid, (Place, &Event)> = BTreeMap::new();
    for event in &story.events {
        let Some(place) = event.place else { continue };
        let (first, told) = by_seq.entry(place.seq).or_insert((place, event));
        if *first != place {
            let words = format!("#{} was given out twice", place.seq);
            violations.push(violation(Rule::Order, &[told, event], words));
        }
        let Op::Create { request } = event.op else {
            continue;
        };
        let (first, told) = by_request.entry(request).or_insert((place, event));
        if *first != place {
            let words = format!("one create has #{} and #{}", first.seq, place.seq);
            violations.push(violation(Rule::Order, &[told, event], words));
        }
    }
}

fn rise_by_place(story: &Story<'_>, violations: &mut Vec<Violation>) {
    let mut spans: BTreeMap<Place, [(u64, &Event); 2]> = BTreeMap::new();
    for (place, grant, event) in shown(story) {
        let [lowest, highest] = spans.entry(place).or_insert([(grant, event); 2]);
        if grant < lowest.0 {
            *lowest = (grant, event);
        }
        if grant > highest.0 {
            *highest = (grant, event);
        }
    }
    let mut before: Option<(Place, u64, &Event)> = None;
    for (place, [(lowest, first), (highest, last)]) in spans {
        if let Some((earlier, fence, told)) = before.filter(|(_, fence, _)| *fence >= lowest) {
            let words = format!(
                "#{} has fence {lowest}, not above {fence} of #{} before it",
                place.seq, earlier.seq
            );
            violations.push(violation(Rule::Fences, &[told, first], words));
        }
        if before.is_none_or(|(_, fence, _)| fence < highest) {
            before = Some((place, highest, last));
        }
    }
}

/// Who hears HELD after somebody else did has a fence that is not below that one's.
fn rise_in_time(story: &Story<'_>, violations: &mut Vec<Violation>) {
    let held = || story.events.iter().copied().filter(|e| e.held().is_some());
    let mut answered: Vec<&Event> = held().collect();
    answered.sort_by_key(|event| event.answered);
    let mut answered = answered.into_iter().peekable();
    let mut highest: Option<&Event> = None;
    for event in held() {
        while let Some(told) = answered.next_if(|told| told.answered < event.invoked) {
            if highest.is_none_or(|highest| highest.grant < told.grant) {
                highest = Some(told);
            }
        }
        // Its home need not have heard yet of an end by force.
        let forced = story.life(event).forced;
        let is_forced = forced.is_some_and(|forced| forced < event.answered);
        if let Some(told) = highest.filter(|told| told.grant > event.grant && !is_forced) {
            let words = "a fence is told after a higher one was";
            violations.push(violation(Rule::Fences, &[told, event], words));
        }
    }
}

/// When a place was asked for first, and when it was there at last.
struct Made<'a> {
    place: Place,
    invoked: Duration,
    answered: Duration,
    told: &'a Event,
}

fn follow_their_creates(story: &Story<'_>, violations: &mut Vec<Violation>) {
    let mut asked: BTreeMap<Uuid, Duration> = BTreeMap::new();
    let mut made: BTreeMap<Place, Made<'_>> = BTreeMap::new();
    for event in &story.events {
        let Op::Create { request } = event.op else {
            continue;
        };
        // By invocation: the first try comes first.
        let invoked = *asked.entry(request).or_insert(event.invoked);
        let Some(place) = event.place.filter(|_| event.is_done()) else {
            continue;
        };
        let answered = event.answered;
        let one = made.entry(place).or_insert(Made {
            place,
            invoked,
            answered,
            told: event,
        });
        one.answered = one.answered.min(answered);
    }
    let mut begun: Vec<&Made<'_>> = made.values().collect();
    let mut ended = begun.clone();
    begun.sort_by_key(|made| made.invoked);
    ended.sort_by_key(|made| made.answered);
    let mut ended = ended.into_iter().peekable();
    let mut highest: Option<&Made<'_>> = None;
    for made in begun {
        while let Some(before) = ended.next_if(|before| before.answered < made.invoked) {
            if highest.is_none_or(|highest| highest.place < before.place) {
                highest = Some(before);
            }
        }
        if let Some(before) = highest.filter(|before| before.place > made.place) {
            let words = format!(
                "#{} was asked for after #{} was given out",
                made.place.seq, before.place.seq
            );
            violations.push(violation(Rule::Order, &[before.told, made.told], words));
        }
    }
}
