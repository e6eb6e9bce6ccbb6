//! Takes certificates, tokens and rules from their files again when these change, and on SIGHUP.
//!
//! Files are compared by what they hold: Kubernetes swaps a link to them, and two writes may have one time. What cannot be used
//! leaves in force what was, and is tried again.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_files::{ReloadingFile, SMALL_FILE_BYTES_MAX, read_regular};
use std::future::pending;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use crate::access::{Access, AccessFiles};
use crate::cli::detached::detached;
use crate::cli::settings::Settings;
use crate::lock::TableName;
use crate::server::{ClientTls, ClientTlsFiles, PeerTls, PeerTlsFiles};
use crate::telemetry::LogFilter;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often certificates are taken again that did not change: that one is about to expire is said each time.
const TAKE_AGAIN_AFTER: Duration = Duration::from_secs(24 * 3600);

/// What a file holds; `None` of one that cannot be read now.
type Contents = Vec<Option<Vec<u8>>>;

/// Puts in force what was read, in no time; or says why that cannot be.
type PutInForce = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// Reads the files for what can be put in force; or says why they cannot be used.
type Take = Arc<dyn Fn() -> Result<PutInForce, String> + Send + Sync>;

/// Some files that belong together, and what takes them.
pub struct Watched {
    /// For people.
    what: &'static str,
    files: Vec<PathBuf>,
    take: Take,
    /// What is in force; nothing before it is known that it is what the files hold.
    taken: Option<Contents>,
    /// What was there when they were looked at last.
    seen: Option<Contents>,
    /// Why that cannot be used, as it was said.
    refused: Option<String>,
    /// Nothing changed since the first look, so that what is taken is what was read at the start, most likely.
    is_first: bool,
    /// Nothing is taken unless that is asked for.
    only_asked: bool,
    /// What did not change is taken again so long after the last time.
    again_after: Option<Duration>,
    taken_at: Option<Instant>,
}

impl Watched {
    fn new(
        what: &'static str,
        files: Vec<PathBuf>,
        take: impl Fn() -> Result<PutInForce, String> + Send + Sync + 'static,
    ) -> Watched {
        Watched {
            what,
            files,
            take: Arc::new(take),
            // They may have changed since they were read at the start.
            taken: None,
            seen: None,
            refused: None,
            is_first: true,
            only_asked: false,
            again_after: None,
            taken_at: None,
        }
    }

    /// `log.filter`, from wherever the settings come.
    pub fn log_filter(filter: LogFilter, settings: Settings) -> Watched {
        let take = move || -> Result<PutInForce, String> {
            let config = settings.clone().load().map_err(|error| error.to_string())?;
            let filter = filter.clone();
            Ok(Box::new(move || {
                let replaced = filter.replace(&config.log.filter);
                replaced.map_err(|error| error.to_string())
            }))
        };
        Watched {
            only_asked: true,
            ..Watched::new("log.filter", Vec::new(), take)
        }
    }

    /// The certificates of this server, for clients.
    pub fn client_tls(tls: ClientTls, files: &ClientTlsFiles) -> Watched {
        let take = move || -> Result<PutInForce, String> {
            let put = tls.read_again().map_err(|error| format!("tls.{error}"))?;
            Ok(in_force(put))
        };
        Watched {
            again_after: Some(TAKE_AGAIN_AFTER),
            ..Watched::new("certificates for clients", files.paths(), take)
        }
    }

    /// The certificates between replicas.
    pub fn peer_tls(tls: PeerTls, files: &PeerTlsFiles) -> Watched {
        Watched::new("certificates between replicas", files.paths(), move || {
            let put = tls.read_again();
            let put = put.map_err(|error| format!("peers.tls.{error}"))?;
            Ok(in_force(put))
        })
    }

    /// The tokens: one that is taken away does not count any more, whatever the rules are.
    pub fn tokens(access: Access, files: &AccessFiles) -> Watched {
        let files = AccessFiles {
            tokens: files.tokens.clone(),
            rules: None,
        };
        Watched::new("tokens", files.paths(), move || {
            let tokens = files.read_tokens().map_err(|error| error.to_string())?;
            let access = access.clone();
            Ok(in_force(move || access.replace_tokens(tokens)))
        })
    }

