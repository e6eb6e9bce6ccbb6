//! What no file of this project may be called or say.

use std::collections::BTreeMap;

use super::files;
use super::source::{code_only, types};

/// Names that say nothing about what is in a file.
const EMPTY_NAMES: &[&str] = &[
    "common", "helper", "helpers", "manager", "misc", "util", "utils", "new",
];

#[test]
fn files_are_named_for_what_is_in_them() {
    let bad: Vec<String> = files::all()
        .into_iter()
        .filter(|path| path.split('/').any(says_nothing))
        .collect();
    assert!(bad.is_empty(), "{bad:?}");
}

fn says_nothing(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or(part);
    let versioned = stem
        .rsplit_once("_v")
        .is_some_and(|(_, n)| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    EMPTY_NAMES.contains(&stem) || versioned
}

#[test]
fn names_that_say_nothing_are_found() {
    for bad in ["util.rs", "helpers", "decide_v2.rs", "new.md"] {
        assert!(says_nothing(bad), "{bad}");
    }
    for good in ["lock_ref.rs", "fermata_v1x", "v1.binpb", "renew.rs"] {
        assert!(!says_nothing(good), "{good}");
    }
}

/// Each is written in two parts, so that this file does not hold it.
const FORBIDDEN: &[(&str, &str, &str)] = &[
    ("/wo", "rk/", "a place on one machine"),
    ("/ro", "ot/", "a place on one machine"),
    ("/ho", "me/", "a place on one machine"),
    (
        "crates",
        ".io",
        "the host of a registry belongs in the tool's own configuration",
    ),
    (
        "proxy.gol",
        "ang",
        "the host of a registry belongs in the tool's own configuration",
    ),
    ("TO", "DO", "say what is so, or do it"),
    ("FIX", "ME", "say what is so, or do it"),
    ("dbg", "!(", "left over"),
];

#[test]
fn no_file_says_what_does_not_belong_here() {
    let mut found = Vec::new();
    // Cargo writes the registry into the lock files itself.
    for path in files::all()
        .iter()
        .filter(|path| !path.ends_with("Cargo.lock"))
    {
        let Ok(text) = std::fs::read_to_string(files::root().join(path)) else {
            continue;
        };
        for (first, second, why) in FORBIDDEN {
            let word = format!("{first}{second}");
            for (at, _) in text.match_indices(&word) {
                let line = text[..at].lines().count();
                found.push(format!("{path}:{line}: {word:?}: {why}"));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn rust_files_stay_short_enough_to_read() {
    // 400 lines are the rule; tables and tests of one subject may go on.
    const LINES_MAX: usize = 600;
    let long: Vec<String> = files::ending(".rs")
        .into_iter()
        .map(|path| (files::text(&path).lines().count(), path))
        .filter(|(lines, _)| *lines > LINES_MAX)
        .map(|(lines, path)| format!("{path}: {lines} lines"))
        .collect();
    assert!(long.is_empty(), "split these by subject: {long:?}");
}

/// Names that several types of a crate have, and why.
const SHARED_NAMES: &[(&str, &str)] = &[(
    "Args",
    "the arguments of a command: named with its module everywhere, as in `lock::Args`",
)];

/// Names that are declared more than once, and the files that do.
fn declared_twice(sources: &[(String, String)]) -> BTreeMap<String, Vec<&str>> {
    let mut declared: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (path, source) in sources {
        for name in types(&code_only(source)) {
            declared.entry(name).or_default().push(path);
        }
    }
    declared.retain(|name, paths| {
        paths.len() > 1 && !SHARED_NAMES.iter().any(|(shared, _)| shared == name)
    });
    declared
}

#[test]
fn no_two_types_have_one_name() {
    let mut crates: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for path in files::ending(".rs") {
        if let Some((of, _)) = format!("/{path}").split_once("/src/")
            && !files::is_test(&path)
        {
            let source = (path.clone(), files::text(&path));
            crates.entry(of.to_owned()).or_default().push(source);
        }
    }
    assert!(crates.len() > 5, "{:?}", crates.keys());
    let twice: Vec<_> = crates.values().map(|of| declared_twice(of)).collect();
    let twice: Vec<_> = twice.iter().filter(|twice| !twice.is_empty()).collect();
    assert!(twice.is_empty(), "name these by what they hold: {twice:#?}");
}

#[test]
fn two_types_of_one_name_are_found() {
    let source = |path: &str, source: &str| (path.to_owned(), source.to_owned());
    let twice = |second: &str| {
        let sources = [
            source("a.rs", "pub(super) struct Open<'a>(&'a str);"),
            source("b.rs", second),
        ];
        !declared_twice(&sources).is_empty()
    };
    for second in [
        "struct Open;",
        "pub(in super::super) enum Open { A }",
        "#[derive(Debug)] pub trait Open {}",
    ] {
        assert!(twice(second), "{second}");
    }
    for second in [
        "struct OpenCall;",
        "// struct Open;",
        "#[cfg(test)] mod tests { struct Open; }",
    ] {
        assert!(!twice(second), "{second}");
    }
}
