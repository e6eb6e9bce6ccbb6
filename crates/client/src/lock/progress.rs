//! The progress of a wait, for callers that show it.

use std::time::Duration;

use super::watch::Watcher;
use crate::clock::Moment;

/// The progress of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The number of entries ahead in the queue.
    pub position: u32,
    /// The expected wait from now: the server's estimate by the movement of the queue in the last minute. `None` if the queue did
    /// not move, or nothing is known yet.
    pub estimate: Option<Duration>,
    /// The time since the start of this wait.
    pub waited: Duration,
}

/// Reports the progress of a wait to its caller.
pub(crate) struct ProgressReport<'a> {
    pub(crate) on_progress: Option<&'a mut (dyn FnMut(Progress) + Send)>,
    pub(crate) reported: Option<(u32, Option<Duration>)>,
    pub(crate) start: Moment,
    pub(crate) watcher: Watcher,
}

impl ProgressReport<'_> {
    /// Reports the position and the estimate if they are new.
    pub(crate) fn notify(&mut self, position: u32, estimate: Option<Duration>, now: Moment) {
        let known = self.reported.is_some_and(|(reported, before)| {
            reported == position && (estimate.is_none() || estimate == before)
        });
        if let Some(on_progress) = &mut self.on_progress
            && !known
        {
            self.reported = Some((position, estimate));
            on_progress(Progress {
                position,
                estimate,
                waited: self.start.until(now),
            });
        }
    }
}
