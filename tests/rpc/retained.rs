//! Memory that stays although little of it is left to send, or nothing to read: it counts for as long as it is there.

use std::time::Duration;

use fermata::limits::Limits;
use fermata_proto::{CriticalPutRequest, GetRequest, ListLocksRequest};
use tokio::time::{Instant, sleep, timeout};

use crate::budgets::until;
use crate::frames::grpc;
use crate::frames::{
    ACK, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, RST_STREAM, SETTINGS, call,
    call_in_frames, frame, headers_of, headers_of_path, hello, hello_with_window, path_of, streams,
    window_update,
};
use crate::world::{World, hold};

const KIB: u32 = 1024;
const MIB: u64 = 1024 * 1024;
const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// A world in which a connection may hold 4 MiB.
async fn world(limits: Limits) -> World {
    World::with(Limits {
        connection_bytes_max: 4 * MIB,
        ..limits
    })
    .await
}

/// How many streams have ended, by what came.
pub fn ended(came: &[crate::frames::Came]) -> usize {
    let ends = came.iter();
    ends.filter(|came| came.kind == HEADERS && came.flags & END_STREAM != 0)
        .count()
}

/// Whoever takes an answer up to its last bytes makes the server keep those, and not the whole.
#[tokio::test]
async fn the_last_bytes_of_an_answer_keep_no_more_than_themselves() {
    let world = world(Limits {
        call_max_ms: 50_000,
        ..Limits::default()
    })
    .await;
    let mut client = world.client().await;
    let held = hold(&mut client, "large").await;
    let put = CriticalPutRequest {
        lock_ref: held.lock_ref,
        value: vec![7; 256 * KIB as usize].into(),
        ..Default::default()
    };
    client.critical_put(put).await.unwrap();
    let mut hog = Frames::to(&world.engine);
    // All but what gRPC and protobuf put around the value.
    let mut burst = hello_with_window(256 * KIB);
    burst.extend(window_update(0, 200 * 256 * KIB));
    let get = GetRequest {
        key: "large".to_owned(),
        ..Default::default()
    };
    for stream in streams(100) {
        burst.extend(call(stream, "Get", &get));
    }
    hog.send(&burst).await;
    let mut came = Vec::new();
    until(async || {
        came.extend(hog.ping().await);
        let data = came.iter().filter(|came| came.kind == DATA);
        let sent: usize = data.map(|came| came.payload.len()).sum();
        sent == (100 - ended(&came)) * 256 * KIB as usize
    })
    .await;
    assert!(ended(&came) < 16);
    let held = hog.accounts.held().bytes;
    assert!(held <= 100 * 18 * 1024, "{held}");
    let mut rest = Vec::new();
    for stream in streams(100) {
        rest.extend(window_update(stream, KIB));
    }
    hog.send(&rest).await;
    until(async || {
        hog.ping().await;
        hog.accounts.held().bytes == 0
    })
    .await;
}

/// The decoder of a stream keeps a buffer of the size of its largest message.
#[tokio::test]
async fn a_stream_counts_its_largest_message_until_it_ends() {
    let world = world(Limits {
        call_max_ms: 500,
        ..Limits::default()
    })
    .await;
    let mut hog = Frames::to(&world.engine);
    hog.send(&hello()).await;
    hog.ping().await;
    // From here on it takes what its settings say.
    hog.send(&frame(SETTINGS, ACK, 0, &[])).await;
    // A field that this version does not know, of a little less than 1 MiB.
    let length = 1_000_000_u32;
    let mut message = vec![0x7a, 0xc0, 0x84, 0x3d];
    message.resize(message.len() + length as usize, 7);
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend(message);
    let mut came = Vec::new();
    for stream in streams(6) {
        let headers = headers_of("Pipeline");
        hog.send(&frame(HEADERS, END_HEADERS, stream, &headers))
            .await;
        for part in framed.chunks(16 * KIB as usize) {
            hog.send(&frame(DATA, 0, stream, part)).await;
        }
        came.extend(hog.ping().await);
    }
    // Nothing is done on them any more, and nobody waits for that.
    until(async || {
        came.extend(hog.ping().await);
        hog.accounts.held().bytes >= 6 * u64::from(length)
    })
    .await;
    sleep(Duration::from_millis(700)).await;
    came.extend(hog.ping().await);
    assert_eq!(ended(&came), 0);
    let held = hog.accounts.held().bytes;
    assert!(held < 7 * u64::from(length), "{held}");
    for stream in streams(6) {
        hog.send(&frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])).await;
    }
    until(async || {
        hog.ping().await;
        hog.accounts.held().bytes == 0
    })
    .await;
}

/// A client that goes on with its headers without end.
#[tokio::test]
async fn a_block_of_headers_is_read_up_to_a_bound() {
    let world = world(Limits::default()).await;
    let mut frames = Frames::to(&world.engine);
    frames.send(&hello()).await;
    let block = [vec![0x83, 0x86], path_of(0x04, 200_000, false)].concat();
    frames.send(&call_in_frames(1, &block, 16_384)).await;
    while frames.next().await.is_some() {}
    until(async || frames.accounts.held().connections == 0).await;
    assert_eq!(frames.accounts.held().bytes, 0);
}

