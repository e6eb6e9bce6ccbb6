//! The replica that this process is now. A fenced replica is followed by a new one.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::RwLock;

use super::activity::Activity;
use super::admission::{Admission, MOST_BEGUN, MOST_READ};
use super::api::EngineError;
use super::commits::CommitPace;
use super::metrics::EngineMetrics;
use super::replica::Replica;
use crate::limits::Limits;
use crate::lock::TableName;
use crate::membership::Starter;

/// The parts that stay while the process runs, and its current replica.
pub(super) struct EngineShared {
    pub limits: Limits,
    pub tables: BTreeSet<TableName>,
    pub metrics: Arc<EngineMetrics>,
    pub commits: Arc<CommitPace>,
    pub activity: Arc<Activity>,
    /// The admission of new entries and sessions, and of reads without a lock.
    pub begins: Admission,
    pub reads: Admission,
    current: RwLock<Current>,
    /// Starts replicas; never held while calls are served.
    pub starter: tokio::sync::Mutex<Option<Starter>>,
}

pub(super) enum Current {
    /// No replica now, and the reason.
    Waiting {
        why: String,
        last: Option<Arc<Replica>>,
    },
    Serving(Arc<Replica>),
    Stopped(Option<Arc<Replica>>),
}

impl EngineShared {
    /// No replica yet, for this reason.
    pub fn waiting(tables: BTreeSet<TableName>, limits: Limits, why: &str) -> EngineShared {
        let metrics = EngineMetrics::new(&tables);
        EngineShared {
            limits,
            tables,
            activity: Arc::default(),
            begins: Admission::new("entries and sessions", MOST_BEGUN, metrics.refused("begin")),
            reads: Admission::new("reads without a lock", MOST_READ, metrics.refused("read")),
            metrics: Arc::new(metrics),
            commits: Arc::default(),
            current: RwLock::new(Current::Waiting {
                why: why.to_owned(),
                last: None,
            }),
            starter: tokio::sync::Mutex::default(),
        }
    }

    /// Replaces the current state. False if the engine was stopped, which is final.
    pub fn set(&self, next: Current) -> bool {
        let mut current = self.current.write();
        let goes_on = !matches!(*current, Current::Stopped(_));
        if goes_on {
            *current = next;
        }
        goes_on
    }

    pub fn is_stopped(&self) -> bool {
        let current = self.current.read();
        matches!(*current, Current::Stopped(_))
    }

    pub fn stop(&self) {
        let mut current = self.current.write();
        let last = match &*current {
            Current::Waiting { last, .. } => last.clone(),
            Current::Serving(replica) => Some(Arc::clone(replica)),
            Current::Stopped(_) => return,
        };
        if let Some(replica) = &last {
            replica.local.stop();
        }
        *current = Current::Stopped(last);
    }

    /// The current replica.
    pub fn current(&self) -> Result<Arc<Replica>, EngineError> {
        let current = self.current.read();
        match &*current {
            Current::Waiting { why, .. } => Err(EngineError::Unavailable(why.clone())),
            Current::Serving(replica) => {
                replica.local.sure()?;
                Ok(Arc::clone(replica))
            }
            Current::Stopped(_) => Err(EngineError::Stopping),
        }
    }

    /// The replica of this process, also while it may not answer.
    pub fn serving(&self) -> Option<Arc<Replica>> {
        match &*self.current.read() {
            Current::Serving(replica) => Some(Arc::clone(replica)),
            Current::Waiting { .. } | Current::Stopped(_) => None,
        }
    }

    /// The last replica of a stopped engine.
    pub fn stopped(&self) -> Option<Arc<Replica>> {
        let current = self.current.read();
        match &*current {
            Current::Stopped(last) => last.clone(),
            Current::Waiting { .. } | Current::Serving(_) => None,
        }
    }
}
