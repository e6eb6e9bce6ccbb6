//! Reloads certificates, tokens and rules after changes of their files, and on SIGHUP.
//!
//! The contents of files are compared, not their times: Kubernetes swaps a link to the files, and two writes may have the same
//! time. With unusable contents the previous version stays in force, and the files are tried again.

use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fermata_files::{ReloadingFile, SMALL_FILE_BYTES_MAX, read_regular};
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use crate::access::{Access, AccessFiles};
use crate::cli::settings::Settings;
use crate::lock::TableName;
use crate::server::{ClientTls, ClientTlsFiles, PeerTls, PeerTlsFiles};
use crate::telemetry::LogFilter;

/// The interval between two looks at the files.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Unchanged files are taken again after this: warnings about them (a certificate expires soon) are repeated.
const TAKE_AGAIN_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The contents of some files; `None` of an unreadable one.
type Contents = Vec<Option<Vec<u8>>>;

/// Reads the files and puts their contents in force, or returns the reason why not.
type Take = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Files that belong together.
pub struct Watched {
    /// For people.
    what: &'static str,
    /// Empty: they are taken on request only.
    files: Vec<PathBuf>,
    take: Take,
}

impl Watched {
    fn new(
        what: &'static str,
        files: Vec<PathBuf>,
        take: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Watched {
        let take = Box::new(take);
        Watched { what, files, take }
    }

    /// `log.filter`, from all layers of the settings.
    pub fn log_filter(filter: LogFilter, settings: Settings) -> Watched {
        Watched::new("log.filter", Vec::new(), move || {
            let config = settings.clone().load().map_err(|error| error.to_string())?;
            let replaced = filter.replace(&config.log.filter);
            replaced.map(drop).map_err(|error| error.to_string())
        })
    }

    /// The certificates of this server, for clients.
    pub fn client_tls(tls: ClientTls, files: &ClientTlsFiles) -> Watched {
        Watched::new("certificates for clients", files.paths(), move || {
            tls.reload().map_err(|error| format!("tls.{error}"))
        })
    }

    /// The certificates between replicas.
    pub fn peer_tls(tls: PeerTls, files: &PeerTlsFiles) -> Watched {
        Watched::new("certificates between replicas", files.paths(), move || {
            let put = tls.read_again();
            put.map_err(|error| format!("peers.tls.{error}"))?();
            Ok(())
        })
    }

    /// The tokens; by themselves, since a removed token ends even with unusable rules.
    pub fn tokens(access: Access, files: &AccessFiles) -> Watched {
        let files = AccessFiles {
            tokens: files.tokens.clone(),
            rules: None,
        };
        Watched::new("tokens", files.paths(), move || {
            let tokens = files.read_tokens().map_err(|error| error.to_string())?;
            access.replace_tokens(tokens);
            Ok(())
        })
    }

    /// The rules; with warnings about rules that are hardly meant, given these tables.
    pub fn rules(access: Access, files: &AccessFiles, tables: Vec<TableName>) -> Watched {
        let files = AccessFiles {
            tokens: None,
            rules: files.rules.clone(),
        };
        Watched::new("rules", files.paths(), move || {
            let rules = files.read_rules().map_err(|error| error.to_string())?;
            for doubt in rules.iter().flat_map(|rules| rules.doubts(&tables)) {
                tracing::warn!("auth.rules_file: {doubt}");
            }
            access.replace_rules(rules);
            Ok(())
        })
    }

    /// A look at the files, which takes them if they are due.
    fn look(self, asked: Arc<AtomicBool>) -> impl Fn() -> Result<(), String> + Send + Sync {
        let looked = Mutex::new(Looked::default());
        move || {
            let mut looked = looked.lock();
            let contents = read(&self.files);
            let is_asked = asked.swap(false, Ordering::Relaxed);
            let is_due = looked.is_due(&contents, Instant::now()) && !self.files.is_empty();
            if !is_due && !is_asked {
                return Ok(());
            }
            let what = self.what;
            (self.take)().inspect_err(|why| {
                if is_asked {
                    tracing::warn!(why, "{what}: SIGHUP changed nothing");
                }
            })?;
            let before = looked.taken.as_ref();
            // The first time the contents are those of the start, most likely.
            match is_asked || before.is_some_and(|(taken, _)| *taken != contents) {
                true => tracing::info!("{what}: reloaded"),
                false => tracing::debug!("{what}: reloaded"),
            }
            looked.taken = Some((contents, Instant::now()));
            Ok(())
        }
    }
}

/// The earlier looks at some files.
#[derive(Default)]
struct Looked {
    /// The contents in force, and their time. None at first: the files may have changed since they were read at the start.
    taken: Option<(Contents, Instant)>,
    /// The contents at the last look.
    seen: Contents,
}

impl Looked {
    /// Whether the contents are new, or were taken long ago. They must be the same as at the look before: a writer may not be
    /// done yet.
    fn is_due(&mut self, contents: &Contents, now: Instant) -> bool {
        let is_settled = self.seen == *contents;
        self.seen.clone_from(contents);
        let is_in_force = self.taken.as_ref().is_some_and(|(taken, at)| {
            taken == contents && now.saturating_duration_since(*at) < TAKE_AGAIN_AFTER
        });
        is_settled && !is_in_force
    }
}

fn read(files: &[PathBuf]) -> Contents {
    let read = |file: &PathBuf| read_regular(file, SMALL_FILE_BYTES_MAX).ok();
    files.iter().map(read).collect()
}

/// Looks at all files for as long as it is polled; at once when `asked` changes. Files on a file system that hangs delay no
/// others.
pub async fn follow(watched: Vec<Watched>, asked: watch::Receiver<()>) {
    join_all(watched.into_iter().map(|one| one.follow(asked.clone()))).await;
}

impl Watched {
    async fn follow(self, mut asked: watch::Receiver<()>) {
        let is_asked = Arc::new(AtomicBool::new(false));
        let files = ReloadingFile::new(self.what, (), self.look(Arc::clone(&is_asked)));
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = changed(&mut asked) => is_asked.store(true, Ordering::Relaxed),
                _ = looks.tick() => {}
            }
            let files = files.clone();
            // Failures are logged there.
            let _ = spawn_blocking(move || files.value(Duration::ZERO)).await;
        }
    }
}

