//! Which key a section is on: the worker's own, one for all, a new one, or drawn from a distribution.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use uuid::Uuid;

/// How the workers choose their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum KeyChoice {
    /// Each worker has a key of its own: nobody waits.
    Own,
    /// All workers want the same key: a queue.
    One,
    /// Each section is on a key that nobody has used before.
    New,
    /// Each section draws its key; few keys are hot, most are not.
    Zipf,
    /// Each section draws its key, mostly from a part that other clients seldom use: see [`Near`].
    Near,
}

impl KeyChoice {
    fn name(self) -> &'static str {
        match self {
            KeyChoice::Own => "own",
            KeyChoice::One => "one",
            KeyChoice::New => "new",
            KeyChoice::Zipf => "zipf",
            KeyChoice::Near => "near",
        }
    }
}

/// Which keys a client uses most, where several share all keys: those of one part of them.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(super) struct Near {
    /// Which part is this client's, from 1 on.
    pub(super) part: usize,
    /// Into how many parts the keys are cut.
    pub(super) parts: usize,
    /// How often a section is on a key of it, of 1; else on one of any other part.
    pub(super) share: f64,
}

impl Default for Near {
    fn default() -> Near {
        Near {
            part: 1,
            parts: 3,
            share: 0.9,
        }
    }
}

impl Near {
    /// `1/3`.
    pub(super) fn parse_part(text: &str) -> Result<(usize, usize), String> {
        let part = text.split_once('/').and_then(|(part, parts)| {
            let (part, parts) = (part.parse().ok()?, parts.parse().ok()?);
            ((1..=parts).contains(&part) && (2..=1_000).contains(&parts)).then_some((part, parts))
        });
        part.ok_or_else(|| "it must be like 1/3: which part, and of how many, 2 to 1000".to_owned())
    }

    /// The index of one of so many keys, drawn by these, each 0 or more and below 1.
    fn at(self, count: usize, (which, key): (f64, f64)) -> usize {
        let in_part = |part: usize| {
            let keys = (count + self.parts - 1 - part) / self.parts;
            part + self.parts * ((key * keys as f64) as usize)
        };
        let own = self.part - 1;
        if which < self.share {
            return in_part(own).min(count - 1);
        }
        let others = self.parts - 1;
        let other = (which - self.share) / (1.0 - self.share) * others as f64;
        let other = (other as usize).min(others - 1);
        in_part(if other < own { other } else { other + 1 }).min(count - 1)
    }
}

/// The keys of one run.
#[derive(Debug)]
pub(super) struct Keys {
    names: Vec<String>,
    draw: Draw,
}

#[derive(Debug)]
enum Draw {
    Own,
    One,
    /// How many are used.
    New(AtomicUsize),
    Zipf(Zipf),
    Near(Near),
}

impl Keys {
    /// `count` is for [`KeyChoice::New`], [`KeyChoice::Zipf`] and [`KeyChoice::Near`] only, `skew` and `near` for the last two. The
    /// names stay the same from run to run, so that benchmarks leave few rows behind; those of new keys
    /// are others in each run.
    pub(super) fn new(
        choice: KeyChoice,
        prefix: &str,
        workers: usize,
        count: usize,
        skew: f64,
        near: Near,
    ) -> Keys {
        let (count, draw) = match choice {
            KeyChoice::Own => (workers, Draw::Own),
            KeyChoice::One => (1, Draw::One),
            KeyChoice::New => (count, Draw::New(AtomicUsize::new(0))),
            KeyChoice::Zipf => (count.max(1), Draw::Zipf(Zipf::new(count, skew))),
            KeyChoice::Near => (count.max(near.parts), Draw::Near(near)),
        };
        let kind = match choice {
            KeyChoice::New => format!("new/{}", Uuid::new_v4().simple()),
            _ => choice.name().to_owned(),
        };
        Keys {
            names: (0..count).map(|i| format!("{prefix}/{kind}/{i}")).collect(),
            draw,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.names.len()
    }

    /// Empty for an index that there is none of, which a server refuses.
    pub(super) fn name(&self, index: usize) -> &str {
        self.names.get(index).map_or("", String::as_str)
    }

    /// The index of the key for the section with this turn: the number of its worker, or of its arrival. There is no key with it
    /// where all new ones are used.
    pub(super) fn pick(&self, turn: usize, random: &mut Random) -> usize {
        match &self.draw {
            Draw::Own => turn % self.count().max(1),
            Draw::One => 0,
            Draw::New(used) => used.fetch_add(1, Relaxed),
            Draw::Zipf(zipf) => zipf.at(random.unit()),
            Draw::Near(near) => near.at(self.count(), (random.unit(), random.unit())),
        }
    }
}

/// Index `i` of `n` is drawn with a probability proportional to `1 / (i + 1)^skew`.
#[derive(Debug)]
struct Zipf {
    /// The probability that the index drawn is this one or a smaller one.
    up_to: Vec<f64>,
}

impl Zipf {
    fn new(count: usize, skew: f64) -> Zipf {
        let mut sum = 0.0;
        let mut up_to: Vec<f64> = (1..=count.max(1))
            .map(|rank| {
                sum += (rank as f64).powf(-skew);
                sum
            })
            .collect();
        for share in &mut up_to {
            *share /= sum;
        }
        Zipf { up_to }
    }

