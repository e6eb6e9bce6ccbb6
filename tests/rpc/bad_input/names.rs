//! Keys and tables.

use fermata_proto::*;

use super::calls::{Call, key_calls};
use super::{Row, invalid, not_found, row};

pub fn keys_and_tables() -> Vec<Row> {
    let mut rows = Vec::new();
    let long = "x".repeat(1025);
    let wide = "ü".repeat(513);
    let long_limit = "1025 bytes; the limit is 1024 (limits.key_bytes_max)";
    let wide_limit = "1026 bytes; the limit is 1024 (limits.key_bytes_max)";
    let name_rule = "a table name is 1 to 40 ASCII letters";
    let long_name = "t".repeat(41);
    let unknown = || not_found("UNKNOWN_TABLE", "there is no table \"nowhere\"");
    for (what, key, table, expected) in [
        (
            "an empty key",
            "",
            "",
            invalid("key", "MISSING", "key: must not be empty"),
        ),
        (
            "a long key",
            &long,
            "",
            invalid("key", "TOO_LARGE", long_limit),
        ),
        (
            "a key of long letters",
            &wide,
            "",
            invalid("key", "TOO_LARGE", wide_limit),
        ),
        (
            "a control character",
            "fresh\n",
            "",
            invalid(
                "key",
                "MALFORMED",
                "key: contains a control character at byte 5",
            ),
        ),
        (
            "no table name",
            "fresh",
            "no-table",
            invalid("table", "MALFORMED", name_rule),
        ),
        (
            "a long table name",
            "fresh",
            &long_name,
            invalid("table", "MALFORMED", name_rule),
        ),
        ("an unknown table", "fresh", "nowhere", unknown()),
        (
            "a table in capitals",
            "fresh",
            "DEFAULT",
            not_found("UNKNOWN_TABLE", "\"DEFAULT\""),
        ),
    ] {
        for (call, ask) in key_calls(key, table) {
            rows.push(row(format!("{what}: {call}"), ask, expected.clone()));
        }
    }
    let list = |table: &str, key_prefix: &str| {
        Call::ListLocks(ListLocksRequest {
            table: table.to_owned(),
            key_prefix: key_prefix.to_owned(),
            ..Default::default()
        })
    };
    let too_long = invalid("key_prefix", "TOO_LARGE", long_limit);
    rows.push(row("a long prefix", list("", &long), too_long));
    rows.push(row(
        "an unknown table: ListLocks",
        list("nowhere", ""),
        unknown(),
    ));
    rows
}
