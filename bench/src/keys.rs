//! The key of a section: the worker's own, one for all, a new one, or one drawn mostly from a part of the keys.

use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde::Serialize;
use uuid::Uuid;

/// The share of the sections that are on the client's own part, of 1. The Go client of bench/peers has the same.
const NEAR_SHARE: f64 = 0.9;

/// How the workers choose their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum KeyChoice {
    /// Each worker has a key of its own: nobody waits.
    Own,
    /// All workers use the same key: a queue.
    One,
    /// Each section has a key that nobody used before.
    New,
    /// Each section draws its key, mostly from a part that other clients seldom use.
    Near,
}

impl KeyChoice {
    pub(super) fn name(self) -> &'static str {
        match self {
            KeyChoice::Own => "own",
            KeyChoice::One => "one",
            KeyChoice::New => "new",
            KeyChoice::Near => "near",
        }
    }
}

/// A part of the keys that several clients share: `2/3` is every third key, from the second on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Part {
    /// From 1 on.
    part: usize,
    /// 2 at least.
    parts: usize,
}

/// A text that names no part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("write a part and the number of parts, as 1/3")]
pub(super) struct PartError;

impl FromStr for Part {
    type Err = PartError;

    fn from_str(text: &str) -> Result<Part, PartError> {
        let part = text.split_once('/').and_then(|(part, parts)| {
            let (part, parts) = (part.parse().ok()?, parts.parse().ok()?);
            (parts >= 2 && (1..=parts).contains(&part)).then_some(Part { part, parts })
        });
        part.ok_or(PartError)
    }
}

impl Part {
    /// The index of one of `count` keys, drawn by two numbers from 0 to below 1.
    fn draw(self, count: usize, (which, key): (f64, f64)) -> usize {
        let own = self.part - 1;
        let part = if which < NEAR_SHARE {
            own
        } else {
            // One of the other parts, all as often.
            let others = (self.parts - 1) as f64;
            let other = ((which - NEAR_SHARE) / (1.0 - NEAR_SHARE) * others) as usize;
            (own + 1 + other.min(self.parts - 2)) % self.parts
        };
        let keys = (count + self.parts - 1 - part) / self.parts;
        (part + self.parts * ((key * keys as f64) as usize)).min(count - 1)
    }
}

/// The keys of one run.
#[derive(Debug)]
pub(super) struct Keys {
    names: Vec<String>,
    choice: KeyChoice,
    near: Part,
    /// How many new keys are used.
    used: AtomicUsize,
}

impl Keys {
    /// `count` is for [`KeyChoice::New`] and [`KeyChoice::Near`] only, `near` for the latter. All runs use the same names, so
    /// that benchmarks leave few rows behind; only new keys have other names in each run.
    pub(super) fn new(
        choice: KeyChoice,
        prefix: &str,
        workers: usize,
        count: usize,
        near: Part,
    ) -> Keys {
        let count = match choice {
            KeyChoice::Own => workers,
            KeyChoice::One => 1,
            KeyChoice::New => count,
            KeyChoice::Near => count.max(near.parts),
        };
        let mut prefix = format!("{prefix}/{}", choice.name());
        if choice == KeyChoice::New {
            prefix = format!("{prefix}/{}", Uuid::new_v4().simple());
        }
        Keys {
            names: (0..count).map(|i| format!("{prefix}/{i}")).collect(),
            choice,
            near,
            used: AtomicUsize::new(0),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.names.len()
    }

    /// `None` for the index of no key.
    pub(super) fn name(&self, index: usize) -> Option<&str> {
        self.names.get(index).map(String::as_str)
    }

    /// The index of the key for the section with this turn: the number of its worker, or of its arrival. It is the index of no
    /// key once all new ones are used.
    pub(super) fn pick(&self, turn: usize) -> usize {
        match self.choice {
            KeyChoice::Own => turn % self.count().max(1),
            KeyChoice::One => 0,
            KeyChoice::New => self.used.fetch_add(1, Relaxed),
            KeyChoice::Near => self.near.draw(self.count(), rand::random()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(choice: KeyChoice, workers: usize, count: usize) -> Keys {
        Keys::new(choice, "bench", workers, count, "2/3".parse().unwrap())
    }

    #[test]
    fn near_keys_are_drawn_as_often_as_asked_and_the_others_evenly() {
        let (count, draws) = (31, 60_000);
        let keys = keys(KeyChoice::Near, 1, count);
        let mut drawn = vec![0u32; count];
        for _ in 0..draws {
            drawn[keys.pick(0)] += 1;
        }
        // Parts of 11, 10 and 10 keys.
        for (index, seen) in drawn.into_iter().enumerate() {
            let share = [0.05 / 11.0, 0.9 / 10.0, 0.05 / 10.0][index % 3];
            let expected = f64::from(draws) * share;
            let seen = f64::from(seen);
            assert!(
                (seen - expected).abs() < 6.0 * expected.sqrt(),
                "{index}: {seen} of {expected}"
            );
        }
        for wrong in ["", "0/3", "4/3", "1/1", "1", "a/3"] {
            assert!(wrong.parse::<Part>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn own_keys_differ_and_one_key_is_one() {
        let own = keys(KeyChoice::Own, 3, 0);
        let picked = [0, 4, 2].map(|turn| own.name(own.pick(turn)).unwrap());
        assert_eq!(picked, ["bench/own/0", "bench/own/1", "bench/own/2"]);
        let one = keys(KeyChoice::One, 3, 0);
        assert_eq!(one.count(), 1);
        assert_eq!([0, 1, 2].map(|turn| one.pick(turn)), [0; 3]);
    }

    #[test]
    fn new_keys_are_used_once_and_in_no_run_before() {
        let new = || keys(KeyChoice::New, 2, 3);
        let (first, second) = (new(), new());
        let picked = [0, 1, 0, 1].map(|turn| first.pick(turn));
        assert_eq!(picked, [0, 1, 2, 3]);
        assert!(first.name(2).unwrap().starts_with("bench/new/"));
        assert_eq!(first.name(3), None);
        assert_ne!(first.name(0), second.name(0));
    }
}