    /// The index at `unit`, which is 0 or more and below 1.
    fn at(&self, unit: f64) -> usize {
        let index = self.up_to.partition_point(|share| *share <= unit);
        index.min(self.up_to.len() - 1)
    }
}

/// SplitMix64: fast, and good enough to spread load and to name calls.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new() -> Random {
        Random::seeded(Uuid::new_v4().as_u64_pair().1)
    }

    fn seeded(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// 0 or more and below 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn uuid(&mut self) -> Uuid {
        let bits = u128::from(self.next()) << 64 | u128::from(self.next());
        uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_draws_each_key_as_often_as_its_rank_says() {
        let (count, skew, draws) = (100, 0.99, 200_000);
        let zipf = Zipf::new(count, skew);
        let mut random = Random::seeded(7);
        let mut drawn = vec![0u32; count];
        for _ in 0..draws {
            drawn[zipf.at(random.unit())] += 1;
        }
        let all: f64 = (1..=count).map(|rank| (rank as f64).powf(-skew)).sum();
        for rank in [1, 2, 5, 20, 100] {
            let expected = f64::from(draws) * (rank as f64).powf(-skew) / all;
            let seen = f64::from(drawn[rank - 1]);
            let deviation = expected.sqrt();
            assert!(
                (seen - expected).abs() < 5.0 * deviation,
                "rank {rank}: {seen} of {expected}"
            );
        }
    }

    #[test]
    fn zipf_without_skew_is_uniform_and_its_ends_are_keys() {
        let zipf = Zipf::new(4, 0.0);
        assert_eq!(
            [0.0, 0.24, 0.25, 0.5, 0.75, 1.0].map(|unit| zipf.at(unit)),
            [0, 0, 1, 2, 3, 3]
        );
        assert_eq!(Zipf::new(1, 3.0).at(0.999), 0);
    }

    #[test]
    fn near_keys_are_drawn_as_often_as_asked_and_the_others_evenly() {
        let (count, draws) = (31, 60_000);
        let near = Near {
            part: 2,
            parts: 3,
            share: 0.9,
        };
        let keys = Keys::new(KeyChoice::Near, "bench", 1, count, 0.0, near);
        let random = &mut Random::seeded(3);
        let mut drawn = vec![0u32; count];
        for _ in 0..draws {
            drawn[keys.pick(0, random)] += 1;
        }
        // Parts of 11, 10 and 10 keys.
        for (index, seen) in drawn.into_iter().enumerate() {
            let share = [0.05 / 11.0, 0.9 / 10.0, 0.05 / 10.0][index % 3];
            let expected = f64::from(draws) * share;
            let seen = f64::from(seen);
            assert!(
                (seen - expected).abs() < 5.0 * expected.sqrt(),
                "{index}: {seen} of {expected}"
            );
        }
        assert_eq!(Near::parse_part("2/3"), Ok((2, 3)));
        for wrong in ["", "0/3", "4/3", "1/1", "1", "a/3"] {
            assert!(Near::parse_part(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn own_keys_differ_and_one_key_is_one() {
        let random = &mut Random::seeded(1);
        let own = Keys::new(KeyChoice::Own, "bench", 3, 0, 0.0, Near::default());
        assert_eq!(own.count(), 3);
        let picked = [0, 4, 2].map(|turn| own.name(own.pick(turn, random)));
        assert_eq!(picked, ["bench/own/0", "bench/own/1", "bench/own/2"]);
        let one = Keys::new(KeyChoice::One, "bench", 3, 0, 0.0, Near::default());
        assert_eq!(one.count(), 1);
        assert_eq!([0, 1, 2].map(|turn| one.pick(turn, random)), [0; 3]);
    }

    #[test]
    fn new_keys_are_used_once_and_in_no_run_before() {
        let random = &mut Random::seeded(1);
        let keys = || Keys::new(KeyChoice::New, "bench", 2, 3, 0.0, Near::default());
        let (first, second) = (keys(), keys());
        let picked = [0, 1, 0, 1].map(|turn| first.pick(turn, random));
        assert_eq!(picked, [0, 1, 2, 3]);
        assert!(first.name(2).starts_with("bench/new/"));
        assert_eq!(first.name(3), "");
        assert_ne!(first.name(0), second.name(0));
    }

    #[test]
    fn names_of_calls_differ() {
        let random = &mut Random::seeded(1);
        let names: std::collections::BTreeSet<Uuid> = (0..1000).map(|_| random.uuid()).collect();
        assert_eq!(names.len(), 1000);
    }
}
