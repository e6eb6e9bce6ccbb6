//! Reads of files that may hang with their file system.

use std::future::pending;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fermata_files::begun_anew_after;
use tokio::sync::watch;
use tokio::time::{Instant, interval_at, sleep_until};

use crate::cli::detached::detached;

/// A read that takes longer is said.
const READ_MAX: Duration = Duration::from_secs(10);

/// How often it is looked whether one hangs.
const TICK: Duration = Duration::from_millis(200);

/// Where that is asked for, another one is begun after this, doubled for each, …
const ASKED_AFTER: Duration = Duration::from_secs(1);
/// … up to this, …
const ASKED_AFTER_MAX: Duration = Duration::from_secs(10);
/// … and so many may go on then, each of them a thread: more than are begun unasked, so that it helps at any time.
const ASKED_MAX: usize = 256;

/// That all is to be taken again, which a SIGHUP asks for.
pub struct ReloadRequests {
    signal: watch::Receiver<()>,
    /// It was asked for, and is not done yet.
    pub is_pending: bool,
}

impl ReloadRequests {
    /// Each change of `signal` asks for it.
    pub fn new(signal: watch::Receiver<()>) -> ReloadRequests {
        ReloadRequests {
            signal,
            is_pending: false,
        }
    }

    /// Once it is asked for, once more where it was. May be dropped and called again.
    pub async fn again(&mut self) {
        match self.signal.changed().await {
            Ok(()) => self.is_pending = true,
            // Nobody is left who could ask.
            Err(_) => pending().await,
        }
    }
}

/// How many reads were begun for one look.
#[derive(Clone, Copy, Default)]
struct ReadsBegun {
    count: usize,
    /// Those that were given up since that was asked for.
    asked: u32,
}

/// Reads of files that belong together, one after the other.
pub struct FileReads {
    /// For people.
    what: &'static str,
    /// Each read that goes on has a clone.
    going_on: Arc<()>,
    /// It was said that one hangs, and none ended since.
    is_said: bool,
    /// Where so many go on, how long the newest is waited for.
    begun_anew_after: fn(usize) -> Option<Duration>,
}

impl FileReads {
    pub fn new(what: &'static str) -> FileReads {
        FileReads {
            what,
            going_on: Arc::default(),
            is_said: false,
            begun_anew_after,
        }
    }

