//! Spans of time as people write them: `500ms`, `10s`, `1m30s`, `2h`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A span of time, in whole milliseconds, read from and written as text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Span(Duration);

/// A malformed span.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a span of time; write a number with its unit: 500ms, 10s, 1m30s or 2h")]
pub struct SpanError(String);

/// `ms` stands before `m` and `s` for parsing.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("ms", 1), ("m", 60_000), ("s", 1_000)];

impl Span {
    /// This many seconds.
    pub const fn from_secs(secs: u64) -> Span {
        Span(Duration::from_secs(secs))
    }

    /// This many milliseconds.
    pub const fn from_millis(ms: u64) -> Span {
        Span(Duration::from_millis(ms))
    }

    /// A span of the standard library, in whole milliseconds.
    pub fn from_duration(span: Duration) -> Span {
        let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Span(Duration::from_millis(ms))
    }

    /// As the standard library has it.
    pub fn duration(self) -> Duration {
        self.0
    }
}

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_ms(text)
            .map(|ms| Span(Duration::from_millis(ms)))
            .ok_or_else(|| SpanError(text.to_owned()))
    }
}

/// The milliseconds of a text; `None` if it is malformed or too large. Each unit stands once at most, larger ones first. Of numbers
/// without a unit only 0 is allowed.
fn parse_ms(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let mut rest = text;
    let mut total = 0u64;
    let mut below = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at_checked(digits)?;
        let number: u64 = number.parse().ok()?;
        let (after, unit_ms) = UNITS
            .iter()
            .find_map(|(unit, ms)| Some((after.strip_prefix(unit)?, *ms)))?;
        if unit_ms >= below {
            return None;
        }
        below = unit_ms;
        total = total.checked_add(number.checked_mul(unit_ms)?)?;
        rest = after;
    }
    (!text.is_empty()).then_some(total)
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if left == 0 {
            return f.write_str("0s");
        }
        for (unit, ms) in [UNITS[0], UNITS[2], UNITS[3], UNITS[1]] {
            if left >= ms {
                write!(f, "{}{unit}", left / ms)?;
                left %= ms;
            }
        }
        Ok(())
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_read_and_written_in_its_shortest_form() {
        for (text, ms, shown) in [
            ("10s", 10_000, "10s"),
            ("500ms", 500, "500ms"),
            ("1m30s", 90_000, "1m30s"),
            ("90s", 90_000, "1m30s"),
            ("2h", 7_200_000, "2h"),
            ("1s500ms", 1_500, "1s500ms"),
            ("0s", 0, "0s"),
            ("0", 0, "0s"),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.duration(), Duration::from_millis(ms), "{text}");
            assert_eq!(span.to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_span_is_refused() {
        for text in [
            "",
            "10",
            "s",
            "10 s",
            "-1s",
            "1.5s",
            "1s1m",
            "1s1s",
            "10sec",
            "99999999999999999999s",
            "9999999999999999h",
        ] {
            assert!(text.parse::<Span>().is_err(), "{text:?}");
        }
    }
}
