//! The share of each client in the keys with live entries, so that one client cannot take all the room: the last tenth of it is for
//! clients with less than a hundredth. Unused keys are not counted; they make room.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fermata_guard::shares::{self, NoShare};
use parking_lot::{Mutex, MutexGuard};

/// The number of a client, for as long as it has keys.
pub(super) type Owner = NonZeroU32;

/// The keys of each client.
#[derive(Debug)]
pub(super) struct KeyShares {
    most: usize,
    /// The keys of all clients together.
    all: AtomicUsize,
    inner: Mutex<Owners>,
}

#[derive(Debug, Default)]
struct Owners {
    numbers: HashMap<Arc<str>, Owner>,
    have: HashMap<Owner, (Arc<str>, usize)>,
    last: u32,
}

impl KeyShares {
    /// For `most` keys.
    pub fn new(most: usize) -> KeyShares {
        KeyShares {
            most,
            all: AtomicUsize::new(0),
            inner: Mutex::default(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Owners> {
        self.inner.lock()
    }

    /// Whether keys are so scarce that shares matter.
    pub fn is_scarce(&self) -> bool {
        shares::is_scarce(self.all.load(Ordering::Relaxed), self.most)
    }

    /// Whether this client may have one more key. An empty name has no share: it is refused only when all are in use.
    pub fn admit(&self, who: &str) -> Result<(), NoShare> {
        let inner = self.inner();
        let number = inner.numbers.get(who).filter(|_| !who.is_empty());
        let have = number.and_then(|number| inner.have.get(number));
        let have = have.map_or(0, |(_, have)| *have);
        shares::admit(self.all.load(Ordering::Relaxed), have, self.most)
    }

    /// Counts one more key of this client; `None` if no number is free.
    pub fn add(&self, who: &str) -> Option<Owner> {
        let mut inner = self.inner();
        let owner = match inner.numbers.get(who) {
            Some(owner) => *owner,
            None => {
                let owner = inner.unused()?;
                let who: Arc<str> = Arc::from(who);
                inner.numbers.insert(Arc::clone(&who), owner);
                inner.have.insert(owner, (who, 0));
                owner
            }
        };
        if let Some((_, have)) = inner.have.get_mut(&owner) {
            *have += 1;
            self.all.fetch_add(1, Ordering::Relaxed);
        }
        Some(owner)
    }

    /// Counts one key less.
    pub fn remove(&self, owner: Owner) {
        let mut inner = self.inner();
        let Some((who, have)) = inner.have.get_mut(&owner) else {
            return;
        };
        *have -= 1;
        let gone = (*have == 0).then(|| Arc::clone(who));
        self.all.fetch_sub(1, Ordering::Relaxed);
        if let Some(who) = gone {
            inner.numbers.remove(&who);
            inner.have.remove(&owner);
        }
    }
}

impl Owners {
    /// A free number. Each number has a key, and there are fewer keys than numbers.
    fn unused(&mut self) -> Option<Owner> {
        for _ in 0..=self.have.len() + 1 {
            self.last = self.last.wrapping_add(1);
            let owner = Owner::new(self.last);
            if let Some(owner) = owner.filter(|owner| !self.have.contains_key(owner)) {
                return Some(owner);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_without_keys_is_forgotten() {
        let shares = KeyShares::new(1_000);
        let one = shares.add("one").unwrap();
        assert_eq!(shares.add("one"), Some(one));
        let other = shares.add("other").unwrap();
        assert_ne!(one, other);
        shares.remove(one);
        assert_eq!(shares.inner().numbers.len(), 2);
        shares.remove(one);
        shares.remove(other);
        let inner = shares.inner();
        assert!(inner.have.is_empty() && inner.numbers.is_empty());
        assert_eq!(shares.all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_empty_name_is_refused_only_when_all_are_in_use() {
        let shares = KeyShares::new(100);
        for _ in 0..100 {
            assert_eq!(shares.admit(""), Ok(()));
            shares.add("");
        }
        assert_eq!(shares.admit(""), Err(NoShare::Full));
    }

    #[test]
    fn one_leaves_the_last_tenth_to_clients_with_few_keys() {
        let shares = KeyShares::new(1_000);
        for _ in 0..900 {
            assert_eq!(shares.admit("one"), Ok(()));
            shares.add("one");
        }
        assert!(shares.admit("one").is_err() && shares.is_scarce());
        assert_eq!(shares.admit("other"), Ok(()));
    }
}
