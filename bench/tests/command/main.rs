//! What the program itself does: its report, its exit statuses, Ctrl-C.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod server;

use std::process::Stdio;

use fermata_client::Client;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use self::server::server;

/// The program against this endpoint. It hears Ctrl-C, whatever started this test.
fn bench(endpoint: &str, arguments: &str) -> Child {
    let mut command = Command::new("env");
    command
        .args(["--default-signal", env!("CARGO_BIN_EXE_fermata-bench")])
        .args(arguments.split(' '))
        .args(["--warm-up", "0s", "--output", "json"])
        .env("FERMATA_ENDPOINT", endpoint)
        .env_remove("FERMATA_TABLE")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command.spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_ends_early_with_the_report_of_what_was_measured() {
    let server = server().await;
    let bench = bench(&server.endpoint, "section --workers 2 --duration 1h");
    // It prints nothing before the end: the first section leaves a value.
    let client = Client::connect([&server.endpoint]).unwrap();
    while client.get("", "bench/own/0").await.unwrap().is_none() {}
    let pid = Pid::from_raw(bench.id().unwrap().try_into().unwrap());
    kill(pid, Signal::SIGINT).unwrap();
    let output = bench.wait_with_output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["clean"], true);
    let run = &report["runs"][0];
    assert_eq!(run["interrupted"], true);
    assert!(run["sections"].as_u64() > Some(0));
    assert_eq!(run["counter_check"]["lost"], 0);
}
