//! ShareOf is at the other end of a connection, as far as shares go: clients of one address share what there is.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use super::Account;
use crate::access::Origin;

/// One who has a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShareOf {
    /// A machine, or those behind one address. Of IPv6 the first 64 bits: one machine has all of the others.
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
        match (address.map(|address| address.to_canonical()), user) {
            (Some(IpAddr::V6(address)), _) => {
                let network = address.to_bits() >> 64 << 64;
                ShareOf::Address(IpAddr::V6(Ipv6Addr::from_bits(network)))
            }
            (Some(address), _) => ShareOf::Address(address),
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
