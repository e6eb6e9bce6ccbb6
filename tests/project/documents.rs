//! Documents name what exists: links lead somewhere, and the settings are those that there are. Their tables can be read.

use std::collections::BTreeMap;
use std::path::Path;

use fermata::config::Config;
use serde_json::Value as Json;

use super::files;

#[test]
fn every_link_inside_the_project_leads_somewhere() {
    let mut broken = Vec::new();
    for path in files::ending(".md") {
        for link in links(&files::text(&path)) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link.as_str(), ""));
            let directory = Path::new(&path).parent().unwrap();
            let target = match file {
                "" => files::root().join(&path),
                _ => files::root().join(directory).join(file),
            };
            let found = match (target.exists(), anchor) {
                (found, "") => found,
                (false, _) => false,
                (true, anchor) => anchors(&std::fs::read_to_string(target).unwrap())
                    .iter()
                    .any(|heading| heading == anchor),
            };
            if !found {
                broken.push(format!("{path}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_readme_names_the_command_that_tests_a_change() {
    let shown = files::text("README.md")
        .lines()
        .any(|line| line.split(" #").next().unwrap().trim_end() == "$ cargo test");
    assert!(shown, "README.md does not show `cargo test`");
    let run = files::text(".ci/run");
    let step = run.lines().find(|line| line.starts_with("step test "));
    let run = "step test timeout --kill-after=30 3000 cargo test --locked --workspace \"${features[@]}\" --no-fail-fast || true";
    assert_eq!(step, Some(run), ".ci/run");
}

#[test]
fn each_rule_is_named_in_the_files_that_are_said_to_keep_it() {
    let page = files::text("docs/rules.md");
    let invariants = (1..=11).map(|number| format!("I{number}"));
    let of_homes = (1..=12).map(|number| format!("H{number}"));
    for name in invariants.chain(of_homes) {
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| {name} |")))
            .unwrap_or_else(|| panic!("docs/rules.md has no row for {name}"));
        let links = links(row);
        let mut paths = links.iter().filter_map(|link| link.strip_prefix("../"));
        let is_named = |path: &str| {
            let text = files::text(path);
            let mut words = text.split(|c: char| !c.is_alphanumeric());
            words.any(|word| word == name)
        };
        assert!(paths.clone().next().is_some(), "{name} is kept nowhere");
        let silent = paths.find(|path| !is_named(path));
        assert_eq!(silent, None, "in the row of {name}, and does not name it");
    }
}

/// What needs more does not belong in a table.
const CELL_CHARS_MAX: usize = 700;

#[test]
fn no_cell_of_a_table_is_too_long_to_be_read() {
    let mut long = Vec::new();
    for path in files::ending(".md") {
        for cell in long_cells(&files::text(&path)) {
            long.push(format!("{path}: {cell} …"));
        }
    }
    assert!(long.is_empty(), "say these beside the table: {long:#?}");
}

/// How the cells of tables begin that have too many characters, outside of code.
fn long_cells(text: &str) -> Vec<String> {
    let text = text.replace(r"\|", "  ");
    let prose = text.split("```").step_by(2);
    let rows = prose
        .flat_map(str::lines)
        .filter(|line| line.trim_start().starts_with('|'));
    let cells = rows.flat_map(|row| row.split('|')).map(str::trim);
    cells
        .filter(|cell| cell.chars().count() > CELL_CHARS_MAX)
        .map(|cell| cell.chars().take(60).collect())
        .collect()
}

/// What is in `](…)`, outside of code.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for prose in text.split("```").step_by(2) {
        for after in prose.split("](").skip(1) {
            if let Some((link, _)) = after.split_once(')') {
                found.push(link.to_owned());
            }
        }
    }
    found
}

/// The headings, as links name them.
fn anchors(text: &str) -> Vec<String> {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            line.trim_start_matches('#')
                .trim()
                .to_lowercase()
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}

#[test]
fn the_documented_settings_are_those_that_exist_with_their_defaults() {
    let mut exist = BTreeMap::new();
    let config = serde_json::to_value(Config::default()).unwrap();
    flatten("", &config, &mut exist);
    let documented = documented(&files::text("docs/configuration.md"));
    assert_eq!(documented, exist, "left: docs/configuration.md");
}

/// Rows `| `name` | `default` | … |`.
fn documented(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|line| {
            let mut cells = line.split('|').map(|cell| cell.trim().replace('`', ""));
            (cells.next().unwrap(), cells.next().unwrap())
        })
        .collect()
}

/// Settings by their full names, with their values as TOML has them; `none` where there is none.
fn flatten(path: &str, value: &Json, found: &mut BTreeMap<String, String>) {
    match value {
        Json::Object(inner) if path == "tables" => {
            assert_eq!(inner.keys().collect::<Vec<_>>(), ["default"]);
            found.insert("tables.NAME".to_owned(), "default".to_owned());
        }
        Json::Object(inner) => {
            for (name, value) in inner {
                let path = match path {
                    "" => name.clone(),
                    _ => format!("{path}.{name}"),
                };
                flatten(&path, value, found);
            }
        }
        Json::Null => drop(found.insert(path.to_owned(), "none".to_owned())),
        other => drop(found.insert(path.to_owned(), other.to_string())),
    }
}