#[tokio::test]
async fn a_call_of_health_without_a_message_ends_and_a_large_one_is_refused() {
    let world = world(Limits {
        call_max_ms: 300,
        ..Limits::default()
    })
    .await;
    let mut stranger = Frames::to(&world.engine);
    let mut burst = hello();
    for stream in streams(50) {
        let headers = headers_of_path(HEALTH);
        burst.extend(frame(HEADERS, END_HEADERS, stream, &headers));
    }
    stranger.send(&burst).await;
    // Each call counts, however little came of it.
    until(async || stranger.accounts.held().bytes >= 50 * 8 * 1024).await;
    let mut came = Vec::new();
    until(async || {
        came.extend(stranger.ping().await);
        ended(&came) == 50
    })
    .await;
    until(async || stranger.accounts.held().bytes == 0).await;
    let mut large = frame(HEADERS, END_HEADERS, 101, &headers_of_path(HEALTH));
    large.extend(frame(DATA, 0, 101, &[0, 0, 0, 0x80, 0, 8]));
    let begun = Instant::now();
    stranger.send(&large).await;
    assert_eq!(stranger.next_of(HEADERS).await.stream, 101);
    assert!(begun.elapsed() < Duration::from_millis(300));
}

/// A turn begins once the call is there.
#[tokio::test]
async fn listings_whose_message_never_comes_keep_nobody_from_listing() {
    let world = world(Limits {
        call_max_ms: 20_000,
        listings_max: 2,
        ..Limits::default()
    })
    .await;
    let mut hogs = Vec::new();
    for _ in 0..4 {
        let mut hog = Frames::to(&world.engine);
        let mut burst = hello();
        burst.extend(frame(HEADERS, END_HEADERS, 1, &headers_of("ListLocks")));
        hog.send(&burst).await;
        hog.ping().await;
        hogs.push(hog);
    }
    let mut admin = world.admin().await;
    let listed = admin.list_locks(ListLocksRequest::default());
    let listed = timeout(Duration::from_secs(10), listed).await;
    listed.unwrap().unwrap();
}

/// HTTP/2 lets go of what it has sent under a lock of its own: nothing that asks it for something may go with that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_slice_of_a_stream_that_ended_ends_nothing_else() {
    let world = world(Limits::default()).await;
    let renewal = |lock_ref: &str| fermata_proto::KeepAliveRequest {
        session: lock_ref.to_owned(),
    };
    let unknown = format!("default/{}#1.00000000000000000000000000", "k".repeat(1_000));
    for _ in 0..20 {
        let mut client = Frames::to(&world.engine);
        let mut burst = hello_with_window(1);
        burst.extend(frame(HEADERS, END_HEADERS, 1, &headers_of("KeepAlive")));
        burst.extend(frame(DATA, 0, 1, &grpc(&renewal(&unknown))));
        // This one makes no sense, and ends the stream.
        burst.extend(frame(DATA, 0, 1, &grpc(&renewal(""))));
        client.send(&burst).await;
        client.ping().await;
        client.send(&window_update(1, 100 * KIB)).await;
        let answers = timeout(Duration::from_secs(20), client.ping());
        answers.await.unwrap();
        let answers = timeout(Duration::from_secs(20), client.ping());
        answers.await.unwrap();
    }
}

/// However its last frame is cut.
#[tokio::test]
async fn a_message_in_several_frames_counts_until_it_is_answered() {
    let world = World::with(Limits {
        call_max_ms: 3_000,
        ..Limits::default()
    })
    .await;
    world.store.send_replace(crate::lever::Mode::Hangs);
    let mut client = Frames::to(&world.engine);
    client.send(&hello()).await;
    client.ping().await;
    client.send(&frame(SETTINGS, ACK, 0, &[])).await;
    let put = CriticalPutRequest {
        lock_ref: "default/k#1.00000000000000000000000000".to_owned(),
        value: vec![7; 500_000].into(),
        ..Default::default()
    };
    let message = grpc(&put);
    client
        .send(&frame(HEADERS, END_HEADERS, 1, &headers_of("CriticalPut")))
        .await;
    let parts: Vec<&[u8]> = message.chunks(16 * KIB as usize).collect();
    for (at, part) in parts.iter().enumerate() {
        let flags = if at + 1 == parts.len() { END_STREAM } else { 0 };
        client.send(&frame(DATA, flags, 1, part)).await;
    }
    client.ping().await;
    // It waits for the store.
    sleep(Duration::from_millis(300)).await;
    let held = client.accounts.held().bytes;
    assert!(held >= 500_000, "{held}");
    until(async || {
        client.ping().await;
        client.accounts.held().bytes == 0
    })
    .await;
}
