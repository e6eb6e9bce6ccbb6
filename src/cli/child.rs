//! The command that runs under a lock: started, told of signals, and stopped with all that it started.
//! What loses its parent (daemons do so on purpose) is found below this process: it is the subreaper of the command.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use fermata_command::at_start::was_ignoring_sigpipe;
use fermata_command::exit;
use fermata_command::failure::{Failure, status_of_signal};
use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use nix::unistd::{Pid, getpid};
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind};

use super::aside::Aside;

/// How often the rest of a stopped command is looked at.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// So many processes that ended are reaped at once; further ones at the next end.
const REAPED_AT_ONCE_MAX: usize = 1_000;

/// A running command. It shares the process group and the terminal, so that Ctrl-C, Ctrl-Z and pipes work
/// as without the lock.
pub struct Running {
    child: Child,
    /// None once it was waited for: then the number may be another's.
    pid: Option<i32>,
    /// Says that some process below this one ended.
    ends: unix::Signal,
    /// What was below this process before the command: jobs of a shell that became this process by `exec`.
    before: BTreeMap<i32, u64>,
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
        // Where this process was started to ignore SIGCHLD the system would keep no exit status. And the command is not to
        // ignore it either: what is received here is set to its default there.
        let ends = unix::signal(SignalKind::child()).map_err(|error| {
            Failure::new(exit::OS, format!("cannot wait for a command: {error}"))
        })?;
        let before = below_already();
        // What loses its parent comes below this process then. Below init it could not be found.
        let _ = set_child_subreaper(true);
        let mut started = Command::new(program);
        started
            .args(arguments)
            .envs(variables.iter().map(|(name, value)| (name, value)));
        if was_ignoring_sigpipe() {
            ignore_sigpipe(&mut started);
        }
        let started = started.spawn();
        match started {
            Ok(child) => Ok(Running {
                pid: child.id().and_then(|pid| i32::try_from(pid).ok()),
                child,
                ends,
                before,
                started: BTreeMap::new(),
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
    pub fn pass(&self, signal: Signal, aside: &Aside) {
        if let Some(pid) = self.pid {
            send(pid, signal, aside);
        }
    }

    /// Tells the command, and all that it started, to stop.
    pub fn stop(&mut self, aside: &Aside) {
        self.look();
        self.signal_all(Signal::SIGTERM, aside);
    }

    /// Ends what is left of it.
    pub fn kill(&mut self, aside: &Aside) {
        self.look();
        self.signal_all(Signal::SIGKILL, aside);
    }

    /// Returns when nothing is left of it besides the command itself. What it started meanwhile gets this signal.
    pub async fn all_gone(&mut self, signal: Signal, aside: &Aside) {
        loop {
            if !self.is_any_left() {
                // What is seen may fork and end before it is looked at again: only to see nothing, twice, is an end.
                if !self.look() && !self.look() {
                    return;
                }
                self.signal_all(signal, aside);
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    fn is_any_left(&self) -> bool {
        self.started.iter().any(|(&pid, &since)| lives(pid, since))
    }

    /// Looks for what is below the command, or was before it lost its parent. Whether any of that lived just then.
    fn look(&mut self) -> bool {
        let known = self.started.iter();
        let mut roots: Vec<i32> = known
            .filter(|&(&pid, &since)| lives(pid, since))
            .map(|(&pid, _)| pid)
            .collect();
        roots.push(getpid().as_raw());
        let mut found = below(&roots, &self.before);
        // It has a field of its own.
        if let Some(pid) = self.pid {
            found.remove(&pid);
        }
        let lived = found.values().any(|seen| !seen.zombie);
        let found = found.into_iter().map(|(pid, seen)| (pid, seen.since));
        self.started.extend(found);
        lived
    }

    fn signal_all(&self, signal: Signal, aside: &Aside) {
        let started = self.started.iter();
        let living = started.filter(|&(&pid, &since)| lives(pid, since));
        for pid in self.pid.into_iter().chain(living.map(|(&pid, _)| pid)) {
            send(pid, signal, aside);
            if signal == Signal::SIGTERM {
                // One that is stopped (SIGSTOP) hears of it only once it goes on.
                let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
            }
        }
    }

    /// Reaps what lost its parent and has ended: it would stay as a zombie for as long as the command runs.
    fn reap(&self) {
        for _ in 0..REAPED_AT_ONCE_MAX {
            let Ok(Some(pid)) = waitid(Id::All, seen()).map(|status| status.pid()) else {
                return;
            };
            // The exit status of the command is for whoever waits for it.
            if Some(pid.as_raw()) == self.pid {
                return;
            }
            let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// What is started gets the default of SIGPIPE from the standard library, whatever was inherited.
fn ignore_sigpipe(command: &mut Command) {
    let ignore = || {
        #[allow(unsafe_code)]
        // SAFETY: no function of this program is put in force, so none can be called at a wrong time.
        let ignored = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) };
        ignored.map(drop).map_err(io::Error::from)
    };
    #[allow(unsafe_code)]
    // SAFETY: between fork and exec it makes one call of the system, and takes no memory and no lock.
    unsafe {
        command.pre_exec(ignore);
    }
}

/// To see a process that ended, and leave it to be waited for.
fn seen() -> WaitPidFlag {
    WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT
}

fn send(pid: i32, signal: Signal, aside: &Aside) {
    match kill(Pid::from_raw(pid), signal) {
        // It ended meanwhile.
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => aside.say(format!("cannot send {signal} to process {pid}: {error}")),
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

fn lives(pid: i32, since: u64) -> bool {
    stat(pid).is_some_and(|stat| stat.since == since && !stat.zombie)
}

/// What is below this process before it has started anything. Most often that is nothing, and there is nothing to read.
fn below_already() -> BTreeMap<i32, u64> {
    match waitid(Id::All, seen()) {
        Err(Errno::ECHILD) => BTreeMap::new(),
        Ok(_) | Err(_) => {
            let found = below(&[getpid().as_raw()], &BTreeMap::new());
            found
                .into_iter()
                .map(|(pid, seen)| (pid, seen.since))
                .collect()
        }
    }
}

/// Whether /proc counts processes as this one does: not where it is of another PID namespace.
fn is_proc_ours() -> bool {
    std::fs::read_link("/proc/self")
        .is_ok_and(|own| own.to_str() == Some(getpid().to_string().as_str()))
}

/// All processes below these, as they were seen, but for those `except` and what is below them. Nothing where there is
/// no /proc.
fn below(roots: &[i32], except: &BTreeMap<i32, u64>) -> BTreeMap<i32, Stat> {
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
    let mut open = roots.to_vec();
    while let Some(parent) = open.pop() {
        // Each process has one parent.
        for (pid, stat) in children.remove(&parent).into_iter().flatten() {
            if except.get(&pid) != Some(&stat.since) && found.insert(pid, stat).is_none() {
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
        let since = stat(own).unwrap().since;
        let none = BTreeMap::new();
        assert!(below(&[parent], &none).contains_key(&own));
        let but_this = below(&[parent], &BTreeMap::from([(own, since)]));
        assert!(!but_this.contains_key(&own));
        // A later process with its number is another one.
        let but_another = below(&[parent], &BTreeMap::from([(own, since + 1)]));
        assert!(but_another.contains_key(&own));
        assert!(!below(&[own], &none).contains_key(&own));
        assert!(lives(own, since));
        assert!(!lives(own, 0));
    }
}
