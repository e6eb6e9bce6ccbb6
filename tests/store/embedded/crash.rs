//! A process that is killed at any moment loses nothing that it acknowledged.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::thread;
use std::time::Duration;

use fermata::store::KeyStore;
use tempfile::TempDir;

use super::child::{KEYS, command};
use super::open;
use crate::world::{Random, id};

const KILLS: u32 = 25;
/// The longest that a process is left to write, in microseconds.
const LIFE_US_MAX: usize = 40_000;

#[tokio::test]
async fn what_was_acknowledged_survives_sigkill() {
    let mut random = Random::seeded("what_was_acknowledged_survives_sigkill");
    let directory = TempDir::new().unwrap();
    let mut acknowledged: BTreeMap<String, u64> = BTreeMap::new();
    for kill in 0..KILLS {
        let mut child = command("write", directory.path()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut text = String::new();
        // Some are killed while they open the file.
        if kill % 5 != 4 {
            while !text.contains("acknowledged") {
                assert_ne!(said.read_line(&mut text).unwrap(), 0, "{text}");
            }
        }
        thread::sleep(Duration::from_micros(random.below(LIFE_US_MAX) as u64));
        child.kill().unwrap();
        said.read_to_string(&mut text).unwrap();
        child.wait().unwrap();
        // A line without its end may be cut anywhere.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        for line in whole.lines() {
            let Some((_, said)) = line.split_once("acknowledged ") else {
                continue;
            };
            let (key, version) = said.split_once(' ').unwrap();
            acknowledged.insert(key.to_owned(), version.parse().unwrap());
        }

        let store = open(directory.path()).unwrap();
        for key in KEYS {
            let state = store.load(&id(key)).await.unwrap().unwrap_or_default();
            assert_eq!(state.check(), Ok(()));
            let answered = acknowledged.get(key).copied().unwrap_or(0);
            assert!(
                // One more may have been committed and not told.
                state.version == answered || state.version == answered + 1,
                "kill {kill}: {key} is at {}, {answered} was acknowledged",
                state.version
            );
            acknowledged.insert(key.to_owned(), state.version);
        }
    }
    assert!(acknowledged["a"] > u64::from(KILLS), "{acknowledged:?}");
}
