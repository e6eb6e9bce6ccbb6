//! `fermata backup` while the server serves, and `fermata restore` for another one.

use std::fs;
use std::path::Path;
use std::process::Output;

use nix::sys::signal::Signal;
use serde_json::json;

use super::world::{Started, World, until};

/// What a command said and how it ended.
fn refused(output: &Output) -> (Option<i32>, String) {
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    (output.status.code(), said)
}

/// What is in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// The token that a lock has now.
fn token(world: &World, key: &str) -> u64 {
    let token = world.text(&["lock", key, "--", "sh", "-c", "echo $FERMATA_FENCING_TOKEN"]);
    token.trim().parse().unwrap()
}

#[test]
fn what_was_backed_up_is_there_again_and_no_token_falls() {
    let world = World::new();
    world.text(&["put", "kept", "before"]);
    let holder = world.hold("held");
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (file, data) = (path("backup"), path("data"));
    let made = world.json(&["backup", &file]);
    assert_eq!((&made["keys"], &made["entries"]), (&json!(2), &json!(1)));
    assert_eq!(made["values"], json!(1));
    assert_eq!(names(folder.path()), ["backup"]);
    // All this is after it.
    world.text(&["put", "kept", "after"]);
    world.text(&["put", "later", "after"]);
    let last = [token(&world, "kept"), token(&world, "later")];
    let (code, said) = refused(&world.run(&["backup", &file]));
    assert_eq!(code, Some(73), "{said}");

    let restored = world.json(&["restore", &file, "--data-dir", &data]);
    assert_eq!(
        (&restored["keys"], &restored["values"]),
        (&json!(2), &json!(1))
    );
    let floor = restored["fence_floor"].as_u64().unwrap();
    assert!(floor > last[0].max(last[1]));
    let other = World::on(&data);
    assert_eq!(other.text(&["get", "kept"]).trim_end(), "before");
    assert_eq!(other.run(&["get", "later"]).status.code(), Some(1));
    // Who held a lock holds it for a TTL.
    let shown = other.json(&["locks", "show", "held"]);
    assert_eq!(shown["holders"][0]["owner"], json!("billing"));
    // Of a key that the backup has, and of one that it knows nothing of.
    for key in ["kept", "later", "new"] {
        let now = token(&other, key);
        assert!(now >= floor, "{key}: {now} {floor}");
        assert!(token(&other, key) > now);
    }

    // Never over what there is.
    let (code, said) = refused(&world.run(&["restore", &file, "--data-dir", &data]));
    assert_eq!(code, Some(73), "{said}");
    assert!(
        said.contains("already has a store") || said.contains("in use"),
        "{said}"
    );
    // Above a token that is known.
    let above = (last[0] + 24 * 3_600_000_000).to_string();
    let floor_of_first = floor;
    let (third, floor) = (path("third"), ["--above", &above]);
    let restored = world.json(&[&["restore", &file, "--data-dir", &third], &floor[..]].concat());
    assert_eq!(
        restored["fence_floor"],
        json!(last[0] + 24 * 3_600_000_000 + 1)
    );
    let nanoseconds = format!("{}000", last[0]);
    let (code, said) = refused(&world.run(&[
        "restore",
        &file,
        "--data-dir",
        &path("fourth"),
        "--above",
        &nanoseconds,
    ]));
    assert_eq!(code, Some(64), "{said}");
    // Of a store that was restored itself, fences go on above its own floor.
    let second = path("second");
    other.text(&["backup", &second]);
    let again = world.json(&["restore", &second, "--data-dir", &path("fifth")]);
    assert!(again["fence_floor"].as_u64().unwrap() > floor_of_first + 7_000_000_000);
    holder.stop();
}

#[test]
fn what_is_no_whole_backup_makes_no_store() {
    let world = World::new();
    world.text(&["put", "k", "v"]);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (file, data) = (path("backup"), path("data"));
    world.text(&["backup", &file]);
    let whole = fs::read(&file).unwrap();
    let damaged = path("damaged");
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        bytes
    };
    for (bytes, words) in [
        (whole[..whole.len() - 1].to_vec(), "it ends too early"),
        (flipped(whole.len() / 2), "it "),
        (b"PRIMARY KEY".to_vec(), "not a backup"),
        (Vec::new(), "not a backup"),
    ] {
        fs::write(&damaged, bytes).unwrap();
        let (code, said) = refused(&world.run(&["restore", &damaged, "--data-dir", &data]));
        assert_eq!(code, Some(65), "{said}");
        assert!(said.contains(words), "{said}");
    }
    let (code, said) = refused(&world.run(&["restore", &path("none"), "--data-dir", &data]));
    assert_eq!(code, Some(74), "{said}");
    // What is left of these tries is in nobody's way.
    world.text(&["restore", &file, "--data-dir", &data]);
    assert_eq!(World::on(&data).text(&["get", "k"]).trim_end(), "v");
    // A folder that is not there, and a disk that is full.
    let (code, said) = refused(&world.run(&["backup", &path("no/where")]));
    assert_eq!(code, Some(74), "{said}");
    assert!(said.contains("no/where"), "{said}");
}

#[test]
fn a_backup_that_a_signal_ends_leaves_nothing_and_what_another_one_writes_alone() {
    let mut world = World::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup");
    let make = ["backup", file.to_str().unwrap()];
    world.stop_server();
    for (signal, status) in [
        (Signal::SIGINT, 130),
        (Signal::SIGTERM, 143),
        (Signal::SIGHUP, 129),
    ] {
        let (one, other) = (world.start(&make), world.start(&make));
        until(|| names(folder.path()).len() == 2);
        let end = |backup: Started| {
            backup.signal(signal);
            let (ended, said) = backup.end();
            assert_eq!(ended.code(), Some(status), "{said}");
            assert!(said.contains(signal.as_str()), "{said}");
        };
        end(one);
        assert_eq!(names(folder.path()).len(), 1);
        end(other);
        assert_eq!(names(folder.path()), [""; 0]);
    }
    world.kill_server();
}
