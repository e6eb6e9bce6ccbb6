//! Chooses the gRPC status codes. The one exception: [`fermata_proto::codec`] chooses the code for a message that cannot be decoded.
//!
//! Every status carries google.rpc.ErrorInfo with the domain [`DOMAIN`] and a reason that programs can switch on. INVALID_ARGUMENT
//! also carries google.rpc.BadRequest, and RESOURCE_EXHAUSTED google.rpc.QuotaFailure. A status of a call that may be repeated
//! carries google.rpc.RetryInfo.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use fermata_proto::{self as proto, DOMAIN};
use http::HeaderMap;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};
use tonic_types::{
    BadRequest, ErrorDetails, FieldViolation, QuotaFailure, QuotaViolation, StatusExt,
};

use super::parse::{FieldProblem, Invalid};
use crate::access::{LoginRefused, Scope, Verbs};
use crate::engine::EngineError;
use crate::lock::{EndReason, EndedAs};

/// When to repeat a call at once, but not in a tight loop: its outcome is unknown, or another replica serves it.
const RETRY_SOON: Duration = Duration::from_millis(50);
/// When to repeat a call that the store could not serve.
const RETRY_STORE: Duration = Duration::from_millis(250);
/// When to repeat a call that met a limit.
const RETRY_LIMIT: Duration = Duration::from_secs(1);

/// Words of the library about a message that it cannot read.
const UNREADABLE: [&str; 4] = [
    "Missing request message",
    "Unexpected EOF decoding stream",
    "invalid compression flag",
    "compressed-flag",
];

/// A status under construction: the code, the words, and the reason for programs.
struct StatusBuilder {
    code: Code,
    message: String,
    reason: String,
    metadata: HashMap<String, String>,
    details: ErrorDetails,
}

impl StatusBuilder {
    fn new(code: Code, message: impl Into<String>, reason: impl Into<String>) -> StatusBuilder {
        StatusBuilder {
            code,
            message: message.into(),
            reason: reason.into(),
            metadata: HashMap::new(),
            details: ErrorDetails::new(),
        }
    }

    fn with(mut self, name: &str, value: impl ToString) -> StatusBuilder {
        self.metadata.insert(name.to_owned(), value.to_string());
        self
    }

    /// What became of the call is not known.
    fn unknown(words: &str) -> StatusBuilder {
        StatusBuilder::new(Code::Unavailable, words, "OUTCOME_UNKNOWN").retry_after(RETRY_SOON)
    }

    /// What became of the value that the call writes is not known.
    fn write_unknown(self) -> StatusBuilder {
        self.with("write", "unknown")
    }

    /// A limit without a setting was met.
    fn limit(words: impl Into<String>, limit: &str, max: usize) -> StatusBuilder {
        StatusBuilder::new(Code::ResourceExhausted, words, "LIMIT_REACHED")
            .with("limit", limit)
            .with("max", max)
            .retry_after(RETRY_LIMIT)
    }

    fn retry_after(mut self, delay: Duration) -> StatusBuilder {
        self.details.set_retry_info(Some(delay));
        self
    }

    fn violation(mut self, field: impl Into<String>) -> StatusBuilder {
        let violation = FieldViolation {
            reason: self.reason.clone(),
            ..FieldViolation::new(field, self.message.clone())
        };
        self.details
            .set_bad_request(BadRequest::new(vec![violation]).field_violations);
        self
    }

