//! A real `fermata serve`, started, killed and started again on the same data and port.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fermata_proto::lock_service_client::LockServiceClient;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

pub type Client = LockServiceClient<Channel>;

/// A process that ends with its test, however that ends.
pub struct Ends(pub Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Serve {
    child: Ends,
    pub port: u16,
    /// Of its metrics; 0 without `HTTP__LISTEN`.
    pub http_port: u16,
    pub data: TempDir,
    /// Variables of its environment.
    settings: Vec<(String, String)>,
}

fn spawn(data: &Path, port: u16, settings: &[(String, String)]) -> (Child, u16, u16) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_fermata"))
        .arg("serve")
        .args(["--listen", &format!("127.0.0.1:{port}")])
        .arg("--data-dir")
        .arg(data)
        .env("FERMATA_CFG_LOG__FILTER", "warn")
        .envs(settings.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut listening = |of: &str| -> u16 {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let at = line.trim().strip_prefix("listening on 127.0.0.1:");
        let port = at.and_then(|at| at.strip_suffix(of)?.parse().ok());
        port.unwrap_or_else(|| panic!("a line of serve is {line:?}"))
    };
    let port = listening("");
    let has_http = settings
        .iter()
        .any(|(name, _)| name.ends_with("HTTP__LISTEN"));
    let has_console = !settings
        .iter()
        .any(|(name, value)| name.ends_with("HTTP__CONSOLE") && value == "false");
    let http_port = if has_http {
        listening(match has_console {
            true => " for metrics, probes and the console",
            false => " for metrics and probes",
        })
    } else {
        0
    };
    (child, port, http_port)
}

impl Serve {
    pub fn start() -> Serve {
        Serve::with::<u64>(&[])
    }

    /// With these settings.
    pub fn with<T: ToString>(settings: &[(&str, T)]) -> Serve {
        let data = tempfile::tempdir().unwrap();
        let settings = settings.iter();
        let variable =
            |(name, value): &(&str, T)| (format!("FERMATA_CFG_{name}"), value.to_string());
        let settings: Vec<_> = settings.map(variable).collect();
        let (child, port, http_port) = spawn(data.path(), 0, &settings);
        Serve {
            child: Ends(child),
            port,
            http_port,
            data,
            settings,
        }
    }

    /// SIGKILL, and a new process on the same data and port.
    pub fn kill_and_restart(&mut self) {
        self.child.0.kill().unwrap();
        self.child.0.wait().unwrap();
        let (child, port, http_port) = spawn(self.data.path(), self.port, &self.settings);
        assert_eq!(port, self.port);
        self.http_port = http_port;
        self.child = Ends(child);
    }

    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// A client that connects when it is used, and again whenever the connection breaks.
    pub fn client(&self) -> Client {
        client(&self.endpoint())
    }

    pub fn channel(&self) -> Channel {
        channel(&self.endpoint())
    }
}

pub fn client(endpoint: &str) -> Client {
    LockServiceClient::new(channel(endpoint))
}

fn channel(endpoint: &str) -> Channel {
    let endpoint = Endpoint::from_shared(endpoint.to_owned())
        .unwrap()
        .connect_timeout(Duration::from_secs(2))
        .timeout(Duration::from_secs(30));
    endpoint.connect_lazy()
}
