//! Tokens of identities, by their hashes alone.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};

/// The prefix of every token, so that it is recognized where it does not belong.
const PREFIX: &str = "fmt_";
/// How many random bytes it has.
const RANDOM_BYTES: usize = 32;
/// A longer one is none.
const BYTES_MAX: usize = 4096;
/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// What stands before the hash, in the file.
const HASHED: &str = "sha256:";

/// What is kept of a token.
pub(super) type Hash = [u8; 32];

/// The identity of each token, by hash.
#[derive(Default)]
pub struct Tokens(HashMap<Hash, Arc<str>>);

/// Why a text is not a list of tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// A line is not a name and a hash.
    #[error(
        "line {line} is not NAME sha256:HEX, with a name of 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' or '-', and 64 \
         hexadecimal digits (`fermata token NAME --out FILE` makes one)"
    )]
    Malformed {
        /// Which, from 1.
        line: usize,
    },
    /// The hash of an empty token.
    #[error("line {line} has the hash of an empty token, as from an unset variable")]
    Empty {
        /// Which, from 1.
        line: usize,
    },
    /// Two identities would have one token.
    #[error("line {line} repeats a token that belongs to another name")]
    Twice {
        /// Which, from 1.
        line: usize,
    },
}

impl Tokens {
    /// Reads a file of tokens: a name and the hash of a token a line; empty lines and comments (`#`) are ignored. A name may have
    /// several tokens, so that a new one can replace an old one.
    pub fn parse(text: &str) -> Result<Tokens, TokenError> {
        let mut tokens = HashMap::new();
        for (line, said) in (1..).zip(text.lines()) {
            let said = said.trim();
            if said.is_empty() || said.starts_with('#') {
                continue;
            }
            let parsed = named(said).ok_or(TokenError::Malformed { line })?;
            let (name, hash) = parsed;
            if hash == hash_of(b"") {
                return Err(TokenError::Empty { line });
            }
            let before = tokens.insert(hash, Arc::from(name));
            if before.is_some_and(|before: Arc<str>| *before != *name) {
                return Err(TokenError::Twice { line });
            }
        }
        Ok(Tokens(tokens))
    }

    /// The identity of a token, and its hash. The time that this takes says nothing of the listed tokens: the looked-up hash
    /// cannot be chosen.
    pub(super) fn find(&self, token: &[u8]) -> Option<(Arc<str>, Hash)> {
        if token.len() > BYTES_MAX {
            return None;
        }
        let hash = hash_of(token);
        let (known, name) = self.0.get_key_value(&hash)?;
        verify_slices_are_equal(known, &hash).ok()?;
        Some((Arc::clone(name), hash))
    }

    /// Whether this identity still has that token.
    pub(super) fn has(&self, identity: &str, hash: &Hash) -> bool {
        self.0.get(hash).is_some_and(|name| **name == *identity)
    }
}

/// Neither names nor hashes.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens", self.0.len())
    }
}

fn named(line: &str) -> Option<(&str, Hash)> {
    let (name, hash) = line.split_once(char::is_whitespace)?;
    is_name(name).then_some(())?;
    let hex = hash.trim().strip_prefix(HASHED)?;
    let mut hash = Hash::default();
    if hex.len() != 2 * hash.len() || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some((name, hash))
}

fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain)
}

fn hash_of(token: &[u8]) -> Hash {
    let mut hash = Hash::default();
    hash.copy_from_slice(digest(&SHA256, token).as_ref());
    hash
}

/// A token that was just made.
pub struct NewToken {
    /// The token, for its client.
    pub token: String,
    /// Its line for the file of the server.
    pub line: String,
}

impl NewToken {
    /// A token for this name, of these random bytes; `None` if the name is not valid.
    pub fn new(name: &str, random: [u8; RANDOM_BYTES]) -> Option<NewToken> {
        is_name(name).then_some(())?;
        let token = format!("{PREFIX}{}", hex(&random));
        let line = format!("{name} {HASHED}{}", hex(&hash_of(token.as_bytes())));
        Some(NewToken { token, line })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
