//! What the library would answer by itself: each of its statuses, sent as bytes over a socket.

use bytes::{BufMut, Bytes, BytesMut};
use fermata_proto::GetRequest;
use http_body_util::{BodyExt, Full};
use prost::Message;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::{Code, Status};

use crate::world::{World, code_and_reason, fields};

/// Sends these bytes as the body of a call; what the call is answered with.
pub async fn call(world: &World, path: &str, body: Body, headers: &[(&str, &str)]) -> Status {
    let mut request = http::Request::post(format!("http://{}{path}", world.addr))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut channel = world.patient_channel().await;
    let response = channel.call(request.body(body).unwrap()).await.unwrap();
    if let Some(status) = Status::from_header_map(response.headers()) {
        return status;
    }
    let body = response.into_body().collect().await.unwrap();
    Status::from_header_map(body.trailers().unwrap()).unwrap()
}

/// A message with a flag, as gRPC frames it.
pub fn framed(flag: u8, length: usize, message: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(flag);
    frame.put_u32(u32::try_from(length).unwrap());
    frame.put_slice(message);
    frame.freeze()
}

async fn sent(method: &str, bytes: Bytes) -> Status {
    let world = World::new().await;
    let path = format!("/fermata.v1.LockService/{method}");
    let body = Body::new(Full::new(bytes));
    call(&world, &path, body, &[]).await
}

fn assert_invalid(status: Status, field: &str, word: &str) {
    assert_eq!(fields(&status), [field], "{status:?}");
    assert!(status.message().contains(word), "{status:?}");
    assert_eq!(
        code_and_reason(Err::<(), _>(status)).0,
        Code::InvalidArgument
    );
}

#[tokio::test]
async fn bad_utf8_names_the_field() {
    let key = [0x0a, 0x01, 0xff];
    let status = sent("CreateLockRef", framed(0, 3, &key)).await;
    assert_invalid(status, "key", "UTF-8");
    let status = sent("WatchLock", framed(0, 3, &key)).await;
    assert_invalid(status, "lock_ref", "UTF-8");
    let status = sent("KeepAlive", framed(0, 3, &key)).await;
    assert_invalid(status, "session", "UTF-8");
}

#[tokio::test]
async fn what_is_no_protobuf_is_invalid() {
    let status = sent("Get", framed(0, 1, &[0x0a])).await;
    assert_invalid(status, "key", "decoded");
    let status = sent("Get", framed(0, 1, &[0x00])).await;
    assert_invalid(status, "", "decoded");
}

#[tokio::test]
async fn a_message_that_is_too_large_names_the_limit() {
    let limit = 1024 * 1024 + 64 * 1024;
    let put = fermata_proto::CriticalPutRequest {
        value: vec![0; limit].into(),
        ..Default::default()
    };
    let message = put.encode_to_vec();
    let frame = framed(0, message.len(), &message);
    assert_invalid(
        sent("CriticalPut", frame.clone()).await,
        "",
        "message_bytes_max",
    );
    assert_invalid(sent("KeepAlive", frame).await, "", &limit.to_string());
}

#[tokio::test]
async fn a_message_that_is_missing_or_cut_short_is_invalid() {
    assert_invalid(
        sent("Get", Bytes::new()).await,
        "",
        "Missing request message",
    );
    assert_invalid(sent("Get", framed(0, 9, b"abc")).await, "", "EOF");
    assert_invalid(sent("Get", framed(7, 0, b"")).await, "", "flag");
}

/// The first one is not enough to be answered: nothing would count what follows.
#[tokio::test]
async fn a_second_message_of_a_call_that_takes_one_is_invalid() {
    let get = GetRequest {
        key: "k".to_owned(),
        ..Default::default()
    };
    let message = get.encode_to_vec();
    let one = framed(0, message.len(), &message);
    for second in [&one[..], &one[..3], &framed(0, 1 << 20, b"never")[..]] {
        let both = [&one[..], second].concat();
        assert_invalid(sent("Get", both.into()).await, "", "second");
    }
}

#[tokio::test]
async fn a_compressed_message_is_refused_with_a_reason() {
    let world = World::new().await;
    for (method, compression) in [("Get", "gzip"), ("KeepAlive", "deflate")] {
        let path = format!("/fermata.v1.LockService/{method}");
        let body = Body::new(Full::new(framed(1, 0, b"")));
        let status = call(&world, &path, body, &[("grpc-encoding", compression)]).await;
        assert!(status.message().contains(compression), "{status:?}");
        assert_eq!(
            status.metadata().get("grpc-accept-encoding").unwrap(),
            "identity"
        );
        let (code, reason) = code_and_reason(Err::<(), _>(status));
        assert_eq!((code, &*reason), (Code::Unimplemented, "COMPRESSED"));
    }
}

#[tokio::test]
async fn what_is_not_implemented_stays_so() {
    let status = sent("NoSuchMethod", framed(0, 0, b"")).await;
    assert_eq!(status.code(), Code::Unimplemented);
    let world = World::new().await;
    let status = call(
        &world,
        "/nobody.v1.Nothing/Get",
        Body::new(Full::new(framed(0, 0, b""))),
        &[],
    )
    .await;
    assert_eq!(status.code(), Code::Unimplemented);
}