    /// The rules; what in them can hardly be meant is said, the tables being these.
    pub fn rules(access: Access, files: &AccessFiles, tables: Vec<TableName>) -> Watched {
        let files = AccessFiles {
            tokens: None,
            rules: files.rules.clone(),
        };
        Watched::new("rules", files.paths(), move || {
            let rules = files.read_rules().map_err(|error| error.to_string())?;
            let doubts = rules.iter().flat_map(|rules| rules.doubts(&tables));
            let doubts = doubts.collect::<Vec<_>>();
            let access = access.clone();
            Ok(in_force(move || {
                for doubt in &doubts {
                    tracing::warn!("auth.rules_file: {doubt}");
                }
                access.replace_rules(rules);
            }))
        })
    }

    /// What the files hold now. Whether they are to be taken: where they changed and are the same as a moment ago (who writes one
    /// may not be done yet), or all the same where that was asked for. What cannot be used is tried each time.
    fn looked(&mut self, contents: Contents, asked: bool, now: Instant) -> bool {
        let contents = Some(contents);
        let is_settled = contents == self.seen;
        let has_changed = self.seen.is_some() && !is_settled;
        self.is_first = self.is_first && !has_changed;
        self.seen = contents;
        if self.seen == self.taken || !is_settled {
            self.refused = None;
        }
        let is_due = || {
            let age = now.saturating_duration_since(self.taken_at?);
            Some(age >= self.again_after?)
        };
        let is_new = is_settled && self.seen != self.taken;
        match self.only_asked {
            true => asked,
            false => asked || is_new || is_settled && is_due() == Some(true),
        }
    }

    /// What became of that, and what the files hold after it. That they cannot be used is said once until they change.
    fn took(
        &mut self,
        took: Result<(), String>,
        contents: Contents,
        (asked, now): (bool, Instant),
    ) {
        let what = self.what;
        self.taken_at = Some(now);
        match took {
            Ok(()) => {
                // Whoever started it with that needs no news of it, nor whoever changed nothing.
                match asked || !self.is_first && self.seen != self.taken {
                    true => tracing::info!("{what}: reloaded"),
                    false => tracing::debug!("{what}: reloaded"),
                }
                // Unless they changed meanwhile: then nobody knows which of both was taken.
                let is_same = self.seen.as_ref() == Some(&contents);
                self.taken = is_same.then_some(contents);
                self.refused = None;
            }
            Err(why) => {
                if asked || self.refused.as_ref() != Some(&why) {
                    tracing::warn!(why, "{what}: reload failed; keeping the previous version");
                }
                self.refused = Some(why);
            }
        }
        self.is_first = false;
    }
}

fn read(files: &[PathBuf]) -> Contents {
    let read = |file: &PathBuf| read_regular(file, SMALL_FILE_BYTES_MAX).ok();
    files.iter().map(read).collect()
}

/// What cannot fail any more.
fn in_force(put: impl FnOnce() + Send + 'static) -> PutInForce {
    Box::new(move || {
        put();
        Ok(())
    })
}

/// Looks at all of the files for as long as it is polled; at once when `asked` changes. Each by itself: where those of one hang with
/// their file system, the others are looked at all the same.
pub async fn follow(watched: Vec<Watched>, asked: watch::Receiver<()>) {
    join_all(watched.into_iter().map(|one| one.follow(asked.clone()))).await;
}

impl Watched {
    async fn follow(mut self, mut asked: watch::Receiver<()>) {
        let files = self.files.clone();
        let contents = ReloadingFile::new(self.what, None, move || Ok(Some(read(&files))));
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut is_asked, mut is_failing) = (false, false);
        loop {
            tokio::select! {
                biased;
                () = changed(&mut asked) => is_asked = true,
                _ = looks.tick(), if !self.only_asked || is_asked => {}
            }
            match self.look(&contents, is_asked).await {
                Ok(is_done) => (is_asked, is_failing) = (is_asked && !is_done, false),
                // There may be threads again later.
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::error!(%error, "{}: the files cannot be read", self.what);
                    }
                }
            }
        }
    }

    /// Takes the files where they are to be taken. False while a read hangs: what is in force stays so.
    async fn look(
        &mut self,
        files: &ReloadingFile<Option<Contents>>,
        is_asked: bool,
    ) -> io::Result<bool> {
        let reading = files.clone();
        let contents = spawn_blocking(move || reading.value(Duration::ZERO)).await?;
        let Some(contents) = contents.filter(|_| files.failure().is_none()) else {
            return Ok(false);
        };
        if !self.looked(contents, is_asked, Instant::now()) {
            return Ok(true);
        }
        let (take, files) = (Arc::clone(&self.take), self.files.clone());
        // Not in a thread of the runtime, for whose end it waits.
        let taking = detached("files", move || Ok((take(), read(&files))));
        let (put, contents) = taking.await?;
        let now = Instant::now();
        self.took(put.and_then(|put| put()), contents, (is_asked, now));
        Ok(true)
    }
}

