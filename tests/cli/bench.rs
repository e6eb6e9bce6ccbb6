//! `fermata bench` against a real `fermata serve`.

use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::world::World;

#[test]
fn a_second_of_sections_has_no_errors_and_exact_counters() {
    let world = World::new();
    for form in [&["--keys", "one"][..], &["--keys", "own", "--short"]] {
        let length = ["--workers", "4", "--duration", "1s", "--warm-up", "100ms"];
        let report = world.json(&[&["bench", "section"], form, &length].concat());
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
    let world = World::new();
    let bench = world
        .command(&["bench", "section", "--workers", "2", "--duration", "1h"])
        .args(["--warm-up", "0s", "--output", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let pid = Pid::from_raw(i32::try_from(bench.id()).unwrap());
    kill(pid, Signal::SIGINT).unwrap();
    let output = bench.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["runs"][0]["interrupted"], true);
    assert!(report["runs"][0]["sections"].as_u64() > Some(0));
    assert_eq!(report["runs"][0]["counter_check"]["lost"], 0);
}

#[test]
fn a_server_that_is_not_there_is_told_at_once() {
    let mut world = World::new();
    world.kill_server();
    let output = world.run(&["bench", "lock"]);
    assert_eq!(output.status.code(), Some(69));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&world.endpoint), "{said}");
}
