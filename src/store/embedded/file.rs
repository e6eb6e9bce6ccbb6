//! Opening the database file. Damage is found before anything is written.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;

use redb::backends::FileBackend;
use redb::{Builder, Database, Durability, ReadableDatabase, ReadableTable};

use super::isolate::isolated;
use super::open_error::EmbeddedOpenError;
use super::overlay::Overlay;
use super::rows::{CELLS, COMMITS, DATA, ENTRIES, FENCE_FLOOR, LOCKS, META, ROOM, SESSIONS};

/// Up to this size every page is checked against its checksum before the file is used: about a second
/// at worst. Of a larger file only the first row of each table is read.
const CHECKED_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Opens a database on a disk that fails on demand.
#[cfg(test)]
pub(super) type FailingDisk =
    std::sync::Arc<dyn Fn(Builder, File) -> Result<Database, redb::DatabaseError> + Send + Sync>;

/// How a database is opened: on which disk, and with how much memory.
#[derive(Clone)]
pub(super) struct Medium {
    /// How many bytes of the file to keep in memory.
    pub(super) cache_bytes: usize,
    #[cfg(test)]
    pub(super) disk: Option<FailingDisk>,
}

/// An open database file.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) database: Database,
    /// How many commits it has seen in its life.
    pub(super) commits: u64,
    /// As [`FENCE_FLOOR`]; 0 where it was never restored.
    pub(super) fence_floor: u64,
}

/// In rows of this size, which fit between what is there.
const ROOM_ROW_BYTES: usize = 32 * 1024;

impl Opened {
    /// Commits so many bytes, and removes them: the file keeps the room for what comes next.
    pub(super) fn prove_room(&self, path: &Path, bytes: usize) -> Result<(), EmbeddedOpenError> {
        isolated_at(path, || {
            // What was freed before can be used only after a commit.
            self.database.begin_write()?.commit()?;
            let mut filled = self.database.begin_write()?;
            filled.set_durability(Durability::Immediate)?;
            {
                let mut rows = filled.open_table(ROOM)?;
                let row = [0xA5; ROOM_ROW_BYTES];
                for number in 0..bytes.div_ceil(ROOM_ROW_BYTES) {
                    rows.insert(number.to_be_bytes().as_slice(), row.as_slice())?;
                }
            }
            filled.commit()?;
            let emptied = self.database.begin_write()?;
            emptied.delete_table(ROOM)?;
            emptied.commit()?;
            Ok(())
        })
    }
}

/// The next read comes from the disk.
#[cfg(target_os = "linux")]
fn forget_cached(file: &File) -> std::io::Result<()> {
    use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
    posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    Ok(())
}

/// Other systems offer no such request. Servers run on Linux.
#[cfg(not(target_os = "linux"))]
fn forget_cached(_: &File) -> std::io::Result<()> {
    Ok(())
}

/// Works on the file at this path. A panic of redb is damage, too.
fn isolated_at<T>(
    path: &Path,
    work: impl FnOnce() -> Result<T, redb::Error>,
) -> Result<T, EmbeddedOpenError> {
    isolated(work)
        .map_err(|panic| EmbeddedOpenError::damaged(path, panic))?
        .map_err(|error| EmbeddedOpenError::redb(path, error))
}

impl Medium {
    fn builder(&self) -> Builder {
        let mut builder = Builder::new();
        builder.set_cache_size(self.cache_bytes);
        builder
    }

    pub(super) fn database(&self, file: File) -> Result<Database, redb::DatabaseError> {
        #[cfg(test)]
        if let Some(disk) = &self.disk {
            return disk(self.builder(), file);
        }
        self.builder().create_with_backend(FileBackend::new(file)?)
    }

    /// Makes the tables in an empty file.
    pub(super) fn fill(&self, path: &Path, file: File) -> Result<(), EmbeddedOpenError> {
        isolated_at(path, || {
            let database = self.database(file)?;
            let transaction = database.begin_write()?;
            for table in [LOCKS, ENTRIES, DATA, SESSIONS, CELLS] {
                transaction.open_table(table)?;
            }
            transaction.open_table(META)?.insert(COMMITS, 0)?;
            transaction.commit()?;
            Ok(())
        })
    }

    /// Opens a file that [`Medium::fill`] has made.
    pub(super) fn open(&self, path: &Path) -> Result<Opened, EmbeddedOpenError> {
        let refused = |error| EmbeddedOpenError::io(path, error);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|error| match error.kind() {
                ErrorKind::NotFound => EmbeddedOpenError::damaged(path, "it is missing"),
                _ => refused(error),
            })?;
        let len = file.metadata().map_err(refused)?.len();
        if len == 0 {
            // redb takes it for a new one.
            return Err(EmbeddedOpenError::damaged(path, "it is empty"));
        }
        // A process that was killed may have written what no disk has yet: nobody may be told of it
        // before one has (I4). And after a sync that failed the system may go on to show what no disk
        // will ever have: it must forget that, so that the file shows what the disk has.
        file.sync_all().map_err(refused)?;
        forget_cached(&file).map_err(refused)?;

        let copy = file.try_clone().map_err(refused)?;
        isolated_at(path, || {
            let overlay = Overlay::ended(copy).map_err(redb::DatabaseError::from)?;
            let mut database = self.builder().create_with_backend(overlay)?;
            if len <= CHECKED_BYTES_MAX && !database.check_integrity()? {
                return Err(corrupted("a page does not match its checksum"));
            }
            read_first_rows(&database)
        })?;

        isolated_at(path, || {
            let database = self.database(file)?;
            let (commits, fence_floor) = read_first_rows(&database)?;
            Ok(Opened {
                database,
                commits,
                fence_floor,
            })
        })
    }
}

fn corrupted(what: &str) -> redb::Error {
    redb::Error::Corrupted(what.to_owned())
}

/// Reads the first row of each table, all of which must be there, the number of commits and the floor of fences.
fn read_first_rows(database: &Database) -> Result<(u64, u64), redb::Error> {
    let transaction = database.begin_read()?;
    for table in [LOCKS, ENTRIES, DATA, SESSIONS, CELLS] {
        transaction.open_table(table)?.first()?;
    }
    let meta = transaction.open_table(META)?;
    let row = |name| meta.get(name).map(|row| row.map(|row| row.value()));
    let commits = row(COMMITS)?.ok_or_else(|| corrupted("it has lost its count of commits"))?;
    Ok((commits, row(FENCE_FLOOR)?.unwrap_or(0)))
}
