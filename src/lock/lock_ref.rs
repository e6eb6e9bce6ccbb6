//! The name of an entry, and the lockRef, by which its client acts for it.
//!
//! A name is `table/key#seq`. The key is percent-encoded in one spelling only, so two texts are equal exactly if the names are. A
//! lockRef is a name with a secret, `table/key#seq.secret[@grant]`; see [`Secret`].

use std::fmt;
use std::str::FromStr;

use percent_encoding::{percent_decode_str, utf8_percent_encode};

use super::fence::Fence;
use super::key::{ENCODED, InvalidKey, Key, KeyId, TableName};
use super::secret::{Secret, Tag};
use super::state::Seq;

/// The name of an entry in the queue of a key. It is public: it lets nobody act.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EntryName {
    /// The table.
    pub table: TableName,
    /// The key.
    pub key: Key,
    /// Its number in the queue.
    pub seq: Seq,
}

/// An entry in the queue of a key, for its client to act on; with a grant once it held the key (I11). It prints as the name of
/// the entry.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LockRef {
    /// The table.
    pub table: TableName,
    /// The key.
    pub key: Key,
    /// The number of its entry in the queue.
    pub seq: Seq,
    /// The tag of its secret.
    pub tag: Tag,
    /// Its grant, once it held the key.
    pub grant: Option<Fence>,
}

/// Why a text is no lockRef.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a lockRef: {0} (a lockRef is a name such as default/orders-42#17, a dot and 26 characters, as CreateLockRef returned it)"
)]
pub struct LockRefError(LockRefFault);

/// Why a text is no name of an entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not the name of an entry: {0} (for example default/orders-42#17, as DescribeLock shows it)"
)]
pub struct EntryNameError(LockRefFault);

/// The fault of a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum LockRefFault {
    #[error("{0}")]
    Malformed(&'static str),
    #[error("it has {bytes} bytes; the limit is {}", LockRef::TEXT_BYTES_MAX)]
    TooLong { bytes: usize },
    #[error("its key has {bytes} bytes; the limit is {}", Key::BYTES_MAX)]
    KeyTooLong { bytes: usize },
}

fn malformed(what: &'static str) -> LockRefError {
    LockRefError(LockRefFault::Malformed(what))
}

impl EntryName {
    /// Its key.
    pub fn key_id(&self) -> KeyId {
        KeyId {
            table: self.table.clone(),
            key: self.key.clone(),
        }
    }
}

impl LockRef {
    /// The longest text of any lockRef, in bytes.
    pub const TEXT_BYTES_MAX: usize = TableName::BYTES_MAX + 3 * Key::BYTES_MAX + 96;

    /// The lockRef in a text, as this identity gives it.
    pub fn parse(text: &str, identity: &str) -> Result<LockRef, LockRefError> {
        let (name, rest) = name_in(text).map_err(LockRefError)?;
        let rest = rest.ok_or(malformed("it has no '.' after the number"))?;
        let (secret, grant) = match rest.split_once('@') {
            Some((secret, grant)) => (secret, Some(grant)),
            None => (rest, None),
        };
        let secret = Secret::parse(secret).ok_or(malformed("its secret is malformed"))?;
        let grant = match grant {
            Some(text) => Some(
                number(text)
                    .filter(|n| *n <= Fence::MAX)
                    .map(Fence)
                    .ok_or(malformed("its grant is malformed"))?,
            ),
            None => None,
        };
        Ok(LockRef {
            table: name.table,
            key: name.key,
            seq: name.seq,
            tag: secret.tag(identity),
            grant,
        })
    }

    /// Its text, only for the client of this secret.
    pub fn text(&self, secret: &Secret) -> String {
        with_grant(&format!("{self}.{}", secret.text()), self.grant)
    }

    /// Its key.
    pub fn key_id(&self) -> KeyId {
        KeyId {
            table: self.table.clone(),
            key: self.key.clone(),
        }
    }

    /// The name of its entry.
    pub fn name(&self) -> EntryName {
        EntryName {
            table: self.table.clone(),
            key: self.key.clone(),
            seq: self.seq,
        }
    }

    /// The same entry without its grant: the name of its lease, outside sessions.
    #[must_use]
    pub fn without_grant(&self) -> LockRef {
        LockRef {
            grant: None,
            ..self.clone()
        }
    }
}

/// The text of a lockRef from its client, with this grant.
pub fn with_grant(text: &str, grant: Option<Fence>) -> String {
    let (bare, _) = text.rsplit_once('@').unwrap_or((text, ""));
    match grant {
        Some(grant) => format!("{bare}@{grant}"),
        None => bare.to_owned(),
    }
}

impl fmt::Display for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(f, &self.table, &self.key, self.seq)
    }
}

impl fmt::Debug for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for LockRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(f, &self.table, &self.key, self.seq)
    }
}

impl fmt::Debug for LockRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn write_name(f: &mut fmt::Formatter<'_>, table: &TableName, key: &Key, seq: Seq) -> fmt::Result {
    let key = utf8_percent_encode(key.as_str(), ENCODED);
    write!(f, "{table}/{key}#{seq}")
}

/// A positive decimal number in its one spelling: no sign, no leading zero.
fn number(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !plain || text.starts_with('0') {
        return None;
    }
    text.parse().ok()
}

/// The name at the beginning of a text, and the rest after a dot, if there is one.
fn name_in(text: &str) -> Result<(EntryName, Option<&str>), LockRefFault> {
    if text.len() > LockRef::TEXT_BYTES_MAX {
        return Err(LockRefFault::TooLong { bytes: text.len() });
    }
    let malformed = LockRefFault::Malformed;
    let (table, rest) = text
        .split_once('/')
        .ok_or(malformed("it has no '/' after the table"))?;
    let table = TableName::parse(table).map_err(|_| malformed("its table name is malformed"))?;
    let (key_text, entry) = rest
        .rsplit_once('#')
        .ok_or(malformed("it has no '#' after the key"))?;
    let key = percent_decode_str(key_text)
        .decode_utf8()
        .map_err(|_| malformed("its key is not UTF-8"))?;
    let key = Key::parse(&key, Key::BYTES_MAX).map_err(|error| match error {
        InvalidKey::TooLong { bytes, .. } => LockRefFault::KeyTooLong { bytes },
        InvalidKey::Empty { .. } | InvalidKey::Control { .. } => malformed("its key is malformed"),
    })?;
    if utf8_percent_encode(key.as_str(), ENCODED).to_string() != key_text {
        return Err(malformed("its key is not in the canonical spelling"));
    }
    let (seq, rest) = match entry.split_once('.') {
        Some((seq, rest)) => (seq, Some(rest)),
        None => (entry, None),
    };
    let seq = number(seq)
        .filter(|n| *n <= Seq::LAST.0)
        .map(Seq)
        .ok_or(malformed("its number is malformed"))?;
    Ok((EntryName { table, key, seq }, rest))
}

impl FromStr for EntryName {
    type Err = EntryNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match name_in(text).map_err(EntryNameError)? {
            (name, None) => Ok(name),
            (_, Some(_)) => Err(EntryNameError(LockRefFault::Malformed(
                "there is text after its number, as in a lockRef",
            ))),
        }
    }
}

#[cfg(test)]
mod tests;
