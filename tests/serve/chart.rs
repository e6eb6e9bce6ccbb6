//! What the Helm chart runs in the image: `helm test`, against a real server.

use std::process::{Command, Output};

use super::certificates::Authority;
use super::helm::{self, rendered};
use super::process::Serve;
use super::secured::{EVERYTHING, Files, Server, replace, token};

/// The command line of the pod that `helm test` starts.
fn command(more: &[&str]) -> (String, Command) {
    let pod = rendered("tests/lock.yaml", more).unwrap();
    let program = env!("CARGO_BIN_EXE_fermata");
    let args = helm::args(&pod).into_iter();
    let args = args.map(|arg| match arg.as_str() {
        "/usr/bin/fermata" => program.to_owned(),
        _ => arg,
    });
    let mut command = Command::new(program);
    command.args(args);
    (pod, command)
}

/// It held the lock while it asked, and nobody holds it now.
fn assert_locked_and_released(endpoint: &str, ran: &Output, known: &[(&str, &str)]) {
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert_eq!(ran.stdout, b"serving\n", "{ran:?}");
    let fermata = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fermata"));
        command.args(["--endpoint", endpoint]).args(args);
        command.envs(known.iter().copied()).output().unwrap()
    };
    let again = fermata(&["lock", "--try", "helm-test", "--", "true"]);
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    let shown = fermata(&["locks", "top", "--output", "json"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("\"helm-test\""), "{shown}");
}

#[test]
fn helm_test_takes_and_releases_a_lock() {
    if helm::is_missing() {
        return;
    }
    let server = Serve::start();
    let (pod, mut command) = command(&["--set", "config.insecure=true"]);
    assert!(
        pod.contains("value: \"http://fermata.locks.svc:7450\"\n"),
        "{pod}"
    );
    let ran = command.env("FERMATA_ENDPOINT", server.endpoint()).output();
    assert_locked_and_released(&server.endpoint(), &ran.unwrap(), &[]);
}

#[test]
fn helm_test_logs_in_where_clients_are_known() {
    if helm::is_missing() {
        return;
    }
    let authority = Authority::named("ours");
    let ops = token("ops");
    let server = Server::start(Files::new(&authority, &[&ops], EVERYTHING));
    let token_file = server.files.path("ops");
    replace(&token_file, &ops.token);
    let set = "tls.secretName=a,auth.tokens.secretName=b,test.token.secretName=c";
    let (pod, mut command) = command(&["--set", set]);
    assert!(
        pod.contains("value: \"https://fermata.locks.svc:7450\"\n"),
        "{pod}"
    );
    let files = [
        ("FERMATA_CA_FILE", "ca.crt", authority.file()),
        ("FERMATA_TOKEN_FILE", "token", token_file),
    ];
    let mut known = Vec::new();
    for (variable, path, file) in &files {
        let env = format!("- name: {variable}\n          value: /etc/fermata/{path}\n");
        assert!(pod.contains(&env), "{pod}");
        assert!(pod.contains(&format!("path: {path}\n")), "{pod}");
        known.push((*variable, file.to_str().unwrap()));
    }
    command.env("FERMATA_ENDPOINT", &server.endpoint);
    let ran = command.envs(known.iter().copied()).output().unwrap();
    assert_locked_and_released(&server.endpoint, &ran, &known);
}
