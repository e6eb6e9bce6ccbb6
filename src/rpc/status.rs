//! The only place where gRPC status codes are chosen (design §8).
//!
//! Every status carries google.rpc.ErrorInfo with the domain [`DOMAIN`] and a reason that programs can
//! switch on; INVALID_ARGUMENT also google.rpc.BadRequest, RESOURCE_EXHAUSTED also
//! google.rpc.QuotaFailure, and what may be repeated google.rpc.RetryInfo.

use std::collections::HashMap;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{
    BadRequest, ErrorDetails, FieldViolation, QuotaFailure, QuotaViolation, StatusExt,
};

use super::parse::{Invalid, Problem};
use crate::engine::EngineError;
use crate::lock::{EndReason, Over};
use crate::proto;

/// The domain of every google.rpc.ErrorInfo sent by Fermata.
pub const DOMAIN: &str = "fermata.dev";

/// When to repeat a call whose outcome is unknown: at once, but not in a tight loop.
const RETRY_UNKNOWN: Duration = Duration::from_millis(50);
/// When to repeat a call that the store could not serve.
const RETRY_STORE: Duration = Duration::from_millis(250);
/// When to repeat a call on another replica.
const RETRY_ELSEWHERE: Duration = Duration::from_millis(50);
/// When to repeat a call that met a limit.
const RETRY_LIMIT: Duration = Duration::from_secs(1);

/// A status under construction: the code, the words, and the reason for programs.
struct Told {
    code: Code,
    message: String,
    reason: String,
    metadata: HashMap<String, String>,
    details: ErrorDetails,
}

impl Told {
    fn new(code: Code, message: impl Into<String>, reason: impl Into<String>) -> Told {
        Told {
            code,
            message: message.into(),
            reason: reason.into(),
            metadata: HashMap::new(),
            details: ErrorDetails::new(),
        }
    }

    fn with(mut self, name: &str, value: impl ToString) -> Told {
        self.metadata.insert(name.to_owned(), value.to_string());
        self
    }

    fn retry_after(mut self, delay: Duration) -> Told {
        self.details.set_retry_info(Some(delay));
        self
    }

    fn violation(mut self, field: impl Into<String>) -> Told {
        let violation = FieldViolation {
            reason: self.reason.clone(),
            ..FieldViolation::new(field, self.message.clone())
        };
        self.details
            .set_bad_request(BadRequest::new(vec![violation]).field_violations);
        self
    }

    fn quota(mut self, subject: &str) -> Told {
        let violation = QuotaViolation::new(subject, self.message.clone());
        self.details
            .set_quota_failure(QuotaFailure::new(vec![violation]).violations);
        self
    }

    fn status(mut self) -> Status {
        self.details
            .set_error_info(self.reason, DOMAIN, self.metadata);
        Status::with_error_details(self.code, self.message, self.details)
    }
}

/// What the engine answered instead of doing what it was asked.
pub fn of_engine(error: &EngineError) -> Status {
    let words = error.to_string();
    match error {
        EngineError::UnknownTable(table) => {
            Told::new(Code::NotFound, words, "UNKNOWN_TABLE").with("table", table)
        }
        EngineError::NeverIssued => Told::new(Code::NotFound, words, "NEVER_ISSUED"),
        EngineError::Over(over) => over_told(over, words),
        EngineError::OverDuringWrite(over) => over_told(over, words).with("write", "unknown"),
        EngineError::SessionOver => Told::new(
            Code::FailedPrecondition,
            words,
            end_name(proto::EndReason::SessionClosed),
        ),
        EngineError::GrantSuperseded => {
            Told::new(Code::FailedPrecondition, words, "GRANT_SUPERSEDED")
        }
        EngineError::SupersededDuringWrite => {
            Told::new(Code::FailedPrecondition, words, "GRANT_SUPERSEDED").with("write", "unknown")
        }
        EngineError::NoGrant => Told::new(Code::FailedPrecondition, words, "NO_GRANT"),
        EngineError::Releasing => Told::new(Code::FailedPrecondition, words, "RELEASING"),
        EngineError::ReleasingDuringWrite => {
            Told::new(Code::FailedPrecondition, words, "RELEASING").with("write", "unknown")
        }
        EngineError::CallNoNotAbove { given, last } => {
            Told::new(Code::FailedPrecondition, words, "CALL_NO_NOT_ABOVE")
                .with("given", given)
                .with("last", last)
        }
        EngineError::RequestMismatch { field } => {
            Told::new(Code::InvalidArgument, words, "REQUEST_MISMATCH").violation(*field)
        }
        EngineError::Exhausted { what, limit } => {
            Told::new(Code::ResourceExhausted, words, "LIMIT_REACHED")
                .with("limit", format!("limits.{what}"))
                .with("max", limit)
                .quota(what)
                .retry_after(RETRY_LIMIT)
        }
        // Not worth repeating soon: no RetryInfo.
        EngineError::KeyUsedUp(_) => {
            Told::new(Code::ResourceExhausted, words, "KEY_USED_UP").quota("fencing_tokens_of_key")
        }
        EngineError::Unavailable(_) | EngineError::CutOff => {
            Told::new(Code::Unavailable, words, "STORE_UNAVAILABLE").retry_after(RETRY_STORE)
        }
        EngineError::ClockOff(_) => {
            Told::new(Code::Unavailable, words, "CLOCK_OFF").retry_after(RETRY_STORE)
        }
        EngineError::WriteUnknown(_) => Told::new(Code::Unavailable, words, "OUTCOME_UNKNOWN")
            .with("write", "unknown")
            .retry_after(RETRY_STORE),
        EngineError::Elsewhere { .. } => {
            Told::new(Code::Unavailable, words, "ELSEWHERE").retry_after(RETRY_ELSEWHERE)
        }
        EngineError::Stopping => {
            Told::new(Code::Unavailable, words, "STOPPING").retry_after(RETRY_ELSEWHERE)
        }
    }
    .status()
}

