//! What `fermata lock` says on stderr beside a command that runs. It is written by a thread of its own: where nobody reads
//! it a write may take for ever, or fail, and a command whose lock is lost must be stopped all the same.

use std::io::Write as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// So many lines wait to be written; one more is left out.
const LINES_MAX: usize = 64;
/// For so long the last ones are waited for at the end.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);

/// Says one line on stderr. Where nobody is left to read it, what goes on goes on.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "fermata: {line}");
}

/// A way to stderr that never blocks and never fails.
pub struct Aside {
    lines: SyncSender<String>,
    written: Receiver<()>,
}

impl Aside {
    /// Starts the thread. Where there can be none, nothing is said.
    pub fn start() -> Aside {
        let (lines, to_write) = sync_channel::<String>(LINES_MAX);
        let (ended, written) = sync_channel::<()>(0);
        let write = move || {
            for line in to_write {
                say(&line);
            }
            drop(ended);
        };
        let _thread = std::thread::Builder::new()
            .name("stderr".to_owned())
            .spawn(write);
        Aside { lines, written }
    }

    /// Says one line.
    pub fn say(&self, line: String) {
        let _ = self.lines.try_send(line);
    }

    /// Returns once all was written, or after a second.
    pub fn finish(self) {
        let Aside { lines, written } = self;
        drop(lines);
        match written.recv_timeout(WRITTEN_WITHIN) {
            Ok(()) | Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => {}
        }
    }
}
