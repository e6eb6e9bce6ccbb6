//! Whose the files of a restore are: root gives what it made to the owner of the directory that they are in. A server that
//! does not run as root could not open them else.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

use fermata_command::{Failure, exit};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::geteuid;

/// Somebody who is not root, and in whose directory root is about to restore.
pub struct DirectoryOwner {
    uid: u32,
    gid: u32,
    /// The directory as it was found: whoever has it could put another one in its way meanwhile.
    folder: File,
    path: PathBuf,
    made: MadeInIt,
}

/// What of a directory a restore makes.
enum MadeInIt {
    /// This one, with all that is in it.
    Directory(OsString),
    /// All but this, which was there before.
    AllBut(HashSet<OsString>),
}

impl DirectoryOwner {
    /// Before anything is made: the owner of the data directory, or of the one that it is made in. `None` where nothing is to be
    /// given to anybody.
    pub fn of(data_dir: &Path) -> Option<DirectoryOwner> {
        if !geteuid().is_root() {
            return None;
        }
        let mut missing = None;
        for ancestor in data_dir.ancestors() {
            let path = match ancestor.as_os_str().is_empty() {
                true => Path::new("."),
                false => ancestor,
            };
            let folder = OpenOptions::new()
                .read(true)
                .custom_flags(OFlag::O_DIRECTORY.bits())
                .open(path);
            let folder = match folder {
                Ok(folder) => folder,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    missing = Some(ancestor.file_name()?.to_owned());
                    continue;
                }
                // The restore says what is wrong with it.
                Err(_) => return None,
            };
            let found = folder.metadata().ok()?;
            let made = match missing {
                Some(name) => MadeInIt::Directory(name),
                None => MadeInIt::AllBut(names(path).ok()?),
            };
            let owner = DirectoryOwner {
                uid: found.uid(),
                gid: found.gid(),
                folder,
                path: path.to_owned(),
                made,
            };
            return (owner.uid != 0).then_some(owner);
        }
        None
    }

    /// Gives it what was made, also by a restore that failed.
    pub fn give(&self) -> Result<(), Failure> {
        self.try_give().map_err(|error| {
            let (path, uid) = (self.path.display(), self.uid);
            Failure::new(
                exit::CANNOT_CREATE,
                format!(
                    "what was made in {path} cannot be given to its owner, user {uid}: {error}; a server of that user \
                     cannot open it before that is done"
                ),
            )
        })
    }

    fn try_give(&self) -> io::Result<()> {
        match &self.made {
            MadeInIt::Directory(name) => self.give_one(&self.folder, name, &self.path.join(name)),
            MadeInIt::AllBut(before) => {
                let all = names(&self.path)?;
                let mut made = all.difference(before);
                made.try_for_each(|name| self.give_one(&self.folder, name, &self.path.join(name)))
            }
        }
    }

    /// Gives it `name` in `folder`, which is at `path`, with all that is in it. Root may give away nothing that others put there
    /// meanwhile: no link is followed, and a path only says which names to look for.
    fn give_one(&self, folder: &File, name: &OsStr, path: &Path) -> io::Result<()> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let opened = match openat(folder, name, flags, Mode::empty()) {
            Ok(opened) => File::from(opened),
            Err(Errno::ENOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let found = opened.metadata()?;
        // What is not root's was not made here, and a second name may be of a file elsewhere.
        if found.uid() != 0 || !(found.is_dir() || found.nlink() == 1) {
            return Ok(());
        }
        if found.is_dir() {
            for name in names(path)? {
                self.give_one(&opened, &name, &path.join(&name))?;
            }
        }
        fchown(&opened, Some(self.uid), Some(self.gid))
    }
}

/// What is in a directory.
fn names(folder: &Path) -> io::Result<HashSet<OsString>> {
    let entries = fs::read_dir(folder)?;
    entries.map(|entry| Ok(entry?.file_name())).collect()
}
