//! The data directory: its owner, its files, and the making of a new store. One process owns it at a time, so a key has one
//! home (I10).
//!
//! ```text
//! <data-dir>/LOCK                the pid of the process that owns the directory; locked by that process
//! <data-dir>/store/FORMAT        the number of the format, and the id of the store
//! <data-dir>/store/locks.redb    everything else
//! <data-dir>/store.new/          a store in the making; never read, and removed when found
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::format::{FORMAT_KNOWN, Format, FormatError};
use super::open_error::EmbeddedOpenError;

const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const LOCK: &str = "LOCK";
const STORE: &str = "store";
const STORE_IN_THE_MAKING: &str = "store.new";
const FORMAT: &str = "FORMAT";
const LOCKS: &str = "locks.redb";
/// No FORMAT file is as long.
const FORMAT_BYTES_MAX: u64 = 4096;

/// A data directory that this process alone has, for as long as this value lives.
#[derive(Debug)]
pub(super) struct Directory {
    root: PathBuf,
    /// Locked for as long as this value lives, or this process: its end gives the directory back, however it
    /// comes.
    lock: File,
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Closing the file is not enough while a process that was just forked still has it too. That fails
        // for no file that was locked, and then the closing is left.
        let _ = self.lock.unlock();
    }
}

impl Directory {
    /// Makes the directory if there is none, and takes it for this process.
    pub(super) fn claim(root: &Path) -> Result<Directory, EmbeddedOpenError> {
        make_directories(root).map_err(|error| EmbeddedOpenError::io(root, error))?;
        let path = root.join(LOCK);
        let refused = |error| EmbeddedOpenError::io(&path, error);
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(&path)
            .map_err(refused)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                let read = lock.take(32).read_to_string(&mut text);
                return Err(EmbeddedOpenError::InUse {
                    directory: root.to_owned(),
                    pid: read.ok().and_then(|_| text.trim().parse().ok()),
                });
            }
            Err(TryLockError::Error(error)) => return Err(refused(error)),
        }
        // For people and for the message above; nothing depends on it.
        lock.set_len(0)
            .and_then(|()| writeln!(lock, "{}", std::process::id()))
            .map_err(refused)?;
        Ok(Directory {
            root: root.to_owned(),
            lock,
        })
    }

    /// The files of this process, once the store is open.
    pub(super) fn own_files(&self) -> io::Result<OwnFiles> {
        let locks = self.locks_file();
        let opened = fs::symlink_metadata(&locks)?;
        Ok(OwnFiles([
            (self.root.join(LOCK), identity(&self.lock.metadata()?)),
            (locks, identity(&opened)),
        ]))
    }

    /// The file with everything in it.
    pub(super) fn locks_file(&self) -> PathBuf {
        self.root.join(STORE).join(LOCKS)
    }

    /// Whether a store was made here.
    pub(super) fn has_store(&self) -> Result<bool, EmbeddedOpenError> {
        let store = self.root.join(STORE);
        match fs::symlink_metadata(&store) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(EmbeddedOpenError::io(&store, error)),
        }
    }

    /// Makes a store: complete and on the disk under another name first, so that whatever is called
    /// `store` has been complete once. `fill` makes the content of the empty file it is given.
    pub(super) fn make_store<T, E: From<EmbeddedOpenError>>(
        &self,
        id: Uuid,
        fill: impl FnOnce(&Path, File) -> Result<T, E>,
    ) -> Result<T, E> {
        let making = self.root.join(STORE_IN_THE_MAKING);
        let refused = |error| EmbeddedOpenError::io(&making, error);
        // An interrupted start may have left one.
        match fs::remove_dir_all(&making) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(refused(error).into()),
            Ok(()) | Err(_) => {}
        }
        DirBuilder::new()
            .mode(DIRECTORY_MODE)
            .create(&making)
            .map_err(refused)?;
        let format = Format { store: id };
        let mut file = new_file(&making.join(FORMAT)).map_err(refused)?;
        write!(file, "{format}")
            .and_then(|()| file.sync_all())
            .map_err(refused)?;
        let path = making.join(LOCKS);
        let file = new_file(&path).map_err(refused)?;
        let handle = file.try_clone().map_err(refused)?;
        let filled = fill(&path, file)?;
        handle.sync_all().map_err(refused)?;
        sync_directory(&making).map_err(refused)?;
        fs::rename(&making, self.root.join(STORE)).map_err(refused)?;
        sync_directory(&self.root).map_err(|error| EmbeddedOpenError::io(&self.root, error))?;
        Ok(filled)
    }

    /// Reads FORMAT.
    pub(super) fn format(&self) -> Result<Format, EmbeddedOpenError> {
        let path = self.root.join(STORE).join(FORMAT);
        let file = File::open(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                EmbeddedOpenError::damaged(&path, "it is missing")
            }
            _ => EmbeddedOpenError::io(&path, error),
        })?;
        let mut text = Vec::new();
        file.take(FORMAT_BYTES_MAX)
            .read_to_end(&mut text)
            .map_err(|error| EmbeddedOpenError::io(&path, error))?;
        let garbled = || EmbeddedOpenError::damaged(&path, "it is garbled");
        let text = String::from_utf8(text).map_err(|_| garbled())?;
        text.parse().map_err(|error| match error {
            FormatError::Garbled => garbled(),
            FormatError::Other(found) => EmbeddedOpenError::OtherFormat {
                path: path.clone(),
                found,
                known: FORMAT_KNOWN,
            },
        })
    }
}

/// The files that a process took: the LOCK file, and the file with everything in it.
#[derive(Debug)]
pub(super) struct OwnFiles([(PathBuf, (u64, u64)); 2]);

impl OwnFiles {
    /// A file that was removed or replaced, most likely with its directory. An error says nothing about that.
    pub(super) fn lost(&self) -> io::Result<Option<PathBuf>> {
        for (path, own) in &self.0 {
            match fs::symlink_metadata(path) {
                Ok(found) if identity(&found) == *own => {}
                Err(error) if !is_missing(error.kind()) => return Err(error),
                Ok(_) | Err(_) => return Ok(Some(path.clone())),
            }
        }
        Ok(None)
    }
}

fn is_missing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The device and the inode of a file.
fn identity(file: &fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Makes `path` and what is missing above it, and sees to it that the new names last.
fn make_directories(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    };
    if parent != path {
        make_directories(parent)?;
    }
    match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        Ok(()) => sync_directory(parent),
        // Another process was faster.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(path)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_own_until_they_are_moved_removed_or_replaced() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::claim(root.path()).unwrap();
        let store = root.path().join(STORE);
        fs::create_dir(&store).unwrap();
        fs::write(store.join(LOCKS), "").unwrap();
        let own = directory.own_files().unwrap();
        assert_eq!(own.lost().unwrap(), None);
        fs::rename(&store, root.path().join("moved")).unwrap();
        assert_eq!(own.lost().unwrap(), Some(store.join(LOCKS)));
        fs::rename(root.path().join("moved"), &store).unwrap();
        assert_eq!(own.lost().unwrap(), None);
        let lock = Some(root.path().join(LOCK));
        fs::remove_file(root.path().join(LOCK)).unwrap();
        assert_eq!(own.lost().unwrap(), lock);
        // The inode of the first one is not free: this process has it open.
        let other = Directory::claim(root.path()).unwrap();
        assert_eq!(own.lost().unwrap(), lock);
        assert_eq!(other.own_files().unwrap().lost().unwrap(), None);
        fs::remove_dir_all(root.path()).unwrap();
        assert_eq!(own.lost().unwrap(), lock);
    }
}
