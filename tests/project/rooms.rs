//! Imports point one way: rpc -> engine -> key -> lock, session; engine -> membership -> store (the traits) -> key, lock.
//! `cli` and `server` put the parts together. Which crate may use which is said in their manifests.

use std::collections::{BTreeMap, BTreeSet};

use super::files;
use super::source::{code_only, named, named_to};

/// A room, and what it may name of others. `store::*` is a part of a room; the deepest line counts. `fermata_*` is
/// another crate of ours.
const ROOMS: &[(&str, &[&str])] = &[
    ("lock", &[]),
    ("session", &["lock"]),
    // The rules of one key: no store, no socket, no task, no clock.
    ("key", &["lock", "session", "shares"]),
    ("membership", &["clock", "lock", "log_throttle", "store"]),
    ("limits", &["lock"]),
    ("access", &["fermata_files", "lock"]),
    ("clock", &[]),
    ("log_throttle", &[]),
    ("shares", &[]),
    ("store", &["key", "lock"]),
    ("store::embedded", &["store", "store::ends", "key", "lock"]),
    (
        "store::cassandra",
        &[
            "clock",
            "store",
            "store::diff",
            "store::ends",
            "key",
            "lock",
            "fermata_cassandra",
        ],
    ),
    ("store::ends", &["store", "key", "lock"]),
    (
        "engine",
        &[
            "clock",
            "key",
            "key::machine",
            "limits",
            "lock",
            "log_throttle",
            "membership",
            "session",
            "shares",
            "store",
        ],
    ),
    // The engine hands this row on as it is.
    (
        "rpc",
        &[
            "access",
            "clock",
            "engine",
            "key",
            "lock",
            "limits",
            "log_throttle",
            "shares",
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
            "server",
        ],
    ),
    ("telemetry", &["config"]),
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
        ],
    ),
    (
        "cli",
        &[
            "access",
            "clock",
            "config",
            "engine",
            "fermata_bench",
            "fermata_cassandra",
            "fermata_client",
            "fermata_command",
            "fermata_files",
            "fermata_proto",
            "limits",
            "lock",
            "log_throttle",
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
        ("src/store/mod.rs", "use crate::engine::Engine;"),
        (
            "src/store/mod.rs",
            "pub mod embedded; use embedded::X; use crate::store::embedded::X;",
        ),
        (
            "src/engine/mod.rs",
            "use crate::store::embedded::EmbeddedStore;",
        ),
        (
            "src/engine/mod.rs",
            "use crate::store::{Cell, embedded::EmbeddedStore};",
        ),
        ("src/engine/mod.rs", "use crate::rpc::status;"),
        ("src/rpc/status.rs", "fn f() { crate::store::open() }"),
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
        (
            "src/cli/serve.rs",
            "use crate::store::embedded::EmbeddedStore;",
        ),
        (
            "src/cli/get.rs",
            "use fermata_client::Client; use fermata_proto as proto;",
        ),
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

/// The names that the `mod.rs` of a folder hands on, and the file of each.
fn handed_on(folder: &str) -> BTreeMap<String, String> {
    let code = code_only(&files::text(&format!("{folder}/mod.rs")));
    let uses = code.split("use ").skip(1);
    let mut found = BTreeMap::new();
    for line in uses.filter_map(|rest| rest.split(';').next()) {
        let Some((file, names)) = line.split_once("::") else {
            continue;
        };
        for name in names.split(['{', '}', ',']) {
            found.insert(name.trim().to_owned(), file.trim().to_owned());
        }
    }
    found
}

/// The files of a folder and of its folders, and which of the others each names. (What stands in a folder of the same name
/// belongs to its file.)
fn uses(folder: &str) -> BTreeMap<String, BTreeSet<String>> {
    let depth = folder.split('/').count();
    let paths: Vec<String> = files::ending(".rs")
        .into_iter()
        .filter(|path| path.starts_with(&format!("{folder}/")) && !files::is_test(path))
        .collect();
    let is_file = |part: &str| paths.contains(&format!("{folder}/{part}.rs"));
    // One file, or all that a folder hands on.
    let files_of = |parts: &[&str]| -> Vec<String> {
        match parts {
            [file, ..] if is_file(file) => vec![(*file).to_owned()],
            [inner, rest @ ..] if paths.contains(&format!("{folder}/{inner}/mod.rs")) => {
                let handed_on = handed_on(&format!("{folder}/{inner}"));
                let file = |name: &&str| match is_file(&format!("{inner}/{name}")) {
                    true => Some((*name).to_owned()),
                    false => handed_on.get(*name).cloned(),
                };
                match rest.first().and_then(file) {
                    Some(file) => vec![format!("{inner}::{file}")],
                    None => handed_on
                        .values()
                        .map(|file| format!("{inner}::{file}"))
                        .collect(),
                }
            }
            _ => Vec::new(),
        }
    };
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in &paths {
        let module = module_of(path);
        // What only declares and hands on its parts is none of them.
        if path.ends_with("/mod.rs") {
            continue;
        }
        let room = module[..depth - 1].join("::");
        let names = named_to(depth + 1, &code_only(&files::text(path)), &module);
        for this in files_of(&module[depth - 1..]) {
            let others = names.iter().filter_map(|name| {
                let rest = name.strip_prefix(&format!("{room}::"))?;
                // `pub(super)` names the folder that the file stands in.
                if this
                    .rsplit_once("::")
                    .is_some_and(|(inner, _)| inner == rest)
                {
                    return None;
                }
                Some(files_of(&rest.split("::").collect::<Vec<_>>()))
            });
            let others = others.flatten().filter(|other| *other != this);
            let others: Vec<String> = others.collect();
            uses.entry(this).or_default().extend(others);
        }
    }
    uses
}

/// Files that use each other, whatever lies between them.
fn circle(uses: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    let mut left = uses.clone();
    loop {
        let known: BTreeSet<String> = left.keys().cloned().collect();
        let is_leaf = |others: &BTreeSet<String>| others.is_disjoint(&known);
        let leaves: Vec<String> = left
            .iter()
            .filter(|(_, others)| is_leaf(others))
            .map(|(part, _)| part.clone())
            .collect();
        if leaves.is_empty() {
            return (!left.is_empty()).then(|| known.into_iter().collect());
        }
        for leaf in leaves {
            left.remove(&leaf);
        }
    }
}

#[test]
fn no_files_of_the_heart_use_each_other_in_a_circle() {
    for folder in [
        "src/engine",
        "src/key/machine",
        "src/membership",
        "src/session",
    ] {
        let uses = uses(folder);
        assert!(!uses.is_empty(), "{folder}");
        assert_eq!(circle(&uses), None, "{folder}: {uses:#?}");
    }
    let of = |a: &str, b: &str| (a.to_owned(), BTreeSet::from([b.to_owned()]));
    let chain = BTreeMap::from([of("a", "b"), of("b", "c")]);
    assert_eq!(circle(&chain), None);
    let around = BTreeMap::from([of("a", "b"), of("b", "c"), of("c", "a"), of("d", "a")]);
    assert_eq!(circle(&around).unwrap().len(), 4);
}
