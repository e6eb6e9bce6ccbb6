//! How `serve` starts, refuses to start, and ends.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fermata_proto::{AcquireLockRequest, CreateLockRefRequest, GetRequest, LockState};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use super::process::client;

/// A `serve` on these arguments that has not said anything yet.
fn serve(args: &[&str]) -> Command {
    // Whoever runs the tests may ignore signals (`nohup`), and so would this.
    let mut command = Command::new("env");
    command
        .args(["--default-signal", env!("CARGO_BIN_EXE_fermata"), "serve"])
        .args(args)
        .env("FERMATA_CFG_LOG__FILTER", "warn")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// On a free port, with this data.
fn listening_on(data: &Path) -> [&str; 4] {
    let data = data.to_str().unwrap();
    ["--listen", "127.0.0.1:0", "--data-dir", data]
}

/// One that runs; killed when dropped.
struct Running {
    child: Child,
    greeting: Vec<String>,
}

impl Running {
    fn start(data: &Path, more: &[&str]) -> Running {
        Running::of(serve(&[&listening_on(data)[..], more].concat()))
    }

    fn of(mut command: Command) -> Running {
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let greeting = lines.by_ref().take(5).map(Result::unwrap).collect();
        Running { child, greeting }
    }

    fn address(&self) -> &str {
        self.greeting[0].strip_prefix("listening on ").unwrap()
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// How it ended, which must be within this time.
    async fn ended_within(&mut self, span: Duration) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < span, "still running after {span:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// A call that waits for a lock, in flight.
    async fn waiting_call(&self) -> JoinHandle<Status> {
        let mut client = client(&format!("http://{}", self.address()));
        let create = CreateLockRefRequest {
            key: "k".to_owned(),
            ..CreateLockRefRequest::default()
        };
        client.create_lock_ref(create.clone()).await.unwrap();
        let waiter = client.create_lock_ref(create).await.unwrap().into_inner();
        let wait = AcquireLockRequest {
            lock_ref: waiter.lock_ref,
            wait: Some(prost_types::Duration {
                seconds: 20,
                nanos: 0,
            }),
            ..AcquireLockRequest::default()
        };
        let call = tokio::spawn(async move { client.acquire_lock(wait).await.unwrap_err() });
        tokio::time::sleep(Duration::from_millis(200)).await;
        call
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The exit status and the words of one that refuses to start.
fn refusal(args: &[&str]) -> (i32, String) {
    let output = serve(args).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.stdout, b"", "nothing is promised on stdout");
    (output.status.code().unwrap(), said)
}

/// A log on a full disk, and one whose reader is gone: what happens at a key, or when it stops, happens all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_stderr_takes_nothing_goes_on() {
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    for stderr in [full(), Stdio::piped()] {
        let data = tempfile::tempdir().unwrap();
        let mut command = serve(&listening_on(data.path()));
        command
            .env("FERMATA_CFG_LOG__FILTER", "debug")
            .stderr(stderr);
        let mut running = Running::of(command);
        drop(running.child.stderr.take());
        let endpoint = format!("http://{}", running.address());
        let (mut locking, admin) = (
            client(&endpoint),
            fermata_client::Client::connect([&endpoint]),
        );
        let admin = admin.unwrap();
        for _ in 0..3 {
            let create = CreateLockRefRequest {
                key: "k".to_owned(),
                ..CreateLockRefRequest::default()
            };
            let held = locking.create_lock_ref(create).await.unwrap().into_inner();
            let name = fermata_client::public_part(&held.lock_ref);
            assert_eq!(held.state(), LockState::Held);
            // Which is logged, and in the audit log.
            let forced = admin.force_release(name, "the log is full", "somebody");
            forced.await.unwrap();
        }
        running.signal(Signal::SIGHUP);
        running.signal(Signal::SIGTERM);
        let ended = running.ended_within(Duration::from_secs(20)).await;
        assert!(ended.success(), "{ended}");
    }
}

#[test]
fn the_greeting_says_where_everything_is_and_what_to_try() {
    let data = tempfile::tempdir().unwrap();
    let running = Running::start(data.path(), &[]);
    let [listening, location, replica, lock, grpcurl] = &running.greeting[..] else {
        panic!("{:?}", running.greeting);
    };
    let address = listening.strip_prefix("listening on ").unwrap();
    assert!(address.starts_with("127.0.0.1:") && !address.ends_with(":0"));
    assert!(
        location.contains(data.path().to_str().unwrap()),
        "{location}"
    );
    assert!(replica.starts_with("replica "), "{replica}");
    assert!(lock.ends_with(&format!(
        "lock --endpoint http://{address} demo -- echo hello"
    )));
    assert!(grpcurl.contains(address), "{grpcurl}");
}

#[test]
fn a_taken_port_is_one_clear_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let data = tempfile::tempdir().unwrap();
    let data_dir = data.path().to_str().unwrap();
    let (code, said) = refusal(&["--listen", &address, "--data-dir", data_dir]);
    assert_eq!(code, 71);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(&address), "{said}");
}

