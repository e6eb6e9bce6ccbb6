//! `fermata lock` as scripts use it.

use nix::sys::signal::Signal;

use super::world::World;

fn code(world: &World, arguments: &[&str]) -> i32 {
    world.run(arguments).status.code().unwrap()
}

#[test]
fn the_exit_status_of_the_command_is_passed_on() {
    let world = World::new();
    for (script, expected) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
        let got = code(&world, &["lock", "k", "--", "sh", "-c", script]);
        assert_eq!(got, expected, "{script}");
        assert_eq!(world.queue("k"), (0, 0));
    }
}

#[test]
fn a_command_that_cannot_run_leaves_no_lock_behind() {
    let world = World::new();
    assert_eq!(code(&world, &["lock", "k", "--", "no-such-command"]), 127);
    assert_eq!(code(&world, &["lock", "k", "--", "/etc/passwd"]), 126);
    assert_eq!(world.queue("k"), (0, 0));
}

#[test]
fn a_try_and_a_wait_end_when_they_should() {
    let world = World::new();
    let holder = world.hold("k");

    let tried = world.run(&["lock", "--try", "k", "--", "true"]);
    assert_eq!(tried.status.code(), Some(75));
    let said = String::from_utf8(tried.stderr).unwrap();
    assert_eq!(
        said,
        "fermata: k is locked by billing; 1 ahead in the queue\n"
    );
    let waited = world.run(&["lock", "--wait", "300ms", "k", "--", "true"]);
    assert_eq!(waited.status.code(), Some(124));
    let said = String::from_utf8(waited.stderr).unwrap();
    assert!(
        said.contains("waiting for k: ") && said.contains(" s, 1 ahead in the queue"),
        "{said}"
    );
    assert_eq!(code(&world, &["put", "--try", "k", "v"]), 75);
    assert_eq!(world.queue("k"), (1, 0));
    holder.stop();
}

#[test]
fn the_command_knows_its_lock() {
    let world = World::new();
    let script = "echo $FERMATA_KEY; echo $FERMATA_TABLE; echo $FERMATA_ENDPOINT; \
                  echo $FERMATA_LOCK_REF; echo $FERMATA_FENCING_TOKEN";
    let printed = world.text(&["lock", "orders/42", "--", "sh", "-c", script]);
    let lines: Vec<&str> = printed.lines().collect();
    let [key, table, endpoint, lock_ref, token] = lines[..] else {
        panic!("{printed}");
    };
    assert_eq!((key, table), ("orders/42", "default"));
    assert_eq!(endpoint, world.endpoint);
    assert!(lock_ref.starts_with("default/orders/42#1."), "{lock_ref}");
    assert!(lock_ref.ends_with(&format!("@{token}")), "{lock_ref}");
}

#[test]
fn a_key_that_begins_with_a_dash_can_be_locked() {
    let world = World::new();
    assert_eq!(
        world.text(&["lock", "--key=-k", "--", "echo", "in"]),
        "in\n"
    );
}

#[test]
fn a_lock_that_waits_for_the_one_around_it_says_so() {
    let world = World::new();
    for (flag, status) in [("--try", 75), ("--wait=300ms", 124)] {
        let inner = format!("fermata lock {flag} k -- true");
        let nested = world.run(&["lock", "k", "-c", &inner]);
        let said = String::from_utf8(nested.stderr).unwrap();
        assert_eq!(nested.status.code(), Some(status), "{said}");
        let holder = "by the lock that this command runs under (FERMATA_LOCK_REF)";
        assert!(said.contains(holder), "{said}");
    }
}

#[test]
fn what_cannot_be_done_has_a_status_of_its_own() {
    let mut world = World::new();
    assert_eq!(code(&world, &["lock", "k", "true"]), 64);
    // As of a variable that is not set: a script would hang, and hold the lock.
    assert_eq!(code(&world, &["lock", "k", "--"]), 64);
    assert_eq!(world.queue("k"), (0, 0));
    assert_eq!(code(&world, &["lock", "a\tb", "--", "true"]), 64);
    assert_eq!(
        code(&world, &["lock", "--table", "nope", "k", "--", "true"]),
        66
    );
    assert_eq!(
        code(&world, &["locks", "release", "--key", "k", "--reason", "w"]),
        66
    );
    assert_eq!(code(&world, &["--help"]), 0);
    world.kill_server();
    let away = world.run(&["lock", "--timeout", "1s", "k", "--", "true"]);
    assert_eq!(away.status.code(), Some(69));
    let said = String::from_utf8(away.stderr).unwrap();
    assert!(said.contains(&world.endpoint), "{said}");
}

#[test]
fn options_that_flock_has_mean_the_same_here() {
    let world = World::new();
    assert_eq!(
        world.text(&["lock", "k", "-c", "echo one; echo two"]),
        "one\ntwo\n"
    );
    let holder = world.hold("k");
    for (arguments, status, says) in [
        (&["lock", "-n", "k", "-c", "true"][..], 75, true),
        (
            &["lock", "--nonblock", "-E", "3", "k", "-c", "true"],
            3,
            true,
        ),
        (
            &["lock", "-n", "-E", "0", "-q", "k", "-c", "true"],
            0,
            false,
        ),
        (&["lock", "-w", "1", "-q", "k", "-c", "true"], 124, false),
        (&["put", "-n", "-q", "k", "v"], 75, false),
    ] {
        let output = world.run(arguments);
        assert_eq!(
            output.status.code(),
            Some(status),
            "{arguments:?}: {output:?}"
        );
        assert_eq!(!output.stderr.is_empty(), says, "{arguments:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}: {output:?}");
    }
    holder.stop();
    assert_eq!(world.queue("k"), (0, 0));
}

#[test]
fn without_a_command_the_lock_is_kept_until_a_signal_or_its_loss() {
    let world = World::new();
    let mut held = world.start(&["lock", "k"]);
    let lock_ref = held.line();
    assert_eq!(world.queue("k"), (1, 0));
    // Another shell acts under it.
    world.text(&["put", &format!("--lock-ref={lock_ref}"), "written"]);
    assert_eq!(world.text(&["get", "k"]), "written");
    held.signal(Signal::SIGTERM);
    let (ended, said) = held.end();
    assert_eq!((ended.code(), said.as_str()), (Some(143), ""));
    assert_eq!(world.queue("k"), (0, 0));

    let mut held = world.start(&["lock", "k", "--output", "json"]);
    let mut document = String::new();
    while serde_json::from_str::<serde_json::Value>(&document).is_err() {
        document += &held.line();
    }
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["key"], "k");
    assert!(document["fencing_token"].as_u64().unwrap() > 0);
    world.force();
    let (ended, said) = held.end();
    assert_eq!(ended.code(), Some(70), "{said}");
    assert!(
        said.contains("on fire") && said.contains("(FORCED)"),
        "{said}"
    );
}

#[test]
fn a_wait_says_that_no_server_answers() {
    let mut world = World::new();
    let holder = world.hold("k");
    let waiting = world.start(&["lock", "-w", "12", "k", "--", "true"]);
    world.await_queue("k", (1, 1));
    world.kill_server();
    let (ended, said) = waiting.end();
    assert_eq!(ended.code(), Some(124), "{said}");
    let line = "1 ahead in the queue when a server answered last; trying again: ";
    assert!(said.contains(line), "{said}");
    let end = "k was not locked within 12s (--wait; 1 ahead when a server answered last): ";
    assert!(said.contains(end), "{said}");
    drop(holder);
}
