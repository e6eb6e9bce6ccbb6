//! Calls of other programs, passed on as they are: with the token of this client, to the home of their key. An agent does this.

use bytes::{Bytes, BytesMut};
use fermata_proto::{AcquireLockRequest, HOME_ADDRESS};
use futures_util::StreamExt as _;
use http_body::Frame;
use http_body_util::{BodyExt as _, BodyStream, Full, StreamBody};
use prost::Message as _;
use tonic::body::Body;
use tonic::codegen::http::header::AUTHORIZATION;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::metadata::AsciiMetadataValue;
use tonic::{Code, Status};
use tower::{Service as _, ServiceExt as _};

use super::client::Client;
use super::homes::{key_in, key_of};
use crate::transport::connections::{LongCallPermit, LongCallStream};
use crate::transport::local_status::{causes, in_other_words, is_of_deadline};

/// The most bytes of a request that are kept until its answer begins. A request within it can be sent a second time. A larger one has
/// its names in these first bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The prefix of a message: one byte for compression, four for the length.
const PREFIX_BYTES: usize = 5;

/// The service whose calls are about keys.
const LOCK_SERVICE: &str = "/fermata.v1.LockService/";
/// The streams of requests. Their first message may come late, after an answer to it.
const REQUEST_STREAMS: [&str; 4] = [
    "/fermata.v1.LockService/KeepAlive",
    PIPELINE,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];
const PIPELINE: &str = "/fermata.v1.LockService/Pipeline";

/// The key of a CreateLockRef or a Get.
#[derive(prost::Message)]
struct OfKey {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    table: String,
}

/// The lockRef of all other calls about keys; the last one of several.
#[derive(prost::Message)]
struct OfLockRef {
    #[prost(string, tag = "1")]
    lock_ref: String,
}

/// Other calls whose answers are streams.
const ANSWER_STREAMS: [&str; 2] = [
    "/grpc.health.v1.Health/Watch",
    "/fermata.v1.LockAdmin/Backup",
];

/// What a call is about.
#[derive(Debug, Default, PartialEq, Eq)]
struct About {
    /// With its table.
    key: Option<String>,
    stays_open: Option<StaysOpen>,
}

#[derive(Debug, PartialEq, Eq)]
enum StaysOpen {
    /// A wait, or a stream that keeps sessions alive.
    Wait,
    Watch,
}

impl About {
    /// Reads the names at the head of a request; `head` may be cut short. A message that cannot be read is about nothing: the server
    /// says what is wrong with it.
    fn read(path: &str, head: &[u8]) -> About {
        if REQUEST_STREAMS.contains(&path) || ANSWER_STREAMS.contains(&path) {
            return About {
                key: None,
                stays_open: Some(StaysOpen::Wait),
            };
        }
        let Some(method) = path.strip_prefix(LOCK_SERVICE) else {
            return About::default();
        };
        let message = match head.split_at_checked(PREFIX_BYTES) {
            Some((prefix, message)) if prefix.first() == Some(&0) => message,
            // Compressed, or nothing.
            _ => return About::default(),
        };
        let (key, stays_open) = match method {
            "CreateLockRef" | "Get" => {
                let mut names = OfKey::default();
                let _cut_short = names.merge(message);
                (key_in(&names.table, &names.key), None)
            }
            "AcquireLock" => {
                let mut names = AcquireLockRequest::default();
                let _cut_short = names.merge(message);
                let waits = names.wait.map(|_| StaysOpen::Wait);
                (key_of(&names.lock_ref).to_owned(), waits)
            }
            "RenewLocks" | "ReleaseLock" | "CriticalGet" | "CriticalPut" | "CriticalDelete"
            | "WatchLock" => {
                let mut names = OfLockRef::default();
                let _cut_short = names.merge(message);
                let watches = (method == "WatchLock").then_some(StaysOpen::Watch);
                (key_of(&names.lock_ref).to_owned(), watches)
            }
            _ => return About::default(),
        };
        About {
            key: Some(key),
            stays_open,
        }
    }
}

/// A request whose head was read.
struct Read {
    head: Bytes,
    /// `None` if all of it was read.
    rest: Option<Body>,
}

impl Read {
    async fn of(mut body: Body) -> Result<Read, Status> {
        let mut head = BytesMut::new();
        while head.len() < HEAD_BYTES_MAX {
            let Some(frame) = body.frame().await else {
                let head = head.freeze();
                return Ok(Read { head, rest: None });
            };
            if let Ok(data) = frame?.into_data() {
                head.extend_from_slice(&data);
            }
        }
        Ok(Read {
            head: head.freeze(),
            rest: Some(body),
        })
    }

