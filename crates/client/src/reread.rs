//! What was read from files, and is read again while calls are made, since the files may be replaced. A file system that hangs
//! holds up no call for long: each read has a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fermata_files::begun_anew_after;

use super::fault::rounded;

/// So long after its begin a read is waited for at most, whoever waits.
const READ_WITHIN: Duration = Duration::from_millis(100);
/// One that takes so long hangs, for people.
const HANGS_AFTER: Duration = Duration::from_secs(1);
/// The last that was read. Clones share it.
pub(super) struct Reread<T>(Arc<Shared<T>>);

struct Shared<T> {
    /// For people: the token, the certificates.
    what: &'static str,
    read: Box<dyn Fn() -> Result<T, String> + Send + Sync>,
    state: Mutex<ReadState<T>>,
    /// Notified when a read ends.
    was_read: Condvar,
}

struct ReadState<T> {
    value: T,
    /// When the newest read began of those that ended; of the first one, when it ended.
    as_of: Instant,
    /// When the newest read began, while it goes on.
    began: Option<Instant>,
    /// How many go on.
    reads: usize,
    /// Why the newest one that ended brought nothing.
    failure: Option<String>,
    /// It was said that one hangs, and none ended since.
    is_said: bool,
}

impl<T: Clone + Send + 'static> Reread<T> {
    /// `value` is what `read` brought.
    pub(super) fn new(
        what: &'static str,
        value: T,
        read: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Reread<T> {
        let state = ReadState {
            value,
            as_of: Instant::now(),
            began: None,
            reads: 0,
            failure: None,
            is_said: false,
        };
        Reread(Arc::new(Shared {
            what,
            read: Box::new(read),
            state: Mutex::new(state),
            was_read: Condvar::new(),
        }))
    }

    /// What there is, or was so long ago at most; what was read last where it cannot be read in time. Blocks for 200 ms at
    /// most, and for a read that hangs once only.
    pub(super) fn value(&self, no_older: Duration) -> T {
        let asked = Instant::now();
        let is_new_enough = |state: &ReadState<T>| state.as_of + no_older > asked;
        let mut state = self.0.lock();
        if !is_new_enough(&state) {
            // What goes on may read what there was before.
            state = self.0.wait(state);
        }
        if !is_new_enough(&state) {
            if state.may_begin() {
                state = self.begin(state);
            }
            // Or for the one that another caller began meanwhile.
            state = self.0.wait(state);
        }
        let value = state.value.clone();
        let hangs = state.begins_to_hang();
        drop(state);
        if hangs {
            tracing::warn!(
                what = self.0.what,
                "a read of it does not end; what was read last is used"
            );
        }
        value
    }

    /// Why it is not what there is now.
    pub(super) fn failure(&self) -> Option<String> {
        let state = self.0.lock();
        let going_on = state.began.map(|began| began.elapsed());
        match going_on.filter(|span| *span >= HANGS_AFTER) {
            Some(span) => Some(format!("a read of it goes on for {}", rounded(span))),
            None => state.failure.clone(),
        }
    }

    fn begin<'a>(
        &'a self,
        mut state: MutexGuard<'a, ReadState<T>>,
    ) -> MutexGuard<'a, ReadState<T>> {
        let began = Instant::now();
        state.began = Some(began);
        state.reads += 1;
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("read".to_owned());
        let spawned = thread.spawn(move || {
            let came = catch_unwind(AssertUnwindSafe(|| (shared.read)()));
            let came = came.unwrap_or_else(|_| Err("the reading of it panicked".to_owned()));
            shared.end(began, came);
        });
        if let Err(error) = spawned {
            let failure = format!("there is no thread to read it: {error}");
            state.began = None;
            state.reads -= 1;
            // Not tried again sooner than one that failed otherwise.
            state.as_of = began;
            let is_new = state.failure.as_ref() != Some(&failure);
            state.failure = Some(failure);
            if is_new {
                drop(state);
                self.0.say_failure();
                state = self.0.lock();
            }
        }
        state
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, ReadState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until the newest read has ended, or had its time.
    fn wait<'a>(&self, state: MutexGuard<'a, ReadState<T>>) -> MutexGuard<'a, ReadState<T>> {
        let Some(began) = state.began else {
            return state;
        };
        let left = READ_WITHIN.saturating_sub(began.elapsed());
        if left.is_zero() {
            return state;
        }
        let goes_on = |state: &mut ReadState<T>| state.began == Some(began);
        let waited = self.was_read.wait_timeout_while(state, left, goes_on);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn end(&self, began: Instant, came: Result<T, String>) {
        let mut state = self.lock();
        state.reads -= 1;
        if state.began == Some(began) {
            state.began = None;
        }
        let mut is_new = false;
        // One that hung may end after a later one.
        if began > state.as_of {
            state.is_said = false;
            state.as_of = began;
            let failure = came.as_ref().err().cloned();
            is_new = failure.is_some() && failure != state.failure;
            state.failure = failure;
            if let Ok(value) = came {
                state.value = value;
            }
        }
        drop(state);
        self.was_read.notify_all();
        if is_new {
            self.say_failure();
        }
    }

    fn say_failure(&self) {
        let Some(error) = self.lock().failure.clone() else {
            return;
        };
        tracing::warn!(
            what = self.what,
            error,
            "not read again; what was read last is used"
        );
    }
}

