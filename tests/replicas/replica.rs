//! One `fermata serve --store cassandra`: started, ended by any signal, and started again at the same addresses.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use fermata_proto::lock_service_client::LockServiceClient;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tonic::transport::{Channel, Endpoint};

pub type Client = LockServiceClient<Channel>;

/// How long a replica may take for what it does at once on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How a replica is started.
#[derive(Clone)]
pub struct Setup {
    /// The `fermata` to run.
    pub program: PathBuf,
    pub contact_points: Vec<String>,
    pub keyspace: String,
    pub secret_file: PathBuf,
    /// Where its log goes.
    pub log: PathBuf,
    /// More settings, as environment variables.
    pub settings: Vec<(String, String)>,
}

/// A replica, running or not. Killed when dropped.
pub struct Replica {
    setup: Setup,
    /// Of clients, and of other replicas; 0 until it was started first.
    port: u16,
    peer_port: u16,
    running: Option<Running>,
}

struct Running {
    child: Child,
    stdout: Receiver<String>,
}

impl Replica {
    /// Started; it listens, and may not be ready for long.
    pub fn start(setup: Setup) -> Replica {
        let mut replica = Replica {
            setup,
            port: 0,
            peer_port: 0,
            running: None,
        };
        replica.start_again();
        replica
    }

    /// A new process at the addresses of the last one.
    pub fn start_again(&mut self) {
        assert!(self.running.is_none(), "it runs");
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.setup.log)
            .unwrap();
        let mut child = Command::new(&self.setup.program)
            .args(["serve", "--store", "cassandra"])
            .args(["--contact-points", &self.setup.contact_points.join(",")])
            .args(["--keyspace", &self.setup.keyspace])
            .args(["--listen", &format!("127.0.0.1:{}", self.port)])
            .args(["--peer-listen", &format!("127.0.0.1:{}", self.peer_port)])
            .arg("--peer-secret-file")
            .arg(&self.setup.secret_file)
            .env("FERMATA_CFG_LOG__FILTER", "info,scylla=error")
            .envs(self.setup.settings.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let (sender, stdout) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        self.running = Some(Running { child, stdout });
        self.port = port_of(&self.line("listening on "));
        self.peer_port = port_of(&self.line("listening on "));
    }

    /// The rest of the next line on stdout that begins so.
    pub fn line(&self, begins: &str) -> String {
        self.line_within(begins, PATIENCE)
            .unwrap_or_else(|| panic!("no line {begins:?}:\n{}", self.log_end()))
    }

    /// The same, if it comes in time.
    pub fn line_within(&self, begins: &str, patience: Duration) -> Option<String> {
        let until = Instant::now() + patience;
        let running = self.running.as_ref().expect("it does not run");
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match running.stdout.recv_timeout(left) {
                Ok(line) => match line.strip_prefix(begins) {
                    Some(rest) => return Some(rest.to_owned()),
                    None => continue,
                },
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Its UUID, once it serves.
    pub fn serving(&self) -> String {
        self.line("replica ")
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// A channel that connects when it is used, and again whenever it breaks.
    pub fn channel(&self) -> Channel {
        Endpoint::from_shared(self.endpoint())
            .unwrap()
            .connect_timeout(Duration::from_secs(2))
            .connect_lazy()
    }

    pub fn client(&self) -> Client {
        LockServiceClient::new(self.channel())
    }

    /// Its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.child.id())
    }

    /// How it ended, if nobody told it to.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let running = self.running.as_mut()?;
        running.child.try_wait().ok().flatten()
    }

    /// Where other replicas call it.
    pub fn peer_port(&self) -> u16 {
        self.peer_port
    }

    /// SIGSTOP, SIGCONT, SIGTERM.
    pub fn signal(&self, signal: Signal) {
        let running = self.running.as_ref().expect("it does not run");
        let pid = i32::try_from(running.child.id()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        let mut running = self.running.take().expect("it does not run");
        running.child.kill().unwrap();
        running.child.wait().unwrap();
    }

    /// SIGTERM, and the end of it.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        let mut running = self.running.take().unwrap();
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = running.child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > until {
                let _ = running.child.kill();
                let _ = running.child.wait();
                panic!("it did not end:\n{}", self.log_end());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.setup.log).unwrap_or_default()
    }

    /// The end of its log.
    pub fn log_end(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

fn port_of(listening: &str) -> u16 {
    let address = listening.split(' ').next().unwrap();
    address.rsplit_once(':').unwrap().1.parse().unwrap()
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
        if std::thread::panicking() {
            eprintln!(
                "the end of the log of the replica at {}:\n{}",
                self.port,
                self.log_end()
            );
        }
    }
}
