//! `fermata bench` against a real `fermata serve`.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value as Json;

/// A server of its own; it ends when this is dropped.
struct Serve {
    child: Child,
    endpoint: String,
    _data: tempfile::TempDir,
}

impl Serve {
    fn start() -> Serve {
        let data = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_fermata"))
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(data.path())
            .env("FERMATA_CFG_LOG__FILTER", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let Some(address) = line.trim().strip_prefix("listening on ") else {
            panic!("the first line of serve is {line:?}");
        };
        Serve {
            endpoint: format!("http://{address}"),
            child,
            _data: data,
        }
    }

    fn bench(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fermata"));
        command
            .arg("bench")
            .args(words.split(' '))
            .args(["--endpoint", &self.endpoint]);
        command
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn json(output: &Output) -> Json {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        let said = String::from_utf8_lossy(&output.stderr);
        panic!("no JSON ({error}); stderr: {said}")
    })
}

#[test]
fn a_second_of_sections_has_no_errors_and_exact_counters() {
    let serve = Serve::start();
    for words in [
        "section --workers 4 --keys one --duration 1s --warm-up 100ms --output json",
        "section --workers 4 --keys own --short --duration 1s --warm-up 100ms --output json",
    ] {
        let output = serve.bench(words).output().unwrap();
        let report = json(&output);
        assert!(output.status.success(), "{report:#}");
        assert_eq!(report["clean"], true);
        let run = &report["runs"][0];
        assert_eq!(run["workers"], 4);
        assert_eq!(run["errors"], 0);
        assert!(run["sections"].as_u64() > Some(0));
        assert!(run["sections_per_s"].as_f64() > Some(0.0));
        let check = &run["counter_check"];
        assert_eq!(check["lost"], 0);
        assert_eq!(check["surplus"], 0);
        assert_eq!(check["stored"], check["acknowledged"]);
        assert!(check["stored"].as_u64() >= run["sections"].as_u64());
        let phases = run["phases"].as_array().unwrap();
        assert!(phases.iter().all(|row| row["p50_us"].as_u64() > Some(0)));
    }
}

#[test]
fn ctrl_c_ends_early_with_the_report_of_what_was_measured() {
    let serve = Serve::start();
    let child = serve
        .bench("section --workers 2 --duration 1h --warm-up 0s --output json")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    let report = json(&output);
    assert!(output.status.success(), "{report:#}");
    assert_eq!(report["runs"][0]["interrupted"], true);
    assert!(report["runs"][0]["sections"].as_u64() > Some(0));
    assert_eq!(report["runs"][0]["counter_check"]["lost"], 0);
}

#[test]
fn a_server_that_is_not_there_is_told_at_once() {
    let output = Command::new(env!("CARGO_BIN_EXE_fermata"))
        .args(["bench", "lock", "--endpoint", "http://127.0.0.1:1"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(69));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("http://127.0.0.1:1"), "{said}");
}
