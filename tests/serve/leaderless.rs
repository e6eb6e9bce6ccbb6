//! Tables without homes, as the commands and their library use them.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::process::{Ends, Serve};

fn serve() -> Serve {
    Serve::with(&[
        ("TABLES__JOBS__PROTOCOL", "music"),
        ("TABLES__BREAD__PROTOCOL", "bakery"),
    ])
}

fn fermata(serve: &Serve, table: &str, args: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", env!("CARGO_BIN_EXE_fermata")]);
    command.args(["--endpoint", &serve.endpoint(), "--table", table]);
    command.args(args).stdin(Stdio::null());
    command
}

fn run(serve: &Serve, table: &str, args: &[&str]) -> Output {
    fermata(serve, table, args).output().unwrap()
}

/// What a command that succeeds prints.
fn printed(serve: &Serve, table: &str, args: &[&str]) -> String {
    let output = run(serve, table, args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(serve: &Serve, table: &str, args: &[&str], why: &str) {
    let output = run(serve, table, args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains(why),
        "{args:?}: {said}"
    );
}

#[test]
fn a_command_runs_under_the_lock_of_a_table_without_homes() {
    let serve = serve();
    let token = ["lock", "a", "-c", "echo $FERMATA_FENCING_TOKEN"];
    assert_eq!(printed(&serve, "jobs", &token), "1\n");
    assert_eq!(printed(&serve, "jobs", &token), "2\n");
    // The bakery has none.
    assert_eq!(printed(&serve, "bread", &token), "0\n");
    refused(
        &serve,
        "jobs",
        &["lock", "a", "--disconnect-grace", "2s", "--", "true"],
        "no sessions",
    );
}

#[test]
fn values_are_guarded_where_there_is_a_fence() {
    let serve = serve();
    printed(&serve, "jobs", &["put", "v", "one"]);
    printed(&serve, "jobs", &["put", "v", "two"]);
    assert_eq!(printed(&serve, "jobs", &["get", "v"]).trim_end(), "two");
    printed(&serve, "jobs", &["delete", "v"]);
    assert!(!run(&serve, "jobs", &["get", "v"]).status.success());
    refused(&serve, "bread", &["put", "v", "one"], "allow_unfenced");
}

#[test]
fn a_lock_outlives_the_server_and_is_shown() {
    for table in ["jobs", "bread"] {
        let mut serve = serve();
        let mut holds = fermata(
            &serve,
            table,
            &["lock", "a", "--owner", "me", "-c", "echo held; sleep 3"],
        );
        let mut holder = Ends(holds.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        let mut stdout = BufReader::new(holder.0.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        serve.kill_and_restart();
        let shown = printed(&serve, table, &["locks", "show", "a"]);
        assert!(shown.contains("held") && shown.contains("me"), "{shown}");
        assert_eq!(
            run(&serve, table, &["lock", "-n", "a", "--", "true"])
                .status
                .code(),
            Some(75)
        );
        let begun = Instant::now();
        assert_eq!(
            printed(&serve, table, &["lock", "a", "-c", "echo mine"]),
            "mine\n"
        );
        assert!(begun.elapsed() < Duration::from_secs(20));
        assert!(holder.0.wait().unwrap().success());
    }
}
