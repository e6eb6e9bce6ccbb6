//! All connections: their number, their shares, and their memory together.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::total::Total;
use super::{Account, AccountLimits};
use crate::access::ShareOf;
use crate::clock::{Clock as _, SystemClock};
use crate::log_throttle::LogThrottle;
use fermata_guard::shares;

/// The open connections. Cheap to clone.
#[derive(Clone)]
pub struct Accounts(Arc<AllAccounts>);

struct AllAccounts {
    total: Arc<Total>,
    open: Mutex<Open>,
    cut_off: LogThrottle,
    cut_count: Counter,
    refused: Counter,
}

/// Connections that were not cut off.
#[derive(Default)]
struct Open {
    accounts: BTreeMap<u64, Arc<Account>>,
    shares: HashMap<ShareOf, OneShare>,
    opened: u64,
}

/// What one address has.
struct OneShare {
    connections: usize,
    listings: Arc<Semaphore>,
}

/// A connection, which counts until this is dropped.
pub struct Connection {
    account: Arc<Account>,
    number: u64,
    all: Arc<AllAccounts>,
}

/// What the connections hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// How many there are.
    pub connections: usize,
    /// What is in flight on them, in bytes.
    pub bytes: u64,
}

impl Accounts {
    /// None yet.
    pub fn new(limits: AccountLimits) -> Accounts {
        Accounts(Arc::new(AllAccounts {
            total: Arc::new(Total::new(limits)),
            open: Mutex::default(),
            cut_off: LogThrottle::default(),
            cut_count: Counter::default(),
            refused: Counter::default(),
        }))
    }

    /// What they hold.
    pub fn held(&self) -> Held {
        Held {
            connections: self.0.open.lock().accounts.len(),
            bytes: self.0.total.bytes(),
        }
    }

    /// Their limits.
    pub(super) fn limits(&self) -> &AccountLimits {
        &self.0.total.limits
    }

    /// How many were refused.
    pub(super) fn refused(&self) -> &Counter {
        &self.0.refused
    }

    /// How many were cut off.
    pub(super) fn cut_off(&self) -> &Counter {
        &self.0.cut_count
    }

    /// One more connection; `None` if there are as many as there may be, or the address uses its share.
    pub fn admit(&self, who: ShareOf) -> Option<Connection> {
        let limits = &self.0.total.limits;
        let mut open = self.0.open.lock();
        let have = open.shares.get(&who).map_or(0, |one| one.connections);
        if shares::admit(open.accounts.len(), have, limits.connections_max).is_err() {
            self.0.refused.inc();
            return None;
        }
        open.opened += 1;
        let number = open.opened;
        let share = open.shares.entry(who).or_insert_with(|| OneShare {
            connections: 0,
            listings: Arc::new(Semaphore::new(
                limits.listings_of_share.min(Semaphore::MAX_PERMITS),
            )),
        });
        share.connections += 1;
        let listings = Arc::clone(&share.listings);
        let account = Arc::new(Account::new(Arc::clone(&self.0.total), who, listings));
        open.accounts.insert(number, Arc::clone(&account));
        Some(Connection {
            account,
            number,
            all: Arc::clone(&self.0),
        })
    }

    /// Cuts off connections for as long as it is polled: those that send none of their answers for `limits.answer_max_ms`, and
    /// the largest one of the address that holds most while all hold more than `limits.bytes_in_flight_max`.
    pub async fn keep_within_limits(&self) -> Infallible {
        let answer_max = self.0.total.limits.answer_max;
        loop {
            tokio::select! {
                () = self.0.total.exceeded.notified() => self.0.cut_largest(),
                () = sleep(answer_max / 4) => self.0.cut_untaken(answer_max),
            }
        }
    }
}

impl Open {
    fn remove(&mut self, number: u64) -> Option<Arc<Account>> {
        let account = self.accounts.remove(&number)?;
        if let Some(share) = self.shares.get_mut(&account.who()) {
            share.connections -= 1;
            if share.connections == 0 {
                self.shares.remove(&account.who());
            }
        }
        Some(account)
    }
}

impl AllAccounts {
    fn cut(&self, open: &mut Open, number: u64, why: &str) {
        let Some(account) = open.remove(number) else {
            return;
        };
        account.cut();
        self.cut_count.inc();
        let (who, bytes) = (account.who(), account.held());
        if let Some(times) = self.cut_off.met(SystemClock.boot(), why) {
            tracing::warn!(?who, bytes, times, why, "a connection was cut off");
        }
    }

    /// What was cut off before counts no longer: it is on its way to be gone.
    fn cut_largest(&self) {
        let mut open = self.open.lock();
        loop {
            let mut shares: HashMap<ShareOf, u64> = HashMap::new();
            for account in open.accounts.values() {
                *shares.entry(account.who()).or_default() += account.held();
            }
            if shares.values().sum::<u64>() <= self.total.limits.bytes_max {
                return;
            }
            let Some((most, _)) = shares.into_iter().max_by_key(|(_, bytes)| *bytes) else {
                return;
            };
            let of_it = open.accounts.iter().filter(|(_, one)| one.who() == most);
            let largest = of_it.max_by_key(|(_, one)| one.held());
            let Some(largest) = largest.map(|(number, _)| *number) else {
                return;
            };
            let why = "limits.bytes_in_flight_max was exceeded: the largest connection of the largest client";
            self.cut(&mut open, largest, why);
        }
    }

    fn cut_untaken(&self, answer_max: Duration) {
        let mut open = self.open.lock();
        let is_late = |account: &Account| {
            let since = account.untaken_since();
            since.is_some_and(|since| since.elapsed() >= answer_max)
        };
        let untaken = open.accounts.iter().filter(|(_, one)| is_late(one));
        let untaken: Vec<u64> = untaken.map(|(number, _)| *number).collect();
        for number in untaken {
            self.cut(&mut open, number, "its client reads no answers");
        }
    }
}

impl Connection {
    /// What it holds.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.open.lock().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> ShareOf {
        ShareOf::Address([10, 0, 0, last].into())
    }

    /// For so many connections.
    fn accounts(connections_max: usize) -> Accounts {
        Accounts::new(AccountLimits {
            connections_max,
            connection_bytes_max: 1 << 30,
            bytes_max: 1 << 30,
            answer_max: Duration::from_secs(1),
            listings_of_share: 1,
        })
    }

    #[tokio::test]
    async fn one_address_leaves_a_tenth_of_the_connections_to_others() {
        let accounts = accounts(100);
        let mut greedy = Vec::new();
        while let Some(connection) = accounts.admit(address(1)) {
            greedy.push(connection);
        }
        assert_eq!(greedy.len(), 90);
        let mut others = Vec::new();
        for other in 2..12 {
            others.push(accounts.admit(address(other)).unwrap());
        }
        assert_eq!(accounts.held().connections, 100);
        assert!(accounts.admit(address(12)).is_none());
        greedy.pop();
        assert!(accounts.admit(address(1)).is_none(), "it has its share");
        assert!(accounts.admit(address(12)).is_some());
    }
}
