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
    let cases = [
        (
            EngineError::UnknownTable("t".into()),
            Code::NotFound,
            "UNKNOWN_TABLE",
        ),
        (EngineError::NeverIssued, Code::NotFound, "NEVER_ISSUED"),
        (
            EngineError::Ended(EndedAs::Released),
            Code::FailedPrecondition,
            "RELEASED",
        ),
        (
            EngineError::Ended(EndedAs::NoLongerKept),
            Code::FailedPrecondition,
            "NO_LONGER_KEPT",
        ),
        (
            ended(EndReason::Expired),
            Code::FailedPrecondition,
            "EXPIRED",
        ),
        (
            ended(EndReason::SessionClosed),
            Code::FailedPrecondition,
            "SESSION_CLOSED",
        ),
        (
            ended(EndReason::Unclaimed),
            Code::FailedPrecondition,
            "UNCLAIMED",
        ),
        (
            EngineError::SessionEnded,
            Code::FailedPrecondition,
            "SESSION_CLOSED",
        ),
        (
            EngineError::GrantSuperseded,
            Code::FailedPrecondition,
            "GRANT_SUPERSEDED",
        ),
        (EngineError::NoGrant, Code::FailedPrecondition, "NO_GRANT"),
        (
            EngineError::Releasing,
            Code::FailedPrecondition,
            "RELEASING",
        ),
        (
            EngineError::CallNoNotAbove { given: 1, last: 2 },
            Code::FailedPrecondition,
            "CALL_NO_NOT_ABOVE",
        ),
        (
            EngineError::RequestMismatch { field: "ttl" },
            Code::InvalidArgument,
            "REQUEST_MISMATCH",
        ),
        (
            EngineError::Exhausted {
                what: "sessions_max",
                limit: 5,
            },
            Code::ResourceExhausted,
            "LIMIT_REACHED",
        ),
        (
            EngineError::ShareUsed {
                what: "sessions_max",
                share: 1,
            },
            Code::ResourceExhausted,
            "LIMIT_REACHED",
        ),
        (
            EngineError::KeyUsedUp("no more".into()),
            Code::ResourceExhausted,
            "KEY_USED_UP",
        ),
        (
            EngineError::Unavailable("no majority".into()),
            Code::Unavailable,
            "STORE_UNAVAILABLE",
        ),
        (
            EngineError::WriteUnknown("no answer".into()),
            Code::Unavailable,
            "OUTCOME_UNKNOWN",
        ),
        (EngineError::Fenced, Code::Unavailable, "STORE_UNAVAILABLE"),
        (EngineError::Stopping, Code::Unavailable, "STOPPING"),
        (EngineError::ClockOff, Code::Unavailable, "CLOCK_OFF"),
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
fn an_end_during_a_write_says_that_the_write_is_unknown() {
    let status = of_engine(&EngineError::EndedDuringWrite(EndedAs::Lost(
        EndReason::Expired,
    )));
    assert_eq!(reason(&status), "EXPIRED");
    assert_eq!(metadata(&status, "write").as_deref(), Some("unknown"));
}

#[test]
fn a_grant_that_was_superseded_during_a_write_says_that_the_write_is_unknown() {
    let status = of_engine(&EngineError::SupersededDuringWrite);
    assert_eq!(reason(&status), "GRANT_SUPERSEDED");
    assert_eq!(metadata(&status, "write").as_deref(), Some("unknown"));
    assert_eq!(
        metadata(&of_engine(&EngineError::GrantSuperseded), "write"),
        None
    );
}

#[test]
fn a_release_that_may_be_a_repeat_of_the_one_in_flight_says_that_its_write_is_unknown() {
    let status = of_engine(&EngineError::ReleasingDuringWrite);
    assert_eq!(reason(&status), "RELEASING");
    assert_eq!(metadata(&status, "write").as_deref(), Some("unknown"));
    let plain = of_engine(&EngineError::Releasing);
    assert_eq!(metadata(&plain, "write"), None);
}

#[test]
fn a_write_that_may_have_taken_effect_says_so_and_no_other_call_does() {
    let lost = of_engine(&EngineError::WriteUnknown("no answer".into()));
    for status in [lost, write_unknown(), late_write()] {
        assert_eq!(metadata(&status, "write").as_deref(), Some("unknown"));
        assert!(has_retry(&status));
    }
    let never_begun = of_engine(&EngineError::Unavailable("no majority".into()));
    for status in [never_begun, outcome_unknown()] {
        assert_eq!(metadata(&status, "write"), None);
    }
}

#[test]
fn what_may_be_repeated_says_when() {
    assert!(has_retry(&of_engine(&EngineError::Unavailable(
        String::new()
    ))));
    assert!(has_retry(&of_engine(&EngineError::Stopping)));
    assert!(has_retry(&outcome_unknown()));
    assert!(!has_retry(&of_engine(&EngineError::KeyUsedUp(
        String::new()
    ))));
    assert!(!has_retry(&of_engine(&EngineError::NoGrant)));
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
