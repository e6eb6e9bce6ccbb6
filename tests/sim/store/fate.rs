//! What becomes of one operation.

use std::time::Duration;

use super::super::rng::Rng;

/// How the store does at the moment, for one replica.
#[derive(Clone, Copy, Default, Debug)]
pub struct Weather {
    /// So many of a hundred operations go wrong.
    pub percent: u64,
    /// So many of a hundred changes of keys have an outcome that nobody is told.
    pub percent_of_swaps: u64,
    /// Nothing gets there, or back.
    pub is_cut: bool,
    /// Heartbeats do not get there; all else does.
    pub is_mute: bool,
    /// What is listed is seconds old when it is known.
    pub lists_slowly: bool,
}

/// What becomes of one operation.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    Good,
    /// It takes so much longer, to get there or to come back.
    SlowThere(Duration),
    SlowBack(Duration),
    /// It is refused; nothing is done.
    NotStarted,
    /// It is done, and the answer is lost.
    UnknownDone,
    /// It is lost.
    UnknownLost,
    /// Nobody learns of it, and it takes effect this much later.
    UnknownLate(Duration),
}

impl Fate {
    pub fn draw(rng: &mut Rng, weather: Weather) -> Fate {
        if weather.is_cut {
            return match rng.below(3) {
                0 => Fate::NotStarted,
                _ => Fate::UnknownLost,
            };
        }
        if rng.below(100) >= weather.percent {
            return Fate::Good;
        }
        match rng.below(8) {
            0 => Fate::NotStarted,
            1 | 2 => Fate::UnknownDone,
            3 => Fate::UnknownLost,
            4 => Fate::UnknownLate(rng.ms(1, 100)),
            5 => Fate::UnknownLate(rng.ms(100, 6_000)),
            6 => Fate::SlowThere(rng.ms(10, 3_000)),
            _ => Fate::SlowBack(rng.ms(10, 3_000)),
        }
    }

    /// Whether whoever asked hears of it.
    pub fn is_answered(self) -> bool {
        matches!(self, Fate::Good | Fate::SlowThere(_) | Fate::SlowBack(_))
    }

    /// How long an operation of this fate takes to get there.
    pub fn there(self, rng: &mut Rng) -> Duration {
        let usual = rng.ms(1, 2);
        match self {
            Fate::SlowThere(by) | Fate::UnknownLate(by) => usual + by,
            _ => usual,
        }
    }

    /// How long it takes back, or until whoever asked gives up.
    pub fn back(self, rng: &mut Rng) -> Duration {
        match self {
            Fate::Good | Fate::SlowThere(_) | Fate::NotStarted => rng.ms(1, 2),
            Fate::SlowBack(by) => by,
            Fate::UnknownDone | Fate::UnknownLost | Fate::UnknownLate(_) => match rng.below(4) {
                0 => rng.ms(1, 20),
                _ => rng.ms(100, 2_500),
            },
        }
    }
}

/// When each copy of a value learns of a write, counted from when it is sent; `None` for never.
pub fn copies<const N: usize>(rng: &mut Rng, fate: Fate) -> [Option<Duration>; N] {
    std::array::from_fn(|_| match fate {
        Fate::NotStarted | Fate::UnknownLost => None,
        Fate::Good | Fate::SlowBack(_) => Some(rng.ms(1, 3)),
        // Any number of them, some of them late.
        Fate::UnknownDone => match rng.below(3) {
            0 => None,
            1 => Some(rng.ms(1, 3)),
            _ => Some(rng.ms(1, 3_000)),
        },
        Fate::SlowThere(by) | Fate::UnknownLate(by) => match rng.below(4) {
            0 => None,
            1 => Some(rng.ms(1, 3)),
            _ => Some(by),
        },
    })
}
