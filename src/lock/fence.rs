//! Fencing tokens: the choice of the next one (I2), and the range of its write timestamps (I3).

use std::fmt;

/// The first write timestamp of a holder, in microseconds; higher for each later holder of a key. The first fence of a holder is
/// its *grant*, the fencing token. 0 is no fence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fence(pub u64);

impl Fence {
    /// No fence: nobody has held the key yet.
    pub const NONE: Fence = Fence(0);

    /// The largest one: every timestamp must fit a signed 64-bit integer.
    pub const MAX: u64 = i64::MAX as u64;
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fence({})", self.0)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The bounds of the core. They are arguments so that a model can keep its space finite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreLimits {
    /// Timestamps in a new fence, the sync's rewrite included (I3). Below 2, every write needs an Extend.
    pub width_min: u32,
    /// Timestamps in a fence after Extend, at most; not below `width_min`.
    pub width_max: u32,
    /// Ends other than clean releases that a key remembers.
    pub ended_max: usize,
    /// Live entries of a key, the holder included.
    pub entries_max: usize,
    /// The lead of a fence over the clock, in microseconds; `None`: no limit but its size.
    pub ahead_us_max: Option<u64>,
}

impl Default for CoreLimits {
    fn default() -> Self {
        CoreLimits {
            width_min: 16,
            width_max: 1024,
            ended_max: 64,
            entries_max: 10_000,
            ahead_us_max: None,
        }
    }
}

/// No fence could be taken; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FenceError {
    /// The next timestamps would not fit a signed 64-bit integer.
    #[error("the fencing tokens of this key are used up")]
    UsedUp,
    /// The next fence would run too far ahead of the clock.
    #[error(
        "the next fencing token would be {ahead_us} µs ahead of the clock; the limit is {limit_us} µs"
    )]
    TooFarAhead {
        /// Its lead over the clock, in microseconds.
        ahead_us: u64,
        /// The limit in force, in microseconds.
        limit_us: u64,
    },
    /// The same, caused by the timestamp of the key's value.
    #[error(
        "the value of this key was written with the timestamp {past_us} µs, which is {ahead_us} µs ahead of the clock; \
         the limit is {limit_us} µs"
    )]
    PastTooFarAhead {
        /// The timestamp of the value, in microseconds since 1970.
        past_us: u64,
        /// Its lead over the clock, in microseconds.
        ahead_us: u64,
        /// The limit in force, in microseconds.
        limit_us: u64,
    },
}

/// Takes the fence after `fence` and its `width` timestamps, above `past`, and not below the clock (I2). The clock only moves it
/// forward.
pub(crate) fn next_fence(
    fence: Fence,
    width: u32,
    new_width: u32,
    now_us: u64,
    past: Option<u64>,
    limits: &CoreLimits,
) -> Result<Fence, FenceError> {
    // At least one further, whatever the width: a fence is never 0 ("no fence"), nor its predecessor.
    let after_slot = fence
        .0
        .checked_add(u64::from(width.max(1)))
        .ok_or(FenceError::UsedUp)?;
    let after_past = match past {
        Some(past) => past.checked_add(1).ok_or(FenceError::UsedUp)?,
        None => 0,
    };
    let next = after_slot.max(after_past).max(now_us);
    if next
        .checked_add(u64::from(new_width))
        .is_none_or(|end| end > Fence::MAX)
    {
        return Err(FenceError::UsedUp);
    }
    let ahead_us = next.saturating_sub(now_us);
    if let Some(limit_us) = limits.ahead_us_max
        && ahead_us > limit_us
    {
        if let Some(past_us) = past
            && after_past > after_slot
        {
            return Err(FenceError::PastTooFarAhead {
                past_us,
                ahead_us: past_us.saturating_sub(now_us),
                limit_us,
            });
        }
        return Err(FenceError::TooFarAhead { ahead_us, limit_us });
    }
    Ok(Fence(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(fence: u64, width: u32, now: u64, past: Option<u64>) -> Result<Fence, FenceError> {
        next_fence(
            Fence(fence),
            width,
            16,
            now,
            past,
            &CoreLimits {
                ahead_us_max: Some(1_000),
                ..CoreLimits::default()
            },
        )
    }

    #[test]
    fn a_fence_follows_the_slot_before_it_whatever_the_clock_says() {
        assert_eq!(next(100, 16, 5_000, None), Ok(Fence(5_000)));
        assert_eq!(next(5_000, 16, 4_990, None), Ok(Fence(5_016)));
        assert_eq!(next(5_000, 16, 5_000, Some(5_100)), Ok(Fence(5_101)));
        assert_eq!(next(0, 0, 0, None), Ok(Fence(1)));
    }

    #[test]
    fn a_fence_is_above_the_last_one_even_where_its_slot_has_no_width() {
        assert_eq!(next(5_000, 0, 4_990, None), Ok(Fence(5_001)));
    }

    #[test]
    fn a_fence_may_go_up_to_its_limits() {
        let last = Fence::MAX - 16;
        assert_eq!(next(0, 16, last, None), Ok(Fence(last)));
        assert_eq!(next(0, 16, last + 1, None), Err(FenceError::UsedUp));
        assert_eq!(next(5_000, 16, 4_016, None), Ok(Fence(5_016)));
    }

    #[test]
    fn a_value_from_too_far_ahead_is_named() {
        assert_eq!(next(5_000, 16, 5_000, Some(5_999)), Ok(Fence(6_000)));
        let far = FenceError::PastTooFarAhead {
            past_us: 6_000,
            ahead_us: 1_000,
            limit_us: 1_000,
        };
        assert_eq!(next(5_000, 16, 5_000, Some(6_000)), Err(far));
        // The fence itself is as far ahead.
        let own = next(9_000, 16, 5_000, Some(9_015));
        assert!(
            matches!(own, Err(FenceError::TooFarAhead { .. })),
            "{own:?}"
        );
    }

    #[test]
    fn a_fence_that_would_overflow_or_run_away_is_refused() {
        assert_eq!(next(Fence::MAX, 16, 0, None), Err(FenceError::UsedUp));
        assert_eq!(next(u64::MAX, 16, 0, None), Err(FenceError::UsedUp));
        assert_eq!(next(0, 16, 0, Some(u64::MAX)), Err(FenceError::UsedUp));
        assert_eq!(
            next(5_000, 16, 4_000, None),
            Err(FenceError::TooFarAhead {
                ahead_us: 1_016,
                limit_us: 1_000
            })
        );
    }
}
