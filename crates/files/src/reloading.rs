//! Files that are reloaded while in use. A file system that hangs delays no caller for long: one read at a time has its own
//! thread, and the previous version stays in use.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Callers wait this long for a read, counted from its begin.
const READ_WITHIN: Duration = Duration::from_millis(100);
/// A longer read hangs.
const HANGS_AFTER: Duration = Duration::from_secs(1);

/// The newest readable version of some files. Clones share it.
pub struct ReloadingFile<T>(Arc<Shared<T>>);

struct Shared<T> {
    /// The name for people, such as "the token".
    what: &'static str,
    read: Box<dyn Fn() -> Result<T, String> + Send + Sync>,
    state: Mutex<State<T>>,
    /// Notified at the end of a read.
    was_read: Condvar,
}

struct State<T> {
    value: T,
    /// The begin of the last read that ended.
    as_of: Instant,
    /// The begin of the read in progress.
    began: Option<Instant>,
    /// The failure of the last read.
    failure: Option<String>,
    /// The hang of the present read is in the log.
    is_hang_logged: bool,
}

impl<T: Clone + Send + 'static> ReloadingFile<T> {
    /// `value` is the version at the start.
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

    /// The present version, or one that was read `no_older` ago at most; the previous version if a read fails or takes too long.
    /// Blocks for 200 ms at most. A read that hangs delays callers once.
    pub fn value(&self, no_older: Duration) -> T {
        let asked = Instant::now();
        let is_fresh = |state: &State<T>| state.as_of + no_older > asked;
        let mut state = self.0.state.lock();
        if !is_fresh(&state) {
            // A read in progress may have begun before the files changed.
            self.0.wait(&mut state);
        }
        if !is_fresh(&state) {
            if state.began.is_none() {
                self.begin(&mut state);
            }
            self.0.wait(&mut state);
        }
        let hangs = state.hangs_for().is_some();
        if hangs && !std::mem::replace(&mut state.is_hang_logged, true) {
            let what = self.0.what;
            tracing::warn!(
                "{what}: the read takes too long (does the file system hang?); keeping the previous version"
            );
        }
        state.value.clone()
    }

    /// The failure of the last read, or of a read that hangs.
    pub fn failure(&self) -> Option<String> {
        let state = self.0.state.lock();
        match state.hangs_for() {
            Some(span) => Some(format!("the read has not ended for {} s", span.as_secs())),
            None => state.failure.clone(),
        }
    }

    fn begin(&self, state: &mut State<T>) {
        let began = Instant::now();
        state.began = Some(began);
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("files".to_owned());
        let spawned = thread.spawn(move || {
            let came = catch_unwind(AssertUnwindSafe(|| (shared.read)()));
            let came = came.unwrap_or_else(|_| Err("the read panicked".to_owned()));
            shared.end(&mut shared.state.lock(), began, came);
        });
        if let Err(error) = spawned {
            let came = Err(format!("cannot start a thread for the read: {error}"));
            self.0.end(state, began, came);
        }
    }
}

impl<T> Shared<T> {
    /// Until the end of the read in progress, or of its time.
    fn wait(&self, state: &mut MutexGuard<'_, State<T>>) {
        let Some(began) = state.began else { return };
        self.was_read.wait_while_for(
            state,
            |state| state.began == Some(began),
            READ_WITHIN.saturating_sub(began.elapsed()),
        );
    }

    fn end(&self, state: &mut State<T>, began: Instant, came: Result<T, String>) {
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
            fed.lock().recv().unwrap_or(Ok(0))
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
        assert!(
            failure.starts_with("the read has not ended for"),
            "{failure}"
        );
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
}