/// A lockRef that is over.
fn over_told(over: &Over, words: String) -> Told {
    let told = Told::new(Code::FailedPrecondition, words, end_name(end_reason(over)));
    match over {
        Over::Ended(EndReason::Forced { by, why }) => told.with("by", by).with("why", why),
        Over::Released
        | Over::NoLongerKept
        | Over::Ended(
            EndReason::Expired
            | EndReason::SessionClosed
            | EndReason::Unclaimed
            | EndReason::Foreign,
        ) => told,
    }
}

/// How a lockRef ended, in the words of the contract.
pub fn end_reason(over: &Over) -> proto::EndReason {
    match over {
        Over::Released => proto::EndReason::Released,
        Over::NoLongerKept => proto::EndReason::NoLongerKept,
        Over::Ended(reason) => ended_reason(reason),
    }
}

/// The end of a place, in the words of the contract.
pub fn ended_reason(reason: &EndReason) -> proto::EndReason {
    match reason {
        EndReason::Expired => proto::EndReason::Expired,
        EndReason::SessionClosed => proto::EndReason::SessionClosed,
        EndReason::Unclaimed => proto::EndReason::Unclaimed,
        EndReason::Forced { .. } => proto::EndReason::Forced,
        EndReason::Foreign => proto::EndReason::Foreign,
    }
}

/// `END_REASON_EXPIRED` -> `EXPIRED`.
fn end_name(reason: proto::EndReason) -> &'static str {
    let name = reason.as_str_name();
    name.strip_prefix("END_REASON_").unwrap_or(name)
}

/// A field that cannot be used. Nothing was changed.
pub fn of_invalid(invalid: &Invalid) -> Status {
    let told = |reason| Told::new(Code::InvalidArgument, invalid.to_string(), reason);
    match &invalid.problem {
        Problem::Missing => told("MISSING"),
        Problem::TooLong { limit, max, .. } => {
            told("TOO_LARGE").with("limit", limit).with("max", max)
        }
        Problem::Negative => told("OUT_OF_RANGE"),
        Problem::TtlOutOfRange { min_ms, max_ms, .. } => told("OUT_OF_RANGE")
            .with("min_ms", min_ms)
            .with("max_ms", max_ms),
        Problem::GraceOutOfRange { min_ms, ttl_ms, .. } => told("OUT_OF_RANGE")
            .with("min_ms", min_ms)
            .with("max_ms", ttl_ms),
        Problem::Table(_)
        | Problem::LockRef(_)
        | Problem::Control { .. }
        | Problem::NotUuid
        | Problem::ConstantUuid
        | Problem::NotASession
        | Problem::Duration
        | Problem::UnknownMode(_)
        | Problem::PageToken => told("MALFORMED"),
        Problem::TogetherWith(_) | Problem::DeleteWithValue => told("CONFLICTING"),
    }
    .violation(invalid.field)
    .status()
}

impl From<Invalid> for Status {
    fn from(invalid: Invalid) -> Status {
        of_invalid(&invalid)
    }
}

