//! Pages of listings: their number of entries, their start, and their size in bytes.
//!
//! A page token names the last entry of the page before, bound to its listing: with another table or filter it is refused rather
//! than misread. It is opaque to clients, and no secret.

use std::fmt::Display;
use std::str::FromStr;

use twox_hash::XxHash3_64;

use super::parse::{FieldProblem, Invalid, at};
use crate::engine::Page;
use crate::limits::Limits;
use crate::lock::Key;

/// The size of the entries of one page, in bytes: well below the default limit of gRPC clients, 4 MiB.
const PAGE_BYTES_MAX: usize = 1024 * 1024;

/// The length of the checksum of a token. The last entry of the page before follows it.
const SUM_CHARS: usize = 16;

/// The default number of entries on a page.
const SIZE_DEFAULT: usize = 100;

/// `page_size`: the default where 0, capped by the server.
pub fn size(asked: i32, limits: &Limits) -> Result<usize, Invalid> {
    most("page_size", asked, SIZE_DEFAULT, limits)
}

/// The number of entries in a field of this name: as [`size`].
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

/// One listing with its filters, which a token belongs to.
#[derive(Clone, Debug)]
pub struct Listing(String);

impl Listing {
    /// The listing of this method with these filters, in a fixed order.
    pub fn new(method: &str, filters: &[&str]) -> Listing {
        Listing(format!("{method}\0{}\0", filters.join("\0")))
    }

    /// The token of the page that begins above `cursor`.
    pub fn token(&self, cursor: &str) -> String {
        let sum = XxHash3_64::oneshot(format!("{}{cursor}", self.0).as_bytes());
        format!("{sum:016x}{cursor}")
    }

    /// `page_token`: the last entry of the page before; `None` for the first page.
    pub fn after<C: FromStr + Display>(&self, token: &str) -> Result<Option<C>, Invalid> {
        if token.is_empty() {
            return Ok(None);
        }
        // One spelling only, of the token and of what it names.
        let cursor = token
            .get(SUM_CHARS..)
            .and_then(|cursor| cursor.parse().ok());
        let cursor = cursor.filter(|cursor: &C| self.token(&cursor.to_string()) == token);
        at("page_token", cursor.ok_or_else(foreign)).map(Some)
    }
}

fn foreign() -> FieldProblem {
    let why = "not a page token of this listing; pass next_page_token of the previous page, with the other fields unchanged";
    FieldProblem::Malformed(why.to_owned())
}

/// The messages of a page, at most `limit` and as far as their size allows, and whether there are more. The first one always
/// fits.
pub fn fill<M: prost::Message>(messages: impl Iterator<Item = M>, limit: usize) -> (Vec<M>, bool) {
    let (mut page, mut bytes) = (Vec::new(), 0usize);
    for message in messages {
        bytes = bytes.saturating_add(message.encoded_len());
        if page.len() == limit || (!page.is_empty() && bytes > PAGE_BYTES_MAX) {
            return (page, true);
        }
        page.push(message);
    }
    (page, false)
}

/// A page of the engine as messages, and the cursor of the next page: at the cut for its size, else the `next` of the engine.
pub fn filled<T, C, M: prost::Message>(
    page: Page<T, C>,
    cursor: impl Fn(&T) -> C,
    message: impl Fn(T) -> M,
) -> (Vec<M>, Option<C>) {
    let mut cursors: Vec<C> = page.items.iter().map(cursor).collect();
    let (messages, is_cut) = fill(page.items.into_iter().map(message), usize::MAX);
    cursors.truncate(messages.len());
    match is_cut {
        true => (messages, cursors.pop()),
        false => (messages, page.next),
    }
}

/// `page_token` of a listing of keys.
pub fn key_after(listing: &Listing, token: &str) -> Result<Option<Key>, Invalid> {
    match listing.after::<String>(token)? {
        None => Ok(None),
        Some(text) => {
            let key = Key::parse(&text, Key::BYTES_MAX).map_err(|_| foreign());
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
    fn a_page_size_is_capped_and_never_negative() {
        let limits = Limits::default();
        assert_eq!(size(0, &limits), Ok(100));
        assert_eq!(size(7, &limits), Ok(7));
        assert_eq!(size(i32::MAX, &limits), Ok(1_000));
        assert_eq!(
            size(-1, &limits).map_err(|e| (e.field, e.problem)),
            Err(("page_size", FieldProblem::Negative))
        );
    }

    #[test]
    fn a_page_ends_before_it_is_too_large_for_a_client() {
        let table = Table {
            name: "x".repeat(600 * 1024),
        };
        let small = Table::default();
        let (page, is_cut) = fill([table.clone(), table.clone(), small].into_iter(), 9);
        assert_eq!((page.len(), is_cut), (1, true), "no entry may be left out");
        assert!(!fill([table].into_iter(), 9).1);
    }
}
