//! Pages of listings: how many entries, from where on, and how many bytes they may take.
//!
//! A page token names the last entry of the page before, bound to the listing it came from: with another
//! table or filter it is refused rather than misread. It is opaque to clients, and no secret.

use std::fmt::Display;
use std::str::FromStr;

use super::parse::{FieldProblem, Invalid, at};
use crate::engine::Page;
use crate::limits::Limits;
use crate::lock::Key;

/// How large the entries of one page may grow, in bytes: well below the 4 MiB that clients take.
const PAGE_BYTES_MAX: usize = 1024 * 1024;

/// The longest token, in bytes: no cursor is longer than a key.
const TOKEN_BYTES_MAX: usize = SUM_CHARS + 2 * Key::BYTES_MAX;
/// How many digits the checksum has.
const SUM_CHARS: usize = 16;

/// How many entries on a page where the caller does not say.
pub const SIZE_DEFAULT: usize = 100;

/// `page_size`: the default where 0, capped by the server.
pub fn size(asked: i32, default: usize, limits: &Limits) -> Result<usize, Invalid> {
    most("page_size", asked, default, limits)
}

/// How many entries at most, in a field of this name: as [`size`].
pub fn most(
    field: &'static str,
    asked: i32,
    default: usize,
    limits: &Limits,
) -> Result<usize, Invalid> {
    let max = limits.page_size_max;
    match usize::try_from(asked) {
        Ok(0) => Ok(default.min(max)),
        Ok(asked) => Ok(asked.min(max)),
        Err(_) => at(field, Err(FieldProblem::Negative)),
    }
}

/// One listing with its filters: what a token must have come from.
#[derive(Clone, Debug)]
pub struct Listing(u64);

impl Listing {
    /// The listing of this method with these filters, in a fixed order.
    pub fn new(method: &str, filters: &[&str]) -> Listing {
        let mut sum = Checksum::default();
        sum.part(method);
        for filter in filters {
            sum.part(filter);
        }
        Listing(sum.0)
    }

    /// The token of the page that begins above `cursor`.
    pub fn token(&self, cursor: &str) -> String {
        let mut token = format!("{:016x}", self.sum(cursor));
        for byte in cursor.bytes() {
            token.push_str(&format!("{byte:02x}"));
        }
        token
    }

    /// `page_token`: where the page begins; `None` for the first one.
    pub fn after<C: FromStr + Display>(&self, token: &str) -> Result<Option<C>, Invalid> {
        if token.is_empty() {
            return Ok(None);
        }
        // One spelling only: neither of the token nor of what it names is there a second one.
        let cursor = cursor(token)
            .and_then(|cursor| cursor.parse().ok())
            .filter(|cursor: &C| self.token(&cursor.to_string()) == token)
            .ok_or(FieldProblem::PageToken);
        at("page_token", cursor).map(Some)
    }

    fn sum(&self, cursor: &str) -> u64 {
        let mut sum = Checksum(self.0);
        sum.part(cursor);
        sum.0
    }
}

/// What a token says that it names, whatever its checksum says of that.
fn cursor(token: &str) -> Option<String> {
    if token.len() > TOKEN_BYTES_MAX {
        return None;
    }
    let hex = token.get(SUM_CHARS..)?;
    let mut bytes = Vec::with_capacity(hex.len() / 2);
    for at in (0..hex.len()).step_by(2) {
        bytes.push(u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()?);
    }
    String::from_utf8(bytes).ok()
}

/// FNV-1a: the same on every replica and in every release.
struct Checksum(u64);

impl Default for Checksum {
    fn default() -> Self {
        Checksum(0xcbf2_9ce4_8422_2325)
    }
}

