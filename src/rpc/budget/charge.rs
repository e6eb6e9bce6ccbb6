//! What is counted of an account, each until it is dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Account;

/// Bytes that an account holds, until this is dropped.
pub struct Charge {
    pub(super) account: Arc<Account>,
    pub(super) bytes: u64,
}

impl Charge {
    /// Of this connection.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// What it is, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// It is so many bytes now.
    pub fn resize(&mut self, bytes: u64) {
        if bytes > self.bytes {
            self.account.take(bytes - self.bytes);
        } else if bytes < self.bytes {
            self.account.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.account.give_back(self.bytes);
        }
    }
}

/// What a call has for as long as it lasts, until this is dropped: counted with all, and no reason for others on its connection
/// to wait, for nothing they do makes it less.
pub struct KeptBytes {
    pub(super) account: Arc<Account>,
    pub(super) bytes: u64,
}

impl KeptBytes {
    /// It is so many bytes, unless it is more.
    pub fn grow(&mut self, to: u64) {
        let more = to.saturating_sub(self.bytes);
        if more > 0 {
            self.account.add_of_calls(more);
            self.bytes += more;
        }
    }
}

impl Drop for KeptBytes {
    fn drop(&mut self) {
        self.account.give_back_of_calls(self.bytes);
    }
}

/// Room for a value that is being read, until this is dropped. Of all connections together nothing is reserved: what is
/// estimated must not cost anybody a connection.
pub struct ReservedBytes {
    pub(super) account: Arc<Account>,
    pub(super) bytes: u64,
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        self.account
            .reserved
            .fetch_sub(self.bytes, Ordering::SeqCst);
        self.account.freed();
    }
}
