//! The command that runs under a lock: started, passed signals, and stopped with all that it started.
//! A process that loses its parent (daemons do so on purpose) stays below this process: it is the subreaper of the command.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::process::ExitStatus;

use fermata_command::exit;
use fermata_command::failure::{Failure, status_of_signal};
use fermata_command::output::say;
use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use nix::unistd::{Pid, getpid};
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind};

/// A running command. It shares the process group and the terminal, so that Ctrl-C, Ctrl-Z and pipes work
/// as without the lock.
pub struct Running {
    child: Child,
    /// None once it was waited for: then the number may be another's.
    pid: Option<i32>,
    /// Says that some process below this one ended.
    ends: unix::Signal,
    /// The processes below this one before the command: jobs of a shell that became this process by `exec`.
    before: BTreeMap<i32, u64>,
}

impl Running {
    /// Starts a command with these variables in its environment.
    pub fn start(command: &[OsString], variables: &[(&str, String)]) -> Result<Running, Failure> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(Failure::usage("no command was given"));
        };
        // Where this process was started to ignore SIGCHLD the system would keep no exit status. And the command is not to
        // ignore it either: a signal that is received here is set to its default there.
        let ends = unix::signal(SignalKind::child()).map_err(|error| {
            Failure::new(exit::OS, format!("cannot wait for a command: {error}"))
        })?;
        let before = match waitid(Id::All, seen()) {
            Err(Errno::ECHILD) => BTreeMap::new(),
            Ok(_) | Err(_) => below(&BTreeMap::new()),
        };
        let before = before.into_iter().map(|(pid, stat)| (pid, stat.since));
        // Below init an orphan could not be found.
        let _ = set_child_subreaper(true);
        let mut started = Command::new(program);
        started
            .args(arguments)
            .envs(variables.iter().map(|(name, value)| (name, value)));
        match started.spawn() {
            Ok(child) => Ok(Running {
                pid: child.id().and_then(|pid| i32::try_from(pid).ok()),
                child,
                ends,
                before: before.collect(),
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

    /// Returns when the command itself has ended. May be dropped and called again.
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

    /// Whether anything of it is left.
    pub fn is_any_left(&self) -> bool {
        // A process may fork and end while the list is read: only two empty lists are an end.
        !self.left().is_empty() || !self.left().is_empty()
    }

    /// The command and all below it.
    fn left(&self) -> BTreeSet<i32> {
        let below = below(&self.before).into_iter();
        let living = below.filter(|(_, stat)| !stat.zombie).map(|(pid, _)| pid);
        living.chain(self.pid).collect()
    }

    /// Reaps orphans that have ended: they would stay as zombies for as long as the command runs.
    fn reap(&self) {
        while let Ok(Some(pid)) = waitid(Id::All, seen()).map(|status| status.pid()) {
            // The exit status of the command is for `ended`.
            if Some(pid.as_raw()) == self.pid {
                return;
            }
            let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// To see a process that ended, and leave it to be waited for.
fn seen() -> WaitPidFlag {
    WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT
}

fn send(pid: i32, signal: Signal) {
    match kill(Pid::from_raw(pid), signal) {
        // It ended meanwhile.
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => say(&format!("cannot send {signal} to process {pid}: {error}")),
    }
}

/// A process as `/proc/PID/stat` shows it.
struct Stat {
    parent: i32,
    zombie: bool,
    since: u64,
}

/// Reads the fields after the name, which may hold anything: it ends at the last `)`.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    // The parent is field 4 of the line, how many threads there are field 20, the start time field 22.
    let threads: u32 = fields.nth(15)?.parse().ok()?;
    let since = fields.nth(1)?.parse().ok()?;
    Some(Stat {
        parent,
        // One whose first thread ended is shown as a zombie as well, for as long as others go on.
        zombie: matches!(state, "Z" | "X") && threads <= 1,
        since,
    })
}

fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Whether /proc counts processes as this one does: not where it is of another PID namespace.
fn is_proc_ours() -> bool {
    std::fs::read_link("/proc/self")
        .is_ok_and(|own| own.to_str() == Some(getpid().to_string().as_str()))
}

/// All processes below this one, but for those `except` and below them. Nothing where there is no /proc.
fn below(except: &BTreeMap<i32, u64>) -> BTreeMap<i32, Stat> {
    if !is_proc_ours() {
        return BTreeMap::new();
    }
    let mut children: BTreeMap<i32, Vec<(i32, Stat)>> = BTreeMap::new();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if let Some(stat) = stat(pid) {
            children.entry(stat.parent).or_default().push((pid, stat));
        }
    }
    let mut found = BTreeMap::new();
    let mut open = vec![getpid().as_raw()];
    while let Some(parent) = open.pop() {
        // Each process has one parent.
        for (pid, stat) in children.remove(&parent).into_iter().flatten() {
            if except.get(&pid) != Some(&stat.since) {
                found.insert(pid, stat);
                open.push(pid);
            }
        }
    }
    found
}

/// The exit status that tells of this end: the command's own, or 128 and the signal's number.
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
        let stat = parse_stat(line).unwrap();
        assert_eq!((stat.parent, stat.zombie, stat.since), (12, false, 987_654));
        assert!(parse_stat("4711 (a").is_none());
    }

    #[test]
    fn an_end_by_a_signal_is_told_as_a_shell_tells_it() {
        assert_eq!(status_of(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(status_of(ExitStatus::from_raw(15)), 143);
    }
}
