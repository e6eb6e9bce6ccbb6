//! Connections, health and reflection.

use std::sync::Arc;
use std::time::Duration;

use fermata::clock::SystemIds;
use fermata::limits::Limits;
use fermata::server::{Server, Stopped};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1alpha;

use crate::frames::{DATA, Frames, HEADERS, RST_STREAM, frame, headers_of, hello, streams};
use crate::lever::Mode;
use crate::world::{World, create, done, hold, until};

fn of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest {
        service: service.to_owned(),
    }
}

#[tokio::test]
async fn one_connection_too_many_is_refused_until_another_is_closed() {
    let world = World::with(Limits {
        connections_max: 2,
        ..Limits::default()
    })
    .await;
    let mut first = world.client().await;
    let second = world.client().await;
    hold(&mut first, "a").await;
    let served = async || {
        let channel = world.try_channel().await.ok()?;
        let mut client = HealthClient::new(channel);
        client.check(of("")).await.ok()
    };
    assert!(served().await.is_none());
    create(&mut first, "a").await;
    drop(second);
    until(async || served().await.is_some()).await;
}

#[tokio::test]
async fn readiness_follows_the_store_and_liveness_does_not() {
    let world = World::new().await;
    let mut health = HealthClient::new(world.channel().await);
    let mut watch = done(health.watch(of(""))).await;
    let mut next = async || watch.next().await.unwrap().unwrap().status();
    let mut now = next().await;
    if now == ServingStatus::NotServing {
        now = next().await;
    }
    assert_eq!(now, ServingStatus::Serving);
    world.store.send_replace(Mode::Fails);
    assert_eq!(next().await, ServingStatus::NotServing);
    for service in ["", "fermata.v1.LockService", "fermata.v1.LockAdmin"] {
        let answered = done(health.check(of(service))).await;
        assert_eq!(answered.status(), ServingStatus::NotServing);
    }
    let live = done(health.check(of("liveness"))).await;
    assert_eq!(live.status(), ServingStatus::Serving);
    world.store.send_replace(Mode::Works);
    assert_eq!(next().await, ServingStatus::Serving);
}

#[tokio::test]
async fn reflection_knows_the_services_and_the_types_of_error_details() {
    let world = World::new().await;
    let symbols = [
        "fermata.v1.LockService",
        "google.rpc.BadRequest",
        "grpc.health.v1.Health",
    ];
    let asks = symbols.map(|symbol| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::FileContainingSymbol(symbol.to_owned())),
    });
    let mut client = ServerReflectionClient::new(world.channel().await);
    let asks = tokio_stream::iter(asks);
    let mut answers = done(client.server_reflection_info(asks)).await;
    for symbol in symbols {
        let answer = answers.next().await.unwrap().unwrap();
        let found = answer.message_response;
        let is_file = matches!(found, Some(MessageResponse::FileDescriptorResponse(_)));
        assert!(is_file, "{symbol}: {found:?}");
    }

    // The version that older tools ask for.
    let mut client =
        v1alpha::server_reflection_client::ServerReflectionClient::new(world.channel().await);
    let list = v1alpha::server_reflection_request::MessageRequest::ListServices(String::new());
    let ask = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(list),
    };
    let asks = tokio_stream::iter([ask]);
    let mut answers = done(client.server_reflection_info(asks)).await;
    let listed = format!("{:?}", answers.next().await.unwrap().unwrap());
    for service in ["fermata.v1.LockService", "fermata.v1.LockAdmin"] {
        assert!(listed.contains(service), "{listed}");
    }
}

/// What comes back on a connection to a server on a paused clock, until it closes, and after how long.
async fn closed_after(sent: &[u8]) -> Duration {
    let world = World::new().await;
    tokio::time::pause();
    let (mut client, server) = tokio::io::duplex(64 * 1024);
    let server_of_one = Server::new(world.engine.clone(), Arc::new(SystemIds));
    let connections = tokio_stream::iter([Ok::<_, std::io::Error>(server)]);
    tokio::spawn(server_of_one.serve(connections, std::future::pending()));
    let started = tokio::time::Instant::now();
    client.write_all(sent).await.unwrap();
    let mut received = Vec::new();
    // An abrupt end is an end.
    let _ = client.read_to_end(&mut received).await;
    started.elapsed()
}

