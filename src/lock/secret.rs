//! The secret that lets a client act for its entry or session, and the digest that the service keeps.
//!
//! A lockRef and the text of a session end in a [`Secret`]. It is made of the request_id and of its sender's identity, and only that
//! client gets it. The service keeps a digest of the secret and the identity: the [`Tag`] of an entry, the [`SessionId`] of a session.
//! Nobody can compute the secret from these. So nothing in a store, a log or a listing lets anybody act for an entry or a
//! session. With another identity the same secret makes another tag, and another id.

use std::fmt;

use aws_lc_rs::digest::{Context, SHA256};
use uuid::{Builder, Uuid};

use super::key::{KeyId, NameHash};

/// Letters and digits without look-alikes (Crockford's base 32).
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// A bit of the first digit of a text, beside three of the 128 bits.
const BOUND: u128 = 8;

/// 128 bits, given only to the client that created an entry or opened a session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret {
    bits: u128,
    /// It was made for an identity, and works for no other. Otherwise it works for every bearer.
    bound: bool,
}

impl Secret {
    /// The length of its text, in bytes.
    pub const TEXT_BYTES: usize = 26;

    /// The secret of the entry that this client creates on this key by this request: the same for every repeat.
    pub fn of_entry(identity: &str, id: &KeyId, request_id: Uuid) -> Secret {
        let (table, key) = (id.table.as_str(), id.key.as_str());
        Secret {
            bits: digest("entry", request_id.as_bytes(), &[identity, table, key]),
            bound: !identity.is_empty(),
        }
    }

    /// The secret of the session that this client opens by this request: the same for every repeat.
    pub fn of_session(identity: &str, request_id: Uuid) -> Secret {
        Secret {
            bits: digest("session", request_id.as_bytes(), &[identity]),
            bound: !identity.is_empty(),
        }
    }

    /// The tag of this secret's entry, as this identity gives it. By it a repeated request finds its entry (I5), and a lockRef is
    /// known as its client's (I11).
    pub fn tag(&self, identity: &str) -> Tag {
        Tag(self.kept("tag", identity))
    }

    /// The session of this secret, as this identity gives it.
    pub fn session(&self, identity: &str) -> SessionId {
        let bits = self.kept("session id", identity);
        SessionId(Builder::from_custom_bytes(bits.to_be_bytes()).into_uuid())
    }

    fn kept(&self, what: &str, identity: &str) -> u128 {
        let of = if self.bound {
            ["bound", identity]
        } else {
            ["free", ""]
        };
        digest(what, &self.bits.to_be_bytes(), &of)
    }

    /// The text of the session, only for the client of this secret.
    pub fn session_text(&self, identity: &str) -> String {
        format!("{}.{}", self.session(identity), self.text())
    }

    /// The secret in a text; `None` if the text is malformed.
    pub fn parse(text: &str) -> Option<Secret> {
        if text.len() != Self::TEXT_BYTES {
            return None;
        }
        let mut digits = text.bytes().map(|byte| {
            let digit = ALPHABET.iter().position(|a| *a == byte)?;
            u128::try_from(digit).ok()
        });
        let first = digits.next()??;
        if first >= 2 * BOUND {
            return None;
        }
        let mut bits = first % BOUND;
        for digit in digits {
            bits = (bits << 5) | digit?;
        }
        Some(Secret {
            bits,
            bound: first >= BOUND,
        })
    }

    /// Its text, only for its client.
    pub fn text(&self) -> String {
        let first = (self.bits >> 125) | if self.bound { BOUND } else { 0 };
        let rest = (0..Self::TEXT_BYTES - 1).rev();
        let digits = rest.map(|at| (self.bits >> (5 * at)) % 32);
        let digits = std::iter::once(first).chain(digits);
        digits.map(letter).collect()
    }
}

fn letter(digit: u128) -> char {
    let at = usize::try_from(digit % 32).unwrap_or_default();
    char::from(ALPHABET[at])
}

/// A client's session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub Uuid);

impl SessionId {
    /// The id of no session: all others are UUIDs of another kind.
    const OF_NONE: SessionId = SessionId(Uuid::max());

    /// The session in a text, as this identity gives it: its id, a dot and its secret. With a secret of another id or another
    /// client it is a session that never existed.
    pub fn parse(text: &str, identity: &str) -> Option<SessionId> {
        let (id, secret) = text.split_once('.')?;
        let named = Uuid::try_parse(id)
            .ok()
            .filter(|named| named.to_string() == id)?;
        let session = Secret::parse(secret)?.session(identity);
        Some(if session.0 == named {
            session
        } else {
            SessionId::OF_NONE
        })
    }
    /// The hash that ranks replicas as its keeper.
    pub fn name_hash(self) -> NameHash {
        NameHash::of(self.0.as_bytes().iter().copied())
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Hides the bits: printing a secret is a mistake.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The digest of an entry's secret, kept by the service. It lets nobody act. A lockRef with a guessed number, or from an earlier
/// life of the key, has another tag, unless the same request made it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(u128);

impl Tag {
    /// The tag with these bits.
    pub fn from_bits(bits: u128) -> Tag {
        Tag(bits)
    }

    /// The tag with these bytes, as a store keeps it; `None` unless there are 16.
    pub fn from_slice(bytes: &[u8]) -> Option<Tag> {
        let bytes = <[u8; 16]>::try_from(bytes).ok()?;
        Some(Tag(u128::from_be_bytes(bytes)))
    }

    /// Its bytes.
    pub fn bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The first 128 bits of a SHA-256 over all arguments, joined unambiguously.
fn digest(what: &str, bits: &[u8; 16], texts: &[&str]) -> u128 {
    let mut context = Context::new(&SHA256);
    context.update(b"fermata ");
    context.update(what.as_bytes());
    context.update(&[0]);
    context.update(bits);
    for text in texts {
        let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
        context.update(&bytes.to_be_bytes());
        context.update(text.as_bytes());
    }
    let digest = context.finish();
    let first = digest.as_ref().iter().take(16);
    first.fold(0, |bits, byte| (bits << 8) | u128::from(*byte))
}

#[cfg(test)]
mod tests;
