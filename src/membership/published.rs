//! Whether this replica may answer: read by every call, without a lock.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use super::lease::Status;

/// Why a replica may not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotSure {
    /// No round succeeded for too long. It keeps its memory, and comes back by itself unless it is declared down.
    #[error("the store acknowledged no heartbeat of this replica for too long")]
    Silent,
    /// It is down for good, and its memory is void. The process must start over under a new id.
    #[error("this replica was fenced")]
    Fenced,
    /// It was stopped.
    #[error("this replica stopped")]
    Stopped,
}

const SURE: u8 = 0;
const FENCED: u8 = 1;
const STOPPED: u8 = 2;

/// The latest status of the rules.
#[derive(Debug)]
pub(super) struct Published {
    /// In microseconds of CLOCK_BOOTTIME; 0 if it is not sure.
    sure_until_us: AtomicU64,
    /// The reason if it is not sure; read afterwards.
    phase: AtomicU8,
}

impl Published {
    pub fn new() -> Self {
        Published {
            sure_until_us: AtomicU64::new(0),
            phase: AtomicU8::new(SURE),
        }
    }

    /// Calls must have the order of the changes, hence the lock of the rules.
    pub fn set(&self, status: Status) {
        let (until, phase) = match status {
            Status::SureUntil(until) => (micros(until), SURE),
            Status::Silent => (0, SURE),
            Status::Fenced(_) => (0, FENCED),
            Status::Stopped => (0, STOPPED),
        };
        self.phase.store(phase, Ordering::SeqCst);
        self.sure_until_us.store(until, Ordering::SeqCst);
    }

    /// Whether it may answer at this time of CLOCK_BOOTTIME (H2), and until when without another event.
    pub fn sure_until(&self, now: Duration) -> Result<Duration, NotSure> {
        let until = self.sure_until_us.load(Ordering::SeqCst);
        if micros(now) < until {
            return Ok(Duration::from_micros(until));
        }
        Err(match self.phase.load(Ordering::SeqCst) {
            FENCED => NotSure::Fenced,
            STOPPED => NotSure::Stopped,
            _ => NotSure::Silent,
        })
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::FencedBy;

    #[test]
    fn what_was_published_last_is_answered_and_no_longer_than_it_holds() {
        let until = Duration::from_secs(9);
        let published = Published::new();
        assert_eq!(published.sure_until(Duration::ZERO), Err(NotSure::Silent));
        published.set(Status::SureUntil(until));
        let before = until - Duration::from_micros(1);
        assert_eq!(published.sure_until(before), Ok(until));
        assert_eq!(published.sure_until(until), Err(NotSure::Silent));
        for (status, why) in [
            (Status::Silent, NotSure::Silent),
            (Status::Fenced(FencedBy::Down), NotSure::Fenced),
            (Status::Stopped, NotSure::Stopped),
        ] {
            published.set(status);
            assert_eq!(published.sure_until(Duration::ZERO), Err(why));
        }
    }
}
