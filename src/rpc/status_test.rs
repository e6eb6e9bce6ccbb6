//! Every error has its code, its reason and its details.

use super::*;

fn reason(status: &Status) -> String {
    let details = status.get_error_details();
    let info = details.error_info().expect("every status has ErrorInfo");
    assert_eq!(info.domain, DOMAIN);
    info.reason.clone()
}

fn metadata(status: &Status, name: &str) -> Option<String> {
    let details = status.get_error_details();
    details.error_info()?.metadata.get(name).cloned()
}

fn has_retry(status: &Status) -> bool {
    status.get_error_details().retry_info().is_some()
}

fn fields(status: &Status) -> Vec<String> {
    let details = status.get_error_details();
    let violations = details.bad_request().map(|b| b.field_violations.clone());
    violations
        .unwrap_or_default()
        .into_iter()
        .map(|v| v.field)
        .collect()
}

fn ended(reason: EndReason) -> EngineError {
    EngineError::Ended(EndedAs::Lost(reason))
}

#[test]
fn every_engine_error_has_its_code_and_reason() {
    use Code::{FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unavailable};
    let exhausted = EngineError::Exhausted {
        what: "sessions_max",
        limit: 5,
    };
    let share_used = EngineError::ShareUsed {
        what: "sessions_max",
        share: 1,
    };
    let call_no = EngineError::CallNoNotAbove { given: 1, last: 2 };
    let mismatch = EngineError::RequestMismatch { field: "ttl" };
    let unknown_table = EngineError::UnknownTable("t".into());
    let used_up = EngineError::KeyUsedUp("no more".into());
    let unavailable = EngineError::Unavailable("no majority".into());
    let in_doubt = EngineError::WriteUnknown("no answer".into());
    let no_longer_kept = EngineError::Ended(EndedAs::NoLongerKept);
    let cases = [
        (unknown_table, NotFound, "UNKNOWN_TABLE"),
        (EngineError::NeverIssued, NotFound, "NEVER_ISSUED"),
        (
            EngineError::Ended(EndedAs::Released),
            FailedPrecondition,
            "RELEASED",
        ),
        (no_longer_kept, FailedPrecondition, "NO_LONGER_KEPT"),
        (ended(EndReason::Expired), FailedPrecondition, "EXPIRED"),
        (
            ended(EndReason::SessionClosed),
            FailedPrecondition,
            "SESSION_CLOSED",
        ),
        (ended(EndReason::Unclaimed), FailedPrecondition, "UNCLAIMED"),
        (
            EngineError::SessionEnded,
            FailedPrecondition,
            "SESSION_CLOSED",
        ),
        (
            EngineError::GrantSuperseded,
            FailedPrecondition,
            "GRANT_SUPERSEDED",
        ),
        (EngineError::NoGrant, FailedPrecondition, "NO_GRANT"),
        (EngineError::Releasing, FailedPrecondition, "RELEASING"),
        (call_no, FailedPrecondition, "CALL_NO_NOT_ABOVE"),
        (mismatch, InvalidArgument, "REQUEST_MISMATCH"),
        (exhausted, ResourceExhausted, "LIMIT_REACHED"),
        (share_used, ResourceExhausted, "LIMIT_REACHED"),
        (used_up, ResourceExhausted, "KEY_USED_UP"),
        (unavailable, Unavailable, "STORE_UNAVAILABLE"),
        (in_doubt, Unavailable, "OUTCOME_UNKNOWN"),
        (EngineError::Fenced, Unavailable, "STORE_UNAVAILABLE"),
        (EngineError::Stopping, Unavailable, "STOPPING"),
        (EngineError::ClockOff, Unavailable, "CLOCK_OFF"),
    ];
    for (error, code, name) in cases {
        let status = of_engine(&error);
        assert_eq!(status.code(), code, "{error:?}");
        assert_eq!(reason(&status), name, "{error:?}");
        assert_eq!(status.message(), error.to_string());
    }
}

#[test]
fn a_forced_end_says_by_whom_and_why() {
    let status = of_engine(&ended(EndReason::Forced {
        by: "ann".into(),
        why: "wedged: grüße".into(),
    }));
    assert_eq!(reason(&status), "FORCED");
    assert_eq!(metadata(&status, "by").as_deref(), Some("ann"));
    assert_eq!(metadata(&status, "why").as_deref(), Some("wedged: grüße"));
    assert!(status.message().contains("ann"));
}

