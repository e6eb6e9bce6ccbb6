//! Spans, request_ids, and what is too large, unreadable, or not there at all.

use bytes::Bytes;
use fermata::limits::Limits;
use fermata_client::public_part;
use fermata_proto::*;
use prost::Message;
use tonic::Code;

use super::calls::Call;
use super::stage::{HOUR, REQUEST_ID, Stage, YEAR, put, release, span};
use super::{Row, answered, invalid, refused, row};

/// One byte that is no UTF-8, as this field of a message.
pub fn bad_utf8(number: u8) -> Vec<u8> {
    vec![number << 3 | 2, 1, 0xff]
}

pub fn creates_and_sessions(stage: &Stage) -> Vec<Row> {
    let mut rows = Vec::new();
    let range = "allowed are 1000 to 3600000 ms (limits.ttl_min_ms, limits.ttl_max_ms)";
    for (what, ttl, reason, words) in [
        (
            "a TTL of 0",
            span(0, 0),
            "OUT_OF_RANGE",
            format!("0 ms is out of range; {range}"),
        ),
        (
            "a TTL of a nanosecond",
            span(0, 1),
            "OUT_OF_RANGE",
            format!("1 ms is out of range; {range}"),
        ),
        (
            "a TTL of a year",
            span(YEAR, 0),
            "OUT_OF_RANGE",
            format!("31536000000 ms is out of range; {range}"),
        ),
        (
            "a TTL a little above an hour",
            span(HOUR, 1),
            "OUT_OF_RANGE",
            format!("3600001 ms is out of range; {range}"),
        ),
        (
            "a TTL of all time",
            span(i64::MAX, 999_999_999),
            "OUT_OF_RANGE",
            range.to_owned(),
        ),
        (
            "a TTL below 0",
            span(-1, 0),
            "OUT_OF_RANGE",
            "must not be negative".to_owned(),
        ),
        (
            "a TTL that is no span",
            span(5, -1),
            "MALFORMED",
            "not a valid duration".to_owned(),
        ),
    ] {
        let create = CreateLockRefRequest {
            key: "fresh".to_owned(),
            ttl: Some(ttl),
            ..Default::default()
        };
        let open = OpenSessionRequest {
            ttl: Some(ttl),
            ..Default::default()
        };
        let expected = invalid("ttl", reason, words);
        rows.push(row(
            format!("{what}: CreateLockRef"),
            Call::Create(create),
            expected.clone(),
        ));
        rows.push(row(
            format!("{what}: OpenSession"),
            Call::Open(open),
            expected,
        ));
    }

    let range = "allowed are 100 to 30000 ms (limits.disconnect_grace_min_ms, the session's ttl)";
    for (what, grace, reason, words) in [
        (
            "a grace of 0",
            span(0, 0),
            "OUT_OF_RANGE",
            format!("0 ms is out of range; {range}"),
        ),
        (
            "a grace of a nanosecond",
            span(0, 1),
            "OUT_OF_RANGE",
            format!("1 ms is out of range; {range}"),
        ),
        (
            "a grace a little above the TTL",
            span(30, 1),
            "OUT_OF_RANGE",
            format!("30001 ms is out of range; {range}"),
        ),
        (
            "a grace of all time",
            span(i64::MAX, 999_999_999),
            "OUT_OF_RANGE",
            range.to_owned(),
        ),
        (
            "a grace below 0",
            span(-1, 0),
            "OUT_OF_RANGE",
            "must not be negative".to_owned(),
        ),
        (
            "a grace that is no span",
            span(5, -1),
            "MALFORMED",
            "not a valid duration".to_owned(),
        ),
    ] {
        let open = OpenSessionRequest {
            disconnect_grace: Some(grace),
            ..Default::default()
        };
        let expected = invalid("disconnect_grace", reason, words);
        rows.push(row(what, Call::Open(open), expected));
    }

    let once = CreateLockRefRequest {
        key: "once".to_owned(),
        request_id: REQUEST_ID.to_owned(),
        ttl: Some(span(HOUR, 0)),
        ..Default::default()
    };
    let same = answered(&[
        &format!("{:?}", stage.once.lock_ref),
        "already_existed: true",
    ]);
    rows.push(row(
        "one request_id twice",
        Call::Create(once.clone()),
        same,
    ));
    let other_ttl = CreateLockRefRequest {
        ttl: None,
        ..once.clone()
    };
    let other_owner = CreateLockRefRequest {
        owner: "ann".to_owned(),
        ..once.clone()
    };
    let other_session = CreateLockRefRequest {
        ttl: None,
        session: stage.session.clone(),
        ..once.clone()
    };
    for (field, ask) in [
        ("ttl", other_ttl),
        ("owner", other_owner),
        ("session", other_session),
    ] {
        let words = format!("this request_id was used before with another {field}");
        let expected = invalid(field, "REQUEST_MISMATCH", words);
        rows.push(row(
            format!("one request_id, another {field}"),
            Call::Create(ask),
            expected,
        ));
    }
    let opened = OpenSessionRequest {
        ttl: Some(span(HOUR, 0)),
        request_id: REQUEST_ID.to_owned(),
        ..Default::default()
    };
    let same = answered(&[&format!("{:?}", stage.session)]);
    rows.push(row("one session twice", Call::Open(opened.clone()), same));
    let other_grace = OpenSessionRequest {
        disconnect_grace: Some(span(1, 0)),
        ..opened.clone()
    };
    let words = "before with another disconnect_grace";
    rows.push(row(
        "one session, another grace",
        Call::Open(other_grace),
        invalid("disconnect_grace", "REQUEST_MISMATCH", words),
    ));
    let other_owner = OpenSessionRequest {
        owner: "ann".to_owned(),
        ..opened
    };
    let expected = invalid("owner", "REQUEST_MISMATCH", "before with another owner");
    rows.push(row(
        "one session, another owner",
        Call::Open(other_owner),
        expected,
    ));
    let close = CloseSessionRequest {
        session: stage.held.lock_ref.clone(),
    };
    let expected = invalid("session", "MALFORMED", "not a session: give the whole text");
    rows.push(row("a lockRef as a session", Call::Close(close), expected));
    let close = CloseSessionRequest {
        session: public_part(&stage.session).to_owned(),
    };
    let words = "not a session: give the whole text";
    let expected = invalid("session", "MALFORMED", words);
    rows.push(row("the id of a session", Call::Close(close), expected));
    rows
}

