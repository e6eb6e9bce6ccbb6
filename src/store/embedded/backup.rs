//! Backups of all rows at one moment while the store continues, and restores of them.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use redb::{Durability, ReadTransaction, ReadableTable};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::archive::{
    ArchiveError, ArchiveHead, ArchiveReader, ArchiveRow, ArchiveWriter, NotTaken,
};
use super::directory::Directory;
use super::fault::Fault;
use super::file::Medium;
use super::isolate::isolated;
use super::record::LockRow;
use super::rows::{COMMITS, FENCE_FLOOR, META, RowKind};
use super::writer::BATCH_BYTES_MAX;
use super::{EmbeddedOpenError, EmbeddedOptions, EmbeddedStore};
use crate::store::floor::fence_floor;
use crate::store::{BackupStore, StoreError};

/// How far above the clock a floor may be asked for: a year. What is further is no number of microseconds.
const ABOVE_US_MAX: u64 = 365 * 24 * 60 * 60 * 1_000_000;
/// A backup ends if a chunk of it is not taken within this: the file grows with each write until then.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

/// What is in a backup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BackupSummary {
    /// Keys that were ever locked.
    pub keys: u64,
    /// Live entries.
    pub entries: u64,
    /// Values.
    pub values: u64,
    /// Sessions.
    pub sessions: u64,
    /// Cells of tables without homes.
    pub cells: u64,
    /// All fences that its keys may have used are below this.
    pub fence_end: u64,
    /// Keys whose row cannot be understood: they are in it as they are.
    pub damaged: u64,
}

/// What a restore made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// What was in the backup.
    pub summary: BackupSummary,
    /// No fencing token is below this from now on.
    pub fence_floor: u64,
}