#[test]
fn a_configuration_that_is_not_valid_is_refused_with_every_reason() {
    let (code, said) = refusal(&["--listen", "0.0.0.0:0", "--log-format", "xml"]);
    assert_eq!(code, 78);
    assert!(said.contains("flag --log-format"), "{said}");
    assert!(said.contains("insecure"), "{said}");
}

#[tokio::test]
async fn a_signal_answers_those_who_wait_and_ends_well() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let data = tempfile::tempdir().unwrap();
        let mut running = Running::start(data.path(), &["--log-filter", "info"]);
        let call = running.waiting_call().await;
        running.signal(signal);
        let status = running.ended_within(Duration::from_secs(5)).await;
        assert_eq!(status.code(), Some(0), "{signal}");
        assert_eq!(call.await.unwrap().code(), Code::Unavailable, "{signal}");
        let mut log = String::new();
        let mut stderr = running.child.stderr.take().unwrap();
        stderr.read_to_string(&mut log).unwrap();
        let last = log.lines().last().unwrap();
        for said in [
            " INFO ",
            "stopped clean=",
            " changes=",
            " conflicts=",
            " unknown=",
        ] {
            assert!(last.contains(said), "{log}");
        }
    }
}

/// Nobody is served while a server stops: with the default grace of 10 s these would be an outage of that.
#[tokio::test]
async fn connections_without_a_call_hold_up_no_stop() {
    let preface = super::frames::hello();
    for said in [&b""[..], &preface[..10], &preface] {
        let data = tempfile::tempdir().unwrap();
        let mut running = Running::start(data.path(), &[]);
        let mut silent = std::net::TcpStream::connect(running.address()).unwrap();
        silent.write_all(said).unwrap();
        // It was accepted before this one is served.
        let mut client = client(&format!("http://{}", running.address()));
        client.get(GetRequest::default()).await.unwrap_err();
        running.signal(Signal::SIGTERM);
        let status = running.ended_within(Duration::from_secs(5)).await;
        assert_eq!(status.code(), Some(0), "{}", said.len());
    }
}

#[tokio::test]
async fn a_server_whose_data_directory_is_removed_ends_and_says_so() {
    let data = tempfile::tempdir().unwrap();
    let directory = data.path().join("data");
    let mut running = Running::start(&directory, &[]);
    let mut client = client(&format!("http://{}", running.address()));
    client.get(get("k")).await.unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let status = running.ended_within(Duration::from_secs(20)).await;
    assert_eq!(status.code(), Some(69));
    client.get(get("k")).await.unwrap_err();
    let mut said = String::new();
    let mut stderr = running.child.stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    assert!(said.contains("the data directory was removed"), "{said}");
    assert!(!directory.exists());
}

fn get(key: &str) -> GetRequest {
    GetRequest {
        key: key.to_owned(),
        ..GetRequest::default()
    }
}

/// What one that serves said on stderr until it ended.
fn log_of(more: &[&str]) -> String {
    let data = tempfile::tempdir().unwrap();
    let mut child = serve(&[&listening_on(data.path())[..], more].concat())
        .spawn()
        .unwrap();
    let mut greeting = BufReader::new(child.stdout.take().unwrap()).lines();
    let serves = greeting.any(|line| line.unwrap().starts_with("replica "));
    kill(
        Pid::from_raw(i32::try_from(child.id()).unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(serves, "{log}");
    log
}

#[test]
fn where_clients_are_known_and_may_do_everything_that_is_warned_of_once() {
    let files = tempfile::tempdir().unwrap();
    let tokens = files.path().join("tokens");
    std::fs::write(&tokens, "").unwrap();
    let known = ["--tokens-file", tokens.to_str().unwrap()];
    // The example is one that is taken.
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/rules.toml");
    let with_rules = [&known[..], &["--rules-file", rules]].concat();
    for (more, times) in [(&known[..], 1), (&with_rules[..], 0)] {
        let log = log_of(more);
        let warned = log.matches("auth.rules_file is not set").count();
        assert_eq!(warned, times, "{more:?}: {log}");
    }
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let data = tempfile::tempdir().unwrap();
    let mut running = Running::start(data.path(), &["--shutdown-grace", "1m"]);
    // Keeps the server within its grace.
    let _silent = std::net::TcpStream::connect(running.address()).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    running.signal(Signal::SIGTERM);
    running.signal(Signal::SIGINT);
    let status = running.ended_within(Duration::from_secs(2)).await;
    // Either may be received first.
    assert!(matches!(status.code(), Some(130 | 143)), "{status:?}");
}

#[test]
fn fewer_connections_are_allowed_with_too_few_descriptors() {
    let data = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command
        .args(["-c", r#"ulimit -n 400; exec "$@""#, "sh"])
        .args([env!("CARGO_BIN_EXE_fermata"), "serve"])
        .args(listening_on(data.path()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut running = Running::of(command);
    running.child.kill().unwrap();
    let mut said = String::new();
    let mut stderr = running.child.stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    assert!(said.contains("connections_max=200"), "{said}");
}
