//! What the library would answer by itself: each of its statuses, sent as bytes over a socket.

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use prost::Message;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::{Code, Status};

use crate::ask;
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

#[tokio::test]
async fn what_the_library_would_refuse_in_its_own_words_is_invalid() {
    let world = World::new().await;
    let get = ask::get("k").encode_to_vec();
    let one = framed(0, get.len(), &get);
    // The first one is not enough to be answered: nothing would count what follows.
    let twice = |second: &[u8]| Bytes::from([&one[..], second].concat());
    for (bytes, field, word) in [
        (framed(0, 1, &[0x0a]), "key", "decoded"),
        (framed(0, 1, &[0x00]), "", "decoded"),
        (Bytes::new(), "", "Missing request message"),
        (framed(0, 9, b"abc"), "", "EOF"),
        (framed(7, 0, b""), "", "flag"),
        (twice(&one), "", "second"),
        (twice(&one[..3]), "", "second"),
        (twice(&framed(0, 1 << 20, b"never")), "", "second"),
    ] {
        let body = Body::new(Full::new(bytes));
        let status = call(&world, "/fermata.v1.LockService/Get", body, &[]).await;
        assert_eq!(fields(&status), [field], "{status:?}");
        assert!(status.message().contains(word), "{status:?}");
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
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
