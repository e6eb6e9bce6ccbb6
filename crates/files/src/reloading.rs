//! Files that are read again while they are used. A file system that hangs holds up nobody for long: each read has a thread of
//! its own, one at a time, and the previous version stays in use.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long callers wait for a read, counted from its begin.
const READ_WITHIN: Duration = Duration::from_millis(100);
/// A read that takes longer is said to hang.
const HANGS_AFTER: Duration = Duration::from_secs(1);

/// The newest version of what some files hold that could be read. Clones share it.
pub struct ReloadingFile<T>(Arc<Shared<T>>);

struct Shared<T> {
    /// For people: the token, the certificates.
    what: &'static str,
    read: Box<dyn Fn() -> Result<T, String> + Send + Sync>,
    state: Mutex<State<T>>,
    /// Notified when a read ends.
    was_read: Condvar,
}

struct State<T> {
    value: T,
    /// When the read began that ended last.
    as_of: Instant,
    /// When the read began that goes on.
    began: Option<Instant>,
    /// Why the last read failed.
    failure: Option<String>,
    /// The log says of the present read that it hangs.
    is_hang_logged: bool,
}

impl<T: Clone + Send + 'static> ReloadingFile<T> {
    /// `value` is what `read` gave at the start.
    pub fn new(
        what: &'static str,
        value: T,
        read: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> ReloadingFile<T> {
        ReloadingFile(Arc::new(Shared {
            what,
            read: Box::new(read),
            state: Mutex::new(State {
                value,
                as_of: Instant::now(),
                began: None,
                failure: None,
                is_hang_logged: false,
            }),
            was_read: Condvar::new(),
        }))
    }

    /// The version that the files have now, or had `no_older` ago at most; the previous one where they cannot be read in time.
    /// Blocks for 200 ms at most, and for each read that hangs once.
    pub fn value(&self, no_older: Duration) -> T {
        let asked = Instant::now();
        let is_fresh = |state: &State<T>| state.as_of + no_older > asked;
        let mut state = self.0.lock();
        if !is_fresh(&state) {
            // A read that goes on may have begun before the files changed.
            state = self.0.wait(state);
        }
        if !is_fresh(&state) {
            if state.began.is_none() {
                state = self.begin(state);
            }
            state = self.0.wait(state);
        }
        let hangs = state.hangs_for().is_some();
        if hangs && !std::mem::replace(&mut state.is_hang_logged, true) {
            let what = self.0.what;
            tracing::warn!(
                "{what}: a file cannot be read, as where its file system hangs; keeping the previous version"
            );
        }
        state.value.clone()
    }

    /// Why the files could not be read last, or that a read hangs.
    pub fn failure(&self) -> Option<String> {
        let state = self.0.lock();
        match state.hangs_for() {
            Some(span) => Some(format!("a read of it goes on for {} s", span.as_secs())),
            None => state.failure.clone(),
        }
    }

    fn begin<'a>(&'a self, mut state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        let began = Instant::now();
        state.began = Some(began);
        drop(state);
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("files".to_owned());
        let spawned = thread.spawn(move || {
            let came = catch_unwind(AssertUnwindSafe(|| (shared.read)()));
            shared.end(
                began,
                came.unwrap_or_else(|_| Err("the read panicked".to_owned())),
            );
        });
        if let Err(error) = spawned {
            self.0.end(
                began,
                Err(format!("there is no thread to read it: {error}")),
            );
        }
        self.0.lock()
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until the read that goes on has ended, or had its time.
    fn wait<'a>(&self, state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        let began = state.began;
        let left = began.map(|began| READ_WITHIN.saturating_sub(began.elapsed()));
        let Some(left) = left.filter(|left| !left.is_zero()) else {
            return state;
        };
        let waited = self
            .was_read
            .wait_timeout_while(state, left, |state| state.began == began);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn end(&self, began: Instant, came: Result<T, String>) {
        let mut state = self.lock();
        state.began = None;
        state.as_of = began;
        state.is_hang_logged = false;
        match came {
            Ok(value) => {
                state.value = value;
                state.failure = None;
            }
            Err(error) => {
                if state.failure.as_ref() != Some(&error) {
                    let what = self.what;
                    tracing::warn!(error, "{what}: reload failed; keeping the previous version");
                }
                state.failure = Some(error);
            }
        }
        drop(state);
        self.was_read.notify_all();
    }
}

impl<T> State<T> {
    fn hangs_for(&self) -> Option<Duration> {
        let going_on = self.began.map(|began| began.elapsed());
        going_on.filter(|span| *span >= HANGS_AFTER)
    }
}

impl<T> Clone for ReloadingFile<T> {
    fn clone(&self) -> ReloadingFile<T> {
        ReloadingFile(Arc::clone(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    /// Reads what comes through a channel; and how many reads have begun.
    fn fed() -> (
        mpsc::Sender<Result<u32, String>>,
        Arc<AtomicUsize>,
        ReloadingFile<u32>,
    ) {
        let (feed, fed) = mpsc::channel();
        let (fed, begun) = (Mutex::new(fed), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&begun);
        let read = move || {
            count.fetch_add(1, Ordering::Relaxed);
            fed.lock().unwrap().recv().unwrap_or(Ok(0))
        };
        (feed, begun, ReloadingFile::new("a test", 1, read))
    }

    /// However long the reading takes.
    fn until_read(file: &ReloadingFile<u32>, value: u32) {
        while file.value(Duration::ZERO) != value {}
    }

    #[test]
    fn a_file_system_that_hangs_has_one_read_outstanding_and_the_previous_version_is_used() {
        let (feed, begun, file) = fed();
        let start = Instant::now();
        while file.failure().is_none() {
            assert_eq!(file.value(Duration::ZERO), 1);
        }
        let failure = file.failure().unwrap();
        assert!(failure.starts_with("a read of it goes on for"), "{failure}");
        assert!(start.elapsed() >= HANGS_AFTER);
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        feed.send(Ok(2)).unwrap();
        until_read(&file, 2);
        feed.send(Ok(3)).unwrap();
        until_read(&file, 3);
        assert_eq!(file.failure(), None);
    }

    #[test]
    fn a_failed_reload_keeps_the_previous_version_until_one_succeeds() {
        let (feed, _, file) = fed();
        feed.send(Err("gone".to_owned())).unwrap();
        while file.failure().as_deref() != Some("gone") {
            assert_eq!(file.value(Duration::ZERO), 1);
        }
        // Not older than it may be.
        assert_eq!(file.value(Duration::from_secs(60)), 1);
        feed.send(Ok(2)).unwrap();
        until_read(&file, 2);
        assert_eq!(file.failure(), None);
    }

    #[test]
    fn a_read_that_panics_is_one_that_failed() {
        let file = ReloadingFile::new("a test", 1, || panic!("as it is to"));
        while file.failure().is_none() {
            assert_eq!(file.value(Duration::ZERO), 1);
        }
    }
}