impl<T> ReadState<T> {
    /// Whether another read may begin: none goes on, or all of them hang, and that for long enough.
    fn may_begin(&self) -> bool {
        let Some(began) = self.began else {
            return true;
        };
        begun_anew_after(self.reads).is_some_and(|after| began.elapsed() >= after)
    }

    /// Whether the newest read hangs, once.
    fn begins_to_hang(&mut self) -> bool {
        let hangs = self
            .began
            .is_some_and(|began| began.elapsed() >= HANGS_AFTER);
        hangs && !std::mem::replace(&mut self.is_said, true)
    }
}

impl<T> Clone for Reread<T> {
    fn clone(&self) -> Reread<T> {
        Reread(Arc::clone(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use fermata_files::READS_MAX;

    use super::*;

    const BEGUN_ANEW_AFTER: Duration = Duration::from_secs(30);
    const BEGUN_ANEW_AFTER_MAX: Duration = Duration::from_secs(3600);

    /// Brings what comes through a channel, one for each read.
    fn fed() -> (mpsc::Sender<Result<u32, String>>, Reread<u32>) {
        let (feed, fed) = mpsc::channel();
        let fed = Mutex::new(fed);
        let read = move || fed.lock().unwrap().recv().unwrap_or(Ok(0));
        (feed, Reread::new("a test", 1, read))
    }

    /// However long the reading takes.
    fn until_read(reread: &Reread<u32>, value: u32) {
        while reread.value(Duration::ZERO) != value {}
    }

    /// As if everything had begun so much earlier.
    fn age(reread: &Reread<u32>, by: Duration) {
        let mut state = reread.0.lock();
        state.as_of = state.as_of.checked_sub(by).unwrap();
        state.began = state.began.map(|began| began.checked_sub(by).unwrap());
    }

    #[test]
    fn a_read_that_hangs_is_waited_for_once_and_what_was_read_last_is_used() {
        let (feed, reread) = fed();
        let start = Instant::now();
        for _ in 0..50 {
            assert_eq!(reread.value(Duration::ZERO), 1);
        }
        // Each by itself would be 5 s.
        assert!(start.elapsed() < Duration::from_secs(2));
        while reread.failure().is_none() {
            std::thread::yield_now();
        }
        let failure = reread.failure().unwrap();
        assert!(failure.starts_with("a read of it goes on for"), "{failure}");
        assert_eq!(reread.0.lock().reads, 1);
        feed.send(Ok(2)).unwrap();
        until_read(&reread, 2);
        feed.send(Ok(3)).unwrap();
        until_read(&reread, 3);
        assert_eq!(reread.failure(), None);
    }

    #[test]
    fn where_all_reads_hang_others_are_begun_after_longer_and_longer() {
        let (feed, reread) = fed();
        let reads = |after| {
            age(&reread, after);
            reread.value(Duration::ZERO);
            reread.0.lock().reads
        };
        assert_eq!(reads(Duration::ZERO), 1);
        assert_eq!(reads(BEGUN_ANEW_AFTER / 2), 1);
        assert_eq!(reads(BEGUN_ANEW_AFTER), 2);
        assert_eq!(reads(BEGUN_ANEW_AFTER), 2);
        assert_eq!(reads(BEGUN_ANEW_AFTER), 3);
        // Until there are too many.
        for _ in 0..2 * READS_MAX {
            assert!(reads(BEGUN_ANEW_AFTER_MAX) <= READS_MAX);
        }
        assert_eq!(reads(BEGUN_ANEW_AFTER_MAX), READS_MAX);
        drop(feed);
        while reread.0.lock().reads > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_failure_keeps_what_was_read_last_and_stands_until_a_read_brings_something() {
        let (feed, reread) = fed();
        feed.send(Err("gone".to_owned())).unwrap();
        while reread.failure().as_deref() != Some("gone") {
            assert_eq!(reread.value(Duration::ZERO), 1);
        }
        // Not older than it may be.
        assert_eq!(reread.value(Duration::from_secs(60)), 1);
        feed.send(Ok(2)).unwrap();
        until_read(&reread, 2);
        assert_eq!(reread.failure(), None);
    }

    #[test]
    fn a_read_that_panics_is_one_that_failed() {
        let reread = Reread::new("a test", 1, || panic!("as it is to"));
        while reread.failure().is_none() {
            assert_eq!(reread.value(Duration::ZERO), 1);
        }
        assert_eq!(reread.0.lock().reads, 0);
    }

    #[test]
    fn a_read_that_hung_and_ends_after_a_later_one_brings_nothing() {
        let reread = Reread::new("a test", 1, || Ok(1));
        let early = Instant::now();
        let later = early + Duration::from_millis(1);
        reread.0.lock().reads = 2;
        reread.0.end(later, Ok(3));
        reread.0.end(early, Ok(2));
        assert_eq!(reread.0.lock().value, 3);
    }
}
