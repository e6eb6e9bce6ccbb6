//! The files of the project.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the project lies.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text of a file, by its path from the root.
pub fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All files of the project, as paths from the root, sorted. (Not asked of git: a release has none.)
pub fn all() -> Vec<String> {
    let mut found = Vec::new();
    collect(root(), &mut found);
    found.sort();
    found
}

/// Those with this ending.
pub fn ending(suffix: &str) -> Vec<String> {
    let mut found = all();
    found.retain(|path| path.ends_with(suffix));
    found
}

/// Whether a file of `src/` holds tests only.
pub fn is_test(path: &str) -> bool {
    ["_test.rs", "_tests.rs", "/tests.rs"]
        .iter()
        .any(|ending| path.ends_with(ending))
        || path.contains("/tests/")
}

fn collect(directory: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        // What a crate packages of the top: it is seen there.
        if path.is_symlink() {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if !matches!(name, "target" | ".git" | ".cache") {
                collect(&path, found);
            }
        } else if name != ".git" {
            let relative = path.strip_prefix(root()).unwrap();
            found.push(relative.to_str().unwrap().to_owned());
        }
    }
}
