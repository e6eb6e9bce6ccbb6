//! Imports point one way: rpc -> engine -> key -> lock, session; engine -> membership -> store (the traits) -> key, lock.
//! `cli` and `server` put the parts together. Which crate may use which is said in their manifests.

use std::collections::BTreeSet;

use super::files;
use super::source::{code_only, named};

/// A room, and what it may name of others. `store::*` is a part of a room; the deepest line counts. `fermata_*` is
/// another crate of ours.
const ROOMS: &[(&str, &[&str])] = &[
    ("lock", &[]),
    ("session", &["lock"]),
    // The rules of one key: no store, no socket, no task, no clock.
    ("key", &["fermata_guard", "lock", "session"]),
    ("membership", &["clock", "lock", "log_throttle", "store"]),
    ("limits", &["lock"]),
    ("access", &["fermata_files", "lock"]),
    (
        "agent",
        &[
            "access",
            "clock",
            "fermata_client",
            "log_throttle",
            "server",
        ],
    ),
    ("clock", &[]),
    ("process", &[]),
    ("trace", &[]),
    (
        "monitor",
        &[
            "access",
            "build",
            "fermata_proto",
            "fermata_tls",
            "process",
            "server",
        ],
    ),
    ("log_throttle", &[]),
    ("store", &["key", "lock"]),
    (
        "store::embedded",
        &["clock", "store", "store::ends", "key", "lock"],
    ),
    (
        "protocol",
        &["clock", "engine", "key", "limits", "lock", "store"],
    ),
    (
        "store::cassandra",
        &[
            "trace",
            "clock",
            "store",
            "store::diff",
            "store::ends",
            "key",
            "lock",
            "fermata_cassandra",
            "log_throttle",
        ],
    ),
    ("store::ends", &["store", "key", "lock"]),
    (
        "engine",
        &[
            "trace",
            "clock",
            "key",
            "key::machine",
            "limits",
            "lock",
            "log_throttle",
            "membership",
            "session",
            "store",
            "fermata_guard",
        ],
    ),
    // The engine hands this row on as it is.
    (
        "rpc",
        &[
            "trace",
            "access",
            "clock",
            "engine",
            "key",
            "lock",
            "limits",
            "log_throttle",
            "process",
            "protocol",
            "fermata_guard",
            "fermata_proto",
            "fermata_tls",
            "store::ReplicaRow",
        ],
    ),
    // For the names that a keyspace may have, and for spans of time.
    (
        "config",
        &[
            "access",
            "fermata_cassandra",
            "fermata_command",
            "limits",
            "lock",
            "protocol",
            "server",
        ],
    ),
    ("build", &[]),
    (
        "telemetry",
        &["build", "clock", "config", "log_throttle", "trace"],
    ),
    (
        "server",
        &[
            "access",
            "clock",
            "log_throttle",
            "rpc",
            "engine",
            "fermata_proto",
            "fermata_tls",
            "limits",
            "protocol",
        ],
    ),
    (
        "cli",
        &[
            "access",
            "agent",
            "build",
            "clock",
            "config",
            "engine",
            "fermata_cassandra",
            "fermata_client",
            "fermata_command",
            "fermata_files",
            "fermata_proto",
            "limits",
            "lock",
            "log_throttle",
            "monitor",
            "protocol",
            "server",
            "store",
            "store::cassandra",
            "store::embedded",
            "telemetry",
        ],
    ),
    // What the parsers promise, for tests and fuzzing.
    ("fuzz", &["*"]),
    // The map of the crate names every room.
    ("lib", &["*"]),
    ("main", &["cli"]),
];

/// The module that a file of `src/` is, by its names.
fn module_of(path: &str) -> Vec<&str> {
    path.trim_start_matches("src/")
        .trim_end_matches(".rs")
        .trim_end_matches("/mod")
        .split('/')
        .collect()
}

/// The line of the table for a path: the deepest that fits.
fn room_of(path: &[&str]) -> Option<&'static (&'static str, &'static [&'static str])> {
    let deep = path.iter().take(2).copied().collect::<Vec<_>>().join("::");
    ROOMS
        .iter()
        .find(|(room, _)| *room == deep)
        .or_else(|| ROOMS.iter().find(|(room, _)| path.first() == Some(room)))
}

/// What a file names that its room may not.
fn forbidden(path: &str, source: &str) -> BTreeSet<String> {
    let module = module_of(path);
    let Some((room, may)) = room_of(&module) else {
        return BTreeSet::from([format!("{path} is in no room that this test knows")]);
    };
    named(&code_only(source), &module)
        .into_iter()
        .filter(|name| {
            let parts: Vec<&str> = name.split("::").collect();
            match room_of(&parts) {
                _ if may.contains(&"*") || may.contains(&name.as_str()) => false,
                Some((other, _)) => other != room && !may.contains(other),
                None => true,
            }
        })
        .map(|name| format!("{path} names crate::{name}"))
        .collect()
}

#[test]
fn imports_point_one_way() {
    let wrong: Vec<String> = files::ending(".rs")
        .iter()
        .filter(|path| path.starts_with("src/") && !files::is_test(path))
        .flat_map(|path| forbidden(path, &files::text(path)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn an_import_against_the_direction_is_found() {
    for (path, source) in [
        ("src/lock/decide.rs", "use crate::store::Cell;"),
        ("src/lock/decide.rs", "use super::super::engine::Engine;"),
        (
            "src/store/mod.rs",
            "pub mod embedded; use embedded::X; use crate::store::embedded::X;",
        ),
        (
            "src/engine/mod.rs",
            "use crate::store::embedded::EmbeddedStore;",
        ),
        ("src/lock/key.rs", "use fermata_proto::LockMode;"),
        ("src/rpc/page.rs", "fn f(_: ::fermata_client::Client) {}"),
        ("src/elsewhere.rs", ""),
    ] {
        assert!(!forbidden(path, source).is_empty(), "{path}: {source}");
    }
    for (path, source) in [
        (
            "src/engine/mod.rs",
            "use crate::store::{Cell, Store}; use crate::lock::Key;",
        ),
        (
            "src/store/embedded/work.rs",
            "use super::super::{Cell, Store}; use super::file::X;",
        ),
        ("src/cli/get.rs", "use fermata_client::Client;"),
    ] {
        assert_eq!(forbidden(path, source), BTreeSet::new(), "{path}: {source}");
    }
}

#[test]
fn every_select_of_the_engine_and_of_membership_has_an_order() {
    let random: Vec<String> = files::ending(".rs")
        .into_iter()
        .filter(|path| path.starts_with("src/engine/") || path.starts_with("src/membership/"))
        .filter(|path| {
            let code = code_only(&files::text(path));
            code.split("select!").skip(1).any(|after| {
                !after
                    .trim_start_matches([' ', '{', '\n'])
                    .starts_with("biased;")
            })
        })
        .collect();
    assert!(
        random.is_empty(),
        "without `biased;` the order is random, and a simulation cannot be repeated: {random:?}"
    );
}
