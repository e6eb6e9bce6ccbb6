//! `fermata backup` and `fermata restore`: all that an embedded store has, as a file, and a store from that.

mod owner;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PathBufValueParser, TypedValueParser as _};
use fermata_client::{Client, ClientOptions};
use fermata_command::output::{Format, print_text};
use fermata_command::{Failure, Remote, exit};
use serde_json::json;
use tokio::time::timeout;
use uuid::Uuid;

use super::aside::Aside;
use super::detached::detached;
use super::print::print_detached;
use super::signals::Signals;
use crate::clock::{Clock as _, SystemClock};
use crate::store::embedded::{
    ArchiveError, BackupSummary, EmbeddedOptions, RestoreError, check_backup, restore,
};
use owner::DirectoryOwner;

/// How long what was written may take to go away after a signal.
const DROPPED_WITHIN: Duration = Duration::from_secs(1);

const BACKUP_HELP: &str = "\
The server goes on meanwhile; what it has is taken as of one moment. The file
is written beside, checked to its end, and only then gets its name: a file of
that name is a whole backup. It has every value, and lets nobody act as a
holder; keep it as you keep the data directory. Only the embedded store makes
backups: for Cassandra see `fermata schema restored --help`.

What fails, or is ended by a signal, leaves no file. After a SIGKILL, or a
crash of the machine, .FILE.*.partial is left: delete it.

Exit status: 0; 64 malformed; 65 it did not come whole; 69 no server; 73 there
is such a file; 74 it cannot be written, or its counts cannot be printed;
75 another one is being made; 77 not allowed (it takes `admin` and `read` for
everything); 128+n ended by signal n.

Examples:
  fermata backup /backups/fermata-$(date +%F)
  fermata backup --endpoint unix:/run/fermata/socket locks.backup";

/// Write all that an embedded store has to a file, while it serves
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = BACKUP_HELP)]
pub struct BackupArgs {
    /// The file; there must be none yet
    #[arg(value_name = "FILE", value_parser = PathBufValueParser::new().try_map(named))]
    file: PathBuf,

    #[command(flatten)]
    pub remote: Remote,
}

const RESTORE_HELP: &str = "\
No server may run on that directory, and it must have no store yet: move the
`store` in it away first. What was acknowledged after the backup is lost. Who
held a durable lock then holds it again for its TTL, and longer if it renews.

Fencing tokens go on above all that were given out before: two hours above the
clock of this machine and above those in the backup, since nobody knows which
were given out after it. So that clock must be right: with one that is a day
behind, tokens may be lower than some of before. Where a higher one is known,
name it with --above: to restore once more from the same backup, the highest
that was given out meanwhile.

Root gives what is made to the owner of the directory, or of the one that it
is made in, so that the server can open it.

Do not begin sooner than the longest TTL of your clients after the last server
on the lost store ended: until then one of them may rely on a lock of which the
backup knows nothing.

Exit status: 0; 64 malformed; 65 the file is no whole backup; 73 the directory
has a store, or cannot be written; 74 the file cannot be read, or, once the
store is made, what it has not be printed.

Examples:
  fermata restore /backups/fermata-2026-11-26 --data-dir /var/lib/fermata
  fermata restore locks.backup --data-dir /data --above 1790000000000000";

/// Make an embedded store from a backup
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = RESTORE_HELP)]
pub struct RestoreArgs {
    /// The backup
    #[arg(value_name = "FILE", value_parser = PathBufValueParser::new().try_map(named))]
    file: PathBuf,

    /// The data directory of the server that is to be started; made if there is none
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,

    /// Give out fencing tokens above this one only
    #[arg(long, value_name = "TOKEN")]
    above: Option<u64>,

    /// How to print
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

/// Neither stdin nor stdout, as `-` is elsewhere.
fn named(file: PathBuf) -> Result<PathBuf, &'static str> {
    match file.as_os_str() == "-" {
        true => Err(
            "a backup is a file, which is read to its end before it gets its name; a file of this name is ./-",
        ),
        false => Ok(file),
    }
}

