//! Spans, request_ids, and what is too large, unreadable, or not there at all.

use fermata::limits::Limits;
use fermata_client::public_part;
use fermata_proto::pipeline_call::Call;
use fermata_proto::*;
use prost::Message;
use tonic::Code;

use super::sent::Sent;
use super::stage::{HOUR, REQUEST_ID, Stage, span};
use super::{Row, answered, invalid, refused, row};
use crate::ask;

/// Spans outside of this range, whose end is in seconds.
fn spans(end: i64, range: &str) -> Vec<(prost_types::Duration, &'static str, String)> {
    let out_of_range = |ms: i64| format!("{ms} ms is out of range; allowed are {range}");
    vec![
        (span(0, 1), "OUT_OF_RANGE", out_of_range(1)),
        (span(end, 1), "OUT_OF_RANGE", out_of_range(1_000 * end + 1)),
        (
            span(i64::MAX, 999_999_999),
            "OUT_OF_RANGE",
            range.to_owned(),
        ),
        (
            span(-1, 0),
            "OUT_OF_RANGE",
            "must not be negative".to_owned(),
        ),
        (span(5, -1), "MALFORMED", "not a valid duration".to_owned()),
    ]
}

pub fn creates_and_sessions(stage: &Stage) -> Vec<Row> {
    let mut rows = Vec::new();
    let create = Call::CreateLockRef;
    let open = Call::OpenSession;
    for (ttl, reason, words) in spans(
        HOUR,
        "1000 to 3600000 ms (limits.ttl_min_ms, limits.ttl_max_ms)",
    ) {
        let expected = invalid("ttl", reason, words);
        let asks = CreateLockRefRequest {
            ttl: Some(ttl),
            ..ask::create("fresh")
        };
        rows.push(row(format!("{ttl:?}"), create(asks), expected.clone()));
        let asks = OpenSessionRequest {
            ttl: Some(ttl),
            ..Default::default()
        };
        rows.push(row(format!("{ttl:?}"), open(asks), expected));
    }
    let range = "100 to 30000 ms (limits.disconnect_grace_min_ms, the session's ttl)";
    for (grace, reason, words) in spans(30, range) {
        let asks = OpenSessionRequest {
            disconnect_grace: Some(grace),
            ..Default::default()
        };
        let expected = invalid("disconnect_grace", reason, words);
        rows.push(row(format!("{grace:?}"), open(asks), expected));
    }

    let malformed = |field| invalid(field, "MALFORMED", "");
    let request_id = CreateLockRefRequest {
        request_id: "x".to_owned(),
        ..ask::create("fresh")
    };
    rows.push(row("x", create(request_id), malformed("request_id")));
    let in_session = ask::create_in("fresh", "x");
    rows.push(row("x", create(in_session), malformed("session")));
    let mode = CreateLockRefRequest {
        mode: 99,
        ..ask::create("fresh")
    };
    rows.push(row("mode 99", create(mode), malformed("mode")));
    let owner = CreateLockRefRequest {
        owner: "x".repeat(129),
        ..ask::create("fresh")
    };
    let expected = invalid("owner", "TOO_LARGE", "limits.owner_bytes_max");
    rows.push(row("a long owner", create(owner), expected));

    let mismatch = |field: &'static str| {
        let words = format!("this request_id was used before with another {field}");
        invalid(field, "REQUEST_MISMATCH", words)
    };
    let once = CreateLockRefRequest {
        request_id: REQUEST_ID.to_owned(),
        ttl: Some(span(HOUR, 0)),
        ..ask::create("once")
    };
    let lock_ref = format!("{:?}", stage.once.lock_ref);
    let same = answered(&[&lock_ref, "already_existed: true"]);
    rows.push(row("one request_id twice", create(once.clone()), same));
    let other_ttl = CreateLockRefRequest {
        ttl: None,
        ..once.clone()
    };
    let other_session = CreateLockRefRequest {
        session: stage.session.clone(),
        ..other_ttl.clone()
    };
    let other_owner = CreateLockRefRequest {
        owner: "ann".to_owned(),
        ..once
    };
    for (field, asks) in [
        ("ttl", other_ttl),
        ("owner", other_owner),
        ("session", other_session),
    ] {
        rows.push(row(
            format!("another {field}"),
            create(asks),
            mismatch(field),
        ));
    }
    let opened = OpenSessionRequest {
        ttl: Some(span(HOUR, 0)),
        request_id: REQUEST_ID.to_owned(),
        ..Default::default()
    };
    let same = answered(&[&format!("{:?}", stage.session)]);
    rows.push(row("one session twice", open(opened.clone()), same));
    let other_grace = OpenSessionRequest {
        disconnect_grace: Some(span(1, 0)),
        ..opened.clone()
    };
    let other_owner = OpenSessionRequest {
        owner: "ann".to_owned(),
        ..opened
    };
    for (field, asks) in [("disconnect_grace", other_grace), ("owner", other_owner)] {
        rows.push(row(format!("another {field}"), open(asks), mismatch(field)));
    }
    for (what, session) in [
        ("a lockRef as a session", stage.held.lock_ref.as_str()),
        ("the id of a session", public_part(&stage.session)),
    ] {
        let close = Call::CloseSession(ask::close_session(session));
        let words = "not a session: give the whole text";
        rows.push(row(what, close, invalid("session", "MALFORMED", words)));
    }
    rows
}

