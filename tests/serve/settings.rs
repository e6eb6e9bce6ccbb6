//! What `serve` says of settings that keep it from starting, or from being of much use.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use tempfile::{NamedTempFile, TempDir};

/// Killed when dropped.
struct Serve(Child);

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// On a Cassandra that is not there.
fn serve(more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fermata"));
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--store", "cassandra"])
        .args(["--contact-points", "127.0.0.1:1", "--log-format", "json"])
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// What its log says until it first could not reach the cluster.
fn said_until_it_waits(more: &[&str]) -> Vec<String> {
    let mut serve = Serve(serve(more).spawn().unwrap());
    let mut said = Vec::new();
    for line in BufReader::new(serve.0.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        let waits = line.contains("cannot start yet");
        said.push(line);
        if waits {
            return said;
        }
    }
    panic!("it ended: {said:?}");
}

fn secret() -> NamedTempFile {
    let secret = NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "the secret of this test").unwrap();
    secret
}

#[test]
fn a_replica_that_others_cannot_call_says_so_once() {
    let warned = |said: &[String]| {
        let warnings = said.iter().filter(|line| line.contains("peers.listen"));
        warnings.filter(|line| line.contains("WARN")).count()
    };
    assert_eq!(warned(&said_until_it_waits(&[])), 1);
    let secret = secret();
    let called = [
        "--peer-listen",
        "127.0.0.1:0",
        "--peer-secret-file",
        secret.path().to_str().unwrap(),
    ];
    assert_eq!(warned(&said_until_it_waits(&called)), 0);
}

#[test]
fn a_file_that_cannot_be_read_is_told_with_its_setting() {
    let secret = secret();
    for (more, answered) in [
        (
            &["--peer-secret-file", "none.secret"][..],
            "peers.secret_file: cannot read none.secret",
        ),
        (
            &[
                "--peer-secret-file",
                secret.path().to_str().unwrap(),
                "--peer-tls-ca",
                "none.ca",
                "--peer-tls-certificate",
                "c.pem",
                "--peer-tls-key",
                "k.pem",
            ],
            "peers.tls.ca_file: none.ca: No such file",
        ),
        (
            &["--user", "u", "--password-file", "none.password"],
            "store.cassandra.password_file: cannot read none.password",
        ),
    ] {
        let output = serve(more).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{said}");
        assert!(said.contains(answered), "{said}");
    }
}

/// `serve` on a store of its own, where this process may have so many file descriptors.
fn serve_with_descriptors(descriptors: u32, more: &[&str]) -> (TempDir, Command) {
    let data = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            &format!("ulimit -n {descriptors}; exec \"$0\" \"$@\""),
        ])
        .arg(env!("CARGO_BIN_EXE_fermata"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data.path())
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    (data, command)
}

#[test]
fn fewer_connections_are_allowed_with_too_few_descriptors() {
    let (_data, mut command) = serve_with_descriptors(400, &[]);
    let mut serve = Serve(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(serve.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.starts_with("listening on"), "{line}");
    serve.0.kill().unwrap();
    let mut said = String::new();
    serve
        .0
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(said.contains("connections_max=200"), "{said}");
}