fn io_failure(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(
        exit::IO,
        format!("cannot {what} {}: {error}", path.display()),
    )
}

fn damaged(path: &Path, error: &ArchiveError) -> Failure {
    let code = match error {
        ArchiveError::Other | ArchiveError::Damaged(_) => exit::DATA,
        ArchiveError::Read(_) => exit::IO,
    };
    Failure::new(code, format!("{}: {error}", path.display()))
}

/// Runs `backup`.
pub async fn back_up(args: BackupArgs) -> Result<u8, Failure> {
    let aside = Aside::start();
    let ended = until_a_signal(&args).await;
    aside.finish(ended)
}

/// Makes it, unless a signal comes first: then what there is of it is dropped.
async fn until_a_signal(args: &BackupArgs) -> Result<u8, Failure> {
    let file = args.file.display();
    if fs::symlink_metadata(&args.file).is_ok() {
        return Err(is_there(&args.file));
    }
    let client = args.remote.quiet_client(ClientOptions::default())?;
    let mut signals = Signals::new()?;
    // A task of its own: a disk that hangs must not keep signals from being heard.
    let mut making = tokio::spawn(make(args.clone(), client));
    let signal = tokio::select! {
        biased;
        signal = signals.next_end() => signal,
        made = &mut making => return made.map_err(|error| {
            Failure::new(exit::IO, format!("{file} was not made: {error}"))
        })?,
    };
    making.abort();
    let what = match timeout(DROPPED_WITHIN, making).await {
        Ok(_) => "nothing of it is left",
        Err(_elapsed) => "what there is of it hangs, and may be left beside it",
    };
    let what = format!("{signal} came before {file} was made; {what}");
    Err(Failure::signal(signal, what))
}

async fn make(args: BackupArgs, client: Client) -> Result<u8, Failure> {
    // First: what cannot be written is not asked for.
    let mut partial = Partial::new(&args.file)?;
    let mut backup = client.back_up().await?;
    while let Some(part) = backup.next().await? {
        let written = partial.file.write_all(&part);
        written.map_err(|error| io_failure("write", &args.file, &error))?;
    }
    let summary = partial.check().await?;
    let named = partial.into_named()?;
    print_detached(shown(args.remote.format(), &summary, None)).await?;
    named.keep();
    Ok(0)
}

fn is_there(file: &Path) -> Failure {
    let what = format!("there is a {} already", file.display());
    Failure::new(exit::CANNOT_CREATE, what)
}

/// Another one for each try, so that two of them have nothing to do with each other.
fn beside(name: &Path) -> Option<PathBuf> {
    let mut partial = OsString::from(".");
    partial.push(name.file_name()?);
    let (process, chance) = (std::process::id(), Uuid::new_v4().as_fields().0);
    partial.push(format!(".{process}-{chance:08x}.partial"));
    Some(name.with_file_name(partial))
}

/// A file that has not got its name yet, and goes away with this.
struct Partial<'a> {
    name: &'a Path,
    path: PathBuf,
    file: File,
}

