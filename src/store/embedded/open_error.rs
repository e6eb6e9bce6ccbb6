//! Errors of opening a data directory, with the remedy of an operator.

use std::io;
use std::path::{Path, PathBuf};

/// Why the embedded store could not be opened. In none of these cases was anything overwritten.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedOpenError {
    /// Another process has it open.
    #[error(
        "{} is in use by another process{}; one data directory serves one process at a time",
        .directory.display(), pid_text(*.pid)
    )]
    InUse {
        /// The data directory.
        directory: PathBuf,
        /// That process, as far as its lock file says.
        pid: Option<u32>,
    },
    /// It holds something that is no whole store.
    #[error(
        "{} is damaged: {what}. Nothing was overwritten. Restore its directory from a backup, or move the directory away to \
         begin without locks and data",
        .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Another version of this program wrote it.
    #[error(
        "{} has format {found}; this program knows format {known} only. Nothing was overwritten. \
         Start the version that wrote it, or name another data directory (--data-dir)",
        .path.display()
    )]
    OtherFormat {
        /// The file that says so.
        path: PathBuf,
        /// The format on disk.
        found: u8,
        /// The format that this program knows.
        known: u8,
    },
    /// The system refused: a missing right, a full disk, a file in place of a directory.
    #[error("cannot use {}: {source}", .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

fn pid_text(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (pid {pid})"))
}

impl EmbeddedOpenError {
    pub(super) fn damaged(path: &Path, what: impl Into<String>) -> EmbeddedOpenError {
        EmbeddedOpenError::Damaged {
            path: path.to_owned(),
            what: what.into(),
        }
    }

    /// An error of the system; damage where the file itself is the reason.
    pub(super) fn io(path: &Path, source: io::Error) -> EmbeddedOpenError {
        let path = path.to_owned();
        match source.kind() {
            // A read beyond the end of a file whose length its own header knows otherwise.
            io::ErrorKind::UnexpectedEof => EmbeddedOpenError::Damaged {
                path,
                what: "it ends too early".to_owned(),
            },
            io::ErrorKind::InvalidData => EmbeddedOpenError::Damaged {
                path,
                what: source.to_string(),
            },
            _ => EmbeddedOpenError::Io { path, source },
        }
    }

    /// Sorts an error that redb met in the file at `path`.
    pub(super) fn redb(path: &Path, error: redb::Error) -> EmbeddedOpenError {
        match error {
            redb::Error::Io(source) => EmbeddedOpenError::io(path, source),
            // Whoever has it open does not keep to our lock file, so its pid is not known.
            redb::Error::DatabaseAlreadyOpen => EmbeddedOpenError::InUse {
                directory: path.to_owned(),
                pid: None,
            },
            // redb says this of any format number that it does not know.
            other => EmbeddedOpenError::damaged(path, other.to_string()),
        }
    }
}
