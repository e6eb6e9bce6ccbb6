//! Where what is printed goes: to a full disk, to a pipe that nobody reads, to a terminal without abilities.

use std::fs::OpenOptions;
use std::process::Stdio;

use fermata_client::{Client, SessionRequest};
use serde_json::json;

use super::json::names;
use super::terminal::Terminal;
use super::world::{World, until};

/// Those that print and end; what each prints, in part.
const PRINT: [(&[&str], &str); 15] = [
    (&["--help"], "Examples:"),
    (&["--version"], "fermata "),
    (&["restore", "--help"], "--above"),
    (&["check"], "data_dir"),
    (&["check", "--output", "json"], "\"valid\": true"),
    (&["completions", "bash"], "_fermata"),
    (&["explain", "OVERLOADED"], "OVERLOADED"),
    (&["explain"], "OVERLOADED"),
    (&["schema", "print"], "CREATE TABLE"),
    (&["locks", "ls"], "KEY"),
    (&["locks", "top"], "REPLICA"),
    (&["sessions"], "SESSION"),
    (&["health"], "serving"),
    (&["get", "k"], "a value"),
    (&["locks", "show", "k"], "k"),
];

#[test]
fn what_cannot_be_printed_is_a_failure_of_its_own() {
    let world = World::new();
    until(|| world.run(&["health"]).status.success());
    world.text(&["put", "k", "a value"]);
    for (arguments, printed) in PRINT {
        let text = world.text(arguments);
        assert!(text.contains(printed), "{arguments:?}: {text}");
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = world.command(arguments).stdout(full).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(74), "{arguments:?}: {said}");
        assert!(said.contains("No space left"), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
    }
    // One that would have stayed: the lock whose lockRef nobody reads is given back.
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = world.command(&["lock", "k"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(74), "{output:?}");
    assert_eq!(world.queue("k"), (0, 0));
}

#[test]
fn a_variable_that_names_no_file_is_as_if_it_were_not_set() {
    let world = World::new();
    let mut check = world.command(&["check"]);
    let output = check.env("FERMATA_CONFIG", "").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn sessions_are_listed_with_what_lets_nobody_act() {
    let world = World::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (session, held) = runtime.block_on(async {
        let client = Client::connect([&world.endpoint]).unwrap();
        let session = client.open_session(SessionRequest::new().owner("billing"));
        let session = session.await.unwrap();
        let held = session.lock(fermata_client::LockRequest::new("k")).await;
        (session, held.unwrap())
    });
    let listed = world.json(&["sessions"]);
    let one = &listed["sessions"][0];
    let all = [
        "create_time",
        "disconnect_grace",
        "identity",
        "lease_left",
        "lock_refs",
        "owner",
        "replica",
        "session_id",
        "ttl",
    ];
    assert_eq!(names(one), all);
    assert_eq!(
        (&one["owner"], &one["lock_refs"]),
        (&json!("billing"), &json!(1))
    );
    let shown = world.text(&["sessions"]);
    let row = shown.lines().nth(1).unwrap();
    assert!(row.contains("billing"), "{shown}");
    // Nobody has one here.
    assert_eq!(one["identity"], json!(""));
    assert!(!shown.contains("IDENTITY"), "{shown}");
    let id = row.split_whitespace().next().unwrap();
    assert_eq!(one["session_id"], json!(id));
    assert_eq!(
        world.run(&["sessions", "end", id]).status.code(),
        Some(64),
        "without a reason"
    );
    let ends = ["sessions", "end", id, "--reason", "its host is lost"];
    assert_eq!(
        world.text(&ends),
        format!("{id} ended, with all that lived by it\n")
    );
    let again = format!("{id} had ended before, or never was\n");
    assert_eq!(world.text(&ends), again);
    let json = world.json(&ends);
    assert_eq!(json, json!({ "session_id": id, "already_ended": true }));
    let mistyped = "7d9f0b6e-5c1a-4f0e-9a55-0c1f5b8f2a11";
    assert_eq!(
        world.text(&["sessions", "end", mistyped, "--reason", "lost"]),
        format!("{mistyped} had ended before, or never was\n")
    );
    until(|| world.queue("k") == (0, 0));
    let garbage = world.run(&["sessions", "end", "garbage", "--reason", "r"]);
    assert_eq!(garbage.status.code(), Some(64), "{garbage:?}");
    drop((session, held));
}

#[test]
fn health_tells_by_its_status_whether_the_server_serves() {
    let mut world = World::new();
    let code = |world: &World, arguments: &[&str]| world.run(arguments).status.code();
    // It listens before it is ready.
    until(|| code(&world, &["health"]) == Some(0));
    assert_eq!(world.text(&["health"]), "serving\n");
    assert_eq!(
        world.json(&["health", "liveness"]),
        json!({ "status": "SERVING" })
    );
    let one = "fermata.v1.LockService";
    assert_eq!(code(&world, &["health", one]), Some(0));
    let unknown = world.run(&["health", "nothing"]);
    assert_eq!(unknown.status.code(), Some(66), "{unknown:?}");
    let said = String::from_utf8(unknown.stderr).unwrap();
    assert!(said.contains("no service \"nothing\""), "{said}");
    assert_eq!(code(&world, &["health", "--timeout", "0s"]), Some(64));
    world.stop_server();
    let silent = ["health", "liveness", "--timeout", "300ms"];
    assert_eq!(code(&world, &silent), Some(69));
    world.kill_server();
    assert_eq!(code(&world, &silent), Some(69));
}

#[test]
fn a_pipe_that_nobody_reads_ends_it_without_a_word() {
    let world = World::new();
    let mut child = world
        .command(&["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    // As of any program that SIGPIPE ends.
    assert_eq!(output.status.code(), Some(141), "{said}");
    assert_eq!(said, "");
}

/// What is printed on a terminal that can do nothing is what it can show.
#[test]
fn a_dumb_terminal_gets_plain_text() {
    let world = World::new();
    let mut terminal = Terminal::new(&world);
    terminal.line(
        "export TERM=dumb; fermata put '订单/\u{200d}1' v; fermata locks top; echo \"status=$?\"",
    );
    let screen = terminal.shows("status=0\n");
    assert!(screen.contains("REPLICA"), "{screen}");
}

/// What a key could hide, or turn around, is shown as what it is by all that prints it.
#[test]
fn no_command_writes_what_changes_how_others_are_shown() {
    let world = World::new();
    let key = "w\u{202e}\u{200d}x";
    let shown = "w\\u{202e}\\u{200d}x";
    let grace = ["--disconnect-grace", "30s"];
    let mut held = world.start(&[&["lock", key, "--owner", key][..], &grace].concat());
    held.line();
    for (command, names) in [
        (&["lock", "-n", key, "--", "true"][..], true),
        (&["lock", "-w", "300ms", key, "--", "true"], true),
        (&["put", "-n", key, "v"], true),
        (&["delete", "-w", "100ms", key], true),
        (&["locks", "ls"], true),
        (&["locks", "show", key], true),
        (&["locks", "top"], true),
        (&["sessions"], true),
        (
            &[
                "locks",
                "release",
                "--key",
                "other\u{202e}",
                "--reason",
                "r",
            ],
            false,
        ),
        (&["get", &format!("--lock-ref={key}")], false),
        (&["locks", "show", key, "--table", key], false),
        (&["lock", "free", "--", key], false),
    ] {
        let output = world.run(command);
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        let said = String::from_utf8(said).unwrap();
        assert!(
            !said.contains('\u{202e}') && !said.contains('\u{200d}'),
            "{command:?}: {said:?}"
        );
        assert!(said.contains(shown) || !names, "{command:?}: {said}");
    }
}

/// A key with wide, hidden and reordering characters, as a person sees it.
#[test]
fn columns_stay_in_line_and_nothing_is_hidden() {
    let world = World::new();
    let mut wide = world.start(&[
        "lock",
        "订单/42",
        "--owner",
        "财务",
        "--",
        "sh",
        "-c",
        "echo in; exec sleep 60",
    ]);
    assert_eq!(wide.line(), "in");
    let hidden = "a\u{ad}b\u{61c}c\u{200c}d\u{200d}e";
    let mut other = world.start(&[
        "lock",
        hidden,
        "--owner",
        "x",
        "--",
        "sh",
        "-c",
        "echo in; exec sleep 60",
    ]);
    assert_eq!(other.line(), "in");
    let mut terminal = Terminal::new(&world);
    terminal.line("clear; fermata locks ls | cut -c1-200; echo \"status=$?\"");
    let screen = terminal.shows("status=0\n");
    let row = |of: &str| {
        let row = screen.lines().find(|line| line.contains(of));
        row.unwrap_or_else(|| panic!("{of}: {screen}")).to_owned()
    };
    assert!(
        row("\u{5c}u{ad}").contains("a\\u{ad}b\\u{61c}c\\u{200c}d\\u{200d}e"),
        "{screen}"
    );
    // The column of the owner begins where its title does, in columns of the terminal.
    let column = |line: &str, of: &str| {
        let (before, _) = line.split_once(of).unwrap();
        fermata_command::output::width(before)
    };
    let title = column(&row("OWNER"), "OWNER");
    assert_eq!(column(&row("财务"), "财务"), title, "{screen}");
    assert_eq!(column(&row("\\u{ad}"), " x "), title - 1, "{screen}");
    for holder in [wide, other] {
        super::signals::send(holder.pid(), nix::sys::signal::Signal::SIGTERM);
        holder.end();
    }
}
