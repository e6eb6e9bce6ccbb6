//! The embedded store: one directory, one process (redb).
//!
//! One thread writes. It commits all waiting work in one transaction and then answers, so that one sync of the disk serves many
//! callers. Reads see committed, durable snapshots. After a fault of the file the store is closed until the file was opened
//! again and holds all acknowledged changes.
//!
//! No rules of the lock live here, and nothing of redb leaves this folder.

mod archive;
mod backup;
mod cell_work;
mod cells;
mod directory;
mod fault;
mod file;
mod format;
mod gate;
mod isolate;
mod open_error;
mod overlay;
mod read;
mod record;
mod rows;
mod stores;
#[cfg(any(test, fuzzing))]
pub(crate) mod tests;
mod work;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use redb::ReadTransaction;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::sleep;
use uuid::Uuid;

pub use self::archive::ArchiveError;
pub use self::backup::{BackupSummary, RestoreError, Restored, check_backup, restore};
use self::directory::{Directory, OwnFiles};
use self::fault::Fault;
use self::file::{Medium, Opened};
use self::gate::Gate;
pub use self::open_error::EmbeddedOpenError;
use self::writer::{JOBS_MAX, Message, Writer};
use super::metrics::StoreMetrics;
use super::{CellStore, Store, StoreError};

/// The pause between two checks that the data directory is still there.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Where an embedded store lies, and how much memory it takes.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// The data directory; made if there is none.
    pub directory: PathBuf,
    /// How much of the file to keep in memory, in bytes.
    pub cache_bytes: usize,
    /// Counts its commits.
    pub metrics: StoreMetrics,
}

impl EmbeddedOptions {
    /// What is kept in memory unless asked otherwise, in bytes: 64 MiB.
    pub const CACHE_BYTES_DEFAULT: usize = 64 * 1024 * 1024;

    /// The defaults, in this directory.
    pub fn new(directory: impl Into<PathBuf>) -> EmbeddedOptions {
        EmbeddedOptions {
            directory: directory.into(),
            cache_bytes: Self::CACHE_BYTES_DEFAULT,
            metrics: StoreMetrics::default(),
        }
    }
}

/// A [`Store`] in one directory, which one process has at a time: opening it proves that every earlier replica is gone.
///
/// Dropping it finishes what was asked for and closes the file; that may block for as long as a commit
/// takes. [`EmbeddedStore::shutdown`] does the same without blocking.
#[derive(Debug)]
pub struct EmbeddedStore {
    gate: Arc<Gate>,
    /// Its id.
    store: Uuid,
    is_new: bool,
    /// Below it no fence is given out.
    fence_floor: u64,
    own_files: Arc<OwnFiles>,
    /// Reads that may go over all that there is take turns.
    listings: Arc<Semaphore>,
    /// Dropped before `_writer`, which waits for the writer to find that nobody is left.
    queue: mpsc::Sender<Message>,
    _writer: WriterThread,
}

/// The writer's thread; waited for when dropped.
#[derive(Debug)]
struct WriterThread(Option<JoinHandle<()>>);

impl Drop for WriterThread {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take()
            && thread.join().is_err()
        {
            tracing::error!("the store's writer panicked");
        }
    }
}

impl EmbeddedStore {
    /// Takes the directory for this process and opens the store in it, or makes one if there is none.
    /// Blocks, after a crash for about three seconds a GiB.
    pub fn open(options: EmbeddedOptions) -> Result<EmbeddedStore, EmbeddedOpenError> {
        let medium = Medium {
            cache_bytes: options.cache_bytes,
            #[cfg(test)]
            disk: None,
        };
        EmbeddedStore::open_on(&options.directory, medium, options.metrics)
    }