    fn quota(mut self, subject: &str) -> StatusBuilder {
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

/// The status of an error of the engine.
pub fn of_engine(error: &EngineError) -> Status {
    let words = error.to_string();
    let failed = |words, reason| StatusBuilder::new(Code::FailedPrecondition, words, reason);
    match error {
        EngineError::UnknownTable(table) => {
            StatusBuilder::new(Code::NotFound, words, "UNKNOWN_TABLE").with("table", table)
        }
        EngineError::NeverIssued => StatusBuilder::new(Code::NotFound, words, "NEVER_ISSUED"),
        EngineError::Ended(ended) => ended_status(ended, words),
        EngineError::EndedDuringWrite(ended) => ended_status(ended, words).write_unknown(),
        EngineError::SessionEnded => failed(words, end_name(proto::EndReason::SessionClosed)),
        EngineError::GrantSuperseded => failed(words, "GRANT_SUPERSEDED"),
        EngineError::SupersededDuringWrite => failed(words, "GRANT_SUPERSEDED").write_unknown(),
        EngineError::NoGrant => failed(words, "NO_GRANT"),
        EngineError::Releasing => failed(words, "RELEASING"),
        EngineError::ReleasingDuringWrite => failed(words, "RELEASING").write_unknown(),
        EngineError::CallNoNotAbove { given, last } => failed(words, "CALL_NO_NOT_ABOVE")
            .with("given", given)
            .with("last", last),
        EngineError::RequestMismatch { field } => {
            StatusBuilder::new(Code::InvalidArgument, words, "REQUEST_MISMATCH").violation(*field)
        }
        EngineError::NotInProtocol { protocol, .. } => {
            failed(words, "NOT_IN_PROTOCOL").with("protocol", protocol)
        }
        EngineError::RowBusy { retries } => StatusBuilder::new(Code::Aborted, words, "ROW_BUSY")
            .with("retries", retries)
            .retry_after(RETRY_STORE),
        EngineError::StaleLock { column } => failed(words, "STALE_LOCK").with("column", column),
        EngineError::Exhausted { what, limit } => {
            StatusBuilder::new(Code::ResourceExhausted, words, "LIMIT_REACHED")
                .with("limit", format!("limits.{what}"))
                .with("max", limit)
                .quota(what)
                .retry_after(RETRY_LIMIT)
        }
        EngineError::ShareUsed { what, share } => {
            StatusBuilder::new(Code::ResourceExhausted, words, "LIMIT_REACHED")
                .with("limit", format!("limits.{what}"))
                .with("share", share)
                .quota(what)
                .retry_after(RETRY_LIMIT)
        }
        EngineError::Overloaded { again_after } => {
            StatusBuilder::new(Code::ResourceExhausted, words, "OVERLOADED")
                .quota("begun_calls")
                .retry_after(*again_after)
        }
        // Not worth repeating soon: no RetryInfo.
        EngineError::KeyUsedUp(_) => {
            StatusBuilder::new(Code::ResourceExhausted, words, "KEY_USED_UP")
                .quota("fencing_tokens_of_key")
        }
        EngineError::Unavailable(_) | EngineError::Silent | EngineError::Fenced => {
            StatusBuilder::new(Code::Unavailable, words, "STORE_UNAVAILABLE")
                .retry_after(RETRY_STORE)
        }
        EngineError::ClockOff => {
            StatusBuilder::new(Code::Unavailable, words, "CLOCK_OFF").retry_after(RETRY_STORE)
        }
        EngineError::WriteUnknown(_) => {
            StatusBuilder::new(Code::Unavailable, words, "OUTCOME_UNKNOWN")
                .write_unknown()
                .retry_after(RETRY_STORE)
        }
        EngineError::Elsewhere { .. } => {
            StatusBuilder::new(Code::Unavailable, words, "ELSEWHERE").retry_after(RETRY_SOON)
        }
        EngineError::Stopping => {
            StatusBuilder::new(Code::Unavailable, words, "STOPPING").retry_after(RETRY_SOON)
        }
    }
    .status()
}

/// A lockRef that has ended.
fn ended_status(ended: &EndedAs, words: String) -> StatusBuilder {
    let builder = StatusBuilder::new(Code::FailedPrecondition, words, end_name(end_reason(ended)));
    match ended {
        EndedAs::Lost(EndReason::Forced { by, why }) => builder.with("by", by).with("why", why),
        EndedAs::Released
        | EndedAs::NoLongerKept
        | EndedAs::Lost(EndReason::Expired | EndReason::SessionClosed | EndReason::Unclaimed) => {
            builder
        }
    }
}

/// How a lockRef ended, in the words of the contract.
pub fn end_reason(ended: &EndedAs) -> proto::EndReason {
    match ended {
        EndedAs::Released => proto::EndReason::Released,
        EndedAs::NoLongerKept => proto::EndReason::NoLongerKept,
        EndedAs::Lost(reason) => ended_reason(reason),
    }
}

/// The end of an entry, in the words of the contract.
pub fn ended_reason(reason: &EndReason) -> proto::EndReason {
    match reason {
        EndReason::Expired => proto::EndReason::Expired,
        EndReason::SessionClosed => proto::EndReason::SessionClosed,
        EndReason::Unclaimed => proto::EndReason::Unclaimed,
        EndReason::Forced { .. } => proto::EndReason::Forced,
    }
}

/// `END_REASON_EXPIRED` -> `EXPIRED`.
fn end_name(reason: proto::EndReason) -> &'static str {
    let name = reason.as_str_name();
    name.strip_prefix("END_REASON_").unwrap_or(name)
}

/// The login was refused. Nothing was done.
pub fn of_login(why: LoginRefused) -> Status {
    let reason = match why {
        LoginRefused::Missing => "LOGIN_MISSING",
        LoginRefused::UnknownToken | LoginRefused::Unnamed | LoginRefused::Malformed => {
            "LOGIN_REFUSED"
        }
    };
    StatusBuilder::new(Code::Unauthenticated, why.to_string(), reason).status()
}

/// The login of this call or stream is no longer valid. The client may go on with another token.
pub fn login_ended(why: LoginRefused) -> Status {
    let words = format!("{why}; repeat the call, on a new stream");
    StatusBuilder::new(Code::Unavailable, words, "LOGIN_ENDED")
        .retry_after(RETRY_SOON)
        .status()
}

/// No rule allows this. Nothing was done.
pub fn denied(identity: &str, ways: &[Verbs], scope: Scope<'_>) -> Status {
    let who = match identity {
        "" => "a caller without identity",
        identity => identity,
    };
    let what = match scope {
        Scope::Key(id) => format!(
            "on the key {:?} of the table {:?}",
            id.key.as_str(),
            id.table.as_str()
        ),
        Scope::Prefix(table, "") => format!("on all keys of the table {:?}", table.as_str()),
        Scope::Prefix(table, prefix) => {
            format!(
                "on all keys of the table {:?} that begin with {prefix:?}",
                table.as_str()
            )
        }
        Scope::Own => "anywhere".to_owned(),
        Scope::Everything => "on everything".to_owned(),
    };
    let verbs: Vec<String> = ways.iter().copied().map(Verbs::names).collect();
    let words = format!("no rule allows {who} to {} {what}", verbs.join(" or to "));
    StatusBuilder::new(Code::PermissionDenied, words, "NOT_ALLOWED")
        .with("verbs", verbs.join("|"))
        .status()
}

/// A field that cannot be used. Nothing was changed.
pub fn of_invalid(invalid: &Invalid) -> Status {
    let builder = |reason| StatusBuilder::new(Code::InvalidArgument, invalid.to_string(), reason);
    match &invalid.problem {
        FieldProblem::Missing => builder("MISSING"),
        FieldProblem::TooLarge { limit, max, .. } => {
            builder("TOO_LARGE").with("limit", limit).with("max", max)
        }
        FieldProblem::Negative => builder("OUT_OF_RANGE"),
        FieldProblem::OutOfRange { min_ms, max_ms, .. } => builder("OUT_OF_RANGE")
            .with("min_ms", min_ms)
            .with("max_ms", max_ms),
        FieldProblem::Malformed(_) => builder("MALFORMED"),
        FieldProblem::Conflicting(_) => builder("CONFLICTING"),
    }
    .violation(invalid.field)
    .status()
}

impl From<Invalid> for Status {
    fn from(invalid: Invalid) -> Status {
        of_invalid(&invalid)
    }
}

/// The same status as a part of an answer.
pub fn lock_error(status: &Status) -> proto::LockError {
    let details = status.get_error_details();
    let reason = details.error_info().map(|info| info.reason.clone());
    proto::LockError {
        code: status.code().into(),
        message: status.message().to_owned(),
        reason: reason.unwrap_or_default(),
        details: Bytes::copy_from_slice(status.details()),
    }
}

/// The deadline passed, and the outcome is not known.
pub fn outcome_unknown() -> Status {
    StatusBuilder::unknown(
        "the deadline passed before the outcome was known; the call can be repeated safely (a create with the same \
         request_id)",
    )
    .status()
}

/// A replica that was asked did not answer, and no other one could do it.
pub fn not_heard() -> Status {
    StatusBuilder::unknown(
        "the replica that received this call did not answer, and may have done it; the call can be repeated safely (a create \
         with the same request_id)",
    )
    .status()
}

/// As [`outcome_unknown`], of a call that writes.
pub fn late_write() -> Status {
    StatusBuilder::unknown(
        "the deadline passed; it is unknown whether the value was written, so write it again before reading",
    )
    .write_unknown()
    .status()
}

/// The outcome of a call that was begun is not known.
pub fn late(writes: bool) -> Status {
    match writes {
        true => late_write(),
        false => outcome_unknown(),
    }
}

/// A write was passed on to the replica that has the lockRef, and nothing came back.
pub fn write_unknown() -> Status {
    StatusBuilder::unknown(
        "the home of this lockRef did not answer; it is unknown whether the value was written, so write it again before reading",
    )
    .write_unknown()
    .status()
}

/// The replicas do not agree yet on the home.
pub fn unsettled() -> Status {
    let words = "the replicas do not agree yet on the home; repeat the call";
    let unsettled = StatusBuilder::new(Code::Unavailable, words, "ELSEWHERE");
    unsettled.retry_after(RETRY_SOON).status()
}

/// The caller is no replica of this service.
pub fn no_peer() -> Status {
    let words = "this address serves only replicas that present the secret of this service (peers.secret_file)";
    StatusBuilder::new(Code::Unauthenticated, words, "NO_PEER").status()
}

/// The message of a call did not come in.
pub fn message_late() -> Status {
    let words = "this call did not arrive or begin within its deadline or limits.call_max_ms; nothing was done";
    let late = StatusBuilder::new(Code::Unavailable, words, "MESSAGE_LATE");
    late.retry_after(RETRY_SOON).status()
}

/// The deadline of a call that changes nothing and is not ours (health, reflection).
pub fn deadline_exceeded() -> Status {
    let words = "the deadline of this call passed";
    StatusBuilder::new(Code::DeadlineExceeded, words, "DEADLINE").status()
}

/// This replica stops; the stream is to be opened elsewhere.
pub fn stopping() -> Status {
    of_engine(&EngineError::Stopping)
}

/// The client of a call of a Pipeline gave it up.
pub fn given_up() -> Status {
    let words = "the client gave this call up before it was begun";
    StatusBuilder::new(Code::Cancelled, words, "GIVEN_UP").status()
}

/// The same for a call that was begun: its change may go on.
pub fn given_up_begun(writes: bool) -> Status {
    let words = "the client gave this call up; it may have been done, or may still be done";
    let given_up = StatusBuilder::new(Code::Cancelled, words, "GIVEN_UP");
    match writes {
        true => given_up.write_unknown().status(),
        false => given_up.status(),
    }
}

/// Too many calls of one Pipeline wait for locks.
pub fn too_many_waits(max: usize) -> Status {
    let words = format!(
        "{max} calls of this Pipeline already wait for locks, the limit; call AcquireLock outside of the Pipeline"
    );
    StatusBuilder::limit(words, "waits of a Pipeline", max).status()
}

/// A backup is being made.
pub fn one_backup() -> Status {
    let words = "another backup is being made; repeat after its end";
    StatusBuilder::limit(words, "backups at once", 1).status()
}

/// The store makes no backups.
pub fn no_backups() -> Status {
    let words = "this store makes no backups: only the embedded store does";
    StatusBuilder::new(Code::FailedPrecondition, words, "NO_BACKUPS").status()
}

/// A call is refused because too much is in flight.
pub fn overloaded(again_after: Duration) -> Status {
    of_engine(&EngineError::Overloaded { again_after })
}

/// The connection of a call has no room for its message or answer. Nothing was done.
pub fn no_room() -> Status {
    StatusBuilder::new(
        Code::ResourceExhausted,
        "messages and unread answers of this connection fill limits.connection_bytes_max; nothing was done. Read the \
         answers, or send less at once",
        "LIMIT_REACHED",
    )
    .with("limit", "limits.connection_bytes_max")
    .quota("connection_bytes_max")
    .retry_after(RETRY_LIMIT)
    .status()
}

/// The connection of a call has no room for its answer, and something was done.
pub fn answer_lost() -> Status {
    StatusBuilder::unknown(
        "unread answers of this connection fill limits.connection_bytes_max, so the answer of this call was dropped. \
         Read the answers, and repeat the call (a create with the same request_id)",
    )
    .with("limit", "limits.connection_bytes_max")
    .retry_after(RETRY_LIMIT)
    .status()
}

/// A call that takes one message got more.
pub fn second_message() -> Status {
    let words = "this call takes one message, but got a second one";
    let malformed = StatusBuilder::new(Code::InvalidArgument, words, "MALFORMED");
    malformed.violation("").status()
}

/// The reason of a status: that of the contract, or its code, `DEADLINE_EXCEEDED`.
pub fn reason(status: &Status) -> String {
    if let Some(info) = status.get_details_error_info() {
        return info.reason;
    }
    let mut name = String::new();
    for letter in format!("{:?}", status.code()).chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// The reason of an answer with these headers; `None` if it is no failure.
pub fn reason_of(headers: &HeaderMap) -> Option<String> {
    let status = Status::from_header_map(headers)?;
    (status.code() != Code::Ok).then(|| reason(&status))
}

/// A status that tonic made before any handler of ours saw the request, in the terms of the contract.
/// `None`: it may stay as it is (an unknown method, an encoding that is not enabled, …).
pub fn of_library(code: Code, message: &str, message_bytes_max: usize) -> Option<Status> {
    // What tonic writes is in its src/codec/decode.rs and src/server/grpc.rs; a test sends each.
    match code {
        Code::OutOfRange if message.contains("message length too large") => {
            let (limit, max) = ("limits.message_bytes_max", message_bytes_max);
            let words = format!("the message is larger than {limit}, {max} bytes");
            let too_large = StatusBuilder::new(Code::InvalidArgument, words, "TOO_LARGE");
            let too_large = too_large.with("limit", limit).with("max", max);
            Some(too_large.violation("").status())
        }
        Code::Internal if UNREADABLE.iter().any(|words| message.contains(words)) => {
            let words = format!("the message cannot be read: {message}");
            let malformed = StatusBuilder::new(Code::InvalidArgument, words, "MALFORMED");
            Some(malformed.violation("").status())
        }
        Code::Cancelled if message == "Timeout expired" => Some(outcome_unknown()),
        Code::Unimplemented if message.contains("Content is compressed") => {
            let words = format!("{message}: send it without compression");
            let mut status = StatusBuilder::new(code, words, "COMPRESSED").status();
            let accepted = MetadataValue::from_static("identity");
            status
                .metadata_mut()
                .insert("grpc-accept-encoding", accepted);
            Some(status)
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "status_test.rs"]
mod tests;
