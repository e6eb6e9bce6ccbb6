//! Signals that whoever started this process had it ignore (`nohup`, `trap '' INT`): they stay ignored, here and in
//! what is started from here. To hear such a signal would end that.

/// Whether this process ignores a signal, as it was started. Asked before any is heard.
pub fn is_ignored(number: i32) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| is_ignored_by(&status, number))
}

/// The same by what the system says of a process.
fn is_ignored_by(status: &str, number: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let bit = u32::try_from(number - 1)
        .ok()
        .and_then(|at| 1_u64.checked_shl(at));
    mask.zip(bit).is_some_and(|(mask, bit)| mask & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_ignored_is_told_from_the_others() {
        let status =
            "SigBlk:\t0000000000000003\nSigIgn:\t0000000000001003\nSigCgt:\t0000000000000000\n";
        for (number, ignored) in [(1, true), (2, true), (3, false), (13, true), (15, false)] {
            assert_eq!(is_ignored_by(status, number), ignored, "{number}");
        }
        for number in [0, -1, 65, i32::MAX] {
            assert!(!is_ignored_by(status, number), "{number}");
        }
        assert!(!is_ignored_by("", 1) && !is_ignored_by("SigIgn:\tx\n", 1));
    }
}
