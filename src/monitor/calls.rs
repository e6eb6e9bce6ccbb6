//! Calls of LockAdmin as JSON, by the descriptors that reflection shows. Each is a call over a connection of this process, with the
//! login of its caller: the server checks, limits, counts and audits it as any other.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::header::AUTHORIZATION;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, StatusCode};
use prost::Message as _;
use prost_reflect::{DescriptorError, DescriptorPool, DynamicMessage, MessageDescriptor};
use serde_json::json;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::{Code, Extensions, Request, Status};
use tonic_types::StatusExt as _;

use crate::access::Origin;
use crate::server::{LOCAL_ANSWER_BYTES_MAX, LocalDialer};

const SERVICE: &str = "fermata.v1.LockAdmin";

/// The methods that the page calls. Backups and the filter of the log are for commands.
const METHODS: [&str; 8] = [
    "DescribeActivity",
    "DescribeLock",
    "EndSession",
    "ForceRelease",
    "ListLocks",
    "ListReplicas",
    "ListSessions",
    "ListTables",
];

/// The time for an answer: within that of the connection that asks for it.
const CALL_WITHIN: Duration = Duration::from_secs(20);

/// The methods that can be called.
pub struct Calls {
    methods: BTreeMap<&'static str, Method>,
    dialer: LocalDialer,
}

#[derive(Clone)]
struct Method {
    path: PathAndQuery,
    input: MessageDescriptor,
    output: MessageDescriptor,
}

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallFailed {
    /// The console does not call it.
    #[error("the console has no method {0}")]
    UnknownMethod(String),
    /// The body is not a message of the method.
    #[error("the body is not the JSON of the request: {0}")]
    Malformed(serde_json::Error),
    /// The answer cannot be written: a fault of the build.
    #[error("the answer has no JSON: {0}")]
    Unwritable(serde_json::Error),
    /// The server starts, or stops.
    #[error("the server does not answer; {0}")]
    NotServing(String),
    /// The server refused it.
    #[error("{}", .0.message())]
    Status(Box<Status>),
}

impl From<Status> for CallFailed {
    fn from(status: Status) -> CallFailed {
        CallFailed::Status(Box::new(status))
    }
}

impl Calls {
    /// On connections of this dialer.
    pub fn new(dialer: LocalDialer) -> Result<Calls, DescriptorError> {
        let pool = DescriptorPool::decode(fermata_proto::FILE_DESCRIPTOR_SET)?;
        let service = pool.get_service_by_name(SERVICE);
        let methods = service.into_iter().flat_map(|service| {
            let found = METHODS.map(|name| {
                let method = service.methods().find(|method| method.name() == name)?;
                let path = format!("/{SERVICE}/{name}").parse().ok()?;
                let method = Method {
                    path,
                    input: method.input(),
                    output: method.output(),
                };
                Some((name, method))
            });
            found.into_iter().flatten()
        });
        Ok(Calls {
            methods: methods.collect(),
            dialer,
        })
    }

    /// Calls a method with a request in JSON, and with the login in these headers. Returns the answer in JSON.
    pub async fn call(
        &self,
        method: &str,
        origin: Origin,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Vec<u8>, CallFailed> {
        let unknown = || CallFailed::UnknownMethod(method.to_owned());
        let method = self.methods.get(method).ok_or_else(unknown)?;
        let message = parse(method.input.clone(), body).map_err(CallFailed::Malformed)?;
        let logins = headers.get_all(AUTHORIZATION).iter();
        let login: HeaderMap = logins.map(|login| (AUTHORIZATION, login.clone())).collect();
        let login = MetadataMap::from_headers(login);
        let mut request = Request::from_parts(login, Extensions::default(), message);
        request.set_timeout(CALL_WITHIN);
        let codec = JsonCodec(method.output.clone());
        let answered = timeout(CALL_WITHIN, async {
            let channel = self.dialer.connect(origin).await;
            let channel = channel.map_err(|_| CallFailed::NotServing("it stops".to_owned()))?;
            let mut grpc = Grpc::new(channel).max_decoding_message_size(LOCAL_ANSWER_BYTES_MAX);
            let ready = grpc.ready().await;
            ready.map_err(|_| CallFailed::NotServing("it stops".to_owned()))?;
            let answer = grpc.unary(request, method.path.clone(), codec).await?;
            Ok::<_, CallFailed>(answer.into_inner())
        });
        let answer = answered.await;
        let answer = answer
            .map_err(|_| CallFailed::NotServing("it starts, or its store is slow".to_owned()))?;
        serde_json::to_vec(&answer?).map_err(CallFailed::Unwritable)
    }
}

fn parse(input: MessageDescriptor, body: &[u8]) -> Result<DynamicMessage, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let message = DynamicMessage::deserialize(input, &mut json)?;
    json.end()?;
    Ok(message)
}

impl CallFailed {
    /// The status of HTTP, and the reason in JSON.
    pub fn shown(&self) -> (StatusCode, String) {
        let (code, reason) = match self {
            CallFailed::UnknownMethod(_) => (Code::Unimplemented, String::new()),
            CallFailed::Malformed(_) => (Code::InvalidArgument, "MALFORMED".to_owned()),
            CallFailed::Unwritable(_) => (Code::Internal, String::new()),
            CallFailed::NotServing(_) => (Code::Unavailable, String::new()),
            CallFailed::Status(status) => {
                let details = status.get_error_details();
                let reason = details.error_info().map(|info| info.reason.clone());
                (status.code(), reason.unwrap_or_default())
            }
        };
        let code_name = format!("{code:?}");
        let shown = json!({"code": code_name, "reason": reason, "message": self.to_string()});
        (http_status(code), shown.to_string())
    }
}

fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
            StatusCode::BAD_REQUEST
        }
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable | Code::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Messages that only descriptors know; with the answer's.
struct JsonCodec(MessageDescriptor);

impl Codec for JsonCodec {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = JsonCodec;
    type Decoder = JsonCodec;

    fn encoder(&mut self) -> JsonCodec {
        JsonCodec(self.0.clone())
    }

    fn decoder(&mut self) -> JsonCodec {
        JsonCodec(self.0.clone())
    }
}

impl Encoder for JsonCodec {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(&mut self, message: DynamicMessage, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let encoded = message.encode(to);
        encoded.map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for JsonCodec {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        let decoded = DynamicMessage::decode(self.0.clone(), from);
        decoded
            .map(Some)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_method_of_the_console_is_in_the_contract() {
        let (dialer, _listener) = crate::server::local();
        let calls = Calls::new(dialer).unwrap();
        assert_eq!(calls.methods.len(), METHODS.len());
    }

    #[tokio::test]
    async fn what_is_no_request_is_told_before_anything_is_called() {
        let (dialer, _listener) = crate::server::local();
        let calls = Calls::new(dialer).unwrap();
        for (method, body, status) in [
            ("Backup", "{}", StatusCode::NOT_IMPLEMENTED),
            ("ListTables", "", StatusCode::BAD_REQUEST),
            ("ListTables", "{} {}", StatusCode::BAD_REQUEST),
            (
                "ListTables",
                "{\"pageSize\": \"many\"}",
                StatusCode::BAD_REQUEST,
            ),
            ("ListTables", "{\"nothing\": 1}", StatusCode::BAD_REQUEST),
        ] {
            let headers = HeaderMap::new();
            let call = calls.call(method, Origin::default(), &headers, body.as_bytes());
            let (came, shown) = call.await.unwrap_err().shown();
            assert_eq!(came, status, "{method} {body}: {shown}");
        }
    }
}
