//! ShareOf is at the other end of a connection, as far as shares go: clients of one address share what there is.

use std::net::IpAddr;
use std::sync::Arc;

use super::Account;
use crate::access::{Origin, machine};

/// One who has a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShareOf {
    /// A machine, as [`machine`] has it.
    Address(IpAddr),
    /// A user at the other end of a Unix socket.
    UnixUser(u32),
    /// All of whom nothing is known.
    Unknown,
}

impl ShareOf {
    /// By where a connection comes from.
    pub fn of(origin: Option<&Origin>) -> ShareOf {
        let address = origin.and_then(|origin| origin.address);
        let user = origin.and_then(|origin| origin.unix_user);
        match (address, user) {
            (Some(address), _) => ShareOf::Address(machine(address)),
            (None, Some(user)) => ShareOf::UnixUser(user),
            (None, None) => ShareOf::Unknown,
        }
    }
}

/// What each call knows of the connection that it came on.
#[derive(Clone)]
pub struct ConnectionInfo {
    /// What it holds.
    pub account: Arc<Account>,
    /// Where it comes from, where that is known.
    pub origin: Option<Origin>,
}
