//! Fences rise: from entry to entry, from grant to grant of one entry, and in the time of the clients. A seq is
//! one entry, a request has one entry, and entries follow their creates.
//!
//! Not seen: creates that were in flight at one time may have come in any order; an entry whose lockRef no client was
//! notified of; a grant that no client was notified of.

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

use super::super::event::{Entry, Event, Op};
use super::story::Story;
use super::{Rule, Violation, violation};

pub fn check(story: &Story<'_>, violations: &mut Vec<Violation>) {
    one_entry_each(story, violations);
    rise_by_entry(story, violations);
    rise_in_time(story, violations);
    follow_their_creates(story, violations);
}

/// What showed a grant.
fn shown<'a>(story: &Story<'a>) -> impl Iterator<Item = (Entry, u64, &'a Event)> {
    let shows = |event: &&'a Event| {
        let grant = event.grant.filter(|_| event.shows_life())?;
        Some((event.entry?, grant, *event))
    };
    story.events.iter().filter_map(shows)
}

fn one_entry_each(story: &Story<'_>, violations: &mut Vec<Violation>) {
    let mut by_grant: BTreeMap<u64, (Entry, &Event)> = BTreeMap::new();
    for (entry, grant, event) in shown(story) {
        let (first, learned) = by_grant.entry(grant).or_insert((entry, event));
        if *first != entry {
            let words = format!("fence {grant} is of #{} and of #{}", first.seq, entry.seq);
            violations.push(violation(Rule::Fences, &[learned, event], words));
        }
    }
    let mut by_seq: BTreeMap<u64, (Entry, &Event)> = BTreeMap::new();
    let mut by_request: BTreeMap<Uuid, (Entry, &Event)> = BTreeMap::new();
    for event in &story.events {
        let Some(entry) = event.entry else { continue };
        let (first, learned) = by_seq.entry(entry.seq).or_insert((entry, event));
        if *first != entry {
            let words = format!("#{} was given out twice", entry.seq);
            violations.push(violation(Rule::Order, &[learned, event], words));
        }
        let Op::Create { request } = event.op else {
            continue;
        };
        let (first, learned) = by_request.entry(request).or_insert((entry, event));
        if *first != entry {
            let words = format!("one create has #{} and #{}", first.seq, entry.seq);
            violations.push(violation(Rule::Order, &[learned, event], words));
        }
    }
}

fn rise_by_entry(story: &Story<'_>, violations: &mut Vec<Violation>) {
    let mut spans: BTreeMap<Entry, [(u64, &Event); 2]> = BTreeMap::new();
    for (entry, grant, event) in shown(story) {
        let [lowest, highest] = spans.entry(entry).or_insert([(grant, event); 2]);
        if grant < lowest.0 {
            *lowest = (grant, event);
        }
        if grant > highest.0 {
            *highest = (grant, event);
        }
    }
    let mut before: Option<(Entry, u64, &Event)> = None;
    for (entry, [(lowest, first), (highest, last)]) in spans {
        if let Some((earlier, fence, learned)) = before.filter(|(_, fence, _)| *fence >= lowest) {
            let words = format!(
                "#{} has fence {lowest}, not above {fence} of #{} before it",
                entry.seq, earlier.seq
            );
            violations.push(violation(Rule::Fences, &[learned, first], words));
        }
        if before.is_none_or(|(_, fence, _)| fence < highest) {
            before = Some((entry, highest, last));
        }
    }
}

/// Who is answered HELD after somebody else did has a fence that is not below that one's.
fn rise_in_time(story: &Story<'_>, violations: &mut Vec<Violation>) {
    let held = || story.events.iter().copied().filter(|e| e.held().is_some());
    let mut answered: Vec<&Event> = held().collect();
    answered.sort_by_key(|event| event.answered);
    let mut answered = answered.into_iter().peekable();
    let mut highest: Option<&Event> = None;
    for event in held() {
        while let Some(learned) = answered.next_if(|learned| learned.answered < event.invoked) {
            if highest.is_none_or(|highest| highest.grant < learned.grant) {
                highest = Some(learned);
            }
        }
        // Its home need not have heard yet of an end by force.
        let forced = story.life(event).forced;
        let is_forced = forced.is_some_and(|forced| forced < event.answered);
        if let Some(learned) = highest.filter(|learned| learned.grant > event.grant && !is_forced) {
            let words = "a fence is told after a higher one was";
            violations.push(violation(Rule::Fences, &[learned, event], words));
        }
    }
}

/// When an entry was asked for first, and when it was there at last.
struct Made<'a> {
    entry: Entry,
    invoked: Duration,
    answered: Duration,
    learned: &'a Event,
}

fn follow_their_creates(story: &Story<'_>, violations: &mut Vec<Violation>) {
    let mut asked: BTreeMap<Uuid, Duration> = BTreeMap::new();
    let mut made: BTreeMap<Entry, Made<'_>> = BTreeMap::new();
    for event in &story.events {
        let Op::Create { request } = event.op else {
            continue;
        };
        // By invocation: the first try comes first.
        let invoked = *asked.entry(request).or_insert(event.invoked);
        let Some(entry) = event.entry.filter(|_| event.is_done()) else {
            continue;
        };
        let answered = event.answered;
        let one = made.entry(entry).or_insert(Made {
            entry,
            invoked,
            answered,
            learned: event,
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
            if highest.is_none_or(|highest| highest.entry < before.entry) {
                highest = Some(before);
            }
        }
        if let Some(before) = highest.filter(|before| before.entry > made.entry) {
            let words = format!(
                "#{} was asked for after #{} was given out",
                made.entry.seq, before.entry.seq
            );
            violations.push(violation(
                Rule::Order,
                &[before.learned, made.learned],
                words,
            ));
        }
    }
}
