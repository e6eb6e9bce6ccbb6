//! A server of its own for each test, and the commands that talk to it.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

pub const FERMATA: &str = env!("CARGO_BIN_EXE_fermata");

/// Longer than anything here takes; only a test that fails waits for so long.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct World {
    server: Child,
    pub endpoint: String,
    data: TempDir,
}

impl World {
    pub fn new() -> World {
        World::with(&[])
    }

    /// With these settings.
    pub fn with(settings: &[(&str, &str)]) -> World {
        let data = tempfile::tempdir().unwrap();
        let (server, address) = serve(data.path(), "127.0.0.1:0", settings);
        World {
            endpoint: format!("http://{address}"),
            server,
            data,
        }
    }

    /// A server on this data; what it leaves stays there.
    pub fn on(data: &str) -> World {
        let (server, address) = serve(Path::new(data), "127.0.0.1:0", &[]);
        World {
            endpoint: format!("http://{address}"),
            server,
            data: tempfile::tempdir().unwrap(),
        }
    }

    /// SIGKILL, and a new process on the same data and port.
    pub fn restart_server(&mut self) {
        self.kill_server();
        self.start_server();
    }

    /// A new process on the same data and port, after the one before was killed.
    pub fn start_server(&mut self) {
        let address = self.endpoint.strip_prefix("http://").unwrap();
        self.server = serve(self.data.path(), address, &[]).0;
    }

    /// SIGSTOP: it is there, and answers nothing.
    pub fn stop_server(&mut self) {
        let pid = i32::try_from(self.server.id()).unwrap();
        let stopped = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGSTOP);
        stopped.unwrap();
    }

    /// SIGKILL, and nobody serves any more.
    pub fn kill_server(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        // Whoever runs the tests may ignore signals (`nohup`), and so would this.
        let mut command = Command::new("env");
        command
            .args(["--default-signal", FERMATA])
            .args(arguments)
            .env("FERMATA_ENDPOINT", &self.endpoint)
            .env("PATH", path())
            .env_remove("FERMATA_LOCK_REF")
            .env_remove("FERMATA_TABLE")
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command that must succeed; what it printed.
    pub fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must succeed, with `--output json`.
    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let mut all = arguments.to_vec();
        all.extend(["--output", "json"]);
        serde_json::from_str(&self.text(&all)).unwrap()
    }

    /// Starts a shell with this script, that calls `fermata` by its name, and that can be told something.
    pub fn start_shell(&self, script: &str) -> Started {
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .env("FERMATA_ENDPOINT", &self.endpoint)
            .env("PATH", path())
            .stdin(Stdio::piped());
        Started::of(command)
    }

    /// Starts a command.
    pub fn start(&self, arguments: &[&str]) -> Started {
        Started::of(self.command(arguments))
    }

    /// Starts a command that holds a key.
    pub fn hold(&self, key: &str) -> Started {
        let mut holder = self.start(&["lock", key, "--owner", "billing"]);
        let lock_ref = holder.line();
        assert!(lock_ref.starts_with("default/"), "{lock_ref}");
        holder
    }

    /// Ends the lock on `k` by force.
    pub fn force(&self) {
        self.text(&[
            "locks", "release", "--key", "k", "--reason", "on fire", "--by", "ops",
        ]);
    }

    /// How many hold and wait for a key.
    pub fn queue(&self, key: &str) -> (usize, u64) {
        let shown = self.json(&["locks", "show", key]);
        let holders = shown["holders"].as_array().unwrap().len();
        (holders, shown["waiter_count"].as_u64().unwrap())
    }

    /// Returns once so many hold and wait for a key.
    pub fn await_queue(&self, key: &str, expected: (usize, u64)) {
        until(|| self.queue(key) == expected);
    }
}

/// Starts a server; where it listens.
fn serve(data: &Path, listen: &str, settings: &[(&str, &str)]) -> (Child, String) {
    let settings = settings.iter();
    let settings = settings.map(|(name, value)| (format!("FERMATA_CFG_{name}"), *value));
    let mut server = Command::new(FERMATA)
        .args(["serve", "--listen", listen, "--log-filter", "error"])
        .arg("--data-dir")
        .arg(data)
        .envs(settings)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(server.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap();
    (server, address.to_owned())
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The search path with the binary under test first.
pub fn path() -> OsString {
    let folder = Path::new(FERMATA).parent().unwrap().to_owned();
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(folder).chain(std::env::split_paths(&rest));
    std::env::join_paths(all).unwrap()
}

/// Asks again until it is so.
pub fn until(mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "it never came to be");
        std::thread::yield_now();
    }
}

/// Whether a process is there and no zombie.
pub fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}

/// A command that runs; killed when dropped.
pub struct Started {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Started {
    fn of(mut command: Command) -> Started {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Started {
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    /// One more line on its stdin.
    pub fn say(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        writeln!(stdin, "{line}").unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        let pid = nix::unistd::Pid::from_raw(self.pid());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    /// Ends it by SIGTERM.
    pub fn stop(self) {
        self.signal(Signal::SIGTERM);
        let (ended, said) = self.end();
        assert_eq!(ended.code(), Some(143), "{said}");
    }

    pub fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    /// The next line that it prints.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Closes the end of its stderr that is read.
    pub fn close_stderr(&mut self) {
        drop(self.child.stderr.take());
    }

    /// Waits for its end, and reads nothing of what it said.
    pub fn end_unread(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Its end, and what it said on stderr.
    pub fn end(mut self) -> (ExitStatus, String) {
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }
}
