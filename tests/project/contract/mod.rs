//! The contract only grows: what a client was built on stays as it was.
//!
//! `tests/fixtures/contract/v1.binpb` is the contract as it was last agreed on, without comments.

mod compare;
mod reasons;

use std::fs;
use std::path::PathBuf;

use fermata_proto::FILE_DESCRIPTOR_SET;
use prost::Message as _;
use prost_types::FileDescriptorSet;

use super::files;
use compare::compare;

/// Set to 1 to keep the present contract, provided that it only grew.
const BLESS: &str = "FERMATA_BLESS";

fn kept_path() -> PathBuf {
    files::root().join("tests/fixtures/contract/v1.binpb")
}

/// The contract as it is now, our own files only.
fn present() -> FileDescriptorSet {
    let mut set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
    set.file.retain(|file| file.package() == "fermata.v1");
    assert!(!set.file.is_empty());
    set
}

fn without_comments(mut set: FileDescriptorSet) -> FileDescriptorSet {
    for file in &mut set.file {
        file.source_code_info = None;
    }
    set
}

#[test]
fn nothing_that_clients_use_was_taken_away_or_changed() {
    let present = without_comments(present());
    let bless = std::env::var(BLESS).is_ok_and(|value| value == "1");
    if bless && !kept_path().exists() {
        fs::write(kept_path(), present.encode_to_vec()).unwrap();
        return;
    }
    let kept = FileDescriptorSet::decode(&*fs::read(kept_path()).unwrap()).unwrap();
    let changes = compare(&kept, &present);
    assert!(
        changes.broken.is_empty(),
        "this breaks clients that are in use; add something beside it instead:\n  {}",
        changes.broken.join("\n  ")
    );
    if kept != present {
        assert!(
            bless,
            "the contract has grown:\n  {}\nif that is meant, keep it with\n  \
             {BLESS}=1 cargo test --test project contract\nand commit tests/fixtures/contract/v1.binpb",
            changes.added.join("\n  ")
        );
        fs::write(kept_path(), present.encode_to_vec()).unwrap();
    }
}

#[test]
fn every_part_of_the_contract_has_a_comment() {
    let mut bare = Vec::new();
    let mut seen = 0;
    for file in present().file {
        let info = file.source_code_info.as_ref().expect("no source info");
        for declared in info.location.iter().filter(|one| is_declared(&one.path)) {
            seen += 1;
            if declared.leading_comments().trim().is_empty() {
                bare.push(format!("{}:{}", file.name(), declared.span[0] + 1));
            }
        }
    }
    assert!(seen > 100, "{seen}");
    assert!(bare.is_empty(), "without a comment: {bare:#?}");
}

/// Whether a path of `SourceCodeInfo` is that of a message, an enum, a service, or of a field, a value or a call of one.
fn is_declared(path: &[i32]) -> bool {
    let kinds: Vec<i32> = path.iter().step_by(2).copied().collect();
    let is_one = matches!(kinds[..], [4..=6] | [4, .., 2..=4] | [5, 2] | [6, 2]);
    path.len().is_multiple_of(2) && is_one
}
