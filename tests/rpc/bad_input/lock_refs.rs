//! LockRefs that are broken, or not this caller's to use.

use fermata_proto::pipeline_call::Call;

use super::sent::{Sent, critical_calls, lock_ref_calls};
use super::stage::{KEY, Stage};
use super::{Row, answered, invalid, never_issued, not_found, precondition, row};
use crate::ask;
use crate::each_call::AnyCall;

pub fn lock_refs(stage: &Stage) -> Vec<Row> {
    let mut rows = Vec::new();
    let full = stage.held.lock_ref.as_str();
    let (entry, grant) = full.split_once('@').unwrap();
    let (key, secret) = entry.rsplit_once('.').unwrap();
    let (key, seq) = key.rsplit_once('#').unwrap();
    assert_eq!((key, seq), ("default/orders%2042", "1"));

    let length = format!("it has {} bytes; the limit", entry.len() + 4_001);
    for (what, text, words) in [
        ("a long secret", format!("{entry}0"), "its secret"),
        (
            "no key",
            format!("default/#1.{secret}"),
            "its key is malformed",
        ),
        ("no table", format!("a-b/c#1.{secret}"), "its table name"),
        ("long", format!("{entry}@{}", "1".repeat(4_000)), &length),
        // Two spellings of one lockRef would be two lockRefs to whoever compares them.
        (
            "a space",
            format!("default/{KEY}#1.{secret}"),
            "its key is not",
        ),
        ("a zero", format!("{key}#01.{secret}"), "its number"),
    ] {
        for (field, call) in lock_ref_calls(&text) {
            let expected = invalid(field, "MALFORMED", format!("not a lockRef: {words}"));
            rows.push(row(what, call, expected));
        }
    }
    let wrong = "0".repeat(26);
    let waiting = stage.waiter.lock_ref.rsplit_once('.').unwrap().1;
    for (what, entry) in [
        ("a wrong secret", format!("{key}#1.{wrong}")),
        ("the secret of the waiter", format!("{key}#1.{waiting}")),
        ("the number of the waiter", format!("{key}#2.{secret}")),
        ("from the future", format!("{key}#3.{secret}")),
        ("another locked key", format!("default/other#1.{secret}")),
        ("a key never locked", format!("default/fresh#1.{secret}")),
        ("another table", format!("archive/orders%2042#1.{secret}")),
    ] {
        for (_, call) in lock_ref_calls(&format!("{entry}@{grant}")) {
            let expected = match &call {
                // On a stream of many sessions one that has ended is an answer.
                Sent::Call(AnyCall::Carried(Call::KeepAlive(_))) => {
                    answered(&["reason: NoLongerKept", "seconds: 0"])
                }
                _ => never_issued(),
            };
            rows.push(row(what, call, expected));
        }
    }
    for (_, call) in lock_ref_calls(&format!("nowhere/orders%2042#1.{secret}@{grant}")) {
        let expected = not_found("UNKNOWN_TABLE", "there is no table \"nowhere\"");
        rows.push(row("a lockRef of no table", call, expected));
    }
    for (field, call) in lock_ref_calls("") {
        let expected = invalid(field, "MISSING", "must not be empty");
        rows.push(row("no lockRef", call, expected));
    }
    for (field, call) in lock_ref_calls("default") {
        let words = match field {
            "session" => "neither a session nor a lockRef: give the whole text",
            _ => "not a lockRef: it has no '/' after the table",
        };
        rows.push(row("a table", call, invalid(field, "MALFORMED", words)));
    }
    // No cut of a lockRef is another one, down to its last character.
    for cut in 1..entry.len() {
        let [put, ..] = critical_calls(&full[..cut]);
        let expected = invalid("lock_ref", "MALFORMED", "not a lockRef");
        rows.push(row(format!("the first {cut} bytes"), put, expected));
    }
    rows
}

pub fn holders_only(stage: &Stage) -> Vec<Row> {
    let mut rows = Vec::new();
    let token = stage.held.fencing_token;
    let (entry, _) = stage.held.lock_ref.split_once('@').unwrap();
    let (waiter, ended) = (&stage.waiter.lock_ref, &stage.ended.lock_ref);
    let superseded = || precondition("GRANT_SUPERSEDED", "AcquireLock returns the current grant");
    let no_grant = || precondition("NO_GRANT", "this lockRef carries no grant");
    let released = || precondition("RELEASED", "it was released");
    for (what, text, expected) in [
        ("older", format!("{entry}@{}", token - 1), superseded()),
        ("future", format!("{entry}@{}", token + 1), superseded()),
        ("no grant", entry.to_owned(), no_grant()),
        ("a waiter", waiter.clone(), no_grant()),
        ("its grant", format!("{waiter}@{token}"), no_grant()),
        ("released", ended.clone(), released()),
    ] {
        for call in critical_calls(&text) {
            if matches!((what, &call), ("released", Call::ReleaseLock(_))) {
                continue;
            }
            rows.push(row(what, call, expected.clone()));
        }
    }
    let acquire = Call::AcquireLock(ask::acquire(ended));
    rows.push(row("a released lockRef", acquire, released()));
    for again in [
        ask::release(ended),
        ask::release_with_put(ended, "last"),
        ask::release_with_put(ended, "stolen"),
    ] {
        let expected = answered(&["already_released: true"]);
        rows.push(row("a release twice", Call::ReleaseLock(again), expected));
    }
    rows
}
