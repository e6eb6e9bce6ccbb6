//! `fermata get` and `fermata put`.

use std::io::Write;
use std::process::Stdio;

use nix::sys::signal::Signal;

use super::world::World;

#[test]
fn a_value_is_written_and_read_as_it_is() {
    let world = World::new();
    assert_eq!(world.run(&["get", "k"]).status.code(), Some(1));
    world.text(&["put", "k", "v"]);
    assert_eq!(world.text(&["get", "k"]), "v");

    let mut put = world
        .command(&["put", "k", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let bytes = [0, 0xff, b'\n'];
    put.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(put.wait().unwrap().success());
    assert_eq!(world.run(&["get", "k"]).stdout, bytes);

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "from a file").unwrap();
    world.text(&["put", "k", "--file", file.path().to_str().unwrap()]);
    assert_eq!(world.text(&["get", "k"]), "from a file");
    assert_eq!(world.queue("k"), (0, 0));
}

#[test]
fn a_command_reads_and_writes_under_its_lock() {
    let world = World::new();
    world.text(&["put", "k", "before"]);
    let script = "fermata get --lock-ref; echo; fermata put --lock-ref first; \
                  fermata put --lock-ref=$FERMATA_LOCK_REF second; fermata get --lock-ref=$FERMATA_LOCK_REF";
    let printed = world.text(&["lock", "k", "--", "sh", "-c", script]);
    assert_eq!(printed, "before\nsecond");
    assert_eq!(world.text(&["get", "k"]), "second");
}

#[test]
fn a_value_that_is_refused_leaves_the_key_free() {
    let world = World::new();
    let file = tempfile::NamedTempFile::new().unwrap();
    // More than limits.value_bytes_max, less than a message may have.
    std::fs::write(file.path(), vec![b'x'; 1024 * 1024 + 1]).unwrap();
    let put = world.run(&["put", "k", "--file", file.path().to_str().unwrap()]);
    assert_eq!(put.status.code(), Some(64), "{put:?}");
    assert_eq!(world.queue("k"), (0, 0));
    world.text(&["put", "--try", "k", "v"]);
}

#[test]
fn a_write_that_waits_ends_as_a_wait_for_a_lock_does_and_writes_nothing() {
    let world = World::new();
    world.text(&["put", "k", "before"]);
    let holder = world.hold("k");
    for write in [&["put", "k", "v"][..], &["delete", "k"]] {
        for (flags, status) in [(&["--wait", "100ms"][..], 124), (&["--try"], 75)] {
            let output = world.run(&[write, flags].concat());
            assert_eq!(
                output.status.code(),
                Some(status),
                "{write:?} {flags:?}: {output:?}"
            );
        }
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            let waiting = world.start(write);
            world.await_queue("k", (1, 1));
            waiting.signal(signal);
            let (ended, said) = waiting.end();
            assert_eq!(ended.code(), Some(128 + signal as i32), "{write:?}: {said}");
            // At once, and not after its TTL.
            assert_eq!(world.queue("k"), (1, 0), "{write:?} {signal}");
        }
    }
    holder.stop();
    assert_eq!(world.text(&["get", "k"]), "before");
}

#[test]
fn a_value_that_cannot_be_read_or_is_too_long_is_not_written() {
    let world = World::new();
    world.text(&["put", "k", "before"]);
    for (put, status, why) in [
        ("put k --file /", 74, "cannot read the value from /"),
        ("put k --file /dev/zero", 64, "/dev/zero has more than"),
        ("put k - </dev/zero", 64, "stdin has more than"),
    ] {
        let (ended, said) = world.start_shell(&format!("exec fermata {put}")).end();
        assert_eq!(ended.code(), Some(status), "{put}: {said}");
        assert!(said.contains(why), "{put}: {said}");
    }
    assert_eq!(world.text(&["get", "k"]), "before");
    let (ended, said) = world.start_shell("exec fermata put k - </dev/null").end();
    assert!(ended.success(), "{said}");
    assert_eq!(world.text(&["get", "k"]), "");
}

