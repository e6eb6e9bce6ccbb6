//! How a wait is going, for whom wants to know.

use std::time::Duration;

use super::clock::Moment;
use super::watch::Watcher;

/// How a wait is going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How many are ahead in the queue.
    pub position: u32,
    /// How long it may take still, from when this is told: a guess of the server, by how fast the queue moved in the
    /// last minute; `None` where it did not, or is not known yet.
    pub estimate: Option<Duration>,
    /// How long this wait has taken so far.
    pub waited: Duration,
}

/// Tells how a wait is going, to whom wants to know.
pub(super) struct ProgressReport<'a> {
    pub(super) on_progress: Option<&'a mut (dyn FnMut(Progress) + Send)>,
    pub(super) reported: Option<(u32, Option<Duration>)>,
    pub(super) start: Moment,
    pub(super) watcher: Watcher,
}

impl ProgressReport<'_> {
    /// Whether a watch beside a call that waits this long is worth its stream.
    pub(super) fn watches(&self, slice: Duration) -> bool {
        self.on_progress.is_some() && !slice.is_zero()
    }

    /// Without an estimate a position that was told before is nothing new.
    pub(super) fn notify(&mut self, position: u32, estimate: Option<Duration>, now: Moment) {
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
