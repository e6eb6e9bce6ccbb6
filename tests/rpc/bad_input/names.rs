//! Keys and tables, and the names by which operators end entries and sessions.

use fermata_client::public_part;
use fermata_proto::*;

use super::sent::key_calls;
use super::stage::{KEY, Stage};
use super::{Row, invalid, never_issued, not_found, row};
use crate::ask;
use crate::each_call::AnyCall;

pub fn keys_and_tables() -> Vec<Row> {
    let long = "x".repeat(1025);
    let limit = "1025 bytes; the limit is 1024 (limits.key_bytes_max)";
    let unknown = || not_found("UNKNOWN_TABLE", "there is no table \"nowhere\"");
    let control = "key: contains a control character at byte 5";
    let name_rule = "a table name is 1 to 40 ASCII letters";
    let mut rows = Vec::new();
    for (key, table, expected) in [
        ("", "", invalid("key", "MISSING", "must not be empty")),
        (long.as_str(), "", invalid("key", "TOO_LARGE", limit)),
        ("fresh\n", "", invalid("key", "MALFORMED", control)),
        ("k", "no-table", invalid("table", "MALFORMED", name_rule)),
        ("k", "nowhere", unknown()),
    ] {
        let calls = key_calls(key, table).into_iter();
        rows.extend(calls.map(|call| row(format!("{table}/{key}"), call, expected.clone())));
    }
    let list = AnyCall::ListLocks(ask::list_locks(&long));
    rows.push(row(
        "a long prefix",
        list,
        invalid("key_prefix", "TOO_LARGE", limit),
    ));
    let list = AnyCall::ListLocks(ListLocksRequest {
        table: "nowhere".to_owned(),
        ..Default::default()
    });
    rows.push(row("an unknown table", list, unknown()));
    rows
}

pub fn ends_by_force(stage: &Stage) -> Vec<Row> {
    let full = stage.held.lock_ref.as_str();
    let (name, _) = full.rsplit_once('.').unwrap();
    let (key, _) = name.rsplit_once('#').unwrap();
    let broken = |words: &str| {
        let words = format!("not the name of an entry: {words}");
        invalid("name", "MALFORMED", words)
    };
    let missing = || invalid("name", "MISSING", "must not be empty");
    let unknown = || not_found("UNKNOWN_TABLE", "there is no table \"nowhere\"");
    let mut rows = Vec::new();
    for (name, expected) in [
        ("", missing()),
        (key, broken("it has no '#'")),
        (full, broken("there is text after its number")),
        (&format!("{name}@7"), broken("its number")),
        (&format!("default/{KEY}#1"), broken("its key is not in")),
        (&format!("{key}#3"), never_issued()),
        ("default/fresh#1", never_issued()),
        ("nowhere/orders%2042#1", unknown()),
    ] {
        let force = AnyCall::ForceRelease(ask::force(name, "wedged"));
        rows.push(row(format!("name {name}"), force, expected));
    }
    let no_reason = || invalid("reason", "MISSING", "must not be empty");
    let force = AnyCall::ForceRelease(ask::force(name, ""));
    rows.push(row("no reason", force, no_reason()));

    let id = public_part(&stage.session);
    for (what, session_id, reason) in [
        ("no session", "", "MISSING"),
        ("no id of a session", "s1", "MALFORMED"),
        ("a session with its secret", &stage.session, "MALFORMED"),
    ] {
        let end = AnyCall::EndSession(ask::end_session(session_id));
        rows.push(row(what, end, invalid("session_id", reason, "")));
    }
    let end = AnyCall::EndSession(EndSessionRequest {
        reason: String::new(),
        ..ask::end_session(id)
    });
    rows.push(row("no reason", end, no_reason()));
    rows
}
