//! The lockRef: one entry in one key's queue, as the opaque text that clients carry.
//!
//! `table/key#seq.tag[@grant]`, the key percent-encoded in one spelling only, so that two texts are
//! equal exactly when the lockRefs are.

use std::fmt;
use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use uuid::Uuid;

use super::fence::Fence;
use super::key::{InvalidKey, Key, KeyId, TableName};
use super::state::Seq;

/// What of a key is written as `%XX`: all but letters, digits and these.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b':')
    .remove(b'/')
    .remove(b'=')
    .remove(b'+')
    .remove(b',');

/// Letters and digits without those that are mistaken for each other (Crockford's base 32).
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const TAG_CHARS: usize = 8;

/// 40 bits of the request_id that made an entry: a lockRef cannot be guessed from its number, and one
/// of an earlier life of the key does not match.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(u64);

impl Tag {
    /// The tag of the entry that this request_id makes. All 128 bits count, since some kinds of UUID
    /// keep large parts constant (the finishing steps of MurmurHash3 mix them).
    pub fn of(request_id: Uuid) -> Tag {
        let (high, low) = request_id.as_u64_pair();
        let mut x = high ^ low.rotate_left(32);
        for salt in [low, high] {
            x ^= x >> 33;
            x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
            x ^= x >> 33;
            x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
            x ^= x >> 33;
            x = x.wrapping_add(salt);
        }
        Tag(x >> 24)
    }

    /// The tag with these 40 bits, as a store keeps it; `None` for a larger number.
    pub fn from_bits(bits: u64) -> Option<Tag> {
        (bits >> 40 == 0).then_some(Tag(bits))
    }

    /// Its 40 bits.
    pub fn bits(self) -> u64 {
        self.0
    }

    fn parse(text: &str) -> Option<Tag> {
        if text.len() != TAG_CHARS {
            return None;
        }
        let mut bits = 0u64;
        for byte in text.bytes() {
            let digit = ALPHABET.iter().position(|a| *a == byte)?;
            bits = (bits << 5) | digit as u64;
        }
        Some(Tag(bits))
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for at in (0..TAG_CHARS).rev() {
            let digit = (self.0 >> (5 * at)) & 31;
            write!(f, "{}", char::from(ALPHABET[digit as usize]))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One entry in one key's queue; with a grant once it became holder (I11).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LockRef {
    /// The table.
    pub table: TableName,
    /// The key.
    pub key: Key,
    /// The number of its entry in the queue.
    pub seq: Seq,
    /// The part that cannot be guessed.
    pub tag: Tag,
    /// The fence it was given when it became holder.
    pub grant: Option<Fence>,
}

/// Why a text is no lockRef.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a lockRef: {0} (it looks like default/orders-42#17.k3vt9p2q, as CreateLockRef gave it)"
)]
pub struct LockRefError(LockRefFault);

/// What is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum LockRefFault {
    #[error("{0}")]
    Malformed(&'static str),
    #[error(
        "it has {bytes} bytes, and none has more than {}",
        LockRef::TEXT_BYTES_MAX
    )]
    TooLong { bytes: usize },
    #[error("its key has {bytes} bytes, and none has more than {}", Key::BYTES_MAX)]
    KeyTooLong { bytes: usize },
}

fn malformed(what: &'static str) -> LockRefError {
    LockRefError(LockRefFault::Malformed(what))
}

impl LockRef {
    /// The longest text of any lockRef, in bytes.
    pub const TEXT_BYTES_MAX: usize = TableName::BYTES_MAX + 3 * Key::BYTES_MAX + 64;

    /// The key that it is of.
    pub fn key_id(&self) -> KeyId {
        KeyId {
            table: self.table.clone(),
            key: self.key.clone(),
        }
    }

    /// The same entry without its grant: what names it to people, and its session where it has none.
    #[must_use]
    pub fn without_grant(&self) -> LockRef {
        LockRef {
            grant: None,
            ..self.clone()
        }
    }

    /// The same entry with a grant.
    #[must_use]
    pub fn with_grant(&self, grant: Fence) -> LockRef {
        LockRef {
            grant: Some(grant),
            ..self.clone()
        }
    }
}

impl fmt::Display for LockRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}#{}.{}",
            self.table,
            utf8_percent_encode(self.key.as_str(), ENCODED),
            self.seq,
            self.tag
        )?;
        match self.grant {
            Some(grant) => write!(f, "@{grant}"),
            None => Ok(()),
        }
    }
}

/// A positive decimal number in its one spelling: no sign, no leading zero.
fn number(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !plain || text.starts_with('0') {
        return None;
    }
    text.parse().ok()
}

impl FromStr for LockRef {
    type Err = LockRefError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > Self::TEXT_BYTES_MAX {
            return Err(LockRefError(LockRefFault::TooLong { bytes: text.len() }));
        }
        let (table, rest) = text
            .split_once('/')
            .ok_or(malformed("it has no '/' after the table"))?;
        let table =
            TableName::parse(table).map_err(|_| malformed("its table name is malformed"))?;
        let (key_text, entry) = rest
            .rsplit_once('#')
            .ok_or(malformed("it has no '#' after the key"))?;
        let key = percent_decode_str(key_text)
            .decode_utf8()
            .map_err(|_| malformed("its key is not UTF-8"))?;
        let key = Key::parse(&key, Key::BYTES_MAX).map_err(|error| match error {
            InvalidKey::TooLong { bytes, .. } => LockRefError(LockRefFault::KeyTooLong { bytes }),
            InvalidKey::Empty { .. } | InvalidKey::Control { .. } => {
                malformed("its key is malformed")
            }
        })?;
        if utf8_percent_encode(key.as_str(), ENCODED).to_string() != key_text {
            return Err(malformed("its key is not in the canonical spelling"));
        }
        let (seq, rest) = entry
            .split_once('.')
            .ok_or(malformed("it has no '.' after the number"))?;
        let seq = number(seq)
            .filter(|n| *n <= Seq::LAST.0)
            .ok_or(malformed("its number is malformed"))?;
        let (tag, grant) = match rest.split_once('@') {
            Some((tag, grant)) => (tag, Some(grant)),
            None => (rest, None),
        };
        let tag = Tag::parse(tag).ok_or(malformed("its tag is malformed"))?;
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
            table,
            key,
            seq: Seq(seq),
            tag,
            grant,
        })
    }
}

#[cfg(test)]
mod tests;
