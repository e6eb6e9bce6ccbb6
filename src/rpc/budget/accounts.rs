//! All connections: how many there may be, of whom, and what they may hold together.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::{Account, ShareOf};
use crate::clock::{Clock as _, SystemClock};
use crate::log_throttle::LogThrottle;
use fermata_guard::shares;

/// How long a connection must have been idle before it makes room for another one …
const IDLE_MIN: Duration = Duration::from_secs(10);
/// … if it never made a call.
const SILENT_MIN: Duration = Duration::from_secs(1);

/// How long one that is to make room may take to go away.
const CUT_WITHIN: Duration = Duration::from_secs(1);

/// What connections may hold.
#[derive(Debug, Clone)]
pub struct AccountLimits {
    /// How many there may be.
    pub connections_max: usize,
    /// What one may hold, in bytes.
    pub connection_bytes_max: u64,
    /// What all may hold, in bytes.
    pub bytes_max: u64,
    /// How long an answer may stand without any of it being taken.
    pub answer_max: Duration,
    /// How many listings of one who has a share may go on at once.
    pub listings_of_share: usize,
}

/// The open connections. Cheap to clone.
#[derive(Clone)]
pub struct Accounts(Arc<AllAccounts>);

/// What the accounts have in common.
pub(super) struct AllAccounts {
    pub limits: AccountLimits,
    bytes: AtomicU64,
    open: Mutex<Open>,
    /// A connection is gone.
    gone: Notify,
    cut_off: LogThrottle,
}

#[derive(Default)]
struct Open {
    accounts: BTreeMap<u64, Arc<Account>>,
    of: HashMap<ShareOf, OfShare>,
    opened: u64,
}

/// What one has who has a share.
struct OfShare {
    connections: usize,
    listings: Arc<Semaphore>,
}

/// A connection that counts for as long as this is there.
pub struct Connection {
    account: Arc<Account>,
    number: u64,
    shared: Arc<AllAccounts>,
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
            limits,
            bytes: AtomicU64::new(0),
            open: Mutex::default(),
            gone: Notify::new(),
            cut_off: LogThrottle::default(),
        }))
    }

    /// What they hold.
    pub fn held(&self) -> Held {
        Held {
            connections: self.0.open().accounts.len(),
            bytes: self.0.bytes.load(Ordering::Relaxed),
        }
    }

    /// One more connection. Where there is no room for it, the one that was idle for longest of whoever has most makes room;
    /// `None` where none is idle.
    pub async fn admit(&self, who: ShareOf) -> Option<Connection> {
        let by = Instant::now() + CUT_WITHIN;
        loop {
            let mut gone = std::pin::pin!(self.0.gone.notified());
            gone.as_mut().enable();
            if let Some(connection) = self.try_admit(who) {
                return Some(connection);
            }
            if !self.0.cut_idle(who, Instant::now()) || timeout_at(by, gone).await.is_err() {
                return None;
            }
        }
    }

    fn try_admit(&self, who: ShareOf) -> Option<Connection> {
        let mut open = self.0.open();
        let have = open.connections_of(who);
        shares::admit(open.accounts.len(), have, self.0.limits.connections_max).ok()?;
        open.opened += 1;
        let number = open.opened;
        let listings = self.0.limits.listings_of_share;
        let of_share = open.of.entry(who).or_insert_with(|| OfShare {
            connections: 0,
            listings: Arc::new(Semaphore::new(listings.min(Semaphore::MAX_PERMITS))),
        });
        of_share.connections += 1;
        let listings = Arc::clone(&of_share.listings);
        let account = Arc::new(Account::new(Arc::clone(&self.0), who, listings));
        open.accounts.insert(number, Arc::clone(&account));
        Some(Connection {
            account,
            number,
            shared: Arc::clone(&self.0),
        })
    }

    /// Drops the answers that nobody took in time, and cuts off connections that take none.
    pub fn end_untaken(&self, now: Instant) {
        let accounts: Vec<Arc<Account>> = self.0.open().accounts.values().cloned().collect();
        for account in accounts {
            account.end_untaken(now);
        }
    }
}

impl Open {
    fn connections_of(&self, who: ShareOf) -> usize {
        self.of.get(&who).map_or(0, |of_share| of_share.connections)
    }
}

