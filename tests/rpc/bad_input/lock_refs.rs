//! LockRefs that are broken, or not this caller's to use.

use fermata_proto::*;
use tonic::Code;

use super::calls::{Call, critical_calls, force, lock_ref_calls};
use super::stage::{KEY, Stage, release};
use super::{Row, answered, invalid, not_found, precondition, row};

pub fn lock_refs(stage: &Stage) -> Vec<Row> {
    let mut rows = Vec::new();
    let full = stage.held.lock_ref.as_str();
    let (entry, grant) = full.split_once('@').unwrap();
    let (key, secret) = entry.rsplit_once('.').unwrap();
    let (key, seq) = key.rsplit_once('#').unwrap();
    assert_eq!((key, seq), ("default/orders%2042", "1"));

    let never = || {
        not_found(
            "NEVER_ISSUED",
            "there was never such a lockRef, or such an entry",
        )
    };
    let broken = |words: &str| (Code::InvalidArgument, format!("not a lockRef: {words}"));
    let unissued = || (Code::NotFound, String::new());
    let wrong = "0".repeat(26);
    let waiting = stage.waiter.lock_ref.rsplit_once('.').unwrap().1;
    for (what, text, (code, words)) in [
        (
            "cut after the table",
            "default/".to_owned(),
            broken("it has no '#'"),
        ),
        ("cut in the key", key.to_owned(), broken("it has no '#'")),
        ("cut after the key", format!("{key}#"), broken("its number")),
        (
            "cut in the number",
            format!("{key}#1"),
            broken("it has no '.'"),
        ),
        (
            "cut before the secret",
            format!("{key}#1."),
            broken("its secret"),
        ),
        (
            "cut in the secret",
            format!("{key}#1.{}", &secret[..25]),
            broken("its secret"),
        ),
        (
            "cut before the grant",
            format!("{entry}@"),
            broken("its grant"),
        ),
        (
            "a secret that is too long",
            format!("{entry}0"),
            broken("its secret"),
        ),
        (
            "a secret of other letters",
            format!("{key}#1.ilou{}", &secret[4..]),
            broken("its secret"),
        ),
        (
            "an empty key",
            format!("default/#1.{secret}"),
            broken("its key is malformed"),
        ),
        (
            "a key that is no UTF-8",
            format!("default/%ff#1.{secret}"),
            broken("its key is not UTF-8"),
        ),
        (
            "a malformed table",
            format!("no-table/a#1.{secret}"),
            broken("its table name"),
        ),
        (
            "longer than any",
            format!("{entry}@{}", "1".repeat(4_000)),
            broken(&format!("it has {} bytes, and none", entry.len() + 4_001)),
        ),
        (
            "with a key longer than any",
            format!("default/{}#1.{secret}", "k".repeat(1_025)),
            broken("its key has 1025 bytes, and none has more than 1024"),
        ),
        (
            "number 0",
            format!("{key}#0.{secret}"),
            broken("its number"),
        ),
        (
            "a number too large",
            format!("{key}#{}.{secret}", u64::MAX),
            broken("its number"),
        ),
        (
            "a grant too large",
            format!("{entry}@{}", u64::MAX),
            broken("its grant"),
        ),
        // Two spellings of one lockRef would be two lockRefs to whoever compares them.
        (
            "a plain space",
            format!("default/{KEY}#1.{secret}"),
            broken("its key is not in the canonical"),
        ),
        (
            "more encoded",
            format!("default/orders%20%342#1.{secret}"),
            broken("its key is not in the canonical"),
        ),
        (
            "a leading zero",
            format!("{key}#01.{secret}"),
            broken("its number"),
        ),
        ("a sign", format!("{key}#+1.{secret}"), broken("its number")),
        (
            "a grant with a leading zero",
            format!("{entry}@0{grant}"),
            broken("its grant"),
        ),
        ("a space behind", format!("{entry} "), broken("its secret")),
        (
            "a wrong secret",
            format!("{key}#1.{wrong}@{grant}"),
            unissued(),
        ),
        (
            "the secret of the waiter",
            format!("{key}#1.{waiting}@{grant}"),
            unissued(),
        ),
        (
            "the number of the waiter",
            format!("{key}#2.{secret}@{grant}"),
            unissued(),
        ),
        (
            "from the future",
            format!("{key}#3.{secret}@{grant}"),
            unissued(),
        ),
        (
            "of another locked key",
            format!("default/other#1.{secret}@{grant}"),
            unissued(),
        ),
        (
            "of a key never locked",
            format!("default/fresh#1.{secret}@{grant}"),
            unissued(),
        ),
        (
            "of another table",
            format!("archive/orders%2042#1.{secret}@{grant}"),
            unissued(),
        ),
    ] {
        for (call, field, ask) in lock_ref_calls(&text) {
            let expected = match (code, &ask) {
                (Code::InvalidArgument, _) => invalid(field, "MALFORMED", words.clone()),
                // On a stream of many sessions one that has ended is an answer.
                (_, Call::KeepAlive(_)) => answered(&["reason: NoLongerKept", "seconds: 0"]),
                _ => never(),
            };
            rows.push(row(format!("a lockRef {what}: {call}"), ask, expected));
        }
    }
    for (call, _, ask) in lock_ref_calls(&format!("nowhere/orders%2042#1.{secret}@{grant}")) {
        let expected = not_found("UNKNOWN_TABLE", "there is no table \"nowhere\"");
        rows.push(row(format!("a lockRef of no table: {call}"), ask, expected));
    }
    for (call, field, ask) in lock_ref_calls("") {
        let expected = invalid(field, "MISSING", "must not be empty");
        rows.push(row(format!("no lockRef: {call}"), ask, expected));
    }
    for (call, field, ask) in lock_ref_calls("default") {
        let words = match field {
            "session" => "neither a session nor a lockRef: give the whole text",
            _ => "not a lockRef: it has no '/' after the table",
        };
        let expected = invalid(field, "MALFORMED", words);
        rows.push(row(format!("a table as a lockRef: {call}"), ask, expected));
    }
    // No cut of a lockRef is another one, down to its last character.
    for cut in 1..entry.len() {
        let (call, ask) = critical_calls(&full[..cut]).remove(0);
        let expected = invalid("lock_ref", "MALFORMED", "not a lockRef");
        rows.push(row(format!("the first {cut} bytes: {call}"), ask, expected));
    }
    rows
}

