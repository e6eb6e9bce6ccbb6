//! Whose share a connection counts to: that of its address, or of its Unix user.

use std::net::IpAddr;

use crate::access::{Origin, machine};

/// One who has a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShareOf {
    /// A machine, as [`machine`] has it.
    Address(IpAddr),
    /// A user at the other end of a Unix socket.
    UnixUser(u32),
    /// All connections of unknown origin.
    Unknown,
}

impl ShareOf {
    /// By the origin of a connection.
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