impl AllAccounts {
    fn open(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the messages of one connection may hold, and its answers, as permits of a semaphore.
    pub fn room_bytes(&self) -> usize {
        let half = self.limits.connection_bytes_max / 2;
        usize::try_from(half).map_or(Semaphore::MAX_PERMITS, |half| {
            half.min(Semaphore::MAX_PERMITS)
        })
    }

    /// So many bytes more. Where that is too much, whoever holds most loses a connection.
    pub fn add(&self, bytes: u64) {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > self.limits.bytes_max {
            self.cut_largest();
        }
    }

    /// A connection is cut off: that is logged now and then.
    pub fn log_cut(&self, account: &Account, why: &str) {
        let (who, bytes) = (account.who(), account.held());
        if let Some(times) = self.cut_off.met(SystemClock.boot(), why) {
            tracing::warn!(?who, bytes, times, why, "a connection was cut off");
        }
    }

    pub fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Cuts the largest connection of whoever holds most, unless what was cut already is enough.
    fn cut_largest(&self) {
        let open = self.open();
        let left = open.accounts.values().filter(|account| !account.is_cut());
        let mut of: HashMap<ShareOf, u64> = HashMap::new();
        for account in left.clone() {
            *of.entry(account.who()).or_default() += account.held();
        }
        if of.values().sum::<u64>() <= self.limits.bytes_max {
            return;
        }
        let most = of.into_iter().max_by_key(|(_, bytes)| *bytes);
        let Some((most, _)) = most else { return };
        let largest = left
            .filter(|account| account.who() == most)
            .max_by_key(|account| account.held());
        if let Some(largest) = largest {
            largest.cut("it holds most of limits.bytes_in_flight_max");
        }
    }

    /// Cuts a connection that is idle, for one of `newcomer`: the first one to go is of whoever has most. False: none is
    /// idle, nor on its way to be gone.
    fn cut_idle(&self, newcomer: ShareOf, now: Instant) -> bool {
        let open = self.open();
        let max = self.limits.connections_max;
        let have = open.connections_of(newcomer);
        // With one connection less: where its share is used up, only one of its own helps the newcomer.
        let has_share = shares::admit(max.saturating_sub(1), have, max).is_ok();
        let is_full = open.accounts.len() >= max;
        let may_go = |account: &&Arc<Account>| account.who() == newcomer || (is_full && has_share);
        let left = open.accounts.values().filter(may_go);
        if left.clone().any(|account| account.is_cut()) {
            return true;
        }
        let idle = left.filter_map(|account| {
            let (since, has_called) = account.idle_since()?;
            let least = if has_called { IDLE_MIN } else { SILENT_MIN };
            let idle = now.saturating_duration_since(since);
            (idle >= least).then_some((open.connections_of(account.who()), idle, account))
        });
        let first = idle.max_by_key(|(have, idle, _)| (*have, *idle));
        let Some((_, _, first)) = first else {
            return false;
        };
        first.cut("it is idle, and others wait for a connection");
        true
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
        let mut open = self.shared.open();
        open.accounts.remove(&self.number);
        let who = self.account.who();
        if let Some(of_share) = open.of.get_mut(&who) {
            of_share.connections -= 1;
            if of_share.connections == 0 {
                open.of.remove(&who);
            }
        }
        drop(open);
        self.shared.gone.notify_waiters();
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

    #[tokio::test(start_paused = true)]
    async fn one_address_leaves_a_tenth_of_the_connections_to_others_and_its_idle_ones_make_room() {
        let accounts = accounts(100);
        let mut greedy = Vec::new();
        while let Some(connection) = accounts.admit(address(1)).await {
            // In use, so that it makes no room.
            let call = connection.account().begin(0, true);
            greedy.push((connection, call));
        }
        assert_eq!(greedy.len(), 90);
        let mut others = Vec::new();
        for other in 2..12 {
            others.push(accounts.admit(address(other)).await.unwrap());
        }
        assert_eq!(accounts.held().connections, 100);
        assert!(
            accounts.admit(address(12)).await.is_none(),
            "all are in use"
        );
        // The one that has most makes room, though one of another was idle for as long.
        let (connection, call) = greedy.pop().unwrap();
        drop(call);
        tokio::time::advance(IDLE_MIN).await;
        let account = Arc::clone(connection.account());
        let gone = tokio::spawn(async move {
            account.until_cut().await;
            drop(connection);
        });
        assert!(accounts.admit(address(12)).await.is_some());
        gone.await.unwrap();
        assert!(others.iter().all(|other| !other.account().is_cut()));
    }
}