    fn open_on(
        directory: &Path,
        medium: Medium,
        metrics: StoreMetrics,
    ) -> Result<EmbeddedStore, EmbeddedOpenError> {
        let directory = Directory::claim(directory)?;
        let path = directory.locks_file();
        let is_new = !directory.has_store()?;
        if is_new {
            directory.make_store(Uuid::new_v4(), |path, file| medium.fill(path, file))?;
        }
        let store = directory.format()?.store;
        let Opened {
            database,
            commits,
            fence_floor,
        } = medium.open(&path)?;
        let own_files = directory.own_files();
        let own_files = Arc::new(own_files.map_err(|error| EmbeddedOpenError::io(&path, error))?);
        let gate = Arc::new(Gate::open(database, metrics));
        let (queue, jobs) = mpsc::channel(JOBS_MAX);
        let writer = Writer {
            directory,
            store,
            medium,
            gate: Arc::clone(&gate),
            queue: jobs,
            commits,
        };
        let thread = thread::Builder::new()
            .name("fermata-store".to_owned())
            .spawn(move || writer.run())
            .map_err(|error| EmbeddedOpenError::io(&path, error))?;
        Ok(EmbeddedStore {
            gate,
            store,
            is_new,
            fence_floor,
            own_files,
            listings: Arc::new(Semaphore::new(1)),
            queue,
            _writer: WriterThread(Some(thread)),
        })
    }

    /// Handles of it. Who opened it goes on to need it itself, to shut it down.
    pub fn store(self: &Arc<Self>) -> Store {
        Store {
            kind: "embedded",
            health: Arc::clone(self) as _,
            keys: Arc::clone(self) as _,
            data: Arc::clone(self) as _,
            sessions: Arc::clone(self) as _,
            backups: Some(Arc::clone(self) as _),
            cluster: None,
        }
    }

    /// Whether this process made it: there was none in the directory.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Its cells.
    pub fn cells(self: &Arc<Self>) -> Arc<dyn CellStore> {
        Arc::clone(self) as _
    }

    /// How many transactions were committed since it was opened: with group commit, fewer than the
    /// changes made.
    pub fn commits(&self) -> u64 {
        self.gate.commits()
    }

    /// Returns once the data directory was removed or replaced under this store, with why it is closed then: nothing that is
    /// written from there on would be found again. To be awaited for as long as it is open.
    pub async fn until_lost(&self) -> String {
        let lost = loop {
            sleep(CHECK_EVERY).await;
            let own_files = Arc::clone(&self.own_files);
            let lost = tokio::task::spawn_blocking(move || own_files.lost());
            match lost.await.map_err(std::io::Error::other).flatten() {
                Ok(None) => {}
                Ok(Some(lost)) => break lost,
                Err(error) => tracing::debug!(%error, "the data directory cannot be checked"),
            }
        };
        let reason = format!(
            "the data directory was removed or replaced while it was in use ({} is not the file that this process \
             opened): acknowledged changes are lost unless there is a copy",
            lost.display()
        );
        self.gate.shut(&reason);
        reason
    }

    /// Finishes what was asked for before, closes the file and gives the directory back. Whatever is
    /// asked later is answered [`StoreError::Closed`].
    pub async fn shutdown(&self) {
        let (acknowledge, stopped) = oneshot::channel();
        if self.queue.send(Message::Stop(acknowledge)).await.is_ok() {
            // An error: another call was faster, and the writer is gone.
            let _ = stopped.await;
        }
    }

    /// Reads many rows.
    async fn list<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ReadTransaction) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        // Never closed. The turn ends with the read, also where nobody waits for that any more.
        let turn = Arc::clone(&self.listings).acquire_owned().await.ok();
        self.read(move |snapshot| {
            let _turn = turn;
            work(snapshot)
        })
        .await
    }

    /// Reads a row on a thread that may block: a page that is not in memory comes from the disk. Reads wait for such a thread,
    /// and not for a permit: whoever has to be woken up before it can begin waits behind all else that a busy process does.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ReadTransaction) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let gate = Arc::clone(&self.gate);
        let queue = self.queue.clone();
        let read = tokio::task::spawn_blocking(move || {
            let answer = gate.read(|snapshot| work(&snapshot));
            if gate.ready().is_err() {
                // Where there is no room for it, the writer is awake and looks by itself.
                let _ = queue.try_send(Message::Recheck);
            }
            answer
        });
        read.await
            .unwrap_or_else(|error| Err(StoreError::Unavailable(error.to_string())))
    }
}

fn writer_gone() -> StoreError {
    StoreError::Closed("its writer has ended".to_owned())
}
