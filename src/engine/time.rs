//! The time of this replica as an observer (I9), and the alarms of its keys.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::clock::Clock;
use crate::lock::KeyId;
use crate::session::{Observed, Observer};

/// The clock is read at least this often; a longer gap means that the process was not running.
pub(super) const TICK: Duration = Duration::from_millis(50);
const GAP_MAX: Duration = Duration::from_millis(1_000);

/// Names an alarm.
pub(super) type AlarmAt = (Observed, u64);

/// The nanoseconds of a boot time, which 64 bits hold for 584 years.
pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// The time that this replica observes, and the alarms of its keys.
pub(super) struct Time {
    clock: Arc<dyn Clock>,
    inner: Mutex<TimeState>,
}

struct TimeState {
    observer: Observer,
    alarms: BTreeMap<AlarmAt, Arc<KeyId>>,
    next: u64,
}

impl Time {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Time {
            clock,
            inner: Mutex::new(TimeState {
                observer: Observer::new(GAP_MAX),
                alarms: BTreeMap::new(),
                next: 0,
            }),
        }
    }

    fn inner(&self) -> MutexGuard<'_, TimeState> {
        self.inner.lock()
    }

    /// The present moment. The first reading after a sleep notices it.
    pub fn now(&self) -> Observed {
        let boot = self.clock.boot();
        self.inner().observer.observe(boot)
    }

    /// Notes whether this replica is silent: silent time counts against no client.
    pub fn set_silent(&self, is_silent: bool) {
        let boot = self.clock.boot();
        self.inner().observer.set_silent(is_silent, boot);
    }

    /// The time that this observer missed.
    pub fn missed(&self) -> Duration {
        self.inner().observer.missed()
    }

    /// From `at` on, [`Time::due`] names this key.
    pub fn set(&self, at: Observed, id: &Arc<KeyId>) -> AlarmAt {
        let mut inner = self.inner();
        inner.next = inner.next.wrapping_add(1);
        let alarm = (at, inner.next);
        inner.alarms.insert(alarm, Arc::clone(id));
        alarm
    }

    pub fn clear(&self, alarm: AlarmAt) {
        self.inner().alarms.remove(&alarm);
    }

    /// Takes the keys whose alarms are due, `most` at most.
    pub fn due(&self, now: Observed, most: usize) -> Vec<Arc<KeyId>> {
        let mut inner = self.inner();
        let mut due = Vec::new();
        while due.len() < most
            && let Some(first) = inner.alarms.first_entry()
            && first.key().0 <= now
        {
            due.push(first.remove());
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Sleep, SystemClock};
    use crate::lock::{Key, TableName};

    struct Fixed(Mutex<Duration>);

    impl Clock for Fixed {
        fn boot(&self) -> Duration {
            *self.0.lock()
        }

        fn wall_us(&self) -> u64 {
            0
        }

        fn sleep(&self, span: Duration) -> Sleep {
            SystemClock.sleep(span)
        }
    }

    fn id(key: &str) -> Arc<KeyId> {
        Arc::new(KeyId {
            table: TableName::default_table(),
            key: Key::parse(key, 9).unwrap(),
        })
    }

    #[test]
    fn alarms_are_due_in_their_order_and_not_once_they_are_cleared() {
        let clock = Arc::new(Fixed(Mutex::new(Duration::from_secs(1))));
        let time = Time::new(Arc::clone(&clock) as _);
        let now = time.now();
        let later = now.plus(Duration::from_millis(500));
        time.set(later, &id("b"));
        time.set(now, &id("a"));
        let cleared = time.set(now, &id("c"));
        time.clear(cleared);
        assert_eq!(time.due(now, 9), [id("a")]);
        *clock.0.lock() += Duration::from_millis(500);
        assert_eq!(time.due(time.now(), 9), [id("b")]);
        assert_eq!(time.due(time.now(), 9), Vec::<Arc<KeyId>>::new());
    }
}
