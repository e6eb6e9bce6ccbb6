//! File descriptors: the process needs one for each connection, and some more.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::config::Config;
use crate::limits::PEER_CONNECTIONS_MAX;

/// Descriptors beside connections of clients: connections of other replicas; and 768 for the store, the nodes of a cluster, listeners
/// and the runtime.
const OTHERS: u64 = 768 + PEER_CONNECTIONS_MAX as u64;

/// Raises the limit of descriptors to the number that is needed, if the system allows it. Returns the limit in force; `None` if it
/// cannot be read.
pub fn raise(need: u64) -> Option<u64> {
    let (soft, hard) = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok(limits) => limits,
        Err(error) => {
            tracing::debug!(%error, "the limit of file descriptors was not read");
            return None;
        }
    };
    if soft >= need {
        return Some(soft);
    }
    Some(
        match setrlimit(Resource::RLIMIT_NOFILE, need.min(hard), hard) {
            Ok(()) => need.min(hard),
            // A sandbox may forbid it.
            Err(_) => soft,
        },
    )
}

/// Raises the limit of descriptors as far as a server needs it. If the system allows fewer, fewer connections are allowed.
pub fn provide(config: &mut Config) {
    let connections = u64::try_from(config.limits.connections_max).unwrap_or(u64::MAX);
    let need = connections.saturating_add(OTHERS);
    let Some(have) = raise(need).filter(|have| *have < need) else {
        return;
    };
    // Replicas and nodes are far fewer than their limits.
    let room = have.saturating_sub(OTHERS).max(have / 2).min(connections);
    tracing::warn!(
        file_descriptors = have,
        needed = need,
        connections_max = room,
        "too few file descriptors, so limits.connections_max is lowered: raise LimitNOFILE= of the systemd unit, or ulimit -n"
    );
    config.limits.connections_max = usize::try_from(room).unwrap_or(usize::MAX);
}