pub fn messages(stage: &Stage) -> Vec<Row> {
    let mut rows = Vec::new();
    let limits = Limits::default();
    let held = &stage.held.lock_ref;
    let large = || vec![0; limits.value_bytes_max + 1];
    let limit = "1048577 bytes; the limit is 1048576 (limits.value_bytes_max)";
    let put = Call::CriticalPut(ask::critical_put(held, large()));
    rows.push(row(
        "a large value",
        put,
        invalid("value", "TOO_LARGE", limit),
    ));
    let last = Call::ReleaseLock(ask::release_with_put(held, large()));
    rows.push(row(
        "a large value",
        last,
        invalid("put.value", "TOO_LARGE", limit),
    ));
    let mut last = ask::release_with_put(held, "x");
    last.put.as_mut().unwrap().delete = true;
    let words = "must be empty when delete is true";
    let expected = invalid("put.value", "CONFLICTING", words);
    rows.push(row(
        "a delete with a value",
        Call::ReleaseLock(last),
        expected,
    ));

    let over_limit = ask::critical_put(held, vec![0; limits.message_bytes_max]);
    let words = "larger than limits.message_bytes_max, 1114112 bytes";
    let expected = invalid("", "TOO_LARGE", words);
    for method in ["CreateLockRef", "KeepAlive"] {
        let sent = Sent::Bytes(method, over_limit.encode_to_vec());
        rows.push(row("a large message", sent, expected.clone()));
    }
    rows.push(row(
        "a large message",
        Call::CriticalPut(over_limit),
        expected,
    ));

    for (method, number, field) in [
        ("CreateLockRef", 1, "key"),
        ("CreateLockRef", 3, "request_id"),
        ("CreateLockRef", 6, "owner"),
        ("AcquireLock", 1, "lock_ref"),
        ("CriticalPut", 1, "lock_ref"),
        ("WatchLock", 1, "lock_ref"),
        ("RenewLocks", 1, "lock_refs"),
        ("KeepAlive", 1, "session"),
        ("Get", 2, "table"),
    ] {
        // One byte that is no UTF-8, as this field of the message.
        let sent = Sent::Bytes(method, vec![number << 3 | 2, 1, 0xff]);
        let expected = invalid(field, "MALFORMED", "UTF-8");
        rows.push(row(format!("{field} is no UTF-8"), sent, expected));
    }

    let late = refused(Code::Unavailable, "MESSAGE_LATE", "did not arrive");
    rows.push(row("no message", Sent::NoMessage, late));
    rows
}
