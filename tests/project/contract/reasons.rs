//! The reasons that calls can answer with, as the contract lists them and as `src/rpc/status.rs` gives them.

use std::collections::BTreeSet;

use fermata_proto::EndReason;
use prost_types::FileDescriptorProto;

use super::present;
use crate::files;

/// Told to others than clients of the contract: replicas, and callers of health and reflection.
const ELSEWHERE: [&str; 2] = ["NO_PEER", "DEADLINE"];

/// The comments of the services and their calls, each with its name.
fn comments(file: &FileDescriptorProto) -> Vec<(String, String)> {
    let info = file.source_code_info.as_ref().expect("no source info");
    let comment = |path: &[i32]| {
        let found = info.location.iter().find(|one| one.path == path);
        found.map_or("", |one| one.leading_comments()).to_owned()
    };
    let mut all = Vec::new();
    for (at, service) in (0..).zip(&file.service) {
        all.push((service.name().to_owned(), comment(&[6, at])));
        for (rpc_at, rpc) in (0..).zip(&service.method) {
            let name = format!("{}.{}", service.name(), rpc.name());
            all.push((name, comment(&[6, at, 2, rpc_at])));
        }
    }
    all
}

fn is_reason(word: &&str) -> bool {
    let shouted = word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    word.len() > 4 && shouted && !word.ends_with('_')
}

/// The reasons that a comment names: what stands behind "Reasons:".
fn named(comment: &str) -> Option<BTreeSet<String>> {
    let (_, listed) = comment.split_once("Reasons: ")?;
    let words = listed.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    Some(words.filter(is_reason).map(str::to_owned).collect())
}

/// The reasons that the server gives.
fn given() -> BTreeSet<String> {
    let source = files::text("src/rpc/status.rs");
    let quoted = source.split('"').skip(1).step_by(2);
    let mut given: BTreeSet<String> = quoted.filter(is_reason).map(str::to_owned).collect();
    for number in 1.. {
        let Ok(reason) = EndReason::try_from(number) else {
            break;
        };
        let name = reason.as_str_name().strip_prefix("END_REASON_").unwrap();
        given.insert(name.to_owned());
    }
    given.retain(|reason| !ELSEWHERE.contains(&reason.as_str()));
    given
}

#[test]
fn every_call_lists_its_reasons_and_all_that_are_given_are_listed() {
    // gRPC's own names of statuses stand between them.
    let statuses = ["INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"];
    let more = [
        "RESOURCE_EXHAUSTED",
        "UNAVAILABLE",
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "UNIMPLEMENTED",
    ];
    let mut listed = BTreeSet::new();
    let mut bare = Vec::new();
    for (name, comment) in present().file.iter().flat_map(comments) {
        match named(&comment) {
            Some(reasons) => listed.extend(reasons),
            None if name.contains('.') => bare.push(name),
            None => {}
        }
    }
    assert!(bare.is_empty(), "these calls list no reasons: {bare:?}");
    for status in statuses.iter().chain(&more) {
        listed.remove(*status);
    }
    assert_eq!(
        listed,
        given(),
        "left: proto/fermata/v1; right: src/rpc/status.rs"
    );
}

/// What a client says of itself.
const OF_CLIENT: [&str; 2] = ["VALIDITY_ENDED", "UNKNOWN"];

#[test]
fn every_reason_is_explained_and_no_other() {
    let text = files::text("src/cli/explain/reasons.md");
    let headings = text.lines().filter_map(|line| line.strip_prefix("## "));
    let explained: BTreeSet<String> = headings.map(str::to_owned).collect();
    let mut all = given();
    all.extend(OF_CLIENT.map(str::to_owned));
    assert_eq!(
        explained, all,
        "left: src/cli/explain/reasons.md; right: what is given"
    );
    // A client's own, in the words of its library.
    let client = files::text("crates/client/src/calls/lost.rs");
    for reason in OF_CLIENT {
        assert!(client.contains(&format!("\"{reason}\"")), "{reason}");
    }
}
