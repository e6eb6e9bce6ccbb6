//! Answers that are not gRPC: the page of a proxy whose server is down, the page of a web server, a truncated answer. tonic
//! distinguishes them only by words, and gives them status codes that are not repeated.

use std::sync::Arc;

use tonic::codegen::http::StatusCode;
use tonic::{Code, Status};

/// The words of tonic before the HTTP status (its src/codec/decode.rs and src/status.rs; a test sends each).
const BEFORE_HTTP_STATUS: [&str; 2] = [
    "mapped from HTTP status code ",
    "while receiving response with status: ",
];
/// The words of tonic for an answer that was truncated after HTTP status 200.
const CUT_OFF: [&str; 2] = ["missing grpc-status trailer", "Unexpected EOF decoding"];

/// The source of a status in place of such an answer.
#[derive(Debug, thiserror::Error)]
#[error("{words}")]
pub(crate) struct NotGrpc {
    words: String,
    http: StatusCode,
}

impl NotGrpc {
    fn of(status: &Status) -> Option<&NotGrpc> {
        std::error::Error::source(status)?.downcast_ref()
    }

    /// Whether the answer is about the call itself, and not about the state of the servers behind the proxy.
    pub(crate) fn is_about_the_call(status: &Status) -> bool {
        NotGrpc::of(status).is_some_and(|answer| !is_outage(answer.http))
    }

    /// Whether a proxy refused the call for its sender or its size, and so passed nothing on.
    pub(crate) fn is_refusal(status: &Status) -> bool {
        NotGrpc::of(status).is_some_and(|answer| {
            is_refused_by_headers(answer.http) || answer.http == StatusCode::PAYLOAD_TOO_LARGE
        })
    }

    /// Whether a proxy refused a stream for its sender. (A stream may be refused for its size after a part of it was passed on.)
    pub(crate) fn is_refusal_of_stream(status: &Status) -> bool {
        NotGrpc::of(status).is_some_and(|answer| is_refused_by_headers(answer.http))
    }
}

/// By its headers, before anything else of the call was read.
fn is_refused_by_headers(http: StatusCode) -> bool {
    matches!(
        http,
        StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
    )
}

/// By the mapping of HTTP to gRPC: UNAVAILABLE.
fn is_outage(http: StatusCode) -> bool {
    matches!(
        http,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

/// The status for an answer that is not gRPC; any other status stays as it is. It is UNAVAILABLE, since another attempt, or
/// another endpoint, may reach a server. A refusal of a proxy for the sender or the size of the call stays a refusal.
pub(crate) fn of_answer(status: Status) -> Status {
    let Some(http) = http_status(&status) else {
        return status;
    };
    let answered = format!("a proxy answered {http}");
    let (code, words) = match http {
        StatusCode::UNAUTHORIZED => (Code::Unauthenticated, answered),
        StatusCode::FORBIDDEN => (Code::PermissionDenied, answered),
        StatusCode::PAYLOAD_TOO_LARGE => (
            Code::ResourceExhausted,
            format!("{answered}: the message is larger than its limit (client_max_body_size of nginx)"),
        ),
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => (
            Code::ResourceExhausted,
            "the metadata of the call is too large: a server takes 16 KiB, a proxy may take less (HTTP status 431)"
                .to_owned(),
        ),
        StatusCode::OK => (
            Code::Unavailable,
            "the answer is not gRPC, or was cut off by a proxy".to_owned(),
        ),
        _ => (Code::Unavailable, answered),
    };
    let mut mapped = Status::new(code, words.clone());
    mapped.set_source(Arc::new(NotGrpc { words, http }));
    mapped
}

/// The HTTP status of an answer that is not gRPC. (A server of ours sends details.)
fn http_status(status: &Status) -> Option<StatusCode> {
    if !status.details().is_empty() {
        return None;
    }
    let words = status.message();
    if CUT_OFF.iter().any(|cut_off| words.contains(cut_off)) {
        return Some(StatusCode::OK);
    }
    let after = |before| Some(words.split_once(before)?.1);
    let http = BEFORE_HTTP_STATUS
        .iter()
        .find_map(|before| after(*before))?;
    http.get(..3)?.parse().ok()
}
