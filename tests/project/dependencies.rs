//! Every dependency earns its place in `docs/dependencies.md`, and what is linked into the binary has a
//! licence that `deny.toml` allows, and no crate twice.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use super::files;

fn toml_file(path: &str) -> toml::Table {
    files::text(path).parse().unwrap()
}

/// A manifest of this project, and the folder that it is in, as the paths of what lies there begin.
struct Member {
    folder: String,
    manifest: toml::Table,
}

impl Member {
    /// The names of what it depends on, but for other crates of ours.
    fn section(&self, name: &str) -> BTreeSet<String> {
        let section = self.manifest.get(name).and_then(toml::Value::as_table);
        let names = section.into_iter().flat_map(toml::Table::keys).cloned();
        names.filter(|name| !is_ours(name)).collect()
    }
}

fn is_ours(package: &str) -> bool {
    package.starts_with("fermata-")
}

/// The packages of the workspace. (The fuzz targets are not of it.)
fn members() -> Vec<Member> {
    let manifests = files::ending("Cargo.toml").into_iter();
    let members: Vec<_> = manifests
        .filter(|path| !path.starts_with("tests/"))
        .map(|path| Member {
            folder: path.trim_end_matches("Cargo.toml").to_owned(),
            manifest: toml_file(&path),
        })
        .collect();
    assert!(members.len() > 2, "{}", members.len());
    members
}

const SECTIONS: [&str; 3] = ["dependencies", "build-dependencies", "dev-dependencies"];

/// What any member depends on.
fn used() -> BTreeSet<String> {
    let members = members();
    let sections = members
        .iter()
        .flat_map(|member| SECTIONS.map(|section| member.section(section)));
    sections.flatten().collect()
}

#[test]
fn every_dependency_says_what_it_is_for() {
    let used = used();
    let documented = documented(&files::text("docs/dependencies.md"));
    let undocumented: Vec<_> = used.difference(&documented).collect();
    let unused: Vec<_> = documented.difference(&used).collect();
    assert!(
        undocumented.is_empty() && unused.is_empty(),
        "docs/dependencies.md lacks {undocumented:?}, and has {unused:?} too many"
    );
}

#[test]
fn every_version_is_said_once() {
    let root = toml_file("Cargo.toml");
    let said = root["workspace"]["dependencies"].as_table().unwrap();
    let said: BTreeSet<_> = said.keys().filter(|name| !is_ours(name)).cloned().collect();
    assert_eq!(said, used());
    for member in members() {
        for section in SECTIONS {
            let section = member.manifest.get(section).and_then(toml::Value::as_table);
            for (name, dependency) in section.into_iter().flatten() {
                let inherited = dependency.get("workspace").and_then(toml::Value::as_bool);
                let folder = &member.folder;
                assert_eq!(inherited, Some(true), "{folder}Cargo.toml: {name}");
            }
        }
    }
}

/// Where the code of each kind of dependency stands.
const USED_IN: &[(&str, &[&str])] = &[
    ("dependencies", &["src/"]),
    ("build-dependencies", &["build.rs"]),
    ("dev-dependencies", &["src/", "tests/", "examples/"]),
];

/// What is compiled from the .proto files names these.
const IN_GENERATED: &str = "bytes:: prost_types:: tonic_prost::";

#[test]
fn every_dependency_is_used() {
    let sources = files::ending(".rs");
    let mut unused = Vec::new();
    for member in members() {
        for (section, used_in) in USED_IN {
            let is_there = |path: &str| {
                let within = path.strip_prefix(&member.folder);
                within.is_some_and(|path| used_in.iter().any(|entry| path.starts_with(entry)))
            };
            let mut code: String = sources
                .iter()
                .filter(|path| is_there(path))
                .map(|path| files::text(path))
                .collect();
            if code.contains("include_proto!") {
                code.push_str(IN_GENERATED);
            }
            let names = member.section(section).into_iter();
            let names = names.filter(|name| !is_named(&code, &name.replace('-', "_")));
            unused.extend(names.map(|name| format!("{}Cargo.toml: {name}", member.folder)));
        }
    }
    assert!(unused.is_empty(), "in vain: {unused:?}");
}

