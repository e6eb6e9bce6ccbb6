//! The FORMAT file: the format of a store, and its id.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

/// The format that this program writes, and the only one it reads: of the directory, and of every record.
pub(super) const FORMAT_KNOWN: u8 = 4;

/// The first line, so that nobody takes the file for another one.
const TITLE: &str = "fermata embedded store";

/// What the FORMAT file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Format {
    /// The store's own id, made with it.
    pub(super) store: Uuid,
}

/// Why a text is no FORMAT file that this program can go by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum FormatError {
    /// It is another text.
    Garbled,
    /// Another version wrote it. What follows the number may look different there.
    Other(u8),
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{TITLE}")?;
        writeln!(f, "format {FORMAT_KNOWN}")?;
        writeln!(f, "store {}", self.store)
    }
}

impl FromStr for Format {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Format, FormatError> {
        let words = text.strip_prefix(TITLE);
        let words = words.and_then(|words| words.strip_prefix("\nformat "));
        let (number, store) = words
            .and_then(|words| words.split_once('\n'))
            .ok_or(FormatError::Garbled)?;
        match number.parse() {
            Ok(FORMAT_KNOWN) => {}
            Ok(0) | Err(_) => return Err(FormatError::Garbled),
            Ok(other) => return Err(FormatError::Other(other)),
        }
        let store = store.strip_prefix("store ").unwrap_or_default();
        let store = Uuid::try_parse(store.trim_end()).map_err(|_| FormatError::Garbled)?;
        let format = Format { store };
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
            let other = FormatError::Other(other);
            assert_eq!(text.parse::<Format>(), Err(other));
        }
    }
}
