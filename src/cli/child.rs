//! The command that runs under a lock: its start, its signals, and its end together with all its descendants. A process that
//! loses its parent (as daemons do on purpose) becomes a child of this process, which is a subreaper. Only Linux has subreapers and
//! `/proc`: on other systems only the command itself is stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::process::ExitStatus;

use fermata_command::exit;
use fermata_command::failure::{Failure, status_of_signal};
use fermata_command::output::say;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind};

/// A running command. It shares the process group and the terminal: Ctrl-C, Ctrl-Z and pipes work as without the lock.
pub struct Running {
    child: Child,
    /// None after its end: another process may have the number.
    pid: Option<i32>,
    /// SIGCHLD: a process below this one ended.
    ends: unix::Signal,
    /// Processes below this one before the command: jobs of a shell that became this process by `exec`.
    before: BTreeSet<i32>,
}

impl Running {
    /// Starts a command with these variables in its environment.
    pub fn start(command: &[OsString], variables: &[(&str, String)]) -> Result<Running, Failure> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(Failure::usage("no command was given"));
        };
        // If this process was started to ignore SIGCHLD, the system would keep no exit status. The command does not ignore it
        // either: a signal with a handler here has its default action there.
        let ends = unix::signal(SignalKind::child()).map_err(|error| {
            Failure::new(exit::OS, format!("cannot wait for a command: {error}"))
        })?;
        let before = below(&BTreeSet::new());
        // An orphan below init could not be found.
        #[cfg(target_os = "linux")]
        let _ = nix::sys::prctl::set_child_subreaper(true);
        let mut started = Command::new(program);
        started
            .args(arguments)
            .envs(variables.iter().map(|(name, value)| (name, value)));
        match started.spawn() {
            Ok(child) => Ok(Running {
                pid: child.id().and_then(|pid| i32::try_from(pid).ok()),
                child,
                ends,
                before,
            }),
            Err(error) => {
                let code = match error.kind() {
                    io::ErrorKind::NotFound => exit::NOT_FOUND,
                    _ => exit::NOT_EXECUTABLE,
                };
                let program = program.to_string_lossy();
                Err(Failure::new(
                    code,
                    format!("cannot run {program:?}: {error}"),
                ))
            }
        }
    }

    /// Returns at the end of the command itself. May be dropped and called again.
    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        loop {
            tokio::select! {
                biased;
                ended = self.child.wait() => {
                    self.pid = None;
                    return ended;
                }
                _ = self.ends.recv() => self.reap(),
            }
        }
    }

    /// Passes a signal to the command itself.
    pub fn pass(&self, signal: Signal) {
        if let Some(pid) = self.pid {
            send(pid, signal);
        }
    }

    /// Tells the command, and all that it started, to stop.
    pub fn stop(&self) {
        for pid in self.left() {
            send(pid, Signal::SIGTERM);
            // A process that is stopped (SIGSTOP) hears of it only once it goes on.
            let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
        }
    }

    /// Kills the command, and all that it started.
    pub fn kill(&self) {
        for pid in self.left() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    /// Whether a process of it is left.
    pub fn is_any_left(&self) -> bool {
        self.reap();
        // A process may fork and end while the list is read: only two empty lists are an end.
        !self.left().is_empty() || !self.left().is_empty()
    }

    /// The command and all below it.
    fn left(&self) -> BTreeSet<i32> {
        below(&self.before).into_iter().chain(self.pid).collect()
    }

    #[cfg(not(target_os = "linux"))]
    fn reap(&self) {}

    /// Reaps orphans that have ended.
    #[cfg(target_os = "linux")]
    fn reap(&self) {
        use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
        // Seen, and left to be waited for.
        let seen = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        while let Ok(Some(pid)) = waitid(Id::All, seen).map(|status| status.pid()) {
            // The exit status of the command is for `ended`.
            if Some(pid.as_raw()) == self.pid {
                return;
            }
            let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
        }
    }
}

fn send(pid: i32, signal: Signal) {
    match kill(Pid::from_raw(pid), signal) {
        // It ended meanwhile.
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => say(&format!("cannot send {signal} to process {pid}: {error}")),
    }
}

/// The parent of a process, of its line in `/proc/PID/stat`. The name may hold anything, and ends at the last `)`.
fn parse_parent(stat: &str) -> Option<i32> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn parent(pid: i32) -> Option<i32> {
    parse_parent(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Whether /proc is of the PID namespace of this process.
fn is_proc_ours() -> bool {
    std::fs::read_link("/proc/self")
        .is_ok_and(|own| own.to_str() == Some(getpid().to_string().as_str()))
}

/// All processes below this one, without those of `except` and below them. Empty without a /proc.
fn below(except: &BTreeSet<i32>) -> BTreeSet<i32> {
    if !is_proc_ours() {
        return BTreeSet::new();
    }
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for pid in pids {
        if let Some(parent) = parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = BTreeSet::new();
    let mut open = vec![getpid().as_raw()];
    while let Some(parent) = open.pop() {
        for pid in children.remove(&parent).into_iter().flatten() {
            if !except.contains(&pid) {
                found.insert(pid);
                open.push(pid);
            }
        }
    }
    found
}

/// The exit status of the command, or 128 and the number of the signal that ended it.
pub fn status_of(ended: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt as _;
    match (ended.code(), ended.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => status_of_signal(signal),
        (None, None) => u8::MAX,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let line =
            "4711 (a) b ((x) S 12 4711 4711 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 1";
        assert_eq!(parse_parent(line), Some(12));
        assert!(parse_parent("4711 (a").is_none());
    }

    #[test]
    fn an_end_by_a_signal_is_told_as_a_shell_tells_it() {
        assert_eq!(status_of(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(status_of(ExitStatus::from_raw(15)), 143);
    }
}