    /// The request to send, once more if all of it is here.
    fn body(&mut self) -> Body {
        let head = Full::new(self.head.clone()).map_err(|never| match never {});
        match self.rest.take() {
            None => Body::new(head),
            Some(rest) => {
                let frames = BodyStream::new(head).chain(BodyStream::new(rest));
                Body::new(StreamBody::new(frames))
            }
        }
    }
}

/// Why one attempt brought no answer.
struct Failed {
    status: Status,
    /// The request did not leave.
    is_unsent: bool,
}

impl Client {
    /// Passes a call of another program on, and its answer back. The call goes to the home of its key if the home is known and is one
    /// of the endpoints, else to the replica in use. It has the token of this client, and no other. A call that did not leave, for want of a
    /// connection, goes to the next replica; all other failures are for the caller to repeat.
    ///
    /// With several endpoints a Pipeline is refused with UNIMPLEMENTED, so that its calls come by themselves and each goes to the
    /// home of its key.
    pub async fn pass_on(&self, request: Request<Body>) -> Response<Body> {
        let passed = self.try_pass_on(request).await;
        passed.unwrap_or_else(Status::into_http)
    }

    async fn try_pass_on(&self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let replicas = self.connections().len();
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        if path == PIPELINE && replicas > 1 {
            return Err(Status::unimplemented(
                "an agent of several replicas takes calls by themselves, since each goes to the home of its key",
            ));
        }
        let mut call = match REQUEST_STREAMS.contains(&path) {
            true => Read {
                head: Bytes::new(),
                rest: Some(body),
            },
            false => Read::of(body).await?,
        };
        let about = About::read(path, &call.head);
        let key = about.key.as_deref();
        let metadata = self.options().metadata();
        // Each replica once, and once more with another token.
        let mut tries = replicas + 1;
        loop {
            tries -= 1;
            let can_repeat = tries > 0 && call.rest.is_none();
            let permit = match about.stays_open {
                None => None,
                Some(StaysOpen::Wait) => Some(
                    self.connections()
                        .try_wait_permit()
                        .ok_or_else(|| self.full())?,
                ),
                Some(StaysOpen::Watch) => Some(
                    self.connections()
                        .try_watch_permit()
                        .ok_or_else(|| self.full())?,
                ),
            };
            let token = metadata.sent_token();
            let mut request = Request::new(call.body());
            *request.method_mut() = parts.method.clone();
            *request.uri_mut() = parts.uri.clone();
            *request.version_mut() = parts.version;
            *request.headers_mut() = with_token(parts.headers.clone(), token.as_ref());
            match self.passed_once(key, request, permit).await {
                Err(failed) if failed.is_unsent && can_repeat => {}
                Err(failed) => return Err(failed.status),
                Ok(response) => {
                    let refused = Status::from_header_map(response.headers());
                    let Some(refused) = refused.filter(|it| it.code() == Code::Unauthenticated)
                    else {
                        return Ok(response);
                    };
                    let refused = metadata.refused(refused, token.as_ref());
                    if refused.code() == Code::Unauthenticated {
                        let words = format!("the agent's own login: {}", refused.message());
                        return Err(in_other_words(refused, words));
                    }
                    if !can_repeat {
                        return Err(refused);
                    }
                }
            }
        }
    }

    /// The refusal of a wait, a watch or a stream without room.
    fn full(&self) -> Status {
        let options = self.options();
        let room = options
            .waits_per_connection
            .saturating_mul(options.wait_connections_max);
        Status::resource_exhausted(format!(
            "the agent has no room for another wait, watch or stream: {room} in all, and {} watches",
            room / 2
        ))
    }

    async fn passed_once(
        &self,
        key: Option<&str>,
        request: Request<Body>,
        permit: Option<LongCallPermit>,
    ) -> Result<Response<Body>, Failed> {
        let at = self.place_of(key);
        let held = permit.map(|permit| self.connections().long_call(at, permit));
        let mut channel = match &held {
            Some(held) => held.channel(),
            None => self.connections().calls(at),
        };
        let answered = match channel.ready().await {
            Ok(channel) => channel.call(request).await,
            Err(error) => Err(error),
        };
        let response = answered.map_err(|error| {
            let status = Status::from_error(error.into());
            let is_unsent = causes(&status).any(|cause| cause.is::<tonic::ConnectError>());
            let status = match is_of_deadline(&status) {
                true => {
                    let words = format!("{}: no answer in time", self.connections().name(at));
                    Status::deadline_exceeded(words)
                }
                false => {
                    self.go_elsewhere(at, key);
                    broken(&self.named(at, status))
                }
            };
            Failed { status, is_unsent }
        })?;
        let headers = response.headers();
        match Status::from_header_map(headers).map(|status| status.code()) {
            Some(Code::Unavailable) => self.go_elsewhere(at, key),
            Some(_) => {}
            None => {
                let home = headers.get(HOME_ADDRESS);
                let home = home.and_then(|address| address.to_str().ok());
                if let (Some(key), Some(home)) = (key, home) {
                    self.note_home_address(key, home);
                }
            }
        }
        let client = self.clone();
        Ok(response.map(|body| passed_back(client, at, held, body)))
    }
}

