//! Where what is printed goes: to a full disk, to a pipe that nobody reads, to a terminal without abilities.

use std::fs::OpenOptions;
use std::process::Stdio;

use fermata_client::{Client, SessionRequest};
use serde_json::json;

use super::json::names;
use super::world::{World, until};

/// Those that print and end; what each prints, in part.
const PRINT: [(&[&str], &str); 10] = [
    (&["--help"], "Examples:"),
    (&["check"], "data_dir"),
    (&["completions", "bash"], "_fermata"),
    (&["explain", "OVERLOADED"], "OVERLOADED"),
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
        format!("{id} ended, with all its lockRefs\n")
    );
    let again = format!("{id} had ended before, or never existed\n");
    assert_eq!(world.text(&ends), again);
    let json = world.json(&ends);
    assert_eq!(json, json!({ "session_id": id, "already_ended": true }));
    until(|| world.queue("k") == (0, 0));
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
        (&["locks", "ls"], true),
        (&["locks", "show", key], true),
        (&["locks", "top"], true),
        (&["sessions"], true),
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
