//! How a wait is going, for callers that show it.

use std::time::Duration;

use super::watch::Watcher;
use crate::clock::Moment;

/// How a wait is going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How many are ahead in the queue.
    pub position: u32,
    /// The time that is left, from now: a guess of the server, by the movement of the queue in the last minute. `None` where it did
    /// not move, or is not known yet.
    pub estimate: Option<Duration>,
    /// The time that this wait has taken so far.
    pub waited: Duration,
}

/// Tells a caller how its wait is going.
pub(crate) struct ProgressReport<'a> {
    pub(crate) on_progress: Option<&'a mut (dyn FnMut(Progress) + Send)>,
    pub(crate) reported: Option<(u32, Option<Duration>)>,
    pub(crate) start: Moment,
    pub(crate) watcher: Watcher,
}

impl ProgressReport<'_> {
    /// Tells the position and the estimate, where they are new.
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
