//! The FORMAT file: which format a store has, and which store it is.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

/// The format that this program writes, and the only one it reads.
pub(super) const FORMAT_KNOWN: u64 = 3;

/// The first line, so that nobody takes the file for another one.
const TITLE: &str = "fermata embedded store";

/// What the FORMAT file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Format {
    /// The number of the format of everything beside it.
    pub(super) number: u64,
    /// The store's own id, made with it.
    pub(super) store: Uuid,
}

/// Why a text is no FORMAT file that this program can go by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum FormatError {
    /// It is another text.
    Garbled,
    /// Another version wrote it. What follows the number may look different there.
    Other(u64),
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{TITLE}")?;
        writeln!(f, "format {}", self.number)?;
        writeln!(f, "store {}", self.store)
    }
}

impl FromStr for Format {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Format, FormatError> {
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return Err(FormatError::Garbled);
        }
        let number = lines
            .next()
            .and_then(|line| line.strip_prefix("format "))
            .and_then(|number| number.parse().ok())
            .filter(|number| *number > 0)
            .ok_or(FormatError::Garbled)?;
        if number != FORMAT_KNOWN {
            return Err(FormatError::Other(number));
        }
        let store = lines
            .next()
            .and_then(|line| line.strip_prefix("store "))
            .and_then(|id| Uuid::try_parse(id).ok())
            .ok_or(FormatError::Garbled)?;
        let format = Format { number, store };
        // One spelling only: anything cut off or added shows.
        if format.to_string() == text {
            Ok(format)
        } else {
            Err(FormatError::Garbled)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_reads_back_and_nothing_else_does() {
        let format = Format {
            number: FORMAT_KNOWN,
            store: Uuid::from_u128(7),
        };
        let text = format.to_string();
        assert_eq!(text.parse(), Ok(format));
        for end in 0..text.len() {
            let cut = text[..end].parse::<Format>();
            assert_eq!(cut, Err(FormatError::Garbled), "{end}");
        }
        assert_eq!(
            format!("{text}x").parse::<Format>(),
            Err(FormatError::Garbled)
        );
        for other in [FORMAT_KNOWN - 1, FORMAT_KNOWN + 1] {
            let text = format!("fermata embedded store\nformat {other}\nsomething else\n");
            assert_eq!(text.parse::<Format>(), Err(FormatError::Other(other)));
        }
    }
}