#[test]
fn a_write_that_may_have_taken_effect_says_so_and_no_other_call_does() {
    let expired = EndedAs::Lost(EndReason::Expired);
    let unknown = EngineError::WriteUnknown("no answer".into());
    for (status, name) in [
        (of_engine(&unknown), "OUTCOME_UNKNOWN"),
        (write_unknown(), "OUTCOME_UNKNOWN"),
        (late_write(), "OUTCOME_UNKNOWN"),
        (
            of_engine(&EngineError::EndedDuringWrite(expired)),
            "EXPIRED",
        ),
        (
            of_engine(&EngineError::SupersededDuringWrite),
            "GRANT_SUPERSEDED",
        ),
        // It may be a repeat of the one in flight.
        (of_engine(&EngineError::ReleasingDuringWrite), "RELEASING"),
    ] {
        assert_eq!(reason(&status), name);
        assert_eq!(metadata(&status, "write").as_deref(), Some("unknown"));
        assert_eq!(has_retry(&status), status.code() == Code::Unavailable);
    }
    let never_begun = of_engine(&EngineError::Unavailable("no majority".into()));
    for status in [
        never_begun,
        outcome_unknown(),
        of_engine(&EngineError::GrantSuperseded),
        of_engine(&EngineError::Releasing),
    ] {
        assert_eq!(metadata(&status, "write"), None);
    }
}

#[test]
fn what_may_be_repeated_says_when() {
    let of = |error| has_retry(&of_engine(&error));
    assert!(of(EngineError::Unavailable(String::new())) && of(EngineError::Stopping));
    assert!(has_retry(&outcome_unknown()));
    assert!(!of(EngineError::KeyUsedUp(String::new())) && !of(EngineError::NoGrant));
}

#[test]
fn a_limit_is_named_with_its_number() {
    let status = of_engine(&EngineError::Exhausted {
        what: "entries_per_key_max",
        limit: 10_000,
    });
    assert!(has_retry(&status));
    assert_eq!(
        metadata(&status, "limit").as_deref(),
        Some("limits.entries_per_key_max")
    );
    assert_eq!(metadata(&status, "max").as_deref(), Some("10000"));
    let details = status.get_error_details();
    let quota = details.quota_failure().unwrap();
    assert_eq!(quota.violations[0].subject, "entries_per_key_max");
    assert!(status.message().contains("10000"));
}

#[test]
fn a_field_that_cannot_be_used_is_named_with_its_limit() {
    for (problem, name) in [
        (FieldProblem::Missing, "MISSING"),
        (FieldProblem::Malformed("no".to_owned()), "MALFORMED"),
        (FieldProblem::Negative, "OUT_OF_RANGE"),
        (FieldProblem::Conflicting("no"), "CONFLICTING"),
    ] {
        let status: Status = Invalid {
            field: "key",
            problem,
        }
        .into();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(
            (reason(&status).as_str(), fields(&status)),
            (name, vec!["key".to_owned()])
        );
    }
    let status: Status = Invalid {
        field: "value",
        problem: FieldProblem::TooLarge {
            given: 11,
            unit: "bytes",
            max: 10,
            limit: "limits.value_bytes_max",
        },
    }
    .into();
    assert_eq!(reason(&status), "TOO_LARGE");
    assert_eq!(
        metadata(&status, "limit").as_deref(),
        Some("limits.value_bytes_max")
    );
    assert_eq!(metadata(&status, "max").as_deref(), Some("10"));
}

#[test]
fn an_error_of_one_lock_of_many_says_all_that_its_status_would() {
    let ended = of_engine(&ended(EndReason::Forced {
        by: "op".into(),
        why: "wedged".into(),
    }));
    let error = lock_error(&ended);
    assert_eq!(error.code, Code::FailedPrecondition as i32);
    assert_eq!(error.reason, "FORCED");
    assert_eq!(error.message, ended.message());
    let read = Status::with_details(Code::from_i32(error.code), error.message, error.details);
    assert_eq!(metadata(&read, "by").as_deref(), Some("op"));
    assert_eq!(metadata(&read, "why").as_deref(), Some("wedged"));
}
