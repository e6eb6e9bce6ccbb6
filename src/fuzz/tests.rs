//! The promises of the parsers by chance, near what is kept in `tests/fuzz/corpus`, and on all of that as it stands.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::FileFailurePersistence;

use super::*;

type Check = fn(&[u8]);

const TARGETS: [(&str, Check); 7] = [
    ("access_files", access_files),
    ("cassandra_rows", cassandra_rows),
    ("configuration", configuration),
    ("lock_ref", lock_ref),
    ("page_token", page_token),
    ("records", records),
    ("request_fields", request_fields),
];

/// What is kept of one target has at most so many files, and none of them is longer.
const FILES_MAX: usize = 60;
const FILE_BYTES_MAX: u64 = 4 * 1024;

fn fuzz_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fuzz")
        .join(path)
}

fn names(path: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(fuzz_path(path)).unwrap();
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    entries.map(|entry| name(entry.unwrap())).collect()
}

fn kept(target: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(fuzz_path(&format!("corpus/{target}"))).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_parser_has_a_target_and_a_corpus() {
    let known: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let files = known.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(names("targets"), files);
    assert_eq!(names("corpus"), known);
    let manifest: toml::Table = fs::read_to_string(fuzz_path("Cargo.toml"))
        .unwrap()
        .parse()
        .unwrap();
    let targets = manifest["bin"].as_array().unwrap().iter();
    let named: BTreeSet<String> = targets
        .map(|bin| bin["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(named, known);
    for name in &known {
        let source = fs::read_to_string(fuzz_path(&format!("targets/{name}.rs"))).unwrap();
        assert!(source.contains(&format!("|bytes: &[u8]| fermata::fuzz::{name}(bytes)")));
    }
}

#[test]
fn what_is_kept_keeps_its_promise() {
    for (target, check) in TARGETS {
        let files = kept(target);
        assert!(
            (1..=FILES_MAX).contains(&files.len()),
            "{target}: {}",
            files.len()
        );
        for file in files {
            // Shown where the check fails.
            println!("{}", file.display());
            let bytes = fs::read(&file).unwrap();
            assert!(bytes.len() as u64 <= FILE_BYTES_MAX);
            check(&bytes);
        }
    }
}

/// What parsers trip over.
const ODD: &[&str] = &[
    "",
    "\0",
    "\n",
    "+",
    "-",
    "0",
    "00",
    ".",
    "@",
    "#",
    "/",
    "%",
    "%00",
    "%c3",
    "é",
    "\u{0661}",
    "\u{202e}",
    "[",
    "]",
    "'",
    "\"",
    "=",
    "__",
    "9223372036854775807",
    "18446744073709551616",
    "[9999999999]",
];

/// What is put somewhere into an input.
fn put() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::sample::select(ODD).prop_map(|text| text.as_bytes().to_vec()),
        4 => prop::collection::vec(any::<u8>(), 1..4),
        1 => any::<String>().prop_map(String::into_bytes),
        1 => (any::<u8>(), 1..5_000_usize).prop_map(|(byte, count)| vec![byte; count]),
    ]
}

/// What is kept, with a few bytes touched, cut short, or doubled; and bytes of no kind.
fn near(target: &str) -> impl Strategy<Value = Vec<u8>> {
    let kept: Vec<Vec<u8>> = kept(target)
        .iter()
        .map(|file| fs::read(file).unwrap())
        .collect();
    let touch = (any::<Index>(), 0..4_usize, put());
    let touched = (
        prop::sample::select(kept.clone()),
        prop::collection::vec(touch, 1..4),
    );
    let halves = (
        prop::sample::select(kept.clone()),
        prop::sample::select(kept),
        any::<Index>(),
    );
    prop_oneof![
        8 => touched.prop_map(|(mut bytes, touches)| {
            for (at, cut, with) in touches {
                let at = at.index(bytes.len() + 1);
                let end = (at + cut).min(bytes.len());
                bytes.splice(at..end, with);
            }
            bytes
        }),
        2 => halves.prop_map(|(mut one, other, at)| {
            one.truncate(at.index(one.len() + 1));
            one.extend(other);
            one
        }),
        1 => any::<String>().prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..400),
    ]
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::SourceParallel(
            "tests/proptest-regressions",
        ))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(4_000))]

    #[test]
    fn any_text_is_a_lock_ref_in_its_one_spelling_or_none(bytes in near("lock_ref")) {
        lock_ref(&bytes);
    }

    #[test]
    fn any_text_is_a_page_token_in_its_one_spelling_or_none(bytes in near("page_token")) {
        page_token(&bytes);
    }

    #[test]
    fn any_field_of_a_request_is_taken_as_it_stands_or_named(bytes in near("request_fields")) {
        request_fields(&bytes);
    }

    #[test]
    fn any_record_is_an_error_or_reads_back(bytes in near("records")) {
        records(&bytes);
    }

    #[test]
    fn any_rows_are_an_error_or_whole(bytes in near("cassandra_rows")) {
        cassandra_rows(&bytes);
    }
}

proptest! {
    #![proptest_config(cases(1_500))]

    #[test]
    fn any_configuration_is_within_its_limits_or_names_what_is_wrong(bytes in near("configuration")) {
        configuration(&bytes);
    }
}
