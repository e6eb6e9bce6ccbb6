//! The state that all statements share.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use cassandra_cpp::Consistency;

use super::members::Members;
use crate::driver::backend::Level;
use crate::driver::preferred::Preferred;
use crate::options::Majority;
use crate::row_table::Quorum;

#[derive(Debug)]
pub(super) struct Shared {
    pub members: Arc<Members>,
    pub keyspace: String,
    pub majority: Majority,
    pub request_timeout: Duration,
    pub preferred: Arc<Preferred>,
    /// Counts requests, where all nodes take turns.
    pub turns: AtomicUsize,
}

impl Shared {
    pub(super) fn consistency(&self, level: Level) -> Consistency {
        match (level, self.majority) {
            (Level::Majority, Majority::Everywhere) | (Level::Everywhere, _) => Consistency::QUORUM,
            (Level::Majority, Majority::OneDatacenter) => Consistency::LOCAL_QUORUM,
            (Level::Serial, Majority::Everywhere) => Consistency::SERIAL,
            (Level::Serial, Majority::OneDatacenter) => Consistency::LOCAL_SERIAL,
            (Level::One, _) => Consistency::ONE,
            (Level::Of(Quorum::All), _) => Consistency::QUORUM,
            (Level::Of(Quorum::Local), _) => Consistency::LOCAL_QUORUM,
            (Level::Of(Quorum::Each), _) => Consistency::EACH_QUORUM,
        }
    }

    pub(super) fn serial_consistency(&self, level: Level) -> Consistency {
        match level {
            Level::Everywhere => Consistency::SERIAL,
            Level::Majority | Level::Serial | Level::One | Level::Of(_) => {
                self.consistency(Level::Serial)
            }
        }
    }
}
