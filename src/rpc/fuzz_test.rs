//! What the parsers at the edge promise: one spelling of a page token, and errors that name their field.

use std::fmt::{Debug, Display};
use std::str::FromStr;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use uuid::Uuid;

use super::deadline::Deadline;
use super::page::{self, Listing};
use super::parse::{self, FieldProblem, Invalid};
use crate::engine::LeaseId;
use crate::limits::Limits;
use crate::lock::{LockRef, SessionId};

/// The longest error about a field, in bytes: it does not repeat what was given.
const ERROR_BYTES_MAX: usize = 250;

/// A page token. The bytes are one, and also the position in a listing that one is made for; what follows a 0 in them
/// says how that one is touched: at which character, and what is put there.
pub fn page_token(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let listing = Listing::new("ListLocks", &["orders", "a", "all"]);
    is_its_only_spelling(&listing, text);
    let (cursor, touch) = text.split_once('\0').unwrap_or((text, ""));
    let mut token = listing.token(cursor);
    let read = listing.after(&token);
    assert_eq!(read, Ok(Some(cursor.to_owned())));
    let other = Listing::new("ListLocks", &["orders", "", "all"]);
    assert!(other.after::<String>(&token).is_err());
    let mut touch = touch.chars();
    if let Some(at) = touch.next() {
        let mut at = u32::from(at) as usize % token.len();
        while !token.is_char_boundary(at) {
            at -= 1;
        }
        token.replace_range(at.., touch.as_str());
        is_its_only_spelling(&listing, &token);
    }
}

fn is_its_only_spelling(listing: &Listing, token: &str) {
    let key = page::key_after(listing, token);
    if let Some(key) = read(token, key) {
        assert_eq!(listing.token(key.as_str()), token);
    }
    spells::<String>(listing, token);
    spells::<Uuid>(listing, token);
    spells::<u64>(listing, token);
}

fn spells<C: FromStr + Display>(listing: &Listing, token: &str) {
    if let Some(cursor) = read(token, listing.after::<C>(token)) {
        assert_eq!(listing.token(&cursor.to_string()), token);
    }
}

fn read<C>(token: &str, after: Result<Option<C>, Invalid>) -> Option<C> {
    match after {
        Ok(cursor) => {
            assert_eq!(cursor.is_none(), token.is_empty());
            cursor
        }
        Err(error) => {
            assert_eq!(error.field, "page_token");
            assert!(matches!(error.problem, FieldProblem::Malformed(_)));
            None
        }
    }
}

/// The other fields of requests: twelve bytes are a span and a number, the others are a text.
pub fn request_fields(bytes: &[u8]) {
    let (seconds, rest) = number(bytes);
    let (nanos, rest) = number(rest);
    if let Ok(text) = std::str::from_utf8(rest) {
        texts(text);
        deadline(text);
    }
    spans(prost_types::Duration {
        seconds: i64::from_be_bytes(seconds),
        nanos: i32::from_be_bytes(nanos),
    });
}

/// The next number of the input; what it lacks is 0.
fn number<const BYTES: usize>(bytes: &[u8]) -> ([u8; BYTES], &[u8]) {
    let mut number = [0; BYTES];
    let (given, rest) = bytes.split_at(bytes.len().min(BYTES));
    number[..given.len()].copy_from_slice(given);
    (number, rest)
}

fn texts(text: &str) {
    let limits = Limits::default();
    let as_given = |parsed: Option<String>| assert!(parsed.is_none_or(|parsed| parsed == text));
    let key = taken("key", parse::key_id(text, "", &limits));
    as_given(key.map(|id| id.key.as_str().to_owned()));
    let table = taken("table", parse::table(text));
    assert!(table.is_none_or(|table| table.as_str() == text || text.is_empty()));
    taken("lock_ref", parse::lock_ref(text, "who"));
    let name = taken("name", parse::entry_name(text));
    as_given(name.map(|name| name.to_string()));
    as_given(taken("owner", parse::owner(text.to_owned(), &limits)));
    as_given(taken(
        "forced_by",
        parse::forced_by(text.to_owned(), &limits),
    ));
    as_given(taken("reason", parse::reason(text.to_owned(), &limits)));
    as_given(taken(
        "key_prefix",
        parse::key_prefix(text.to_owned(), &limits),
    ));
    let made = Uuid::from_u128(7);
    let request_id = taken("request_id", parse::request_id(text, || made));
    assert!(request_id.is_none_or(|id| names(text, id) || (text.is_empty() && id == made)));
    let session = taken("session", parse::session(text, "who"));
    assert_eq!(session, SessionId::parse(text, "who"));
    match taken("session", parse::lease(text, "who")) {
        Some(LeaseId::Session(id)) => assert_eq!(session, Some(id)),
        Some(LeaseId::LockRef(lock_ref)) => {
            let whole = LockRef::parse(text, "who").map(|whole| whole.without_grant());
            assert_eq!(whole, Ok(lock_ref));
        }
        None => assert_eq!(session, None),
    }
}

fn names(text: &str, id: Uuid) -> bool {
    Uuid::try_parse(text) == Ok(id)
}

/// What was taken; what was not names its field.
fn taken<T: Debug>(field: &str, parsed: Result<T, Invalid>) -> Option<T> {
    parsed
        .map_err(|error| {
            assert_eq!(error.field, field);
            let answered = error.to_string();
            assert!(
                answered.starts_with(field) && answered.len() <= ERROR_BYTES_MAX,
                "{answered}"
            );
        })
        .ok()
}

fn spans(given: prost_types::Duration) {
    let limits = Limits::default();
    if let Some(ms) = taken("ttl", parse::ttl_ms(Some(&given), &limits)) {
        assert!((limits.ttl_min_ms..=limits.ttl_max_ms).contains(&ms));
        is_rounded_up(&given, ms);
    }
    let ttl_ms = limits.ttl_default_ms;
    let grace = parse::disconnect_grace_ms(Some(&given), ttl_ms, &limits);
    if let Some(ms) = taken("disconnect_grace", grace) {
        assert!((limits.disconnect_grace_min_ms..=ttl_ms).contains(&ms));
        is_rounded_up(&given, ms);
    }
    if let Some(wait) = taken("wait", parse::wait(Some(&given), &limits)) {
        assert!(wait <= limits.wait_max());
    }
    taken("mode", parse::mode(given.nanos));
    if let Some(size) = taken("page_size", page::size(given.nanos, &limits)) {
        assert!((1..=limits.page_size_max).contains(&size));
    }
}

fn is_rounded_up(given: &prost_types::Duration, ms: u32) {
    let nanos = i128::from(given.seconds) * 1_000_000_000 + i128::from(given.nanos);
    let taken = i128::from(ms) * 1_000_000;
    assert!(
        (taken - 999_999..=taken).contains(&nanos),
        "{given:?}: {ms}"
    );
}

/// The deadline of a call: whatever its header says, there is one to answer by, and it is not after the caller's.
fn deadline(text: &str) {
    let Ok(value) = HeaderValue::from_str(text) else {
        return;
    };
    let deadline = Deadline::of_headers(&HeaderMap::from_iter([(
        http::HeaderName::from_static("grpc-timeout"),
        value,
    )]));
    deadline.answer_within(Duration::from_secs(10));
    for earlier in [
        deadline.wait_until(),
        deadline.answer_by(),
        deadline.last_chance(),
    ] {
        assert!(earlier <= deadline.at(), "{text:?}");
    }
}
