//! Random numbers that a seed gives again (splitmix64).
#![allow(
    dead_code,
    reason = "each program that includes this uses a part of it"
)]

use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// So many milliseconds, from `least` to `most`.
    pub fn ms(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.below(most - least + 1))
    }

    /// Another one, for somebody else.
    pub fn fork(&mut self) -> Rng {
        Rng(self.next())
    }
}

/// The seed of this run: `FERMATA_SEED`, or the one given. Printed, so that a failure can be repeated.
pub fn seed(default: u64) -> u64 {
    let seed = match std::env::var("FERMATA_SEED") {
        Ok(text) => text.parse().expect("FERMATA_SEED is a number"),
        Err(_) => default,
    };
    eprintln!("FERMATA_SEED={seed}");
    seed
}
