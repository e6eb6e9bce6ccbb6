//! Fair shares of a scarce resource. The last tenth is for users who have little of it.

/// Why one more is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoShare {
    /// All are in use.
    Full,
    /// Nine tenths are, and this one has its share of them.
    ShareUsed,
}

/// What everybody may have, also of the last tenth.
pub fn share(max: usize) -> usize {
    (max / 100).max(1)
}

/// Whether what is left, where there are `max`, is for those who have little only.
pub fn is_scarce(all: usize, max: usize) -> bool {
    all >= max - max / 10
}

/// Whether one who has `have` of `all` that are in use may have one more, where there are `max`.
pub fn admit(all: usize, have: usize, max: usize) -> Result<(), NoShare> {
    let share = share(max);
    match () {
        () if all >= max => Err(NoShare::Full),
        () if is_scarce(all, max) && have >= share => Err(NoShare::ShareUsed),
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_gets_nine_tenths_and_others_find_the_last() {
        let most = (0..=1000)
            .take_while(|n| admit(*n, *n, 1000).is_ok())
            .count();
        assert_eq!(most, 900);
        assert_eq!(admit(900, 900, 1000), Err(NoShare::ShareUsed));
        for have in 0..10 {
            assert_eq!(admit(990 + have, have, 1000), Ok(()));
        }
        assert_eq!(admit(995, 10, 1000), Err(NoShare::ShareUsed));
        assert_eq!(admit(1000, 0, 1000), Err(NoShare::Full));
    }

    #[test]
    fn where_there_are_few_one_may_have_all() {
        for max in 1..10 {
            assert_eq!(
                (0..=max).take_while(|n| admit(*n, *n, max).is_ok()).count(),
                max
            );
        }
    }
}
