//! The homes of keys, as answers named them. If the home of a key is one of the endpoints, calls about the key go there directly,
//! which saves the service a step (H10).

use std::collections::HashMap;

use fermata_proto::HOME_ADDRESS;
use parking_lot::Mutex;
use tonic::metadata::MetadataMap;

/// The most keys with a known home. Beyond that all are forgotten, and their next calls take one more step.
const HOMES_MAX: usize = 10_000;

/// The numbers of the endpoints of homes that are not the replica in use, by key.
#[derive(Debug, Default)]
pub(crate) struct Homes(Mutex<HashMap<Box<str>, usize>>);

/// The characters of a key that stand in a lockRef as they are, beside letters and digits; all others stand as `%XX`.
const PLAIN: &str = "-_.~:/=+,";

/// The key in a lockRef, with its table.
pub(crate) fn key_of(lock_ref: &str) -> &str {
    lock_ref.rsplit_once('#').map_or(lock_ref, |(key, _)| key)
}

/// The key with its table, without a lockRef; an empty table is the default one.
pub(crate) fn key_in(table: &str, key: &str) -> String {
    let table = if table.is_empty() { "default" } else { table };
    let mut text = format!("{table}/");
    for byte in key.bytes() {
        match byte.is_ascii_alphanumeric() || PLAIN.contains(char::from(byte)) {
            true => text.push(char::from(byte)),
            false => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// The address of the home for clients, if an answer names it.
pub(crate) fn address(metadata: &MetadataMap) -> Option<&str> {
    metadata.get(HOME_ADDRESS)?.to_str().ok()
}

impl Homes {
    /// The number of the home, unless it is the replica in use.
    pub(crate) fn of(&self, key: &str) -> Option<usize> {
        self.0.lock().get(key).copied()
    }

    /// Notes an answer that names the home; `None` for the replica in use. (A late answer of an earlier home costs the next call
    /// a step.)
    pub(crate) fn note(&self, key: &str, home: Option<usize>) {
        let mut known = self.0.lock();
        let Some(home) = home else {
            known.remove(key);
            return;
        };
        if known.len() >= HOMES_MAX && !known.contains_key(key) {
            known.clear();
        }
        known.insert(key.into(), home);
    }

    pub(crate) fn forget(&self, key: &str) {
        self.0.lock().remove(key);
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
            homes.note(&number.to_string(), Some(1));
        }
        assert_eq!(homes.0.lock().len(), 1);
        homes.note(&HOMES_MAX.to_string(), Some(2));
        assert_eq!(homes.of(&HOMES_MAX.to_string()), Some(2));
        homes.forget(&HOMES_MAX.to_string());
        assert_eq!(homes.of(&HOMES_MAX.to_string()), None);
    }
}
