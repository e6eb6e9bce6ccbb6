//! Figures that a whole run of the tests is to end with. `.ci/run` says where they go, and prints them.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;

/// A directory; a file in it for each subject.
const DIRECTORY: &str = "FERMATA_FIGURES";

/// Adds a line, if anybody wants to know.
pub fn note(subject: &str, line: &str) {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let path = PathBuf::from(directory).join(subject);
    // One write: tests of several programs may add theirs.
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.unwrap()
        .write_all(format!("{line}\n").as_bytes())
        .unwrap();
}
