//! Tokens for clients, and the lines by which servers know them.

use std::fs::OpenOptions;
use std::os::unix::fs::PermissionsExt as _;

use fermata::access::Tokens;

use super::world::World;

#[test]
fn a_token_is_written_for_its_client_alone_and_its_line_for_the_server() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("billing.token");
    let out = file.to_str().unwrap();
    let line = world.text(&["token", "billing", "--out", out]);
    assert!(
        line.starts_with("billing sha256:") && line.ends_with('\n'),
        "{line}"
    );
    Tokens::parse(&line).unwrap();
    let token = std::fs::read_to_string(&file).unwrap();
    assert!(
        token.starts_with("fmt_") && token.len() == 4 + 64 + 1,
        "{token}"
    );
    assert!(!line.contains(token.trim()));
    let second = directory.path().join("second");
    let second_line = world.text(&["token", "billing", "--out", second.to_str().unwrap()]);
    assert_ne!(second_line, line);
    assert_ne!(std::fs::read_to_string(&second).unwrap(), token);
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let again = world.run(&["token", "billing", "--out", out]);
    assert_eq!(again.status.code(), Some(73));
    assert!(again.stdout.is_empty(), "{again:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), token);
    let other = directory.path().join("other");
    let unwritten = world.run(&["token", "billing", "--out", "-"]);
    assert_eq!(unwritten.status.code(), Some(64), "{unwritten:?}");
    let malformed = world.run(&["token", "no name", "--out", other.to_str().unwrap()]);
    assert_eq!(malformed.status.code(), Some(64));
    assert!(!other.exists());
}

#[test]
fn a_token_whose_line_cannot_be_printed_is_not_made() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("billing.token");
    let make = ["token", "billing", "--out", file.to_str().unwrap()];
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = world.command(&make).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(74), "{output:?}");
    assert!(!file.exists());
    world.text(&make);
}
