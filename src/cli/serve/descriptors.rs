//! File descriptors: as many as there may be connections, and some.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::config::{Config, StoreKind};
use crate::limits::Limits;
use crate::server::PEER_CONNECTIONS_MAX;

/// What else needs some: the store, listeners, connections between replicas, the runtime …
const OWN: u64 = 256;
/// … and connections to the nodes of a cluster, and those of other replicas.
const OF_CLUSTER: u64 = 512 + PEER_CONNECTIONS_MAX as u64;

/// There are fewer descriptors than connections that were asked for.
#[derive(Debug, thiserror::Error)]
#[error(
    "limits.connections_max is {connections_max}, and this process may have {hard} file descriptors: there is room for {room} \
     connections. Set it to that, or allow more descriptors ({need}: LimitNOFILE= of a unit, ulimit -n of a shell)"
)]
pub struct TooFewDescriptors {
    connections_max: usize,
    need: u64,
    hard: u64,
    room: u64,
}

/// Asks the system for enough descriptors. Where it has fewer and nobody asked for so many connections, there may be fewer. (Who
/// sets the default cannot be told from who sets nothing.)
pub fn provide(config: &mut Config) -> Result<(), TooFewDescriptors> {
    let besides = match config.store.kind {
        StoreKind::Embedded => OWN,
        StoreKind::Cassandra => OWN + OF_CLUSTER,
    };
    let connections_max = config.limits.connections_max;
    let connections = u64::try_from(connections_max).unwrap_or(u64::MAX);
    let need = connections.saturating_add(besides);
    let (soft, hard) = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok(limits) => limits,
        Err(error) => {
            tracing::debug!(%error, "the limit of file descriptors was not read");
            return Ok(());
        }
    };
    if soft >= need {
        return Ok(());
    }
    let raised = setrlimit(Resource::RLIMIT_NOFILE, need.min(hard), hard);
    let have = match raised {
        Ok(()) => need.min(hard),
        // A sandbox may forbid to ask.
        Err(_) => soft,
    };
    if have >= need {
        return Ok(());
    }
    let room = have.saturating_sub(besides).max(1);
    if connections_max != Limits::default().connections_max {
        return Err(TooFewDescriptors {
            connections_max,
            need,
            hard: have,
            room,
        });
    }
    tracing::warn!(
        file_descriptors = have,
        connections_max = room,
        "fewer connections than by default: there are too few file descriptors"
    );
    config.limits.connections_max = usize::try_from(room).unwrap_or(usize::MAX);
    Ok(())
}
