//! The command that runs under a lock: started, told of signals, and stopped with all that it started.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use fermata_command::exit;
use fermata_command::failure::{Failure, status_of_signal};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use super::aside::say;

/// How often the rest of a stopped command is looked at.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// A running command. It shares the process group and the terminal, so that Ctrl-C, Ctrl-Z and pipes work
/// as without the lock.
pub struct Running {
    child: Child,
    /// What it had started when it was told to stop, with the start times that tell a process from a
    /// later one with its number.
    started: BTreeMap<i32, u64>,
}

impl Running {
    /// Starts a command with these variables in its environment.
    pub fn start(command: &[OsString], variables: &[(&str, String)]) -> Result<Running, Failure> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(Failure::usage("no command was given"));
        };
        let started = Command::new(program)
            .args(arguments)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .spawn();
        match started {
            Ok(child) => Ok(Running {
                child,
                started: BTreeMap::new(),
            }),
            Err(error) => {
                let code = match error.kind() {
                    io::ErrorKind::NotFound => exit::NOT_FOUND,
                    _ => exit::NOT_EXECUTABLE,
                };
                let program = program.to_string_lossy();
                Err(Failure::new(code, format!("cannot run {program}: {error}")))
            }
        }
    }

    /// Returns when the command itself has ended. May be dropped and called again.
    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Passes a signal to the command itself.
    pub fn pass(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            send(pid, signal);
        }
    }

    /// Tells the command, and all that it started and that is still under it, to stop.
    pub fn stop(&mut self) {
        self.look();
        self.signal_all(Signal::SIGTERM);
    }

    /// Ends what is left of it.
    pub fn kill(&mut self) {
        self.look();
        self.signal_all(Signal::SIGKILL);
    }

    /// Returns when nothing is left of what was told to stop, besides the command itself.
    pub async fn all_gone(&self) {
        while self.started.iter().any(|(&pid, &since)| lives(pid, since)) {
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    fn pid(&self) -> Option<i32> {
        // None once it was waited for: then the number may be another's.
        self.child.id().and_then(|pid| i32::try_from(pid).ok())
    }

    fn look(&mut self) {
        let mut roots: Vec<i32> = self.pid().into_iter().collect();
        let known = self.started.iter();
        roots.extend(
            known
                .filter(|&(&pid, &since)| lives(pid, since))
                .map(|(&pid, _)| pid),
        );
        let found = below(&roots);
        self.started.extend(found);
    }

    fn signal_all(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            send(pid, signal);
        }
        for (&pid, &since) in &self.started {
            if lives(pid, since) {
                send(pid, signal);
            }
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
    // The start time is field 22 of the line, the parent field 4.
    let since = fields.nth(17)?.parse().ok()?;
    Some(Stat {
        parent,
        zombie: matches!(state, "Z" | "X"),
        since,
    })
}

fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn lives(pid: i32, since: u64) -> bool {
    stat(pid).is_some_and(|stat| stat.since == since && !stat.zombie)
}

/// All processes below these, with their start times. Nothing where there is no /proc.
fn below(roots: &[i32]) -> BTreeMap<i32, u64> {
    let mut children: BTreeMap<i32, Vec<(i32, u64)>> = BTreeMap::new();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if let Some(stat) = stat(pid) {
            children
                .entry(stat.parent)
                .or_default()
                .push((pid, stat.since));
        }
    }
    let mut found = BTreeMap::new();
    let mut open = roots.to_vec();
    while let Some(parent) = open.pop() {
        for &(pid, since) in children.get(&parent).into_iter().flatten() {
            if found.insert(pid, since).is_none() {
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

    #[test]
    fn this_process_is_below_its_parent() {
        let own = i32::try_from(std::process::id()).unwrap();
        let parent = nix::unistd::getppid().as_raw();
        assert!(below(&[parent]).contains_key(&own));
        assert!(lives(own, stat(own).unwrap().since));
        assert!(!lives(own, 0));
    }
}