impl<'a> Partial<'a> {
    fn new(name: &'a Path) -> Result<Partial<'a>, Failure> {
        let failed = |error: io::Error| io_failure("write", name, &error);
        let path = beside(name).ok_or_else(|| failed(io::ErrorKind::InvalidFilename.into()))?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        Ok(Partial { name, path, file })
    }

    /// On the disk, and read once more to its end: by a thread, since signals must be heard meanwhile.
    async fn check(&self) -> Result<BackupSummary, Failure> {
        let failed = |error: io::Error| io_failure("write", self.name, &error);
        let (file, path) = (self.file.try_clone().map_err(failed)?, self.path.clone());
        let check = move || -> io::Result<_> {
            file.sync_all()?;
            Ok(check_backup(BufReader::new(File::open(path)?)))
        };
        let summary = detached("check", check).await.map_err(failed)?;
        summary.map_err(|error| damaged(self.name, &error))
    }

    /// By its name from here on.
    fn into_named(self) -> Result<NamedBackup<'a>, Failure> {
        let failed = |error: io::Error| io_failure("write", self.name, &error);
        match fs::hard_link(&self.path, self.name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(is_there(self.name));
            }
            // Not every file system has links; a rename would take the name from whoever has it.
            Err(_) if fs::symlink_metadata(self.name).is_ok() => return Err(is_there(self.name)),
            Err(_) => fs::rename(&self.path, self.name).map_err(failed)?,
            Ok(()) => {}
        }
        let named = NamedBackup {
            name: self.name,
            inode: self.file.metadata().map_err(failed)?.ino(),
            is_kept: false,
        };
        let folder = self.name.parent();
        let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
        let folder = File::open(folder.unwrap_or(Path::new(".")));
        folder
            .and_then(|folder| folder.sync_all())
            .map_err(failed)?;
        Ok(named)
    }
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        // It is gone where it got its name by a rename.
        let _ = fs::remove_file(&self.path);
    }
}

/// A whole backup. It goes away unless it is kept: what ends with a failure is to be repeated, and this would be in its way.
struct NamedBackup<'a> {
    name: &'a Path,
    inode: u64,
    is_kept: bool,
}

impl NamedBackup<'_> {
    fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for NamedBackup<'_> {
    fn drop(&mut self) {
        let is_this_one = |found: fs::Metadata| found.ino() == self.inode;
        if !self.is_kept && fs::symlink_metadata(self.name).is_ok_and(is_this_one) {
            let _ = fs::remove_file(self.name);
        }
    }
}

/// Runs `restore`.
pub fn run_restore(args: &RestoreArgs) -> Result<u8, Failure> {
    let file = File::open(&args.file).map_err(|error| io_failure("read", &args.file, &error))?;
    let options = EmbeddedOptions::new(&args.data_dir);
    let now_us = SystemClock.wall_us();
    let owner = DirectoryOwner::of(&args.data_dir);
    let restored = restore(&options, BufReader::new(file), now_us, args.above);
    let given = owner.map_or(Ok(()), |owner| owner.give());
    let restored = restored.map_err(|error| match error {
        RestoreError::Archive(error) => damaged(&args.file, &error),
        RestoreError::TooHigh { .. } => Failure::usage(error.to_string()),
        RestoreError::Exists(_) | RestoreError::Open(_) => {
            Failure::new(exit::CANNOT_CREATE, error.to_string())
        }
    })?;
    given?;
    let shown = shown(args.output, &restored.summary, Some(restored.fence_floor));
    let made = format!("the store in {} is made", args.data_dir.display());
    print_text(&shown).map_err(|error| Failure::unprinted(&made, error))?;
    Ok(0)
}

/// What is printed of it.
fn shown(format: Format, summary: &BackupSummary, fence_floor: Option<u64>) -> String {
    let BackupSummary {
        keys,
        entries,
        values,
        sessions,
        damaged,
        ..
    } = summary;
    match format {
        Format::Json => {
            let document = json!({
                "keys": keys,
                "entries": entries,
                "values": values,
                "sessions": sessions,
                "damaged": damaged,
                "fence_floor": fence_floor,
            });
            format!("{document:#}\n")
        }
        Format::Text => {
            let mut text = format!(
                "{keys} keys, {entries} live entries, {values} values, {sessions} sessions\n"
            );
            if *damaged > 0 {
                text.push_str(&format!(
                    "{damaged} keys cannot be understood; they are in it as they are\n"
                ));
            }
            if let Some(floor) = fence_floor {
                text.push_str(&format!("fencing tokens go on from {floor}\n"));
            }
            text
        }
    }
}
