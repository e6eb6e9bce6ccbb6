//! Counters: the value of a key says how often each client has counted there. What a client's count may be is known
//! exactly: an acknowledged increment is there once, one of unknown outcome once or not at all, and never later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use super::log::Log;

/// The counts in a value, and who wrote it: no two writes are the same.
pub fn parse(value: Option<&[u8]>, clients: usize) -> Vec<u64> {
    let text = value.map(String::from_utf8_lossy).unwrap_or_default();
    let counts = text.split(';').next().unwrap_or_default();
    let mut counts: Vec<u64> = counts
        .split(',')
        .filter_map(|count| count.parse().ok())
        .collect();
    counts.resize(clients, 0);
    counts
}

pub fn print(counts: &[u64], tag: &str) -> String {
    let counts: Vec<String> = counts.iter().map(u64::to_string).collect();
    format!("{};{tag}", counts.join(","))
}

/// What each client's count in each key may be.
#[derive(Default)]
pub struct Counters(Mutex<BTreeMap<(String, usize), BTreeSet<u64>>>);

impl Counters {
    /// A holder reads this. Whatever was in flight of others is settled by that.
    pub fn read(&self, log: &Log, who: &str, key: &str, counts: &[u64]) {
        let mut may = self.0.lock().unwrap();
        for (client, &count) in counts.iter().enumerate() {
            let of = may
                .entry((key.to_owned(), client))
                .or_insert_with(|| BTreeSet::from([0]));
            if !of.contains(&count) {
                log.violation(format_args!(
                    "{who} reads in {key} that client {client} counted {count} times; it may be {of:?}"
                ));
            }
            *of = BTreeSet::from([count]);
        }
    }

    /// A client asks for its count to be this.
    pub fn asked(&self, key: &str, client: usize, count: u64) {
        let mut may = self.0.lock().unwrap();
        may.entry((key.to_owned(), client))
            .or_insert_with(|| BTreeSet::from([0]))
            .insert(count);
    }

    /// It was told that it is.
    pub fn acknowledged(&self, log: &Log, who: &str, key: &str, client: usize, count: u64) {
        let mut may = self.0.lock().unwrap();
        let of = may.entry((key.to_owned(), client)).or_default();
        if !of.contains(&count) {
            log.violation(format_args!(
                "{who} is told that its count in {key} is {count}; others read {of:?}"
            ));
        }
        *of = BTreeSet::from([count]);
    }
}