/// Names of entries, by which operators end them.
pub fn entry_names(stage: &Stage) -> Vec<Row> {
    let full = stage.held.lock_ref.as_str();
    let (name, secret) = full.rsplit_once('.').unwrap();
    let (key, _) = name.rsplit_once('#').unwrap();
    let broken = |words: &str| {
        let words = format!("not the name of an entry: {words}");
        invalid("name", "MALFORMED", words)
    };
    let never = || {
        not_found(
            "NEVER_ISSUED",
            "there was never such a lockRef, or such an entry",
        )
    };
    let rows = [
        (
            "none",
            String::new(),
            invalid("name", "MISSING", "must not be empty"),
        ),
        ("a table", "default".to_owned(), broken("it has no '/'")),
        ("a key", key.to_owned(), broken("it has no '#'")),
        (
            "a lockRef",
            full.to_owned(),
            broken("something stands behind its number"),
        ),
        (
            "a grant without a secret",
            format!("{name}@7"),
            broken("its number"),
        ),
        ("a space behind", format!("{name} "), broken("its number")),
        ("number 0", format!("{key}#0"), broken("its number")),
        ("a leading zero", format!("{key}#01"), broken("its number")),
        (
            "a plain space",
            format!("default/{KEY}#1"),
            broken("its key is not in the canonical"),
        ),
        (
            "only a dot behind",
            format!("{name}."),
            broken("something stands behind"),
        ),
        ("a secret", secret.to_owned(), broken("it has no '/'")),
        ("from the future", format!("{key}#3"), never()),
        (
            "of a key never locked",
            "default/fresh#1".to_owned(),
            never(),
        ),
        (
            "of no table",
            "nowhere/orders%2042#1".to_owned(),
            not_found("UNKNOWN_TABLE", "there is no table \"nowhere\""),
        ),
    ];
    rows.map(|(what, text, expected)| row(format!("a name, {what}"), force(&text), expected))
        .into()
}

pub fn holders_only(stage: &Stage) -> Vec<Row> {
    let mut rows = Vec::new();
    let token = stage.held.fencing_token;
    let (entry, _) = stage.held.lock_ref.split_once('@').unwrap();
    let waiter = &stage.waiter.lock_ref;
    let superseded = || precondition("GRANT_SUPERSEDED", "AcquireLock returns the current grant");
    let no_grant = || precondition("NO_GRANT", "this lockRef carries no grant");
    for (what, text, expected) in [
        (
            "an older grant",
            format!("{entry}@{}", token - 1),
            superseded(),
        ),
        (
            "a grant from the future",
            format!("{entry}@{}", token + 1),
            superseded(),
        ),
        ("no grant", entry.to_owned(), no_grant()),
        ("a waiter", waiter.clone(), no_grant()),
        (
            "a waiter with the grant of another",
            format!("{waiter}@{token}"),
            no_grant(),
        ),
        (
            "a released lockRef",
            stage.ended.lock_ref.clone(),
            precondition("RELEASED", "it was released"),
        ),
    ] {
        for (call, ask) in critical_calls(&text) {
            if matches!((what, &ask), ("a released lockRef", Call::Release(_))) {
                continue;
            }
            rows.push(row(format!("{what}: {call}"), ask, expected.clone()));
        }
    }
    let acquire = AcquireLockRequest {
        lock_ref: stage.ended.lock_ref.clone(),
        ..Default::default()
    };
    let expected = precondition("RELEASED", "it was released");
    rows.push(row(
        "a released lockRef: AcquireLock",
        Call::Acquire(acquire),
        expected,
    ));
    for (what, again) in [
        ("a release twice", release(&stage.ended, None)),
        (
            "a release twice, with its put",
            release(&stage.ended, Some(b"last")),
        ),
        (
            "a release twice, with another put",
            release(&stage.ended, Some(b"stolen")),
        ),
    ] {
        let expected = answered(&["already_released: true"]);
        rows.push(row(what, Call::Release(again), expected));
    }
    rows
}
