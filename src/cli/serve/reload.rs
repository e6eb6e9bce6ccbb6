//! Takes certificates, tokens and rules from their files again when these change, and on SIGHUP.
//!
//! Files are compared by what they hold: Kubernetes swaps a link to them, and two writes may have one time. What cannot be used
//! leaves in force what was, and is tried again once the files change again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use crate::access::{Access, AccessFiles};
use crate::server::{ClientTls, ClientTlsFiles, PeerTls, PeerTlsFiles};

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is read, byte by byte; `None` of a file that cannot be read now.
type Contents = Vec<Option<Vec<u8>>>;

/// Some files that belong together, and what takes them.
pub struct Watched {
    /// For people.
    what: &'static str,
    files: Vec<PathBuf>,
    take: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// What was looked at last, whether it could be used or not.
    seen: Contents,
}

impl Watched {
    fn new(
        what: &'static str,
        files: Vec<PathBuf>,
        take: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Watched {
        Watched {
            what,
            seen: read(&files),
            files,
            take: Box::new(take),
        }
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
            tls.reload().map_err(|error| format!("peers.tls.{error}"))
        })
    }

    /// Tokens and rules.
    pub fn access(access: Access, files: AccessFiles, certificates: bool) -> Watched {
        Watched::new("tokens and rules", files.paths(), move || {
            let policy = files
                .read(certificates)
                .map_err(|error| format!("auth: {error}"))?;
            access.replace(policy);
            Ok(())
        })
    }

    /// Takes the files where they changed, or all the same where that was asked for.
    fn look(&mut self, asked: bool) {
        let contents = read(&self.files);
        if !asked && contents == self.seen {
            return;
        }
        self.seen = contents;
        let what = self.what;
        match (self.take)() {
            Ok(()) => tracing::info!("{what}: those in the files are in force"),
            Err(why) => {
                tracing::warn!(
                    why,
                    "{what}: those in the files cannot be used; what was in force stays so"
                );
            }
        }
    }
}

fn read(files: &[PathBuf]) -> Contents {
    files.iter().map(|file| std::fs::read(file).ok()).collect()
}

/// Looks at the files for as long as it is polled; at once when `asked` is notified.
pub async fn follow(watched: Vec<Watched>, asked: Arc<tokio::sync::Notify>) {
    let mut watched = watched;
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_asked = tokio::select! {
            biased;
            () = asked.notified() => true,
            _ = looks.tick() => false,
        };
        let looked = spawn_blocking(move || {
            watched.iter_mut().for_each(|one| one.look(is_asked));
            watched
        });
        match looked.await {
            Ok(back) => watched = back,
            Err(error) => {
                tracing::error!(%error, "files are no longer looked at");
                return std::future::pending().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

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
                Ok(text) if text == "good" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        let mut looks = |asked, times| {
            watched.look(asked);
            assert_eq!(taken.load(Ordering::Relaxed), times);
        };
        looks(false, 0);
        looks(true, 1);
        for (text, times) in [("bad", 2), ("good", 3)] {
            std::fs::write(&file, text).unwrap();
            looks(false, times);
            looks(false, times);
        }
        std::fs::remove_file(&file).unwrap();
        looks(false, 4);
        looks(false, 4);
    }
}
