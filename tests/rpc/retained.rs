//! Memory that stays although little of it is left to send, or nothing to read: it counts for as long as it is there.

use std::time::Duration;

use fermata::limits::Limits;
use tokio::time::{Instant, sleep, timeout};

use crate::ask;
use crate::frames::{
    Came, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, RST_STREAM, call, call_in_frames, frame,
    grpc, headers_of, headers_of_path, hello, hello_with_window, path_of, streams, window_update,
};
use crate::lever::Mode;
use crate::malformed::framed;
use crate::world::{World, done, hold, until};

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
fn ended(came: &[Came]) -> usize {
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
    let put = ask::critical_put(&held.lock_ref, vec![7; 256 * KIB as usize]);
    done(client.critical_put(put)).await;
    let mut hog = Frames::to(&world.engine);
    // All but what gRPC and protobuf put around the value.
    let mut burst = hello_with_window(256 * KIB);
    burst.extend(window_update(0, 200 * 256 * KIB));
    let get = ask::get("large");
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
    let mut hog = Frames::greeted(&world.engine).await;
    // A field that this version does not know, of a little less than 1 MiB.
    let length = 1_000_000_u32;
    let mut message = vec![0x7a, 0xc0, 0x84, 0x3d];
    message.resize(message.len() + length as usize, 7);
    let framed = framed(0, message.len(), &message);
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

/// HTTP/2 lets go of what it has sent under a lock of its own: nothing that asks it for something may go with that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_slice_of_a_stream_that_ended_ends_nothing_else() {
    let world = world(Limits::default()).await;
    let unknown = format!("default/{}#1.00000000000000000000000000", "k".repeat(1_000));
    for _ in 0..20 {
        let mut client = Frames::to(&world.engine);
        let mut burst = hello_with_window(1);
        burst.extend(frame(HEADERS, END_HEADERS, 1, &headers_of("KeepAlive")));
        burst.extend(frame(DATA, 0, 1, &grpc(&ask::keep_alive(&unknown))));
        // This one makes no sense, and ends the stream.
        burst.extend(frame(DATA, 0, 1, &grpc(&ask::keep_alive(""))));
        client.send(&burst).await;
        client.ping().await;
        client.send(&window_update(1, 100 * KIB)).await;
        for _ in 0..2 {
            let answers = timeout(Duration::from_secs(20), client.ping());
            answers.await.unwrap();
        }
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
    world.store.send_replace(Mode::Hangs);
    let mut client = Frames::greeted(&world.engine).await;
    let put = ask::critical_put("default/k#1.00000000000000000000000000", vec![7; 500_000]);
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
