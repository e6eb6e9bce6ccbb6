//! `fermata backup` and `fermata restore`: an embedded store as a file, and back.

use std::fs::{self, File};
use std::io::{self, BufReader, Write as _};
use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser as _};
use fermata_client::{Client, ClientOptions};
use fermata_command::output::{Format, print_text};
use fermata_command::{Failure, Remote, exit};
use serde_json::json;
use tempfile::NamedTempFile;
use tokio::task::spawn_blocking;

use super::signals::Signals;
use crate::clock::{Clock as _, SystemClock};
use crate::store::embedded::{
    ArchiveError, BackupSummary, EmbeddedOptions, RestoreError, check_backup, restore,
};

const BACKUP_HELP: &str = "\
The server keeps serving; the backup is a snapshot of one moment. It is written
to a temporary file beside FILE, verified and renamed: FILE is always complete.
It contains every value, but no secret of a holder; protect it like the data
directory. Only the embedded store makes backups: for Cassandra see `fermata
schema restored --help`.

A failed or interrupted backup leaves no file. After SIGKILL or a crash, delete
.FILE.*.partial.

Exit status: 0; 64 malformed; 65 the backup is incomplete; 69 no server; 73 the
file exists; 74 it cannot be written, or the summary not be printed; 75 another
backup is running; 77 not allowed (it needs `admin` and `read` for everything);
128+n ended by signal n.

Examples:
  fermata backup /backups/fermata-$(date +%F)
  fermata backup --endpoint unix:/run/fermata/socket locks.backup";

/// Back up the embedded store to a file, while it serves
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
Stop the server first, and move the directory's `store` away. Writes after the
backup are lost. Holders of durable locks hold them again for their TTL, and
longer if they renew.

Fencing tokens continue above all earlier ones: two hours above this machine's
clock and above the tokens in the backup. So the clock must be right: if it is
a day behind, tokens may fall. If you know a higher token, give it with
--above, for example when the same backup is restored again.

Run it as the user of the server: the files belong to the user that restores.

Wait for the longest TTL of your clients after the old server has ended: until
then a client may rely on a lock that the backup lacks.

Exit status: 0; 64 malformed; 65 the file is no whole backup; 73 the directory
has a store, or cannot be written; 74 the file cannot be read, or, once the
store is made, the summary not be printed.

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

    /// Issue only fencing tokens above this one
    #[arg(long, value_name = "TOKEN")]
    above: Option<u64>,

    /// How to print [default: text]
    #[arg(long, value_name = "FORMAT", value_enum)]
    output: Option<Format>,
}

