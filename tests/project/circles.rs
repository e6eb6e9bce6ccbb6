//! Inside a room imports point one way as well: no files or folders that stand beside each other use each other in a circle.

use std::collections::{BTreeMap, BTreeSet};

use super::files;
use super::source::{code_only, named_to};

/// The file above the parts of a folder: its `mod.rs` or `lib.rs`, or the file of its name beside it.
const HEAD: &str = "(head)";

/// The code of each file, by its path.
type Sources = BTreeMap<String, String>;

/// Which part uses which others.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// The module that a file or a folder is, from the root of its crate.
fn module_of(path: &str) -> Vec<&str> {
    let (_, inside) = path.split_once("src").unwrap_or_default();
    let inside = inside.trim_end_matches(".rs");
    let parts = inside.split('/').filter(|part| !part.is_empty());
    parts
        .filter(|part| !["mod", "lib", "main"].contains(part))
        .collect()
}

/// What a head imports by `use`, and hands on to its parts by that: each name, and the part that has it.
fn imported(code: &str, is_part: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for said in code
        .split("use ")
        .skip(1)
        .filter_map(|rest| rest.split(';').next())
    {
        let Some((part, names)) = said.trim_start_matches("self::").split_once("::") else {
            continue;
        };
        if is_part(part) {
            let names = names.split(|c: char| !c.is_alphanumeric() && c != '_');
            found.extend(names.map(|name| (name.to_owned(), part.to_owned())));
        }
    }
    found
}

/// The parts that the code of a head names, but for what it only hands on.
fn named_by_head<'a>(code: &str, parts: impl Iterator<Item = &'a String>) -> BTreeSet<String> {
    let handed_on = |said: &&str| {
        let line = said.rsplit('\n').find(|line| line.contains("use "));
        line.is_some_and(|line| line.trim_start().starts_with("pub"))
    };
    let own: String = code
        .split_inclusive(';')
        .map(|said| {
            if handed_on(&said) {
                said.rsplit_once("pub").map_or("", |(before, _)| before)
            } else {
                said
            }
        })
        .collect();
    let names = |part: &&String| {
        own.match_indices(&format!("{part}::")).any(|(at, _)| {
            let before = own[..at].trim_end_matches("self::");
            !before.ends_with(|c: char| c.is_alphanumeric() || "_:".contains(c))
        })
    };
    parts.filter(names).cloned().collect()
}

/// What the parts of a folder use of each other.
fn uses(folder: &str, sources: &Sources) -> Uses {
    let module = module_of(folder);
    let below = format!("{folder}/");
    let part_of = |path: &str| -> Option<String> {
        module_of(path.strip_prefix(&below).map(|_| path)?)
            .get(module.len())
            .map(|part| (*part).to_owned())
    };
    let parts: BTreeSet<String> = sources.keys().filter_map(|path| part_of(path)).collect();
    let is_part = |name: &str| parts.contains(name);
    let heads = ["/mod.rs", "/lib.rs", "/main.rs", ".rs"].map(|end| format!("{folder}{end}"));
    let head: String = heads
        .iter()
        .filter_map(|path| sources.get(path))
        .map(String::as_str)
        .collect();
    let imported = imported(&head, is_part);
    let mut uses = Uses::from([(HEAD.to_owned(), named_by_head(&head, parts.iter()))]);
    for (path, code) in sources {
        let Some(part) = part_of(path) else { continue };
        for name in named_to(module.len() + 1, code, &module_of(path)) {
            let names: Vec<&str> = name.split("::").collect();
            if names.len() != module.len() + 1
                || !names.starts_with(&module)
                || name.starts_with("fermata_")
            {
                continue;
            }
            let last = names[module.len()];
            let other = match imported.get(last) {
                _ if is_part(last) => last,
                Some(part) => part,
                None => HEAD,
            };
            if other != part {
                uses.entry(part.clone())
                    .or_default()
                    .insert(other.to_owned());
            }
        }
    }
    uses
}

/// All that a part uses, directly or not.
fn reached<'a>(uses: &'a Uses, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&String> = uses.get(from).into_iter().flatten().collect();
    while let Some(part) = next.pop() {
        if found.insert(part.as_str()) {
            next.extend(uses.get(part).into_iter().flatten());
        }
    }
    found
}

/// The parts that use each other, together with those between them.
fn circles(uses: &Uses) -> BTreeSet<Vec<&str>> {
    let around = |part: &String| {
        let others = reached(uses, part).into_iter();
        let others = others.filter(|other| reached(uses, other).contains(part.as_str()));
        others.collect::<Vec<_>>()
    };
    uses.keys()
        .map(around)
        .filter(|circle| !circle.is_empty())
        .collect()
}

#[test]
fn no_parts_of_a_folder_use_each_other_in_a_circle() {
    let is_product = |path: &String| {
        let in_crate = ["src/", "bench/src/", "crates/"]
            .iter()
            .any(|start| path.starts_with(start));
        in_crate && path.contains("src/") && !files::is_test(path)
    };
    let sources: Sources = files::ending(".rs")
        .into_iter()
        .filter(is_product)
        .map(|path| (path.clone(), code_only(&files::text(&path))))
        .collect();
    let folders: BTreeSet<&str> = sources
        .keys()
        .flat_map(|path| path.match_indices('/').map(|(at, _)| &path[..at]))
        .filter(|folder| folder.split('/').any(|part| part == "src"))
        .collect();
    let wrong: Vec<String> = folders
        .iter()
        .flat_map(|folder| {
            let uses = uses(folder, &sources);
            let found = circles(&uses).into_iter();
            let found = found.map(|circle| format!("{folder}: {circle:?}"));
            found.collect::<Vec<_>>()
        })
        .collect();
    assert!(folders.len() > 20, "{folders:?}");
    assert!(wrong.is_empty(), "these use each other: {wrong:#?}");
}

#[test]
fn a_circle_is_found_however_the_other_one_is_named() {
    let found = |files: &[(&str, &str)]| -> Vec<String> {
        let own = |(path, code): &(&str, &str)| (format!("src/a/{path}"), (*code).to_owned());
        let uses = uses("src/a", &files.iter().map(own).collect());
        circles(&uses)
            .iter()
            .map(|circle| circle.join(" "))
            .collect()
    };
    for (b, c) in [
        ("use super::c::C;", "use super::b::B;"),
        ("use crate::a::{c::C, d};", "fn f() { super::b::g() }"),
        // What the head imports, or hands on.
        ("use super::C;", "use crate::a::b;"),
    ] {
        let head = ("mod.rs", "mod b; mod c; pub use c::C;");
        assert_eq!(
            found(&[head, ("b.rs", b), ("c/mod.rs", c)]),
            ["b c"],
            "{b} {c}"
        );
    }
    let round = [
        ("b.rs", "use super::c;"),
        ("c.rs", "use super::d;"),
        ("d.rs", "use super::b;"),
    ];
    assert_eq!(found(&round), ["b c d"]);
    assert_eq!(found(&round[..2]), [""; 0]);
    let above = |head| [("mod.rs", head), ("b.rs", "use super::H;")];
    assert_eq!(found(&above("use b::B; struct H(B);")), ["(head) b"]);
    assert_eq!(found(&above("pub use self::b::B; struct H;")), [""; 0]);
}