#[test]
fn each_way_in_which_a_lock_ref_is_of_no_use_has_its_status() {
    let world = World::new();
    let held = world.text(&["lock", "k", "--", "sh", "-c", "printf %s $FERMATA_LOCK_REF"]);
    let (_, secret) = held.split_once('.').unwrap();
    for (lock_ref, status) in [
        (held.clone(), 70),
        (format!("default/k#999.{secret}"), 66),
        (format!("default/never#1.{secret}"), 66),
        (format!("nope/k#1.{secret}"), 66),
        ("garbage".to_owned(), 64),
    ] {
        let flag = format!("--lock-ref={lock_ref}");
        for command in [
            &["get", &flag][..],
            &["put", &flag, "v"],
            &["delete", &flag],
        ] {
            let output = world.run(command);
            assert_eq!(
                output.status.code(),
                Some(status),
                "{command:?}: {output:?}"
            );
        }
    }
    assert_eq!(
        world.run(&["get", "k"]).status.code(),
        Some(1),
        "it was written"
    );
    for command in [
        &["get", "k"][..],
        &["put", "k", "v"],
        &["delete", "k"],
        &["lock", "k"],
        &["locks", "ls"],
    ] {
        let output = world.run(&[command, &["--table", "nope"]].concat());
        assert_eq!(output.status.code(), Some(66), "{command:?}: {output:?}");
    }
}

#[test]
fn a_value_is_deleted_in_a_section_of_its_own_and_under_a_lock() {
    let world = World::new();
    for delete in [
        &["delete", "k"][..],
        &["lock", "k", "--", "fermata", "delete", "--lock-ref"],
    ] {
        world.text(&["put", "k", "v"]);
        assert_eq!(world.text(delete), "");
        assert_eq!(
            world.run(&["get", "k"]).status.code(),
            Some(1),
            "{delete:?}"
        );
        assert_eq!(world.queue("k"), (0, 0));
    }
    let deleted = world.json(&["delete", "k"]);
    assert!(
        deleted["name"].as_str().unwrap().starts_with("default/k#"),
        "{deleted}"
    );
    assert_eq!(world.run(&["delete"]).status.code(), Some(64));
}

#[test]
fn a_file_that_cannot_be_used_is_said_with_what_named_it() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let none = directory.path().join("none");
    let none = none.to_str().unwrap();
    for (option, variable) in [
        ("--ca", "FERMATA_CA_FILE"),
        ("--token-file", "FERMATA_TOKEN_FILE"),
    ] {
        let by_option = world.run(&["get", "k", option, none]);
        let mut command = world.command(&["get", "k"]);
        let by_variable = command.env(variable, none).output().unwrap();
        for (output, whence) in [(by_option, option), (by_variable, variable)] {
            assert_eq!(output.status.code(), Some(64), "{output:?}");
            let said = String::from_utf8(output.stderr).unwrap();
            let named = said.starts_with(&format!("fermata: {whence}: "));
            assert!(named && said.contains("none: No such file"), "{said}");
        }
    }
    let mut command = world.command(&["get", "k"]);
    let output = command.env("FERMATA_TOKEN", "of two").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("fermata: FERMATA_TOKEN: "), "{said}");
}

#[test]
fn who_was_not_answered_hears_how_long_was_tried() {
    let mut world = World::new();
    world.stop_server();
    let directory = tempfile::tempdir().unwrap();
    let backup = directory.path().join("backup");
    let backup = backup.to_str().unwrap();
    // Over the stream that calls share, by itself, and as a stream of its own.
    let outputs = [
        world.run(&["get", "--timeout", "2s", "k"]),
        world.run(&["locks", "ls", "--timeout", "2s"]),
        world.run(&["backup", "--timeout", "2s", backup]),
    ];
    world.kill_server();
    for output in outputs {
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("no answer within 2s"), "{said}");
    }
}
