//! Which replica is the home of which key, as answers said it: calls about the key go there at once, where that replica is
//! one of the endpoints, and spare the service a step (H10).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fermata_proto::{HOME_ADDRESS, HOME_TERM};
use tonic::metadata::MetadataMap;

/// Of so many keys at most it is known. Where there are more, all are forgotten: their next calls take a step more.
const HOMES_MAX: usize = 10_000;

/// The homes that are not the replica in use, by key.
#[derive(Debug, Default)]
pub(super) struct Homes(Mutex<HashMap<Box<str>, Home>>);

/// What is remembered of a home.
#[derive(Debug, Clone, Copy)]
struct Home {
    /// The number of its endpoint.
    at: usize,
    /// Its term, which rises with every change of home.
    term: u64,
}

/// What of a key stands in a lockRef as it is, beside letters and digits; all else as `%XX`.
const PLAIN: &[u8] = b"-_.~:/=+,";

/// What a lockRef says of its key.
pub(super) fn key_of(lock_ref: &str) -> &str {
    lock_ref.rsplit_once('#').map_or(lock_ref, |(key, _)| key)
}

/// The same of a key that has no lockRef yet; in the default table where none is named.
pub(super) fn key_in(table: &str, key: &str) -> String {
    let table = if table.is_empty() { "default" } else { table };
    let mut text = format!("{table}/");
    for byte in key.bytes() {
        match byte.is_ascii_alphanumeric() || PLAIN.contains(&byte) {
            true => text.push(char::from(byte)),
            false => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// Where the home takes calls of clients, where an answer says so.
pub(super) fn address(metadata: &MetadataMap) -> Option<&str> {
    metadata.get(HOME_ADDRESS)?.to_str().ok()
}

/// Its term; 0 where an answer says none.
pub(super) fn term(metadata: &MetadataMap) -> u64 {
    let term = metadata.get(HOME_TERM).and_then(|term| term.to_str().ok());
    term.and_then(|term| term.parse().ok()).unwrap_or(0)
}

impl Homes {
    fn known(&self) -> MutexGuard<'_, HashMap<Box<str>, Home>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the replica that is the home, where that is not the one in use.
    pub(super) fn of(&self, key: &str) -> Option<usize> {
        self.known().get(key).map(|home| home.at)
    }

    /// An answer says who the home is in this term; `None` for the replica in use. One of the home before, which comes late,
    /// says nothing.
    pub(super) fn note(&self, key: &str, at: Option<usize>, term: u64) {
        let mut known = self.known();
        let before = known.get(key).map(|home| home.term);
        if before.is_some_and(|before| before > term) {
            return;
        }
        let Some(at) = at else {
            known.remove(key);
            return;
        };
        if before.is_none() && known.len() >= HOMES_MAX {
            known.clear();
        }
        known.insert(key.into(), Home { at, term });
    }

    pub(super) fn forget(&self, key: &str) {
        self.known().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_with_and_without_a_lock_ref() {
        assert_eq!(key_of("default/demo#1.8nw0wh0k"), "default/demo");
        assert_eq!(key_in("", "demo"), "default/demo");
        assert_eq!(key_in("other", "demo"), "other/demo");
        let encoded = "default/orders/a%23b%20%C3%A4-_.~:=+,";
        assert_eq!(key_of(&format!("{encoded}#7.8nw0wh0k@12")), encoded);
        assert_eq!(key_in("", "orders/a#b ä-_.~:=+,"), encoded);
    }

    #[test]
    fn no_more_homes_are_remembered_than_there_is_room_for() {
        let homes = Homes::default();
        for number in 0..HOMES_MAX + 1 {
            homes.note(&number.to_string(), Some(1), 1);
        }
        assert_eq!(homes.known().len(), 1);
        homes.note(&HOMES_MAX.to_string(), Some(2), 1);
        assert_eq!(homes.of(&HOMES_MAX.to_string()), Some(2));
        homes.forget(&HOMES_MAX.to_string());
        assert_eq!(homes.of(&HOMES_MAX.to_string()), None);
    }

    #[test]
    fn what_the_home_before_says_late_is_not_believed() {
        let homes = Homes::default();
        homes.note("k", Some(2), 7);
        for late in [Some(1), None] {
            homes.note("k", late, 6);
            assert_eq!(homes.of("k"), Some(2));
        }
        homes.note("k", None, 8);
        assert_eq!(homes.of("k"), None);
    }
}
