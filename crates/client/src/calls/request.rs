//! The requests for a lock and for a session.

use std::time::Duration;

/// A request for a lock. Only the key is required.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRequest {
    pub(crate) key: String,
    pub(crate) table: String,
    pub(crate) ttl: Option<Duration>,
    pub(crate) owner: String,
    pub(crate) wait: Option<Duration>,
    pub(crate) read_value: bool,
}

impl LockRequest {
    /// A lock on this key of the table `default`; the wait has no limit.
    pub fn new(key: impl Into<String>) -> LockRequest {
        LockRequest {
            key: key.into(),
            table: String::new(),
            ttl: None,
            owner: String::new(),
            wait: None,
            read_value: false,
        }
    }

    /// The table that the key is in.
    #[must_use]
    pub fn table(mut self, table: impl Into<String>) -> LockRequest {
        self.table = table.into();
        self
    }

    /// How long the lock lives without a renewal; by default the server's TTL (30 s). In a session the session's TTL counts
    /// instead.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> LockRequest {
        self.ttl = Some(ttl);
        self
    }

    /// A label for people, shown to operators.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<String>) -> LockRequest {
        self.owner = owner.into();
        self
    }

    /// Also reads the value of the key, once the lock is held. The guard has the value as
    /// [`LockGuard::granted_value`](crate::LockGuard::granted_value). Together with
    /// [`LockGuard::release_with`](crate::LockGuard::release_with), two calls lock, read, write and release.
    #[must_use]
    pub fn read_value(mut self) -> LockRequest {
        self.read_value = true;
        self
    }

    /// How long to wait for the lock; zero is one try.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> LockRequest {
        self.wait = Some(wait);
        self
    }
}

impl<K: Into<String>> From<K> for LockRequest {
    fn from(key: K) -> LockRequest {
        LockRequest::new(key)
    }
}

/// A request for a session. Nothing is required.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionRequest {
    pub(crate) ttl: Option<Duration>,
    pub(crate) disconnect_grace: Option<Duration>,
    pub(crate) owner: String,
}

impl SessionRequest {
    /// A session with the server's default TTL (30 s).
    pub fn new() -> SessionRequest {
        SessionRequest::default()
    }

    /// How long the session lives without a renewal.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> SessionRequest {
        self.ttl = Some(ttl);
        self
    }

    /// How long the session lives on after its connection is closed: from 100 ms to its TTL. After this time the locks of a
    /// crashed process go to the next waiters. In return its locks count as lost once no server has answered for 0.9 of this
    /// time, for whatever reason.
    #[must_use]
    pub fn disconnect_grace(mut self, grace: Duration) -> SessionRequest {
        self.disconnect_grace = Some(grace);
        self
    }

    /// A label for people, shown to operators.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<String>) -> SessionRequest {
        self.owner = owner.into();
        self
    }
}