#[tokio::test]
async fn a_client_that_vanished_is_noticed() {
    // The preface, and empty SETTINGS; pings are not answered.
    let hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let closed = closed_after(hello).await;
    assert!((14..=17).contains(&closed.as_secs()), "{closed:?}");
}

#[tokio::test]
async fn a_connection_that_never_says_hello_is_closed() {
    let closed = closed_after(b"PRI * HTTP").await;
    assert!((9..=11).contains(&closed.as_secs()), "{closed:?}");
}

/// What `guarded` alone ends: the pings of HTTP/2 have not begun.
#[tokio::test]
async fn a_client_on_a_port_that_says_nothing_is_cut_off_after_10_s() {
    let world = World::new().await;
    let mut silent = TcpStream::connect(world.addr).await.unwrap();
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    // An abrupt end is an end.
    let ended = timeout(Duration::from_secs(60), silent.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "it is open still");
    assert_eq!(begun.elapsed().as_secs(), 10);
}

#[tokio::test]
async fn as_many_calls_as_are_allowed_may_come_in_one_burst() {
    // With small messages, the windows would be small too.
    let world = World::with(Limits {
        value_bytes_max: 1024,
        message_bytes_max: 20 * 1024,
        ..Limits::default()
    })
    .await;
    let mut client = Frames::to(&world.engine);
    let block = headers_of("Get");
    let mut burst = hello();
    let streams: Vec<u32> = streams(2_000).collect();
    for stream in &streams {
        burst.extend(frame(HEADERS, 4, *stream, &block));
    }
    for stream in &streams {
        burst.extend(frame(DATA, 0, *stream, b"\0\0\0\0\x03\x0a\x01k"));
    }
    for stream in &streams {
        burst.extend(frame(DATA, 1, *stream, &[]));
    }
    client.send(&burst).await;
    for _ in 0..2 * streams.len() {
        client.next_of(HEADERS).await;
    }
}

/// As after a pause of the server: the calls and their ends arrive together.
#[tokio::test]
async fn calls_given_up_before_they_were_seen_do_not_cost_the_connection() {
    let world = World::new().await;
    let mut client = Frames::to(&world.engine);
    const CANCEL: [u8; 4] = [0, 0, 0, 8];
    let mut burst = hello();
    for stream in (1..2_000).step_by(2) {
        burst.extend(frame(HEADERS, 4, stream, &headers_of("Get")));
        burst.extend(frame(RST_STREAM, 0, stream, &CANCEL));
    }
    client.send(&burst).await;
    client.ping().await;
}

#[tokio::test]
async fn a_call_whose_message_never_comes_does_not_hold_up_the_end() {
    let world = World::new().await;
    let (client, server) = tokio::io::duplex(64 * 1024);
    let connections = tokio_stream::iter([Ok::<_, std::io::Error>(server)]);
    let (stop, stopping) = tokio::sync::oneshot::channel::<()>();
    let server =
        Server::new(world.engine.clone(), Arc::new(SystemIds)).with_grace(Duration::from_secs(60));
    let mut client = Frames {
        io: client,
        accounts: server.accounts(),
    };
    let serving = tokio::spawn(server.serve(connections, async move {
        let _ = stopping.await;
    }));
    // Announces a message of which only the first bytes come.
    let mut sent = hello();
    sent.extend(frame(HEADERS, 4, 1, &headers_of("Get")));
    sent.extend(frame(DATA, 0, 1, &[0, 0]));
    client.send(&sent).await;
    client.ping().await;
    stop.send(()).unwrap();
    // Read what comes, so that nothing waits for us; the connection ends when all is said.
    let mut rest = Vec::new();
    let _ = client.io.read_to_end(&mut rest).await;
    assert_eq!(serving.await.unwrap().unwrap(), Stopped::Clean);
}