async fn changed(asked: &mut watch::Receiver<()>) {
    if asked.changed().await.is_err() {
        // Nobody is left who could ask.
        pending().await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use tokio::time::timeout;

    use super::*;

    /// As `follow` does it.
    fn look(watched: &mut Watched, asked: bool, now: Instant) {
        let contents = read(&watched.files);
        if watched.looked(contents, asked, now) {
            let put = (watched.take)();
            let contents = read(&watched.files);
            watched.took(put.and_then(|put| put()), contents, (asked, now));
        }
    }

    /// As on a file system that hangs.
    #[tokio::test]
    async fn what_hangs_keeps_the_others_from_nothing() {
        let (hang, hanging) = mpsc::channel::<()>();
        let hanging = std::sync::Mutex::new(hanging);
        let (looked, mut looks) = tokio::sync::mpsc::unbounded_channel();
        let hangs = Watched::new("what hangs", Vec::new(), move || {
            let _ = hanging.lock().unwrap().recv();
            Ok(in_force(|| ()))
        });
        let goes_on = Watched::new("what goes on", Vec::new(), move || {
            looked.send(()).map_err(|error| error.to_string())?;
            Ok(in_force(|| ()))
        });
        let (asked, is_asked) = watch::channel(());
        let following = tokio::spawn(follow(vec![hangs, goes_on], is_asked));
        for _ in 0..3 {
            asked.send_replace(());
            let within = Duration::from_secs(10);
            timeout(within, looks.recv()).await.unwrap().unwrap();
        }
        following.abort();
        drop(hang);
    }

    #[test]
    fn files_are_taken_when_they_change_and_when_that_is_asked_for() {
        let directory = tempfile::TempDir::new().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "good").unwrap();
        let taken = Arc::new(AtomicUsize::new(0));
        let (counted, read) = (Arc::clone(&taken), file.clone());
        let mut watched = Watched::new("a file", vec![file.clone()], move || {
            counted.fetch_add(1, Ordering::Relaxed);
            match std::fs::read_to_string(&read) {
                Ok(text) if text == "good" => Ok(in_force(|| ())),
                other => Err(format!("{other:?}")),
            }
        });
        let begun = Instant::now();
        let mut looks = |asked, times| {
            look(&mut watched, asked, begun);
            assert_eq!(taken.load(Ordering::Relaxed), times);
        };
        // It may have changed since it was read at the start; and whoever writes it may not be done.
        looks(false, 0);
        looks(false, 1);
        looks(false, 1);
        looks(true, 2);
        std::fs::write(&file, "bad").unwrap();
        looks(false, 2);
        looks(false, 3);
        // Tried again: why it could not be used may have passed.
        looks(false, 4);
        // What is in force.
        std::fs::write(&file, "good").unwrap();
        looks(false, 4);
        looks(false, 4);
        std::fs::remove_file(&file).unwrap();
        looks(false, 4);
        looks(false, 5);
    }

    #[test]
    fn what_may_expire_is_taken_again_each_day() {
        let taken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&taken);
        let take = move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(in_force(|| ()))
        };
        let mut watched = Watched {
            again_after: Some(TAKE_AGAIN_AFTER),
            ..Watched::new("a file", Vec::new(), take)
        };
        let begun = Instant::now();
        let mut looks = |after, times| {
            look(&mut watched, false, begun + after);
            assert_eq!(taken.load(Ordering::Relaxed), times, "{after:?}");
        };
        let second = Duration::from_secs(1);
        looks(Duration::ZERO, 0);
        looks(second, 1);
        looks(TAKE_AGAIN_AFTER, 1);
        looks(TAKE_AGAIN_AFTER + second, 2);
        looks(TAKE_AGAIN_AFTER + second * 2, 2);
        looks(TAKE_AGAIN_AFTER * 2 + second, 3);
    }
}