/// A message that is no protobuf of its type. prost says where, innermost first:
/// `failed to decode Protobuf message: Mutation.value: ReleaseLockRequest.put: <what>`.
pub fn of_undecodable(error: &prost::DecodeError) -> Status {
    let text = error.to_string();
    let text = text
        .strip_prefix("failed to decode Protobuf message: ")
        .unwrap_or(&text);
    let mut fields = Vec::new();
    let mut what = text;
    while let Some((place, rest)) = what.split_once(": ") {
        match place.split_once('.') {
            Some((message, field)) if is_name(message) && is_name(field) => fields.push(field),
            Some(_) | None => break,
        }
        what = rest;
    }
    fields.reverse();
    let field = fields.join(".");
    let words = if field.is_empty() {
        format!("the message cannot be decoded: {what}")
    } else {
        format!("{field}: cannot be decoded: {what}")
    };
    Told::new(Code::InvalidArgument, words, "MALFORMED")
        .violation(field)
        .status()
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// The deadline is there and the outcome is not known.
pub fn outcome_unknown() -> Status {
    Told::new(
        Code::Unavailable,
        "the outcome is not known at the deadline of this call; it is safe to repeat (a create with the \
         same request_id)",
        "OUTCOME_UNKNOWN",
    )
    .retry_after(RETRY_UNKNOWN)
    .status()
}

/// The same of a call that writes.
pub fn late_write() -> Status {
    Told::new(
        Code::Unavailable,
        "whether the value was written is not known at the deadline of this call; write it again before reading",
        "OUTCOME_UNKNOWN",
    )
    .with("write", "unknown")
    .retry_after(RETRY_UNKNOWN)
    .status()
}

/// A write was passed on to the replica that has the lockRef, and nothing came back.
pub fn write_unknown() -> Status {
    Told::new(
        Code::Unavailable,
        "the replica that has this lockRef gave no answer: whether the value was written is not known; write \
         it again before reading",
        "OUTCOME_UNKNOWN",
    )
    .with("write", "unknown")
    .retry_after(RETRY_UNKNOWN)
    .status()
}

/// The replicas do not agree yet which of them has what was asked for.
pub fn unsettled() -> Status {
    Told::new(
        Code::Unavailable,
        "the replicas do not agree yet on which of them has this",
        "ELSEWHERE",
    )
    .retry_after(RETRY_ELSEWHERE)
    .status()
}

/// The caller is no replica of this service.
pub fn no_peer() -> Status {
    Told::new(
        Code::Unauthenticated,
        "this address is for replicas that know the secret of this service (peers.secret_file)",
        "NO_PEER",
    )
    .status()
}

/// The message of a call did not come in.
pub fn message_late() -> Status {
    Told::new(
        Code::Unavailable,
        "the message of this call did not arrive within its deadline, or limits.call_max_ms; nothing was \
         done",
        "MESSAGE_LATE",
    )
    .retry_after(RETRY_UNKNOWN)
    .status()
}

/// The deadline of a call that changes nothing and is not ours (health, reflection).
pub fn deadline_exceeded() -> Status {
    Told::new(
        Code::DeadlineExceeded,
        "the deadline of this call is over",
        "DEADLINE",
    )
    .status()
}

/// This replica stops; the stream that was open is to be opened elsewhere.
pub fn stopping() -> Status {
    of_engine(&EngineError::Stopping)
}

/// A status that tonic made before any handler of ours saw the request, in the terms of the contract.
/// `None`: it may stay as it is (an unknown method, an encoding that is not enabled, …).
pub fn of_library(code: Code, message: &str, message_bytes_max: usize) -> Option<Status> {
    // What tonic writes is in its src/codec/decode.rs and src/server/grpc.rs; a test sends each.
    match code {
        Code::OutOfRange if message.contains("message length too large") => Some(
            Told::new(
                Code::InvalidArgument,
                format!(
                    "the message is larger than limits.message_bytes_max, {message_bytes_max} bytes"
                ),
                "TOO_LARGE",
            )
            .with("limit", "limits.message_bytes_max")
            .with("max", message_bytes_max)
            .violation("")
            .status(),
        ),
        Code::Internal
            if message.contains("Missing request message")
                || message.contains("Unexpected EOF decoding stream")
                || message.contains("invalid compression flag")
                || message.contains("compressed-flag") =>
        {
            Some(
                Told::new(
                    Code::InvalidArgument,
                    format!("the message cannot be read: {message}"),
                    "MALFORMED",
                )
                .violation("")
                .status(),
            )
        }
        Code::Cancelled if message == "Timeout expired" => Some(outcome_unknown()),
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::InvalidArgument
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss
        | Code::Unauthenticated => None,
    }
}

#[cfg(test)]
#[path = "status_test.rs"]
mod tests;
