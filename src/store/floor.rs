//! The floor of fences of a restored store. It lies above all fences that the lost store can have given out.

/// How far above the clock, and above its floor, a store may have given out fences when it was lost: 70 minutes, and as much
/// again for clocks that differ.
const AHEAD_US: u64 = 2 * 60 * 60 * 1_000_000;

/// No fence is below this from now on, where all that are known to have been used are below `used` (in microseconds since 1970)
/// and an operator named `above`.
pub(super) fn fence_floor(now_us: u64, used: u64, above: Option<u64>) -> u64 {
    let floor = now_us.max(used).saturating_add(AHEAD_US);
    floor.max(above.map_or(0, |above| above.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_lies_above_the_clock_what_was_used_and_what_is_named() {
        const NOW: u64 = 1_790_000_000_000_000;
        assert_eq!(fence_floor(NOW, 5, None), NOW + AHEAD_US);
        assert_eq!(fence_floor(5, NOW, None), NOW + AHEAD_US);
        assert_eq!(fence_floor(NOW, 5, Some(NOW)), NOW + AHEAD_US);
        let above = NOW + 2 * AHEAD_US;
        assert_eq!(fence_floor(NOW, 5, Some(above)), above + 1);
        assert_eq!(fence_floor(u64::MAX, 5, Some(u64::MAX)), u64::MAX);
    }
}
