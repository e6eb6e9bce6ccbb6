//! Backups: all rows of one moment, while the store goes on; and a new store from one.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use redb::{Durability, ReadTransaction, ReadableTable};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
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
use super::{EmbeddedOpenError, EmbeddedOptions, EmbeddedStore};
use crate::store::floor::fence_floor;
use crate::store::{BackupStore, StoreError};

/// How many chunks may wait to be taken, and how often it is looked whether one was.
const CHUNKS_MAX: usize = 4;
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How much a commit of a restore has, in bytes.
const COMMIT_BYTES: usize = 8 * 1024 * 1024;
/// How far above the clock a floor may be asked for: a year. What is further is no number of microseconds.
const ABOVE_US_MAX: u64 = 365 * 24 * 60 * 60 * 1_000_000;
/// A part that is not taken within this ends a backup: what it keeps of the file grows with all that is written meanwhile …
const TAKEN_WITHIN: Duration = Duration::from_secs(10);
/// … and so does one that is taken more slowly than this for longer, in bytes a second.
const TAKEN_A_SECOND: u32 = 1024 * 1024;

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
        "{} has a store already, which may be newer. Name a directory without one, or move that one's `store` away first",
        .0.display()
    )]
    Exists(std::path::PathBuf),
    /// The token that is to be exceeded lies too far ahead of the clock.
    #[error(
        "{above} is more than a year ahead of the clock, which is {now_us}: tokens are microseconds since 1970"
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
        faults: None,
    };
    let (mut reader, head) = ArchiveReader::new(from)?;
    let mut restored = None;
    let made = directory.make_store(Uuid::new_v4(), |path, file| {
        medium.fill(
            path,
            file.try_clone()
                .map_err(|e| EmbeddedOpenError::io(path, e))?,
        )?;
        let filled = fill(&medium, path, file, &mut reader, |summary| {
            let used = summary.fence_end.max(head.fence_floor);
            (head.commits, fence_floor(now_us, used, above))
        })?;
        let is_whole = filled.is_ok();
        restored = Some(filled);
        match is_whole {
            true => Ok(()),
            // The store that was begun must not become one.
            false => Err(EmbeddedOpenError::damaged(path, "the backup")),
        }
    });
    // What is wrong with the backup comes before what came of it; what is wrong with the disk leaves nothing here.
    let restored = restored.transpose()?;
    made?;
    restored
        .ok_or_else(|| EmbeddedOpenError::damaged(&options.directory, "it was not filled").into())
}

/// Fills the tables of a new file. What is wrong with the backup is answered beside what is wrong with the file.
fn fill(
    medium: &Medium,
    path: &Path,
    file: File,
    reader: &mut ArchiveReader<impl Read>,
    meta: impl FnOnce(&BackupSummary) -> (u64, u64),
) -> Result<Result<Restored, ArchiveError>, EmbeddedOpenError> {
    let filled = isolated(|| {
        let database = medium.database(file)?;
        let mut summary = BackupSummary::default();
        let mut is_last = false;
        while !is_last {
            let mut transaction = database.begin_write()?;
            transaction.set_durability(Durability::Immediate)?;
            let mut bytes = 0;
            while bytes < COMMIT_BYTES {
                let row = match reader.next() {
                    Ok(Some(row)) => row,
                    Ok(None) => {
                        is_last = true;
                        break;
                    }
                    Err(error) => return Ok(Err(error)),
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
        Ok(Ok(Restored {
            summary,
            fence_floor,
        }))
    });
    filled
        .map_err(|panic| EmbeddedOpenError::damaged(path, panic))?
        .map_err(|error| EmbeddedOpenError::redb(path, error))
}

#[async_trait]
impl BackupStore for EmbeddedStore {
    async fn back_up(&self) -> Result<mpsc::Receiver<Result<Bytes, StoreError>>, StoreError> {
        self.gate.ready()?;
        let (chunks, taken) = mpsc::channel(CHUNKS_MAX);
        let (gate, store, fence_floor) = (self.gate.clone(), self.store, self.fence_floor);
        // A thread of its own: it takes as long as whoever takes the chunks does.
        let thread = thread::Builder::new().name("fermata-backup".to_owned());
        let spawned = thread.spawn(move || {
            let mut patience = Patience::new();
            let hand_over = |chunk: Bytes| {
                let length = chunk.len();
                let mut chunk = Ok(chunk);
                let begun = Instant::now();
                loop {
                    gate.ready().map_err(|_| NotTaken)?;
                    match chunks.try_send(chunk) {
                        Ok(()) => {
                            patience.taken(length, begun.elapsed());
                            return Ok(());
                        }
                        Err(TrySendError::Closed(_)) => return Err(NotTaken),
                        Err(TrySendError::Full(_)) if patience.gives_up_after(begun.elapsed()) => {
                            return Err(NotTaken);
                        }
                        Err(TrySendError::Full(back)) => chunk = back,
                    }
                    thread::sleep(LOOK_EVERY);
                }
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
                        "the backup was not taken in time, or the store was opened again meanwhile";
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

/// How long is waited for whoever takes a backup.
struct Patience(Duration);

impl Patience {
    fn new() -> Patience {
        Patience(TAKEN_WITHIN)
    }

    /// Whether one who lets wait for so long is waited for no longer.
    fn gives_up_after(&self, waited: Duration) -> bool {
        waited > self.0
    }

    /// A part of so many bytes was taken after so long.
    fn taken(&mut self, bytes: usize, waited: Duration) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let may_take = Duration::from_secs(1) * bytes / TAKEN_A_SECOND;
        self.0 = (self.0.saturating_sub(waited) + may_take).min(TAKEN_WITHIN);
    }
}

/// All rows of a snapshot, until nobody takes them any more. Whether all of it was handed over.
fn write_all(
    snapshot: &ReadTransaction,
    head: impl FnOnce(u64) -> ArchiveHead,
    mut hand_over: impl FnMut(Bytes) -> Result<(), NotTaken>,
) -> Result<bool, Fault> {
    let commits = snapshot.open_table(META)?.get(COMMITS)?;
    let commits = commits.map_or(0, |commits| commits.value());
    let mut writer = ArchiveWriter::new(head(commits), |chunk| hand_over(chunk).is_ok());
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
