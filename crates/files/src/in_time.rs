//! A read with a time limit, in a thread of its own: its file system may hang.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use std::{fs, io, thread};

/// Why a read gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum InTimeError {
    /// It goes on.
    #[error("it could not be read in time, as where its file system hangs")]
    TooLate,
    /// There is no thread for it, or that panicked.
    #[error("there is no thread to read it: {0}")]
    NoThread(#[from] io::Error),
}

/// What the reading of a file gives within so long. A pipe is waited for: whoever writes to it may have to ask somebody first.
pub fn in_time<T: Send + 'static>(
    file: &Path,
    within: Duration,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, InTimeError> {
    let (progress, progressed) = mpsc::channel();
    let named = file.to_owned();
    let reading = move || {
        // Nobody may wait for either any more.
        if fs::metadata(named).is_ok_and(|found| !found.is_file()) {
            let _ = progress.send(Progress::Pipe);
        }
        let _ = progress.send(Progress::Done(read()));
    };
    thread::Builder::new()
        .name("files".to_owned())
        .spawn(reading)?;
    let mut came = progressed.recv_timeout(within);
    if let Ok(Progress::Pipe) = came {
        came = progressed
            .recv()
            .map_err(|_| RecvTimeoutError::Disconnected);
    }
    match came {
        Ok(Progress::Done(read)) => Ok(read),
        Err(RecvTimeoutError::Timeout) => Err(InTimeError::TooLate),
        Ok(Progress::Pipe) | Err(RecvTimeoutError::Disconnected) => {
            Err(io::Error::other("it ended early").into())
        }
    }
}

enum Progress<T> {
    /// Or anything else that is no regular file.
    Pipe,
    Done(T),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_hangs_is_given_up_and_a_pipe_is_waited_for() {
        let within = Duration::from_millis(50);
        let (hang, hangs) = mpsc::channel::<()>();
        let hung = in_time(Path::new("/proc/self/status"), within, move || hangs.recv());
        assert!(matches!(hung, Err(InTimeError::TooLate)));
        drop(hang);
        // As a pipe.
        let slow = in_time(Path::new("/dev/null"), within, move || {
            thread::sleep(4 * within);
            7
        });
        assert_eq!(slow.unwrap(), 7);
    }
}
