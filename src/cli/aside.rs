//! What commands that wait for a lock, or run a command under it, say on stderr. A thread of its own writes it: where nobody
//! reads it a write may take for ever, or fail, and signals must be heard, and a command be started and stopped, all the same.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use fermata_command::Failure;
use fermata_command::output::{self, lines};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// So many lines wait to be written; one more takes the oldest of them away: the last ones say how it ended.
const LINES_MAX: usize = 64;
/// For so long the last ones are waited for at the end.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);
/// For so long the status line is waited for to go away.
const CLEARED_WITHIN: Duration = Duration::from_millis(200);

/// Says something on stderr, which may have keys and labels in it. Where nobody is left to read it, what goes on goes on.
pub fn say(text: &str) {
    output::say(&lines(text));
}

/// A way to stderr that never blocks and never fails.
pub struct Aside {
    queue: Arc<StderrQueue>,
    written: Receiver<()>,
}

impl Aside {
    /// Starts the thread. Where there can be none, nothing is said.
    pub fn start() -> Aside {
        let queue = Arc::new(StderrQueue::default());
        let to_write = Arc::clone(&queue);
        let (ended, written) = sync_channel::<()>(0);
        let write = move || {
            to_write.write_until_ended();
            drop(ended);
        };
        let _thread = std::thread::Builder::new()
            .name("stderr".to_owned())
            .spawn(write);
        Aside { queue, written }
    }

    /// Says one line.
    pub fn say(&self, line: String) {
        self.queue.say(line);
    }

    /// The same, for who may have to say something later, or never.
    pub fn sayer(&self) -> impl FnOnce(String) + Send + 'static + use<> {
        let queue = Arc::clone(&self.queue);
        move |line| queue.say(line)
    }

    /// Shows this on the status line of the terminal, in place of what it showed before.
    pub fn show(&self, text: String) {
        self.queue.set(StatusLine::Show(text));
    }

    /// Takes the status line away. Returns once that is done, or the terminal took nothing for a while.
    pub async fn clear(&self) {
        let (clear, cleared) = oneshot::channel();
        self.queue.set(StatusLine::Clear(clear));
        let _ = timeout(CLEARED_WITHIN, cleared).await;
    }

    /// Says why it failed, where it did, so that the exit status is all that is left of that. Returns once all was written, or
    /// after a second.
    pub fn finish<T>(self, ended: Result<T, Failure>) -> Result<T, Failure> {
        let Aside { queue, written } = self;
        let ended = ended.map_err(|failure| {
            if !failure.message.is_empty() {
                queue.say(failure.message);
            }
            Failure::new(failure.code, "")
        });
        queue.change(|unwritten| unwritten.ended = true);
        match written.recv_timeout(WRITTEN_WITHIN) {
            Ok(()) | Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => {}
        }
        ended
    }
}

/// What the thread is to do, for as long as it is not held up by what it does.
#[derive(Default)]
struct StderrQueue {
    unwritten: Mutex<Unwritten>,
    changed: Condvar,
}

#[derive(Default)]
struct Unwritten {
    /// Only its last state counts. It comes before the lines: those that follow a wait are written once it is gone.
    status: Option<StatusLine>,
    lines: VecDeque<String>,
    ended: bool,
}

/// What the status line is to become.
enum StatusLine {
    Show(String),
    /// Whoever waits for that is notified.
    Clear(oneshot::Sender<()>),
}

/// One thing to write.
enum StderrWrite {
    Status(StatusLine),
    Line(String),
}

impl StderrQueue {
    fn change(&self, change: impl FnOnce(&mut Unwritten)) {
        let mut unwritten = self
            .unwritten
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        change(&mut unwritten);
        drop(unwritten);
        self.changed.notify_one();
    }

    fn say(&self, line: String) {
        self.change(|unwritten| {
            if unwritten.lines.len() >= LINES_MAX {
                unwritten.lines.pop_front();
            }
            unwritten.lines.push_back(line);
        });
    }

    fn set(&self, status: StatusLine) {
        self.change(|unwritten| unwritten.status = Some(status));
    }

    /// The next thing to write; waits for one. `None` after the last.
    fn next(&self) -> Option<StderrWrite> {
        let mut unwritten = self
            .unwritten
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(status) = unwritten.status.take() {
                return Some(StderrWrite::Status(status));
            }
            if let Some(line) = unwritten.lines.pop_front() {
                return Some(StderrWrite::Line(line));
            }
            if unwritten.ended {
                return None;
            }
            unwritten = self
                .changed
                .wait(unwritten)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes what comes, until the end.
    fn write_until_ended(&self) {
        let mut bar: Option<ProgressBar> = None;
        while let Some(next) = self.next() {
            match next {
                StderrWrite::Status(StatusLine::Show(text)) => {
                    let bar = bar.get_or_insert_with(status_bar);
                    bar.set_message(text);
                    bar.tick();
                }
                StderrWrite::Status(StatusLine::Clear(notify)) => {
                    if let Some(bar) = bar.take() {
                        bar.finish_and_clear();
                    }
                    // Who waited for that may have gone on.
                    let _ = notify.send(());
                }
                StderrWrite::Line(line) => match &bar {
                    Some(bar) => bar.suspend(|| say(&line)),
                    None => say(&line),
                },
            }
        }
    }
}

fn status_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    match ProgressStyle::with_template("{spinner} {wide_msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the thread would write once it can.
    fn written(queue: &StderrQueue) -> Vec<String> {
        queue.change(|unwritten| unwritten.ended = true);
        let mut written = Vec::new();
        while let Some(next) = queue.next() {
            written.push(match next {
                StderrWrite::Line(line) => line,
                StderrWrite::Status(StatusLine::Show(text)) => format!("status: {text}"),
                StderrWrite::Status(StatusLine::Clear(_)) => "no status".to_owned(),
            });
        }
        written
    }

    #[test]
    fn of_more_lines_than_may_wait_the_last_ones_are_kept() {
        let queue = StderrQueue::default();
        for number in 0..LINES_MAX + 3 {
            queue.say(number.to_string());
        }
        let kept: Vec<String> = (3..LINES_MAX + 3).map(|n| n.to_string()).collect();
        assert_eq!(written(&queue), kept);
    }

    #[test]
    fn of_the_status_line_only_the_last_state_is_written() {
        let queue = StderrQueue::default();
        for position in ["2 ahead", "1 ahead"] {
            queue.set(StatusLine::Show(position.to_owned()));
        }
        assert_eq!(written(&queue), ["status: 1 ahead"]);
        queue.set(StatusLine::Show("next".to_owned()));
        queue.say("it ended".to_owned());
        queue.set(StatusLine::Clear(oneshot::channel().0));
        assert_eq!(written(&queue), ["no status", "it ended"]);
    }
}