/// Refuses `-`, which is stdin or stdout elsewhere.
fn named(file: PathBuf) -> Result<PathBuf, &'static str> {
    match file.as_os_str() == "-" {
        true => Err("a backup is a file, never stdin or stdout; write ./- for a file named -"),
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

/// Runs `backup`. A signal ends it, and leaves no file.
pub async fn back_up(args: BackupArgs) -> Result<u8, Failure> {
    let file = args.file.display();
    if fs::symlink_metadata(&args.file).is_ok() {
        return Err(is_there(&args.file));
    }
    let client = args.remote.quiet_client(ClientOptions::default())?;
    let mut signals = Signals::new()?;
    tokio::select! {
        biased;
        signal = signals.next_end() => {
            let what = format!("{signal} came before {file} was complete; no part of it is left");
            Err(Failure::signal(signal, what))
        }
        made = make(&args, client) => made,
    }
}

async fn make(args: &BackupArgs, client: Client) -> Result<u8, Failure> {
    let unwritten = |error: io::Error| io_failure("write", &args.file, &error);
    // First: without it no backup is requested.
    let mut partial = partial(&args.file).map_err(unwritten)?;
    let mut backup = client.back_up().await?;
    while let Some(part) = backup.next().await? {
        partial.write_all(&part).map_err(unwritten)?;
    }
    let summary = check(&partial).await.map_err(unwritten)?;
    let summary = summary.map_err(|error| damaged(&args.file, &error))?;
    let persisted = match partial.persist_noclobber(&args.file) {
        // Some mounted shares have neither hard links nor a rename that keeps an existing file.
        Err(failed)
            if failed.error.kind() != io::ErrorKind::AlreadyExists && !args.file.exists() =>
        {
            failed.file.persist(&args.file)
        }
        persisted => persisted,
    };
    persisted.map_err(|failed| match failed.error.kind() {
        io::ErrorKind::AlreadyExists => is_there(&args.file),
        _ => unwritten(failed.error),
    })?;
    let synced = File::open(folder(&args.file)).and_then(|folder| folder.sync_all());
    synced.map_err(unwritten)?;
    let shown = shown(args.remote.format(), &summary, None);
    let made = format!("{} is made", args.file.display());
    print_text(&shown).map_err(|error| Failure::unprinted(&made, error))?;
    Ok(0)
}

fn is_there(file: &Path) -> Failure {
    let what = format!("the file {} exists already", file.display());
    Failure::new(exit::CANNOT_CREATE, what)
}

/// A file beside the one of this name; removed unless it gets the name.
fn partial(name: &Path) -> io::Result<NamedTempFile> {
    let file = name.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let prefix = format!(".{}.", file.to_string_lossy());
    let mut partial = tempfile::Builder::new();
    partial.prefix(&prefix).suffix(".partial");
    partial.tempfile_in(folder(name))
}

fn folder(name: &Path) -> &Path {
    let folder = name.parent();
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Syncs a backup and reads it to its end; in a thread, since signals must be received meanwhile.
async fn check(partial: &NamedTempFile) -> io::Result<Result<BackupSummary, ArchiveError>> {
    let (file, again) = (partial.as_file().try_clone()?, partial.reopen()?);
    let check = move || -> io::Result<_> {
        file.sync_all()?;
        Ok(check_backup(BufReader::new(again)))
    };
    spawn_blocking(check).await.map_err(io::Error::other)?
}

/// Runs `restore`.
pub fn run_restore(args: &RestoreArgs) -> Result<u8, Failure> {
    let file = File::open(&args.file).map_err(|error| io_failure("read", &args.file, &error))?;
    let options = EmbeddedOptions::new(&args.data_dir);
    let now_us = SystemClock.wall_us();
    let restored = restore(&options, BufReader::new(file), now_us, args.above);
    let restored = restored.map_err(|error| match error {
        RestoreError::Archive(error) => damaged(&args.file, &error),
        RestoreError::TooHigh { .. } => Failure::usage(error.to_string()),
        RestoreError::Exists(_) | RestoreError::Open(_) => {
            Failure::new(exit::CANNOT_CREATE, error.to_string())
        }
    })?;
    let shown = shown(
        args.output.unwrap_or_default(),
        &restored.summary,
        Some(restored.fence_floor),
    );
    let made = format!("the store in {} is made", args.data_dir.display());
    print_text(&shown).map_err(|error| Failure::unprinted(&made, error))?;
    Ok(0)
}

/// The printed summary.
fn shown(format: Format, summary: &BackupSummary, fence_floor: Option<u64>) -> String {
    let BackupSummary {
        keys,
        entries,
        values,
        sessions,
        cells,
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
                "cells": cells,
                "damaged": damaged,
                "fence_floor": fence_floor,
            });
            format!("{document:#}\n")
        }
        Format::Text => {
            let mut text = format!(
                "{keys} keys, {entries} live entries, {values} values, {sessions} sessions\n"
            );
            if *cells > 0 {
                text.push_str(&format!("{cells} cells of tables without homes\n"));
            }
            if *damaged > 0 {
                text.push_str(&format!(
                    "{damaged} keys are damaged; they are kept unchanged\n"
                ));
            }
            if let Some(floor) = fence_floor {
                text.push_str(&format!("fencing tokens go on from {floor}\n"));
            }
            text
        }
    }
}