impl Checksum {
    fn part(&mut self, text: &str) {
        // 0xff is in no UTF-8: "ab","c" and "a","bc" differ.
        for byte in text.bytes().chain([0xff]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

/// Collects the entries of a page until it is large enough. The first entry always fits.
#[derive(Debug)]
pub struct Filling<T> {
    entries: Vec<T>,
    bytes: usize,
    full: bool,
}

impl<T: prost::Message> Filling<T> {
    /// An empty page.
    pub fn new() -> Self {
        Filling {
            entries: Vec::new(),
            bytes: 0,
            full: false,
        }
    }

    /// Adds an entry; false if the page was full without it.
    pub fn push(&mut self, entry: T) -> bool {
        let bytes = entry.encoded_len();
        if !self.entries.is_empty() && self.bytes.saturating_add(bytes) > PAGE_BYTES_MAX {
            self.full = true;
        }
        if self.full {
            return false;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.entries.push(entry);
        true
    }

    /// What is on it.
    pub fn entries(self) -> Vec<T> {
        self.entries
    }
}

impl<T: prost::Message> Default for Filling<T> {
    fn default() -> Self {
        Filling::new()
    }
}

/// A page of the engine as messages, and where the next one begins: where it was cut for its size, its
/// own `next` otherwise.
pub fn filled<T, C, M: prost::Message>(
    page: Page<T, C>,
    cursor: impl Fn(&T) -> C,
    message: impl Fn(T) -> M,
) -> (Vec<M>, Option<C>) {
    let mut filling = Filling::new();
    let mut last = None;
    for item in page.items {
        let at = cursor(&item);
        if !filling.push(message(item)) {
            return (filling.entries(), last);
        }
        last = Some(at);
    }
    (filling.entries(), page.next)
}

/// `page_token` of a listing of keys.
pub fn key_after(listing: &Listing, token: &str) -> Result<Option<Key>, Invalid> {
    match listing.after::<String>(token)? {
        None => Ok(None),
        Some(text) => {
            let key = Key::parse(&text, Key::BYTES_MAX).map_err(|_| FieldProblem::PageToken);
            at("page_token", key).map(Some)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_proto::Table;

    fn after(listing: &Listing, token: &str) -> Result<Option<String>, Invalid> {
        listing.after(token)
    }

    #[test]
    fn a_token_leads_to_the_next_page_of_its_own_listing_only() {
        let orders = Listing::new("ListLocks", &["orders", "a", "false"]);
        let token = orders.token("grüße/1");
        assert_eq!(after(&orders, &token), Ok(Some("grüße/1".to_owned())));
        assert_eq!(after(&orders, ""), Ok(None));
        for other in [
            Listing::new("ListLocks", &["orders", "a", "true"]),
            Listing::new("ListLocks", &["order", "sa", "false"]),
            Listing::new("ListSessions", &[]),
        ] {
            assert!(after(&other, &token).is_err());
        }
    }

    #[test]
    fn a_token_that_was_touched_is_refused() {
        let listing = Listing::new("ListSessions", &[]);
        let token = listing.token("abc");
        for bad in [
            "x".to_owned(),
            "ü".repeat(20),
            token.replace("61", "62"),
            format!("{token}6"),
            format!("{token}61"),
            token[..18].to_owned(),
            format!("{token}+1"),
            token.to_uppercase(),
            listing.token("\n").replace("0a", "+a"),
            listing.token(&"x".repeat(Key::BYTES_MAX + 1)),
        ] {
            assert_eq!(
                after(&listing, &bad).map_err(|e| e.problem),
                Err(FieldProblem::PageToken),
                "{bad}"
            );
        }
        assert!(listing.after::<u64>(&token).is_err());
        assert!(listing.after::<u64>(&listing.token("+5")).is_err());
    }

    #[test]
    fn a_page_size_is_capped_and_never_negative() {
        let limits = Limits::default();
        assert_eq!(size(0, 100, &limits), Ok(100));
        assert_eq!(size(7, 100, &limits), Ok(7));
        assert_eq!(size(i32::MAX, 100, &limits), Ok(1_000));
        assert_eq!(
            size(-1, 100, &limits).map_err(|e| (e.field, e.problem)),
            Err(("page_size", FieldProblem::Negative))
        );
    }

    #[test]
    fn a_page_ends_before_it_is_too_large_for_a_client() {
        let table = Table {
            name: "x".repeat(600 * 1024),
        };
        let mut page = Filling::new();
        assert!(page.push(table.clone()));
        assert!(!page.push(table));
        assert!(!page.push(Table::default()), "no entry may be left out");
        assert_eq!(page.entries().len(), 1);
    }
}
