//! Histories made by chance: those of a service that is right are accepted, and what is spoiled in them is found.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::history::{Event, Learned, Op, Outcome, Rule, check};
use super::reference::{Weather, history};
use super::rng::Rng;

const CALM: Weather = Weather {
    lost: 8,
    expires: false,
    moves: false,
    in_order: false,
};

fn any_weather() -> impl Strategy<Value = Weather> {
    let parts = (0..30_u64, any::<bool>(), any::<bool>(), any::<bool>());
    parts.prop_map(|(lost, expires, moves, in_order)| Weather {
        lost,
        expires,
        moves,
        in_order,
    })
}

/// Which of these: any of them.
fn one_of<T: Copy>(all: &[T], rng: &mut Rng) -> Option<T> {
    let count = u64::try_from(all.len()).unwrap();
    (count > 0).then(|| all[usize::try_from(rng.below(count)).unwrap()])
}

fn indices(events: &[Event], is_one: impl Fn(&Event) -> bool) -> Vec<usize> {
    let all = events.iter().enumerate();
    all.filter(|(_, event)| is_one(event))
        .map(|(at, _)| at)
        .collect()
}

/// A read of something else.
fn nobodys_value(events: &mut [Event], rng: &mut Rng) -> Option<()> {
    let reads = indices(events, |event| event.is_done() && event.read.is_some());
    let at = one_of(&reads, rng)?;
    events[at].read = Some(Some(Bytes::from_static(b"nobody's")));
    Some(())
}

/// A read of what an acknowledged write had been put over, by one that was acknowledged before the read.
fn old_value(events: &mut [Event], rng: &mut Rng) -> Option<()> {
    let writes = indices(events, |event| event.is_done() && event.writes().is_some());
    let reads = indices(events, |event| event.is_done() && event.read.is_some());
    let mut spoiled = Vec::new();
    for &read in &reads {
        let before = |&&write: &&usize| events[write].answered < events[read].invoked;
        let mut earlier: Vec<usize> = writes.iter().filter(before).copied().collect();
        earlier.sort_by_key(|write| events[*write].answered);
        if let [.., older, newer] = earlier[..]
            && events[older].answered < events[newer].invoked
        {
            spoiled.push((read, older));
        }
    }
    let (read, older) = one_of(&spoiled, rng)?;
    events[read].read = events[older].writes().cloned();
    Some(())
}

/// A fence as high as that of the entry before.
fn low_fence(events: &mut [Event], rng: &mut Rng) -> Option<()> {
    let mut held = indices(events, |event| event.held().is_some());
    held.sort_by_key(|at| events[*at].entry);
    let pairs: Vec<(usize, usize)> = held
        .windows(2)
        .map(|pair| (pair[0], pair[1]))
        .filter(|(one, next)| events[*one].entry != events[*next].entry)
        .collect();
    let (one, next) = one_of(&pairs, rng)?;
    let (entry, low) = (events[next].entry, events[one].grant);
    for event in events.iter_mut().filter(|event| event.entry == entry) {
        event.grant = event.grant.and(low);
    }
    Some(())
}

/// A holder that released its entry only after the next one was granted the lock.
fn overlap(events: &mut [Event], rng: &mut Rng) -> Option<()> {
    let released = indices(events, |event| {
        matches!(event.op, Op::Release(_)) && event.is_done() && event.grant.is_some()
    });
    let mut pairs = Vec::new();
    for &release in &released {
        let release = &events[release];
        let later = |event: &&Event| event.held().is_some() && event.entry > release.entry;
        let next = events.iter().filter(later).min_by_key(|event| event.entry);
        // One that had asked for its own end before counts on nothing.
        let gave_up = |next: &&Event| {
            let mut own = events.iter().filter(|event| event.entry == next.entry);
            own.any(|e| matches!(e.op, Op::Release(_)) && e.invoked < next.answered)
        };
        let next = next.filter(|next| !gave_up(next));
        pairs.extend(next.map(|next| (release.entry, next.answered)));
    }
    let (entry, after) = one_of(&pairs, rng)?;
    for event in events.iter_mut().filter(|event| event.entry == entry) {
        if matches!(event.op, Op::Release(_)) {
            event.invoked = after + Duration::from_millis(1);
            event.answered = after + Duration::from_millis(2);
        } else if !event.is_done() {
            // Nor was it told that it has ended.
            event.outcome = Outcome::Unknown(Learned::Nothing);
        }
    }
    Some(())
}

/// Something is taken after the release.
fn after_the_end(events: &mut Vec<Event>, rng: &mut Rng) -> Option<()> {
    let released = indices(events, |event| {
        matches!(event.op, Op::Release(_)) && event.is_done() && event.grant.is_some()
    });
    let release = events[one_of(&released, rng)?].clone();
    events.push(Event {
        op: Op::Put(None),
        invoked: release.answered + Duration::from_millis(1),
        answered: release.answered + Duration::from_millis(2),
        outcome: Outcome::Done,
        ..release
    });
    Some(())
}

fn found(events: &[Event], rule: Rule) -> bool {
    let checked = check(events);
    checked
        .violations
        .iter()
        .any(|violation| violation.rule == rule)
}

type Spoil = fn(&mut Vec<Event>, &mut Rng) -> Option<()>;

const SPOILS: [(&str, Rule, Spoil); 5] = [
    ("nobody's value", Rule::LatestState, |e, r| {
        nobodys_value(e, r)
    }),
    ("an old value", Rule::LatestState, |e, r| old_value(e, r)),
    ("a low fence", Rule::Fences, |e, r| low_fence(e, r)),
    ("an overlap", Rule::Exclusivity, |e, r| overlap(e, r)),
    ("after the end", Rule::End, after_the_end),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, ..ProptestConfig::default() })]

    #[test]
    fn what_a_service_that_is_right_answers_is_accepted(
        seed in any::<u64>(),
        steps in 1..600_usize,
        weather in any_weather(),
    ) {
        let events = history(seed, steps, weather);
        let checked = check(&events);
        prop_assert!(checked.violations.is_empty(), "{}", checked.excerpt(&events));
    }

    #[test]
    fn what_is_spoiled_is_found(seed in any::<u64>(), steps in 200..400_usize, which in 0..SPOILS.len()) {
        let mut events = history(seed, steps, CALM);
        let (what, rule, spoil) = SPOILS[which];
        let spoiled = spoil(&mut events, &mut Rng::new(seed));
        prop_assume!(spoiled.is_some());
        prop_assert!(found(&events, rule), "{what}: {}", check(&events).excerpt(&events));
    }
}

/// What is drawn has in it what the checker is there for.
#[test]
fn the_histories_of_chance_are_not_empty() {
    let (mut sections, mut unknown, mut ended) = (0, 0, 0);
    for seed in 0..100 {
        let weather = Weather {
            expires: true,
            moves: true,
            ..CALM
        };
        let events = history(seed, 400, weather);
        let checked = check(&events);
        sections += checked.sections;
        unknown += checked.unknown;
        ended += indices(&events, |event| {
            matches!(event.outcome, Outcome::Refused(_))
        })
        .len();
    }
    eprintln!("{sections} sections, {unknown} unknown, {ended} refused");
    assert!(sections > 500 && unknown > 500 && ended > 100);
}