pub fn messages(stage: &Stage) -> Vec<Row> {
    let mut rows = Vec::new();
    let limits = Limits::default();
    let large = vec![0; limits.value_bytes_max + 1];
    let put = CriticalPutRequest {
        value: large.clone().into(),
        ..put(&stage.held, b"")
    };
    let limit = "1048577 bytes; the limit is 1048576 (limits.value_bytes_max)";
    let expected = invalid("value", "TOO_LARGE", limit);
    rows.push(row("a large value", Call::CriticalPut(put), expected));
    let mut last = release(&stage.held, Some(b""));
    last.put.as_mut().unwrap().value = large.into();
    let expected = invalid("put.value", "TOO_LARGE", limit);
    rows.push(row(
        "a large last value",
        Call::Release(last.clone()),
        expected,
    ));
    let mutation = last.put.as_mut().unwrap();
    (mutation.value, mutation.delete) = (Bytes::from_static(b"x"), true);
    let expected = invalid(
        "put.value",
        "CONFLICTING",
        "must be empty when delete is true",
    );
    rows.push(row("a delete with a value", Call::Release(last), expected));

    let over_limit = CriticalPutRequest {
        value: vec![0; limits.message_bytes_max].into(),
        ..super::stage::put(&stage.held, b"")
    };
    for method in ["CriticalPut", "CreateLockRef", "KeepAlive"] {
        let words = "larger than limits.message_bytes_max, 1114112 bytes";
        let sent = Call::Bytes(method, over_limit.encode_to_vec());
        let expected = invalid("", "TOO_LARGE", words);
        rows.push(row(format!("a large message: {method}"), sent, expected));
    }
    let words = "larger than limits.message_bytes_max, 1114112 bytes";
    let expected = invalid("", "TOO_LARGE", words);
    rows.push(row(
        "a large message of a client",
        Call::CriticalPut(over_limit),
        expected,
    ));

    for (method, number, field) in [
        ("CreateLockRef", 1, "key"),
        ("CreateLockRef", 2, "table"),
        ("CreateLockRef", 3, "request_id"),
        ("CreateLockRef", 4, "session"),
        ("CreateLockRef", 6, "owner"),
        ("AcquireLock", 1, "lock_ref"),
        ("ReleaseLock", 1, "lock_ref"),
        ("CriticalGet", 1, "lock_ref"),
        ("CriticalPut", 1, "lock_ref"),
        ("CriticalDelete", 1, "lock_ref"),
        ("WatchLock", 1, "lock_ref"),
        ("OpenSession", 2, "request_id"),
        ("OpenSession", 3, "owner"),
        ("RenewLocks", 1, "lock_refs"),
        ("RenewSession", 1, "session"),
        ("KeepAlive", 1, "session"),
        ("CloseSession", 1, "session"),
        ("Get", 1, "key"),
        ("Get", 2, "table"),
    ] {
        let expected = invalid(field, "MALFORMED", "UTF-8");
        let sent = Call::Bytes(method, bad_utf8(number));
        rows.push(row(
            format!("wrong UTF-8: {field} of {method}"),
            sent,
            expected,
        ));
    }

    let unknown = refused(Code::Unavailable, "MESSAGE_LATE", "did not arrive");
    rows.push(row("a call without its message", Call::NoMessage, unknown));
    rows.push(row(
        "a client that says nothing",
        Call::Silence,
        answered(&["closed after 10 s"]),
    ));
    rows
}
