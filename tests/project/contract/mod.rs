//! The contract only grows: what a client was built on stays as it was.
//!
//! `tests/fixtures/contract/v1.binpb` is the contract as it was last agreed on, without comments.

mod compare;
mod reasons;

use std::fs;
use std::path::PathBuf;

use fermata_proto::FILE_DESCRIPTOR_SET;
use prost::Message as _;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet};

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
    let bare: Vec<String> = present().file.iter().flat_map(without_comment).collect();
    assert!(bare.is_empty(), "without a comment: {bare:#?}");
}

/// Everything in a file that should have a comment and has none. Paths are those of `SourceCodeInfo`.
fn without_comment(file: &FileDescriptorProto) -> Vec<String> {
    let info = file.source_code_info.as_ref().expect("no source info");
    let mut bare = Vec::new();
    let mut need = |path: &[i32], name: String| {
        let commented = info
            .location
            .iter()
            .filter(|location| location.path == path)
            .any(|location| !location.leading_comments().trim().is_empty());
        if !commented {
            bare.push(name);
        }
    };
    for (at, message) in (0..).zip(&file.message_type) {
        need_message(&mut need, vec![4, at], message.name(), message);
    }
    for (at, declared) in (0..).zip(&file.enum_type) {
        need_enum(&mut need, vec![5, at], declared.name(), declared);
    }
    for (at, service) in (0..).zip(&file.service) {
        need(&[6, at], service.name().to_owned());
        for (rpc_at, rpc) in (0..).zip(&service.method) {
            let name = format!("{}.{}", service.name(), rpc.name());
            need(&[6, at, 2, rpc_at], name);
        }
    }
    bare
}

fn need_message(
    need: &mut impl FnMut(&[i32], String),
    path: Vec<i32>,
    name: &str,
    message: &DescriptorProto,
) {
    let below = |kind, at| [path.clone(), vec![kind, at]].concat();
    need(&path, name.to_owned());
    for (at, field) in (0..).zip(&message.field) {
        need(&below(2, at), format!("{name}.{}", field.name()));
    }
    for (at, inner) in (0..).zip(&message.nested_type) {
        need_message(
            need,
            below(3, at),
            &format!("{name}.{}", inner.name()),
            inner,
        );
    }
    for (at, inner) in (0..).zip(&message.enum_type) {
        need_enum(
            need,
            below(4, at),
            &format!("{name}.{}", inner.name()),
            inner,
        );
    }
}

fn need_enum(
    need: &mut impl FnMut(&[i32], String),
    path: Vec<i32>,
    name: &str,
    declared: &EnumDescriptorProto,
) {
    need(&path, name.to_owned());
    for (at, value) in (0..).zip(&declared.value) {
        let path = [path.clone(), vec![2, at]].concat();
        need(&path, format!("{name}.{}", value.name()));
    }
}

#[test]
fn a_missing_comment_is_found() {
    let mut set = present();
    let file = &mut set.file[0];
    let info = file.source_code_info.as_mut().unwrap();
    info.location.retain(|l| !l.path.starts_with(&[5, 0, 2, 0]));
    assert_eq!(without_comment(file).len(), 1);
}
