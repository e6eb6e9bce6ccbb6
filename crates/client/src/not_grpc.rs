//! Answers that are not gRPC: the page of a proxy whose server is down, of a web server, or an answer that was cut off on
//! its way. tonic tells them by words alone, and gives them codes that no call would be repeated for.

use std::sync::Arc;

use tonic::codegen::http::StatusCode;
use tonic::{Code, Status};

/// Before the HTTP status in the words of tonic (its src/codec/decode.rs and src/status.rs; a test sends each).
const BEFORE_HTTP_STATUS: [&str; 2] = [
    "mapped from HTTP status code ",
    "while receiving response with status: ",
];
/// Its words for what was cut off after HTTP status 200.
const CUT_OFF: [&str; 2] = ["missing grpc-status trailer", "Unexpected EOF decoding"];

/// The source of a status that was made of such an answer.
#[derive(Debug, thiserror::Error)]
#[error("{words}")]
pub(super) struct NotGrpc {
    words: String,
    http: StatusCode,
}

impl NotGrpc {
    /// Whether it is about the call itself, and not about what is behind the proxy now.
    pub(super) fn is_about_the_call(status: &Status) -> bool {
        let answered = std::error::Error::source(status).and_then(|cause| cause.downcast_ref());
        answered.is_some_and(|NotGrpc { http, .. }| !is_outage(*http))
    }
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

/// What an answer that is not gRPC means; any other status stays as it is. UNAVAILABLE, since another attempt, or another
/// endpoint, may reach a server; but what a proxy refuses for its sender or its size is refused.
pub(super) fn of_answer(status: Status) -> Status {
    let Some(http) = http_status(&status) else {
        return status;
    };
    let answered = format!("a proxy answered {http}");
    let (code, words) = match http {
        StatusCode::UNAUTHORIZED => (Code::Unauthenticated, answered),
        StatusCode::FORBIDDEN => (Code::PermissionDenied, answered),
        StatusCode::PAYLOAD_TOO_LARGE => (
            Code::ResourceExhausted,
            format!("{answered}: it takes no message as large as this (client_max_body_size of nginx)"),
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
