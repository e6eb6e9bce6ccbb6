//! A lock that lives in a scope, in the shape of libQtCassandra's `QCassandraLock`. All work is done by [`LockGuard`]; this module
//! adds names as bytes, the time limit, and unlocking before locking.

use std::time::Duration;

use super::guard::LockGuard;
use super::name::key_of;
use crate::calls::client::Client;
use crate::calls::error::{LockError, ReleaseError, WaitError};
use crate::calls::request::LockRequest;

/// That of libQtCassandra.
const LOCK_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// A client, with the settings of the locks that are made with it. Cheap to clone.
///
/// The consistency of reads and writes is no setting of a lock: the service has one for all its replicas
/// (`store.cassandra.consistency`).
#[derive(Clone, Debug)]
pub struct LockContext {
    client: Client,
    table: String,
    lock_timeout: Duration,
    lock_ttl: Option<Duration>,
    host_name: String,
}

impl LockContext {
    /// Locks of the table `default`, each tried for 5 s.
    pub fn new(client: &Client) -> LockContext {
        LockContext {
            client: client.clone(),
            table: String::new(),
            lock_timeout: LOCK_TIMEOUT_DEFAULT,
            lock_ttl: None,
            host_name: String::new(),
        }
    }

    /// The lock table, of any protocol. It must exist.
    #[must_use]
    pub fn lock_table_name(mut self, table: impl Into<String>) -> LockContext {
        self.table = table.into();
        self
    }

    /// How long a lock is tried; zero is one try.
    #[must_use]
    pub fn lock_timeout(mut self, timeout: Duration) -> LockContext {
        self.lock_timeout = timeout;
        self
    }

    /// How long a lock outlives its process; by default the server's TTL (30 s). While the process lives the lock is renewed, so
    /// this does not limit the work under it.
    #[must_use]
    pub fn lock_ttl(mut self, ttl: Duration) -> LockContext {
        self.lock_ttl = Some(ttl);
        self
    }

    /// The name of this host. Operators see `HOST/PID` as the owner of the locks. Hosts need not be listed anywhere.
    #[must_use]
    pub fn lock_host_name(mut self, host: impl Into<String>) -> LockContext {
        self.host_name = host.into();
        self
    }

    fn request(&self, name: &[u8]) -> LockRequest {
        let mut request = LockRequest::new(key_of(name)).table(&*self.table);
        if let Some(ttl) = self.lock_ttl {
            request = request.ttl(ttl);
        }
        match &*self.host_name {
            "" => request,
            host => request.owner(format!("{host}/{}", std::process::id())),
        }
    }

    /// Locks the name within `lock_timeout`.
    async fn lock(&self, name: &[u8]) -> Result<LockGuard, LockError> {
        let end = self.client.now().after(self.lock_timeout);
        let mut entry = self.client.enqueue(self.request(name)).await?;
        let left = self.client.now().until(end);
        match entry.wait(Some(left)).await {
            Ok(guard) => Ok(guard),
            Err(error @ WaitError::TimedOut { .. }) => {
                // Nobody answered at the end: that is no refusal.
                if let Some(failure) = entry.wait_failure().get() {
                    return Err(WaitError::Unavailable(failure).into());
                }
                if let Err(error) = entry.give_up().await {
                    tracing::debug!(%error, "could not release an entry; leaving it to expire");
                }
                Err(error.into())
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl From<&Client> for LockContext {
    fn from(client: &Client) -> LockContext {
        LockContext::new(client)
    }
}

impl From<&LockContext> for LockContext {
    fn from(context: &LockContext) -> LockContext {
        context.clone()
    }
}

/// A lock that unlocks when it leaves its scope, also by `?` and by a panic.
///
/// ```no_run
/// use fermata_client::{Client, Lock};
///
/// # async fn exists(_: &str) -> bool { false }
/// # async fn set_email(_: &str, _: &str) {}
/// # async fn register(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
/// let mut lock = Lock::new(client, "users::snap").await?;
/// if exists("snap").await {
///     return Err("a user with that name exists".into());
/// }
/// set_email("snap", "snap@example.com").await;
/// lock.unlock().await?;
/// # Ok(())
/// # }
/// ```
///
/// A scope that ends unlocks in the background, and tries until a server answers or the TTL has passed. Call [`Lock::unlock`]
/// to learn the outcome, and before the process ends: its runtime takes the work in the background with it.
///
/// A name is text or bytes. A name that is a key keeps its form, so other clients of the service can lock it as well. `%`,
/// control characters, and bytes that are not UTF-8 are written as `%XX`: the bytes `a%` and `FF` make the key `a%25%FF`. So
/// different names have different keys. The key has at most 1024 bytes. Operators see it: do not use secrets as names.
///
/// One object holds one lock. Tasks that contend need an object each. Two objects on the same name exclude each other, also in
/// one process: the second one waits, and times out.
#[must_use = "a dropped lock is unlocked"]
#[derive(Debug)]
pub struct Lock {
    context: LockContext,
    guard: Option<LockGuard>,
}

impl Lock {
    /// Locks this name. With an empty name the lock is obtained later, by [`Lock::lock`].
    ///
    /// A lock that is not obtained within `lock_timeout` is an error here ([`WaitError::TimedOut`]).
    pub async fn new(
        context: impl Into<LockContext>,
        name: impl AsRef<[u8]>,
    ) -> Result<Lock, LockError> {
        let context = context.into();
        let guard = match name.as_ref() {
            [] => None,
            name => Some(context.lock(name).await?),
        };
        Ok(Lock { context, guard })
    }

    /// Unlocks what is locked, and locks this name. True once it is locked, false if it was not obtained within `lock_timeout`.
    /// With an empty name it only unlocks, and answers false.
    ///
    /// Everything else is an error: a refused request, and a service that does not answer. Without an answer to its first call it
    /// takes up to [`ClientOptions::timeout`](crate::ClientOptions::timeout).
    pub async fn lock(&mut self, name: impl AsRef<[u8]>) -> Result<bool, RelockError> {
        self.unlock().await?;
        let name = name.as_ref();
        if name.is_empty() {
            return Ok(false);
        }
        match self.context.lock(name).await {
            Ok(guard) => self.guard = Some(guard),
            Err(LockError::Wait(WaitError::TimedOut { .. })) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    /// Unlocks, and waits for the answer; without a lock it does nothing. An error says that the lock was lost before, or that
    /// no server answered; then it is tried further in the background. The object is unlocked in any case.
    pub async fn unlock(&mut self) -> Result<(), ReleaseError> {
        match self.guard.take() {
            Some(guard) => guard.release().await,
            None => Ok(()),
        }
    }

    /// Whether the lock is in effect now: it was obtained, not unlocked, and not lost.
    pub fn is_locked(&self) -> bool {
        self.guard.as_ref().is_some_and(LockGuard::is_valid)
    }

    /// The guard of the lock: its fencing token, its loss, its value. `None` while unlocked.
    pub fn guard(&self) -> Option<&LockGuard> {
        self.guard.as_ref()
    }
}

/// Why [`Lock::lock`] failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelockError {
    /// The lock before was lost, or no server answered its release. The name was not locked: lock it again.
    #[error("the lock before: {0}")]
    Unlock(#[from] ReleaseError),
    /// The name was not locked.
    #[error(transparent)]
    Lock(#[from] LockError),
}
