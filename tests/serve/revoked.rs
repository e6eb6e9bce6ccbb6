//! A token, or a rule, that is taken away.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::certificates::Authority;
use super::process::Ends;
use super::secured::{EVERYTHING, Files, PATIENCE, Server, replace, token, until};

/// Whoever has one that leaked is to be kept out at once, whatever else is wrong; and what is wrong is said again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_taken_away_counts_no_more_though_the_rules_cannot_be_used() {
    let authority = Authority::named("ours");
    let (leaked, other) = (token("leaked"), token("other"));
    let server = Server::start(Files::new(&authority, &[&leaked], EVERYTHING));
    assert!(server.is_reached_by(&authority.file(), &leaked).await);
    let refused = || server.log().matches("rules: TOML parse error").count();
    replace(&server.files.path("rules"), "nonsense");
    until("the rules are refused", || refused() == 1).await;
    replace(&server.files.path("rules"), "nonsense ");
    until("they are refused again", || refused() == 2).await;
    replace(&server.files.path("tokens"), &other.line);
    let waited = Instant::now();
    while server.is_reached_by(&authority.file(), &leaked).await {
        assert!(waited.elapsed() < PATIENCE, "{}", server.log());
    }
    assert!(server.is_reached_by(&authority.file(), &other).await);
}

/// As one is that is missing for a moment, while its file is written anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_release_what_they_have_once_a_rule_is_back() {
    let authority = Authority::named("ours");
    let worker = token("worker");
    let server = Server::start(Files::new(&authority, &[&worker], EVERYTHING));
    let path = |name: &str| server.files.path(name);
    replace(&path("worker"), &worker.token);
    let fermata = |arguments: &[&str]| {
        let mut command = Command::new("env");
        command.args(["--default-signal", env!("CARGO_BIN_EXE_fermata")]);
        command.args(["--endpoint", &server.endpoint, "--timeout", "60s"]);
        command.arg("--ca").arg(authority.file());
        command.arg("--token-file").arg(path("worker"));
        command.args(arguments);
        command
    };
    let said = |name: &str| fs::read_to_string(path(name)).unwrap();
    let start = |name: &str, arguments: &[&str]| {
        let mut command = fermata(arguments);
        let out = File::create(path(name)).unwrap();
        command.stderr(out.try_clone().unwrap()).stdout(out);
        Ends(command.stdin(Stdio::piped()).spawn().unwrap())
    };
    let held = [
        "lock",
        "--ttl",
        "10m",
        "k",
        "--",
        "sh",
        "-c",
        "echo in; cat",
    ];
    let mut holder = start("holder", &held);
    until("it is held", || said("holder").contains("in\n")).await;
    let mut waiter = start("waiter", &["lock", "--ttl", "10m", "k", "--", "true"]);
    until("it waits", || said("waiter").contains("waiting for k")).await;

    replace(&path("rules"), EVERYTHING.replace("\"*\"]", "\"auditor\"]"));
    let tries = "trying again for";
    until("the waiter has ended", || said("waiter").contains(tries)).await;
    drop(holder.0.stdin.take());
    until("the command has ended", || said("holder").contains(tries)).await;
    for (child, name) in [(&mut holder, "holder"), (&mut waiter, "waiter")] {
        let ended = child.0.try_wait().unwrap();
        assert!(ended.is_none(), "{name}: {ended:?}: {}", said(name));
        assert!(said(name).contains("(NOT_ALLOWED)"), "{}", said(name));
    }

    replace(&path("rules"), EVERYTHING);
    for (child, name, status) in [(&mut holder, "holder", 0), (&mut waiter, "waiter", 77)] {
        let ended = child.0.wait().unwrap();
        assert_eq!(ended.code(), Some(status), "{name}: {}", said(name));
        assert!(!said(name).contains("could not be"), "{}", said(name));
    }
    let shown = fermata(&["locks", "show", "k", "--output", "json"]).output();
    let shown: serde_json::Value = serde_json::from_slice(&shown.unwrap().stdout).unwrap();
    assert_eq!(shown["holders"].as_array().unwrap().len(), 0, "{shown}");
    assert_eq!(shown["waiter_count"], 0, "{shown}");
}
