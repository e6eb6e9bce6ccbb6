//! Bounded reads of small files: tokens, rules, certificates, keys, values. Files in use are reloaded.

mod reloading;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::fcntl::OFlag;

pub use reloading::ReloadingFile;

/// The size limit of a file of tokens, rules, certificates or a key, in bytes.
pub const SMALL_FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Why a file was not read; for people, without its name.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The operating system refused it.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is a pipe, a device, a directory or a socket.
    #[error("it is not a regular file")]
    NotRegular,
    /// It holds more than it may.
    #[error("it has more than {max} bytes")]
    TooLarge {
        /// The limit.
        max: u64,
    },
    /// Its bytes are no text.
    #[error("it is not UTF-8 text")]
    NotText,
}

/// Reads a file of any kind with an end. A pipe without a writer blocks for ever.
pub fn read(file: &Path, max: u64) -> Result<Vec<u8>, ReadError> {
    read_to_end(File::open(file)?, max)
}

/// Reads a file that is read repeatedly. Pipes (the next read would block) and devices (without an end) are refused.
pub fn read_regular(file: &Path, max: u64) -> Result<Vec<u8>, ReadError> {
    // Some devices do something when they are opened.
    if !fs::metadata(file)?.is_file() {
        return Err(ReadError::NotRegular);
    }
    // A pipe may have replaced it meanwhile.
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(file)?;
    match opened.metadata()?.is_file() {
        true => read_to_end(opened, max),
        false => Err(ReadError::NotRegular),
    }
}

/// Reads the rest of a stream, and at most a byte more than `max`.
pub fn read_to_end(from: impl Read, max: u64) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::new();
    from.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > max {
        true => Err(ReadError::TooLarge { max }),
        false => Ok(bytes),
    }
}

/// Text of bytes that were read.
pub fn text(bytes: Vec<u8>) -> Result<String, ReadError> {
    String::from_utf8(bytes).map_err(|_| ReadError::NotText)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_hold_as_much_as_the_bound_and_no_byte_more() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        for (bytes, refused) in [(0, false), (7, false), (8, false), (9, true), (100, true)] {
            fs::write(&file, vec![b'x'; bytes]).unwrap();
            for came in [read(&file, 8), read_regular(&file, 8)] {
                match came {
                    Ok(read) => assert_eq!((read.len(), refused), (bytes, false)),
                    Err(ReadError::TooLarge { max: 8 }) => assert!(refused, "{bytes}"),
                    Err(error) => panic!("{bytes}: {error}"),
                }
            }
        }
    }

    #[test]
    fn what_is_no_regular_file_is_refused_at_once_where_that_is_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        for file in [
            pipe.as_path(),
            directory.path(),
            Path::new("/dev/zero"),
            Path::new("/dev/null"),
        ] {
            let refused = read_regular(file, 8).unwrap_err();
            assert!(matches!(refused, ReadError::NotRegular), "{file:?}");
        }
        // A device without an end has a bound, too.
        let refused = read(Path::new("/dev/zero"), 8).unwrap_err();
        assert!(matches!(refused, ReadError::TooLarge { .. }));
        let link = directory.path().join("link");
        fs::write(directory.path().join("file"), "text").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        assert_eq!(text(read_regular(&link, 8).unwrap()).unwrap(), "text");
        fs::remove_file(directory.path().join("file")).unwrap();
        assert!(matches!(read_regular(&link, 8), Err(ReadError::Io(_))));
        assert!(matches!(text(vec![0xff]), Err(ReadError::NotText)));
    }
}