/// The headers of a call with the token of this client alone.
fn with_token(mut headers: HeaderMap, token: Option<&AsciiMetadataValue>) -> HeaderMap {
    headers.remove(AUTHORIZATION);
    let value = token.and_then(|token| token.as_encoded_bytes().try_into().ok());
    if let Some(value) = value {
        headers.insert(AUTHORIZATION, value);
    }
    headers
}

/// A connection without an answer: unsent, or it broke under the call. The program may repeat the call.
fn broken(named: &Status) -> Status {
    Status::unavailable(named.message())
}

/// The rest of an answer. It counts as a stream of its connection until its end. A break of the connection ends it with UNAVAILABLE, as
/// without an agent.
fn passed_back(client: Client, at: usize, held: Option<LongCallStream>, body: Body) -> Body {
    let frames = BodyStream::new(body).map(move |frame| {
        let _held = &held;
        frame.or_else(|status| {
            let mut trailers = HeaderMap::new();
            broken(&client.named(at, status)).add_header(&mut trailers)?;
            Ok::<_, Status>(Frame::trailers(trailers))
        })
    });
    Body::new(StreamBody::new(frames))
}

#[cfg(test)]
mod tests {
    use fermata_proto as proto;

    use super::*;

    fn about(method: &str, message: &impl prost::Message, cut: usize) -> About {
        let message = message.encode_to_vec();
        let mut head = vec![0];
        head.extend_from_slice(&(message.len() as u32).to_be_bytes());
        head.extend_from_slice(&message);
        head.truncate(cut);
        About::read(&format!("{LOCK_SERVICE}{method}"), &head)
    }

    #[test]
    fn the_key_of_a_call_is_read_from_its_head() {
        let lock_ref = "default/orders%2042#7.8nw0wh0k@12".to_owned();
        let key = |key: &str| Some(key.to_owned());
        let put = proto::CriticalPutRequest {
            lock_ref: lock_ref.clone(),
            value: vec![7; 100_000].into(),
            call_no: 1,
        };
        let whole = about("CriticalPut", &put, usize::MAX);
        assert_eq!(whole.key, key("default/orders%2042"));
        assert_eq!(about("CriticalPut", &put, 1000), whole);
        let create = proto::CreateLockRefRequest {
            key: "orders 42".to_owned(),
            table: "other".to_owned(),
            ..Default::default()
        };
        let create = about("CreateLockRef", &create, usize::MAX);
        assert_eq!(create.key, key("other/orders%2042"));
        let mut acquire = proto::AcquireLockRequest {
            lock_ref: lock_ref.clone(),
            ..Default::default()
        };
        let asks = about("AcquireLock", &acquire, usize::MAX);
        assert_eq!((asks.key.is_some(), asks.stays_open), (true, None));
        acquire.wait = Some(prost_types::Duration::default());
        let waits = about("AcquireLock", &acquire, usize::MAX);
        assert_eq!(waits.stays_open, Some(StaysOpen::Wait));
        let watch = proto::WatchLockRequest { lock_ref };
        let watches = about("WatchLock", &watch, usize::MAX);
        assert_eq!(watches.stays_open, Some(StaysOpen::Watch));
    }

    #[test]
    fn what_cannot_be_read_is_about_nothing() {
        let path = format!("{LOCK_SERVICE}AcquireLock");
        for head in [&b""[..], b"\0\0\0", b"\x01\0\0\0\x02\x0a\0"] {
            assert_eq!(About::read(&path, head), About::default());
        }
        let admin = "/fermata.v1.LockAdmin/DescribeLock";
        assert_eq!(About::read(admin, b"\0\0\0\0\0"), About::default());
    }

    #[test]
    fn a_call_has_the_token_of_the_client_alone() {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, "Bearer theirs".parse().unwrap());
        let ours = "Bearer ours".parse().unwrap();
        let sent = with_token(headers.clone(), Some(&ours));
        assert_eq!(sent[AUTHORIZATION], "Bearer ours");
        assert!(!with_token(headers, None).contains_key(AUTHORIZATION));
    }
}
