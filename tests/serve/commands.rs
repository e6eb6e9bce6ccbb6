//! The commands as clients of a server that knows its clients.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tokio::time::timeout;

use super::certificates::Authority;
use super::process::Ends;
use super::secured::{EVERYTHING, Files, PATIENCE, Server, replace, token, until};

/// The keys of one table that begin so are for one identity.
const OWN_KEYS: &str = r#"
[[rule]]
who = ["billing", "CN=worker"]
table = "default"
key_prefix = "own/"
allow = ["lock", "read", "write"]
"#;

fn fermata(endpoint: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", env!("CARGO_BIN_EXE_fermata")]);
    command.args(["--endpoint", endpoint]);
    command
}

fn said(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(both).unwrap()
}

fn assert_says(output: &Output, what: &str) {
    let said = said(output);
    assert!(said.contains(what), "{said}");
}

/// What a test hands to commands as options.
struct Known {
    ca: PathBuf,
    token: PathBuf,
}

impl Known {
    fn put_on(&self, command: &mut Command) {
        command.arg("--ca").arg(&self.ca);
        command.arg("--token-file").arg(&self.token);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_are_known_by_token_or_certificate_and_end_with_77_where_nothing_allows_it() {
    let authority = Authority::named("ours");
    let billing = token("billing");
    let server = Server::start(Files::new(&authority, &[&billing], OWN_KEYS));
    let token_file = server.files.path("billing");
    replace(&token_file, &billing.token);
    let known = Known {
        ca: authority.file(),
        token: token_file,
    };
    let run = |args: &[&str]| {
        let mut command = fermata(&server.endpoint);
        known.put_on(&mut command);
        command.args(args).output().unwrap()
    };
    // What the commands are known by goes on to what `lock` runs, wherever that is.
    let script = r#"cd / && "$0" put --lock-ref from-within && "$0" get own/k"#;
    let program = env!("CARGO_BIN_EXE_fermata");
    let locked = run(&["lock", "own/k", "--", "sh", "-c", script, program]);
    assert_eq!(locked.status.code(), Some(0), "{}", said(&locked));
    assert_says(&locked, "from-within");

    // Also where the variables that name them are relative.
    let locked = Command::new(program)
        .args(["--endpoint", &server.endpoint, "lock", "own/k", "--"])
        .args(["sh", "-c", script, program])
        .current_dir(known.token.parent().unwrap())
        .env("FERMATA_TOKEN_FILE", "billing")
        .env("FERMATA_CA_FILE", &known.ca)
        .output()
        .unwrap();
    assert_eq!(locked.status.code(), Some(0), "{}", said(&locked));

    let issued = authority.issue("worker", None);
    let shows = |args: &[&str]| {
        let mut command = fermata(&server.endpoint);
        command.arg("--ca").arg(authority.file());
        command.arg("--certificate").arg(&issued.certificate_file);
        command.arg("--certificate-key").arg(&issued.key_file);
        command.args(args).output().unwrap()
    };
    let read = shows(&["get", "own/k"]);
    assert_eq!(said(&read).trim_end(), "from-within");
    // Both go on to the command as well.
    let locked = shows(&["lock", "own/c", "--", program, "get", "own/k"]);
    assert_eq!(locked.status.code(), Some(0), "{}", said(&locked));

    let backup = server.files.path("backup").to_str().unwrap().to_owned();
    for args in [
        &["lock", "others/k", "--", "true"][..],
        &["lock", "others/k"],
        &["get", "others/k"],
        &["put", "others/k", "v"],
        &["delete", "others/k"],
        &["locks", "ls"],
        &["locks", "top"],
        &["locks", "show", "others/k"],
        &["locks", "release", "default/own/k#1", "--reason", "none"],
        &["sessions"],
        &["backup", &backup],
    ] {
        for refused in [run(args), shows(args)] {
            let said = said(&refused);
            assert_eq!(refused.status.code(), Some(77), "{args:?}: {said}");
            assert!(said.contains("(NOT_ALLOWED)"), "{args:?}: {said}");
        }
    }
    // Nobody in particular.
    let mut nobody = fermata(&server.endpoint);
    nobody.arg("--ca").arg(authority.file());
    let refused = nobody.args(["get", "own/k"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(77), "{}", said(&refused));
    assert_says(&refused, "(LOGIN_MISSING)");
}

#[test]
fn without_a_named_ca_those_of_the_system_are_trusted() {
    let (ours, other) = (Authority::named("ours"), Authority::named("other"));
    let server = Server::start(Files::new(&ours, &[&token("billing")], EVERYTHING));
    let health = |trusted: &Authority| {
        let mut health = fermata(&server.endpoint);
        health.env("SSL_CERT_FILE", trusted.file());
        health.args(["health", "--timeout", "2s"]).output().unwrap()
    };
    let serves = health(&ours);
    assert_eq!(serves.status.code(), Some(0), "{}", said(&serves));
    let distrusted = health(&other);
    assert_eq!(distrusted.status.code(), Some(69), "{}", said(&distrusted));
    assert_says(&distrusted, "not signed by a CA that this system trusts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_a_server_speaks_tls_is_not_tried_again() {
    let authority = Authority::named("ours");
    let server = Server::start(Files::new(&authority, &[&token("billing")], EVERYTHING));
    let health = fermata(&server.endpoint.replace("https", "http"));
    let mut health = tokio::process::Command::from(health);
    health
        .args(["health", "--timeout", "1h"])
        .kill_on_drop(true);
    let ended = timeout(PATIENCE, health.output()).await;
    let ended = ended.unwrap().unwrap();
    assert_eq!(ended.status.code(), Some(69), "{}", said(&ended));
    assert_says(&ended, "(the server speaks TLS: https://)");
}

/// Which of both it was, an operator must not have to guess at night.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_is_stopped_hears_what_refused_its_renewals() {
    let authority = Authority::named("ours");
    let (billing, other) = (token("billing"), token("other"));
    let server = Server::start(Files::new(&authority, &[&billing], EVERYTHING));
    let token_file = server.files.path("billing");
    replace(&token_file, &billing.token);
    let known = Known {
        ca: authority.file(),
        token: token_file,
    };
    let mut command = fermata(&server.endpoint);
    known.put_on(&mut command);
    let started = server.files.path("started");
    command.args([
        "lock", "--ttl", "3s", "--grace", "1s", "k", "--", "sh", "-c",
    ]);
    command.arg(format!("touch {}; exec sleep 60", started.display()));
    let locked = command.stderr(Stdio::piped()).spawn().unwrap();
    until("it holds the lock", || started.exists()).await;
    replace(&server.files.path("tokens"), &other.line);
    let ended = locked.wait_with_output().unwrap();
    let said = said(&ended);
    assert_eq!(ended.status.code(), Some(70), "{said}");
    let why = "no renewal succeeded: the token is unknown to this server";
    assert!(said.contains(why), "{said}");
    assert!(
        said.contains("(LOGIN_REFUSED); the lock on k may go to"),
        "{said}"
    );
}

/// A server with this certificate, and what a command says of it that trusts `ca`.
fn judged(server: &Server, ca: &Path, timeout: &str) -> Output {
    let mut command = fermata(&server.endpoint);
    command.args(["get", "k", "--timeout", timeout, "--ca"]);
    command.arg(ca).output().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_certificate_is_said_by_server_and_command() {
    let authority = Authority::named("ours");
    let files = Files::new(&authority, &[&token("billing")], EVERYTHING);
    let certify = |certificate: &Path, key: &Path, at: &Files| {
        replace(&at.path("cert"), fs::read(certificate).unwrap());
        replace(&at.path("key"), fs::read(key).unwrap());
    };
    let expired = authority.issue_until(2020, "expired", Some("127.0.0.1"));
    certify(&expired.certificate_file, &expired.key_file, &files);
    let server = Server::start(files);
    let why = "it expired on 2020-01-01T00:00:00Z: clients refuse it";
    until("the server says so", || server.log().contains(why)).await;
    let refused = judged(&server, &authority.file(), "2s");
    assert_eq!(refused.status.code(), Some(69), "{}", said(&refused));
    assert_says(&refused, "the server's certificate has expired");
    // Said while it goes on trying, and once more at the end.
    let refused = judged(&server, &authority.file(), "5s");
    let said = said(&refused);
    let line = "fermata: no answer yet, trying for 5s: ";
    assert_eq!(said.matches(line).count(), 1, "{said}");
    assert_eq!(
        said.matches("the server's certificate has expired").count(),
        2,
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_tell_that_a_server_shows_the_certificate_of_its_ca() {
    let authority = Authority::named("ours");
    let files = Files::new(&authority, &[&token("billing")], EVERYTHING);
    replace(&files.path("cert"), fs::read(authority.file()).unwrap());
    replace(
        &files.path("key"),
        fs::read(authority.file().with_extension("key")).unwrap(),
    );
    let server = Server::start(files);
    let refused = judged(&server, &authority.file(), "2s");
    let said = said(&refused);
    assert_eq!(refused.status.code(), Some(69), "{said}");
    assert!(
        said.contains("the server shows the certificate of a CA"),
        "{said}"
    );
}

#[test]
fn commands_work_through_a_socket_and_serve_says_how() {
    let directory = tempfile::TempDir::new().unwrap();
    let socket = format!("unix:{}", directory.path().join("s").display());
    let serve = Command::new(env!("CARGO_BIN_EXE_fermata"))
        .args(["serve", "--listen", &socket, "--data-dir"])
        .arg(directory.path().join("data"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut serve = Ends(serve.unwrap());
    let lines = BufReader::new(serve.0.stdout.take().unwrap()).lines();
    let mut lines = lines.map(Result::unwrap);
    let tried = lines.find(|line| line.starts_with("try: ")).unwrap();
    assert!(
        tried.contains(&format!("lock --endpoint {socket} demo -- echo hello")),
        "{tried}"
    );
    let locked = fermata(&socket)
        .args(["lock", "demo", "--", "echo", "hello"])
        .output()
        .unwrap();
    assert_eq!(
        (locked.status.code(), &locked.stdout[..]),
        (Some(0), &b"hello\n"[..])
    );
    drop(serve);
    let refused = fermata(&socket)
        .args(["get", "k", "--timeout", "300ms"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(69), "{}", said(&refused));
    assert_says(&refused, &socket);
}
