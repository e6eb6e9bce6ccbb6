//! Which replica is the home of which key, as answers said it: calls about the key go there at once, where that replica is
//! one of the endpoints, and spare the service a step (H10).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fermata_proto::HOME_ADDRESS;
use tonic::metadata::MetadataMap;

/// Of so many keys at most it is known. Where there are more, all are forgotten: their next calls take a step more.
const HOMES_MAX: usize = 10_000;

/// The homes that are not the replica in use, by key.
#[derive(Debug, Default)]
pub(super) struct Homes(Mutex<HashMap<Box<str>, usize>>);

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

impl Homes {
    fn known(&self) -> MutexGuard<'_, HashMap<Box<str>, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the replica that is the home, where that is not the one in use.
    pub(super) fn of(&self, key: &str) -> Option<usize> {
        self.known().get(key).copied()
    }

    pub(super) fn note(&self, key: &str, at: usize) {
        let mut known = self.known();
        if let Some(home) = known.get_mut(key) {
            *home = at;
            return;
        }
        if known.len() >= HOMES_MAX {
            known.clear();
        }
        known.insert(key.into(), at);
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
            homes.note(&number.to_string(), 1);
        }
        assert_eq!(homes.known().len(), 1);
        homes.note(&HOMES_MAX.to_string(), 2);
        assert_eq!(homes.of(&HOMES_MAX.to_string()), Some(2));
        homes.forget(&HOMES_MAX.to_string());
        assert_eq!(homes.of(&HOMES_MAX.to_string()), None);
    }
}