    /// What `read` gives. Where it hangs another one is begun, soon where that is asked for, and only what the newest one gives
    /// is taken: an older one may have read what is not there any more.
    pub async fn newest<T: Send + 'static>(
        &mut self,
        read: impl FnOnce() -> T + Clone + Send + 'static,
        asked: &mut ReloadRequests,
    ) -> io::Result<T> {
        let what = self.what;
        let said_at = Instant::now() + READ_MAX;
        // Of this call, so that what takes long, and ends, is taken in the end.
        let mut begun = ReadsBegun::default();
        loop {
            begun.count += 1;
            let (read, goes_on) = (read.clone(), Arc::clone(&self.going_on));
            // Not in a thread of the runtime, for whose end it waits.
            let mut reading = pin!(detached("files", move || {
                let came = read();
                drop(goes_on);
                Ok(came)
            }));
            let began = Instant::now();
            let mut ticks = interval_at(began + TICK, TICK);
            let mut is_asked = false;
            while !self.is_given_up(began.elapsed(), is_asked, begun) {
                tokio::select! {
                    biased;
                    came = &mut reading => {
                        if came.is_ok() && std::mem::take(&mut self.is_said) {
                            tracing::info!("{what}: the files can be read again");
                        }
                        return came;
                    }
                    () = asked.again() => {
                        is_asked = true;
                        if self.count() >= ASKED_MAX {
                            tracing::warn!("{what}: {ASKED_MAX} reads hang: no other one is begun until one ends, or this is restarted");
                        }
                    }
                    _ = ticks.tick() => {}
                    () = sleep_until(said_at), if !self.is_said => {
                        self.is_said = true;
                        tracing::warn!(
                            "{what}: a file cannot be read to its end for {} s; what was in force stays so, and changes are not seen \
                             until it can. It is tried again after 30 s, later less often, and on SIGHUP",
                            READ_MAX.as_secs()
                        );
                    }
                }
            }
            begun.asked += u32::from(is_asked);
            tracing::debug!("{what}: another read is begun, since one hangs");
        }
    }

    /// How many go on.
    fn count(&self) -> usize {
        Arc::strong_count(&self.going_on) - 1
    }

    /// Whether another one is begun beside the newest, which began so long ago.
    fn is_given_up(&self, age: Duration, is_asked: bool, begun: ReadsBegun) -> bool {
        let count = self.count();
        let is_due =
            (self.begun_anew_after)(count.max(begun.count)).is_some_and(|after| age >= after);
        let asked_after = ASKED_AFTER.saturating_mul(1 << begun.asked.min(16));
        is_due || is_asked && age >= asked_after.min(ASKED_AFTER_MAX) && count < ASKED_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc;

    use tokio::time::{sleep, timeout};

    use super::*;

    const READS_MAX: usize = 3;

    fn soon(reads: usize) -> Option<Duration> {
        (reads < READS_MAX).then_some(Duration::from_millis(20))
    }

    #[tokio::test]
    async fn another_read_is_begun_where_one_hangs_and_the_newest_counts() {
        let (_signal, signalled) = watch::channel(());
        let mut asked = ReloadRequests::new(signalled);
        let mut reads = FileReads {
            begun_anew_after: soon,
            ..FileReads::new("a test")
        };
        let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
        // Each waits for a word of its own.
        let read = move || {
            let (go_on, goes_on) = mpsc::channel::<u32>();
            let _ = begun.send(go_on);
            goes_on.recv().ok()
        };
        let newest = reads.newest(read, &mut asked);
        let feeding = async {
            let mut hung = Vec::new();
            for _ in 0..READS_MAX {
                hung.push(begins.recv().await.unwrap());
            }
            sleep(3 * TICK).await;
            assert!(begins.try_recv().is_err());
            hung[0].send(1).unwrap();
            hung[READS_MAX - 1].send(2).unwrap();
            hung
        };
        let both = async { tokio::join!(newest, feeding) };
        let patience = Duration::from_secs(30);
        let (came, hung) = timeout(patience, both).await.unwrap();
        assert_eq!(came.unwrap(), Some(2));
        // Nobody waits for these any more.
        drop(hung);
        while Arc::strong_count(&reads.going_on) > 1 {
            std::thread::yield_now();
        }
    }

    /// Each takes longer than the first one is waited for.
    #[tokio::test]
    async fn reads_that_take_long_and_end_are_taken_in_the_end() {
        let (_signal, signalled) = watch::channel(());
        let mut asked = ReloadRequests::new(signalled);
        let mut reads = FileReads {
            begun_anew_after: |reads| Some(2 * TICK * (1 << reads.min(8))),
            ..FileReads::new("a test")
        };
        let read = || std::thread::sleep(6 * TICK);
        let patience = Duration::from_secs(30);
        let newest = timeout(patience, reads.newest(read, &mut asked));
        newest.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn another_read_is_begun_soon_where_that_is_asked_for() {
        let (signal, signalled) = watch::channel(());
        let mut asked = ReloadRequests::new(signalled);
        let mut reads = FileReads {
            // As where too many hang for one to be begun unasked.
            begun_anew_after: |_| None,
            ..FileReads::new("a test")
        };
        let (hang, hangs) = mpsc::channel::<()>();
        let hangs = Arc::new(Mutex::new(Some(hangs)));
        let read = move || {
            // The first one only.
            let hangs = hangs.lock().unwrap().take();
            if let Some(hangs) = &hangs {
                signal.send_replace(());
                let _ = hangs.recv();
            }
            hangs.is_some()
        };
        let is_first = reads.newest(read, &mut asked).await.unwrap();
        assert!(!is_first && asked.is_pending);
        drop(hang);
    }
}
