//! What no file of this project may be called or say.

use super::files;

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
