//! Names from outside: tables and keys, checked once at the edge.

use std::fmt;
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The bytes of a key that are written as `%XX`: all but letters, digits and these.
pub(super) const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b':')
    .remove(b'/')
    .remove(b'=')
    .remove(b'+')
    .remove(b',');

/// The name of a table: 1 to 40 ASCII letters, digits or `_`, a letter first.
///
/// The bound leaves room for a prefix within the 48 characters that Cassandra allows.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName(Arc<str>);

/// Why a text is no table name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a table name is 1 to {max} ASCII letters, digits or '_', a letter first", max = TableName::BYTES_MAX)]
pub struct TableNameError;

impl TableName {
    /// The longest name, in bytes.
    pub const BYTES_MAX: usize = 40;

    /// The table that always exists.
    pub fn default_table() -> Self {
        TableName(Arc::from("default"))
    }

    /// Checks a text.
    pub fn parse(text: &str) -> Result<Self, TableNameError> {
        let first_ok = text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic());
        let rest_ok = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if first_ok && rest_ok && text.len() <= Self::BYTES_MAX {
            Ok(TableName(Arc::from(text)))
        } else {
            Err(TableNameError)
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// The name of a lock: 1 to [`Key::BYTES_MAX`] bytes of UTF-8 without control characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// Why a text is no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// The key has no bytes.
    #[error("the key is empty; it takes 1 to {max} bytes")]
    Empty {
        /// The limit in force, in bytes.
        max: usize,
    },
    /// The key has too many bytes.
    #[error("the key has {bytes} bytes; the limit is {max}")]
    TooLong {
        /// The given size, in bytes.
        bytes: usize,
        /// The limit in force, in bytes.
        max: usize,
    },
    /// The key holds a control character.
    #[error("the key has a control character (U+{code:04X}) at byte {at}")]
    Control {
        /// Its code point.
        code: u32,
        /// Its place, in bytes from 0.
        at: usize,
    },
}

impl Key {
    /// The longest key that any configuration allows, in bytes.
    pub const BYTES_MAX: usize = 1024;

    /// Checks a text against the limit in force (at most [`Key::BYTES_MAX`]).
    pub fn parse(text: &str, bytes_max: usize) -> Result<Self, InvalidKey> {
        let max = bytes_max.min(Self::BYTES_MAX);
        if text.is_empty() {
            return Err(InvalidKey::Empty { max });
        }
        if text.len() > max {
            return Err(InvalidKey::TooLong {
                bytes: text.len(),
                max,
            });
        }
        if let Some((at, c)) = text.char_indices().find(|(_, c)| c.is_control()) {
            return Err(InvalidKey::Control {
                code: u32::from(c),
                at,
            });
        }
        Ok(Key(Arc::from(text)))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// A key in its table.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeyId {
    /// The table.
    pub table: TableName,
    /// The key.
    pub key: Key,
}

/// A hash of a name, the same in every process and version: by it replicas agree on the place of a key (H8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NameHash(pub u64);

impl NameHash {
    /// FNV-1a; its constants are the published ones.
    pub fn of(bytes: impl Iterator<Item = u8>) -> Self {
        NameHash(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }))
    }
}

impl KeyId {
    /// The hash of table and key. No name has a zero byte, so no two keys have the same bytes.
    pub fn name_hash(&self) -> NameHash {
        let table = self.table.as_str().bytes();
        NameHash::of(table.chain([0]).chain(self.key.as_str().bytes()))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = utf8_percent_encode(self.key.as_str(), ENCODED);
        write!(f, "{}/{key}", self.table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_its_fault_and_the_limit() {
        assert_eq!(Key::parse("", 1024), Err(InvalidKey::Empty { max: 1024 }));
        let long = "x".repeat(1025);
        assert_eq!(
            Key::parse(&long, 4096),
            Err(InvalidKey::TooLong {
                bytes: 1025,
                max: 1024
            })
        );
        assert_eq!(
            Key::parse("a\u{7}b", 1024),
            Err(InvalidKey::Control { code: 7, at: 1 })
        );
        assert_eq!(
            Key::parse("grüße/日本", 1024).map(|k| k.to_string()),
            Ok("grüße/日本".to_owned())
        );
    }

    /// Replicas of two versions that hash otherwise would send each other's calls in circles.
    #[test]
    fn the_hash_of_a_key_never_changes() {
        let id = |table: &str, key: &str| KeyId {
            table: TableName::parse(table).unwrap(),
            key: Key::parse(key, 99).unwrap(),
        };
        // FNV-1a, 64 bits, of "a" as published.
        assert_eq!(NameHash::of("a".bytes()), NameHash(0xaf63_dc4c_8601_ec8c));
        assert_eq!(
            id("default", "orders-1").name_hash(),
            NameHash::of("default\0orders-1".bytes())
        );
        assert_ne!(id("a", "bc").name_hash(), id("ab", "c").name_hash());
    }

    #[test]
    fn a_table_name_fits_every_store() {
        for good in ["default", "A", "orders_2", &"t".repeat(40)] {
            assert!(TableName::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "1a", "_a", "a-b", "a b", "ü", &"t".repeat(41)] {
            assert!(TableName::parse(bad).is_err(), "{bad}");
        }
    }
}
