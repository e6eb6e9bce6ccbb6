//! The changelog and the workflows, as far as a release rests on them.

use super::files;

/// The kinds of changes of Keep a Changelog.
const KINDS: [&str; 6] = [
    "Added",
    "Changed",
    "Deprecated",
    "Removed",
    "Fixed",
    "Security",
];

#[test]
fn the_changelog_is_by_version_and_has_the_present_one() {
    let text = files::text("CHANGELOG.md");
    let versions: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .collect();
    assert_eq!(versions.first(), Some(&"[Unreleased]"));
    let present = format!("[{}] - ", env!("CARGO_PKG_VERSION"));
    assert!(versions[1].starts_with(&present), "{versions:?}");
    for version in &versions[2..] {
        let (_, date) = version.split_once("] - ").unwrap();
        let is_date = date.len() == 10 && date.split('-').all(|part| part.parse::<u16>().is_ok());
        assert!(is_date, "{version}");
    }
    let kinds = text.lines().filter_map(|line| line.strip_prefix("### "));
    let unknown: Vec<&str> = kinds.filter(|kind| !KINDS.contains(kind)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

fn workflows() -> Vec<(String, String)> {
    let mut paths = files::ending(".yml");
    paths.retain(|path| path.starts_with(".github/workflows/"));
    assert!(paths.len() > 2, "{paths:?}");
    let read = |path: String| (files::text(&path), path);
    paths.into_iter().map(read).collect()
}

/// A tag can be moved to other code; a commit cannot.
#[test]
fn each_action_is_pinned_to_a_commit() {
    let mut unpinned = Vec::new();
    for (text, path) in workflows() {
        let used = text
            .lines()
            .filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("uses: "));
        for used in used.filter(|used| !used.starts_with("./")) {
            let (_, at) = used.split_once('@').unwrap_or_default();
            let (commit, version) = at.split_once(" # v").unwrap_or_default();
            let is_commit = commit.len() == 40 && commit.bytes().all(|b| b.is_ascii_hexdigit());
            if !is_commit || version.is_empty() {
                unpinned.push(format!("{path}: {used}"));
            }
        }
    }
    assert!(unpinned.is_empty(), "{unpinned:#?}");
}

#[test]
fn what_is_released_is_built_by_the_compiler_that_it_was_tested_with() {
    let dockerfile = files::text("Dockerfile");
    let (_, image) = dockerfile.split_once("FROM rust:").unwrap();
    let (version, _) = image.split_once('-').unwrap();
    for name in ["ci", "release"] {
        let text = files::text(&format!(".github/workflows/{name}.yml"));
        let (_, compiler) = text.split_once("RUSTUP_TOOLCHAIN: ").unwrap();
        let compiler = compiler.lines().next().unwrap();
        assert_eq!(compiler, format!("{version}.0"), "{name}.yml");
    }
    let ci = files::text(".github/workflows/ci.yml");
    assert!(ci.contains(&format!("image: rust:{version}-bookworm")));
}
