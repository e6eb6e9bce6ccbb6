//! Who believes that it holds a key, by its own clock and by what it was told. While somebody does, the row has its entry as
//! the first one, or lets the home that granted it have it by memory alone, whatever the queue is changed to; unless it was
//! ended by force.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Weak};

use fermata::key::KeyState;
use fermata::lock::Seq;
use fermata_client::LockGuard;

use super::log::Log;

#[derive(Default)]
pub struct Beliefs(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    held: Vec<Belief>,
    /// Keys, and their entries that somebody may have ended by force.
    forced: BTreeSet<(String, u64)>,
}

struct Belief {
    key: String,
    seq: u64,
    who: String,
    /// The term in which it began.
    term: u64,
    guard: Weak<LockGuard>,
}

impl Beliefs {
    /// A client holds a key from now on, for as long as its guard is there and valid. `row`: as it is now.
    pub fn begin(
        &self,
        log: &Log,
        (who, key, seq): (&str, &str, u64),
        guard: &Arc<LockGuard>,
        row: &KeyState,
    ) {
        let mut noted = self.0.lock().unwrap();
        noted.held.retain(|belief| belief.guard.strong_count() > 0);
        noted.held.push(Belief {
            key: key.to_owned(),
            seq,
            who: who.to_owned(),
            term: row.term(),
            guard: Arc::downgrade(guard),
        });
        noted.look(log, key, row);
    }

    /// From now on nothing is promised for this entry.
    pub fn force(&self, key: &str, seq: u64) {
        let mut noted = self.0.lock().unwrap();
        noted.forced.insert((key.to_owned(), seq));
    }

    pub fn is_forced(&self, key: &str, seq: u64) -> bool {
        let noted = self.0.lock().unwrap();
        noted.forced.contains(&(key.to_owned(), seq))
    }

    /// The queue of a key is another one from this moment on.
    pub fn swapped(&self, log: &Log, key: &str, state: &KeyState) {
        self.0.lock().unwrap().look(log, key, state);
    }
}

impl Noted {
    /// Whether all who believe in their lock of a key may have it by its row.
    fn look(&self, log: &Log, key: &str, row: &KeyState) {
        for belief in self.held.iter().filter(|belief| belief.key == key) {
            let believes = belief.guard.upgrade().is_some_and(|guard| guard.is_valid());
            let is_forced = self.forced.contains(&(key.to_owned(), belief.seq));
            let first = row.holder().map(|entry| entry.seq);
            let seq = Seq(belief.seq);
            let may_be_volatile = row.term() == belief.term
                && seq < row.reserved.volatile_end
                && first.is_none_or(|first| first <= seq);
            if believes && first != Some(seq) && !may_be_volatile && !is_forced {
                log.violation(format_args!(
                    "{} believes that it holds {key} as #{} of term {}, and the first entry is {first:?} now, volatile \
                     below {} in term {}",
                    belief.who, belief.seq, belief.term, row.reserved.volatile_end, row.term()
                ));
            }
        }
    }
}