async fn changed(asked: &mut watch::Receiver<()>) {
    if asked.changed().await.is_err() {
        // Nobody can ask any more.
        pending().await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn files_are_taken_after_changes_and_on_request() {
        let directory = tempfile::TempDir::new().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "good").unwrap();
        let taken = Arc::new(AtomicUsize::new(0));
        let (counted, read) = (Arc::clone(&taken), file.clone());
        let watched = Watched::new("a file", vec![file.clone()], move || {
            counted.fetch_add(1, Ordering::Relaxed);
            match std::fs::read_to_string(&read) {
                Ok(text) if text == "good" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        let is_asked = Arc::new(AtomicBool::new(false));
        let look = watched.look(Arc::clone(&is_asked));
        let looks = |asked, times| {
            is_asked.store(asked, Ordering::Relaxed);
            let _ = look();
            assert_eq!(taken.load(Ordering::Relaxed), times);
        };
        // They may have changed since they were read at the start; and a writer may not be done.
        looks(false, 0);
        looks(false, 1);
        looks(false, 1);
        looks(true, 2);
        std::fs::write(&file, "bad").unwrap();
        looks(false, 2);
        looks(false, 3);
        // Tried again: the reason may have passed.
        looks(false, 4);
        // The version in force.
        std::fs::write(&file, "good").unwrap();
        looks(false, 4);
        looks(false, 4);
        std::fs::remove_file(&file).unwrap();
        looks(false, 4);
        looks(false, 5);
    }

    #[test]
    fn unchanged_files_are_taken_again_each_day() {
        let (contents, begun) = (vec![None], Instant::now());
        let mut looked = Looked::default();
        assert!(!looked.is_due(&contents, begun));
        assert!(looked.is_due(&contents, begun));
        looked.taken = Some((contents.clone(), begun));
        assert!(!looked.is_due(&contents, begun + TAKE_AGAIN_AFTER / 2));
        assert!(looked.is_due(&contents, begun + TAKE_AGAIN_AFTER));
    }
}
