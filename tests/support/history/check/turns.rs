//! One holder at a time, and nobody before an earlier entry that is there: in the time of the clients, whatever
//! the fences say.
//!
//! A client counts on its entry from an answer until what that answer promised is past, or until it asks for the
//! end, or is told of it. While one counts on its entry, no later one may count on holding the key; nor may two
//! count on holding it.
//!
//! Not seen: an overlap that begins after a client could not be sure any more, though its entry was there; an
//! entry whose client asked for its release, from then on; one that was forced to an end, or whose session was
//! closed, from then on. Renewals that were given to a session, not for an entry, do not make beliefs longer.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use super::super::event::{Entry, Event};
use super::story::Story;
use super::{Rule, Violation, violation};

/// A time in which a client counts on an entry.
#[derive(Clone, Copy)]
struct Belief<'a> {
    entry: Entry,
    from: Duration,
    until: Duration,
    holds: bool,
    because: &'a Event,
}

pub fn check(story: &Story<'_>, violations: &mut Vec<Violation>) {
    let mut there = Counted::default();
    let mut holding = Counted::default();
    let mut found = BTreeSet::new();
    for new in beliefs(story) {
        let mut broken = Vec::new();
        if new.holds {
            broken.extend(there.earlier(new));
        }
        broken.extend(holding.later(new));
        for old in broken {
            let pair = (old.entry.min(new.entry), old.entry.max(new.entry));
            if found.insert(pair) {
                violations.push(overlap(old, new));
            }
        }
        there.add(new);
        if new.holds {
            holding.add(new);
        }
    }
}

/// All beliefs, by when they begin.
fn beliefs<'a>(story: &Story<'a>) -> Vec<Belief<'a>> {
    let belief = |event: &&'a Event| {
        let entry = event.entry.filter(|_| event.shows_life())?;
        let life = story.life(event);
        // Where nothing is said of time, until it is told otherwise.
        let until = match event.until {
            None if life.has_until => return None,
            until => until.unwrap_or(Duration::MAX),
        };
        let until = until.min(life.given_up.unwrap_or(Duration::MAX));
        let from = event.answered;
        let holds = life.held.is_some_and(|held| held.answered <= from);
        (from < until).then_some(Belief {
            entry,
            from,
            until,
            holds,
            because: event,
        })
    };
    let mut all: Vec<Belief<'_>> = story.events.iter().filter_map(belief).collect();
    all.sort_by_key(|belief| belief.from);
    all
}

/// The longest belief of each entry, without those that were found to be past.
#[derive(Default)]
struct Counted<'a>(BTreeMap<Entry, Belief<'a>>);

impl<'a> Counted<'a> {
    fn add(&mut self, new: Belief<'a>) {
        let kept = self.0.entry(new.entry).or_insert(new);
        let holds = kept.holds || new.holds;
        if kept.until < new.until {
            *kept = new;
        }
        kept.holds = holds;
    }

    /// One that is ahead, and still there. Those that are not are forgotten, so each is looked at once.
    fn earlier(&mut self, new: Belief<'_>) -> Option<Belief<'a>> {
        self.first(new, |map| {
            map.range(..new.entry).next().map(|(_, old)| *old)
        })
    }

    /// One that is behind.
    fn later(&mut self, new: Belief<'_>) -> Option<Belief<'a>> {
        let behind = (Bound::Excluded(new.entry), Bound::Unbounded);
        self.first(new, |map| {
            map.range(behind).next_back().map(|(_, old)| *old)
        })
    }

    fn first(
        &mut self,
        new: Belief<'_>,
        next: impl Fn(&BTreeMap<Entry, Belief<'a>>) -> Option<Belief<'a>>,
    ) -> Option<Belief<'a>> {
        while let Some(old) = next(&self.0) {
            if old.until > new.from {
                return Some(old);
            }
            self.0.remove(&old.entry);
        }
        None
    }
}

fn overlap(old: Belief<'_>, new: Belief<'_>) -> Violation {
    let seqs = (old.entry.seq, new.entry.seq);
    let events = [old.because, new.because];
    if old.holds && new.holds {
        let words = format!("#{} and #{} both hold the key", seqs.0, seqs.1);
        return violation(Rule::Exclusivity, &events, words);
    }
    let words = format!(
        "#{} holds the key while #{} is ahead of it",
        seqs.0.max(seqs.1),
        seqs.0.min(seqs.1)
    );
    violation(Rule::Order, &events, words)
}