/// Whether the code says `name::`, or `name;` as in a plain `use`.
fn is_named(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let before = code[..at].chars().next_back().unwrap_or(' ');
        let after = &code[at + name.len()..];
        !before.is_alphanumeric()
            && before != '_'
            && (after.starts_with("::") || after.starts_with(';'))
    })
}

/// The names in the first column of the tables.
fn documented(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| line.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// A package that is linked into the binary here, or run while it is compiled.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    licence: String,
}

/// With all features of ours, and those of others that are really on: the graph of `cargo metadata` has packages that no feature asks for.
fn linked() -> BTreeSet<Package> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--workspace",
            "--all-features",
            "--target",
            &target,
            "--edges",
            "normal",
        ])
        .args(["--prefix", "none", "--no-dedupe", "--format", "{p}|{l}"])
        .current_dir(files::root())
        .output()
        .unwrap();
    let answered = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree: {answered}");
    let tree = String::from_utf8(output.stdout).unwrap();
    // An empty line stands between the trees of two members.
    let packages: BTreeSet<_> = tree
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| {
            let (package, licence) = line.split_once('|').unwrap();
            let mut words = package.split(' ');
            Package {
                name: words.next().unwrap().to_owned(),
                version: words.next().unwrap().trim_start_matches('v').to_owned(),
                licence: licence.to_owned(),
            }
        })
        .collect();
    assert!(packages.len() > 100, "{}", packages.len());
    packages
}

#[test]
fn every_licence_is_one_that_we_allow() {
    let deny = toml_file("deny.toml");
    let allowed: BTreeSet<&str> = deny["licenses"]["allow"]
        .as_array()
        .unwrap()
        .iter()
        .map(|licence| licence.as_str().unwrap())
        .collect();
    let wrong: Vec<String> = linked()
        .iter()
        .filter(|package| !may_use(&package.licence, &|name| allowed.contains(name)))
        .map(|package| format!("{}: {}", package.name, package.licence))
        .collect();
    assert!(wrong.is_empty(), "not allowed by deny.toml: {wrong:#?}");
}

/// Whether an SPDX expression leaves a choice that is allowed. Old manifests write `/` for `OR`.
fn may_use(expression: &str, allowed: &impl Fn(&str) -> bool) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let good = any(&mut words, allowed);
    good && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any(words: &mut Words<'_>, allowed: &impl Fn(&str) -> bool) -> bool {
    let mut good = all(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        good |= all(words, allowed);
    }
    good
}

fn all(words: &mut Words<'_>, allowed: &impl Fn(&str) -> bool) -> bool {
    let mut good = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        good &= one(words, allowed);
    }
    good
}

fn one(words: &mut Words<'_>, allowed: &impl Fn(&str) -> bool) -> bool {
    match words.next() {
        Some("(") => {
            let good = any(words, allowed);
            good && words.next() == Some(")")
        }
        Some(name) => {
            // An exception only adds rights.
            if words.next_if_eq(&"WITH").is_some() {
                words.next();
            }
            allowed(name)
        }
        None => false,
    }
}

#[test]
fn no_crate_is_linked_in_two_versions() {
    let deny = toml_file("deny.toml");
    // `name:^2` leaves version 2 out.
    let skipped: Vec<(&str, &str)> = deny["bans"]["skip"]
        .as_array()
        .unwrap()
        .iter()
        .map(|skip| {
            assert!(skip["reason"].as_str().is_some_and(|why| !why.is_empty()));
            skip["crate"].as_str().unwrap().split_once(":^").unwrap()
        })
        .collect();
    let packages = linked();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut needless: BTreeSet<_> = skipped.iter().collect();
    for package in &packages {
        let (name, version) = (&*package.name, &*package.version);
        let skip = skipped.iter().find(|(skip, of)| {
            *skip == name && version.strip_prefix(of).is_some_and(|v| v.starts_with('.'))
        });
        match skip {
            Some(skip) => drop(needless.remove(skip)),
            None => versions.entry(name).or_default().push(version),
        }
    }
    versions.retain(|_, versions| versions.len() > 1);
    assert!(versions.is_empty(), "linked more than once: {versions:?}");
    assert!(needless.is_empty(), "deny.toml skips in vain: {needless:?}");
}