/// Why a backup was not restored. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The directory has a store.
    #[error(
        "{} already has a store, which may be newer. Name a directory without a store, or move its directory `store` away first",
        .0.display()
    )]
    Exists(std::path::PathBuf),
    /// The token that is to be exceeded lies too far ahead of the clock.
    #[error(
        "{above} is more than a year ahead of the clock ({now_us}); tokens are microseconds since 1970"
    )]
    TooHigh {
        /// It.
        above: u64,
        /// The clock, in microseconds since 1970.
        now_us: u64,
    },
    /// The file is no whole backup.
    #[error("{0}")]
    Archive(#[from] ArchiveError),
    /// The directory cannot be used.
    #[error("{0}")]
    Open(#[from] EmbeddedOpenError),
}

impl BackupSummary {
    fn count(&mut self, row: &ArchiveRow) {
        match row.kind {
            RowKind::Lock => {
                self.keys += 1;
                match LockRow::decode(&row.value) {
                    Ok(lock) => self.fence_end = self.fence_end.max(lock.fence_end()),
                    Err(_) => self.damaged += 1,
                }
            }
            RowKind::Entry => self.entries += 1,
            RowKind::Data => self.values += 1,
            RowKind::Session => self.sessions += 1,
            RowKind::Cell => self.cells += 1,
        }
    }
}

/// Reads a backup to its end: whether all of it is there and whole, and what is in it.
pub fn check_backup(from: impl Read) -> Result<BackupSummary, ArchiveError> {
    let (mut reader, _) = ArchiveReader::new(from)?;
    let mut summary = BackupSummary::default();
    while let Some(row) = reader.next()? {
        summary.count(&row);
    }
    Ok(summary)
}

/// Makes a store from a backup, in a directory without one: with another id, and fences above all that the store of the backup
/// can have given out until `now_us` (microseconds since 1970), or above `above`. Blocks.
pub fn restore(
    options: &EmbeddedOptions,
    from: impl Read,
    now_us: u64,
    above: Option<u64>,
) -> Result<Restored, RestoreError> {
    if let Some(above) = above.filter(|above| *above > now_us.saturating_add(ABOVE_US_MAX)) {
        return Err(RestoreError::TooHigh { above, now_us });
    }
    let directory = Directory::claim(&options.directory)?;
    if directory.has_store()? {
        return Err(RestoreError::Exists(options.directory.clone()));
    }
    let medium = Medium {
        cache_bytes: options.cache_bytes,
        #[cfg(test)]
        disk: None,
    };
    let (mut reader, head) = ArchiveReader::new(from)?;
    directory.make_store(Uuid::new_v4(), |path, file| {
        let empty = file.try_clone();
        medium.fill(path, empty.map_err(|e| EmbeddedOpenError::io(path, e))?)?;
        fill(&medium, path, file, &mut reader, |summary| {
            let used = summary.fence_end.max(head.fence_floor);
            (head.commits, fence_floor(now_us, used, above))
        })
    })
}

/// Fills the tables of a new file.
fn fill(
    medium: &Medium,
    path: &Path,
    file: File,
    reader: &mut ArchiveReader<impl Read>,
    meta: impl FnOnce(&BackupSummary) -> (u64, u64),
) -> Result<Restored, RestoreError> {
    let mut broken = None;
    let filled = isolated(|| {
        let database = medium.database(file)?;
        let mut summary = BackupSummary::default();
        let mut is_last = false;
        while !is_last {
            let mut transaction = database.begin_write()?;
            transaction.set_durability(Durability::Immediate)?;
            let mut bytes = 0;
            while bytes < BATCH_BYTES_MAX {
                let row = match reader.next() {
                    Ok(Some(row)) => row,
                    Ok(None) => {
                        is_last = true;
                        break;
                    }
                    Err(error) => {
                        broken = Some(error);
                        return Err(redb::Error::Corrupted("the backup".to_owned()));
                    }
                };
                summary.count(&row);
                bytes += row.key.len() + row.value.len();
                let mut table = transaction.open_table(row.kind.table())?;
                table.insert(row.key.as_slice(), row.value.as_slice())?;
            }
            transaction.commit()?;
        }
        let (commits, fence_floor) = meta(&summary);
        let transaction = database.begin_write()?;
        {
            let mut rows = transaction.open_table(META)?;
            rows.insert(COMMITS, commits)?;
            rows.insert(FENCE_FLOOR, fence_floor)?;
        }
        transaction.commit()?;
        Ok(Restored {
            summary,
            fence_floor,
        })
    });
    let filled = filled.map_err(|panic| EmbeddedOpenError::damaged(path, panic))?;
    filled.map_err(|error| match broken {
        Some(broken) => broken.into(),
        None => EmbeddedOpenError::redb(path, error).into(),
    })
}

#[async_trait]
impl BackupStore for EmbeddedStore {
    async fn back_up(&self) -> Result<mpsc::Receiver<Result<Bytes, StoreError>>, StoreError> {
        self.gate.ready()?;
        let (chunks, taken) = mpsc::channel(1);
        let (gate, store, fence_floor) = (self.gate.clone(), self.store, self.fence_floor);
        let runtime = Handle::current();
        // A thread of its own: it takes as long as the receiver does.
        let thread = thread::Builder::new().name("fermata-backup".to_owned());
        let spawned = thread.spawn(move || {
            let hand_over = |chunk: Bytes| {
                gate.ready().map_err(|_| NotTaken)?;
                let sent = runtime.block_on(chunks.send_timeout(Ok(chunk), TAKEN_WITHIN));
                sent.map_err(|_| NotTaken)
            };
            let head = |commits| ArchiveHead {
                store,
                commits,
                fence_floor,
            };
            let is_whole = gate.read_aside(|snapshot| write_all(snapshot, head, hand_over));
            let error = match is_whole {
                Ok(true) => return,
                Ok(false) => gate.ready().err().unwrap_or_else(|| {
                    let words =
                        "the client did not read the backup in time, or the store was opened again meanwhile";
                    StoreError::Unavailable(words.to_owned())
                }),
                Err(error) => error,
            };
            // Without it what came before would pass for all; whoever takes no more hears nothing.
            let _ = chunks.blocking_send(Err(error));
        });
        spawned.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(taken)
    }
}

/// All rows of a snapshot, until nobody takes them any more. Whether all of it was handed over.
fn write_all(
    snapshot: &ReadTransaction,
    head: impl FnOnce(u64) -> ArchiveHead,
    hand_over: impl FnMut(Bytes) -> Result<(), NotTaken>,
) -> Result<bool, Fault> {
    let commits = snapshot.open_table(META)?.get(COMMITS)?;
    let commits = commits.map_or(0, |commits| commits.value());
    let mut writer = ArchiveWriter::new(head(commits), hand_over);
    for kind in RowKind::ALL {
        for row in snapshot.open_table(kind.table())?.iter()? {
            let (key, value) = row?;
            if writer.row(kind, key.value(), value.value()).is_err() {
                return Ok(false);
            }
        }
    }
    Ok(writer.end().is_ok())
}
