//! What a connection may hold of a server's memory, whatever its client does and does not read.

use std::collections::BTreeSet;
use std::time::Duration;

use fermata::limits::Limits;
use fermata_proto::{ListLocksRequest, OpenSessionRequest};
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, sleep};

use crate::ask;
use crate::frames::{
    ACK, Came, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, RST_STREAM, SETTINGS, call, frame,
    grpc, headers_of, hello, hello_with_window, streams, window_update,
};
use crate::world::{World, done, hold, until};

const KIB: u32 = 1024;
const MIB: u64 = 1024 * 1024;

/// A world in which a connection may hold 4 MiB, half of it answers, and the key `large` has a value of 256 KiB.
async fn world(limits: Limits) -> World {
    let world = World::with(Limits {
        connection_bytes_max: 4 * MIB,
        ..limits
    })
    .await;
    let mut client = world.client().await;
    let held = hold(&mut client, "large").await;
    let put = ask::critical_put(&held.lock_ref, vec![7; 256 * KIB as usize]);
    // On a busy machine the time of a call may be too short for it.
    until(async || client.critical_put(put.clone()).await.is_ok()).await;
    world
}

/// One that is open.
async fn session(world: &World) -> String {
    let mut client = world.client().await;
    done(client.open_session(OpenSessionRequest::default()))
        .await
        .session
}

/// The streams that were refused: what came of each ends with a status other than OK.
fn refused(came: &[Came]) -> BTreeSet<u32> {
    let ends = came
        .iter()
        .filter(|came| came.kind == HEADERS && came.flags & END_STREAM != 0);
    ends.map(|came| came.stream).collect()
}

#[tokio::test]
async fn answers_that_nobody_reads_are_bounded_and_others_go_on() {
    for granted in [0, 1] {
        let world = world(Limits {
            call_max_ms: 1_000,
            ..Limits::default()
        })
        .await;
        let mut hog = Frames::to(&world.engine);
        let mut burst = hello_with_window(0);
        for stream in streams(200) {
            burst.extend(call(stream, "Get", &ask::get("large")));
            if granted > 0 {
                burst.extend(window_update(stream, granted));
            }
        }
        hog.send(&burst).await;
        // Those for which there is no room are refused after call_max; the others stay.
        let mut came = Vec::new();
        until(async || {
            came.extend(hog.ping().await);
            refused(&came).len() >= 193
        })
        .await;
        // 7 of a little more than 256 KiB fit into 2 MiB.
        let kept = 200 - refused(&came).len();
        assert_eq!(kept, 7);
        let held = hog.accounts.held().bytes;
        // With the slice of each that HTTP/2 has, and the calls themselves.
        let least = kept as u64 * (256 + 16) * 1024;
        assert!((least..=2 * MIB + 7 * 40 * 1024).contains(&held), "{held}");
        let mut innocent = world.client().await;
        let read = done(innocent.get(ask::get("large"))).await;
        assert_eq!(read.value.len(), 256 * KIB as usize);

        // Whoever takes what there is gets it whole.
        let mut taken = window_update(0, 64 * KIB * KIB);
        for stream in streams(200).filter(|stream| !refused(&came).contains(stream)) {
            taken.extend(window_update(stream, 1024 * KIB));
        }
        hog.send(&taken).await;
        until(async || {
            came.extend(hog.ping().await);
            refused(&came).len() == 200
        })
        .await;
        let bytes: usize = came
            .iter()
            .filter(|came| came.kind == DATA)
            .map(|came| came.payload.len())
            .sum();
        assert!(bytes > kept * 256 * KIB as usize, "{bytes}");
        until(async || hog.accounts.held().bytes == 0).await;
    }
}

#[tokio::test]
async fn listings_that_nobody_reads_are_bounded() {
    let world = world(Limits {
        call_max_ms: 1_000,
        ..Limits::default()
    })
    .await;
    let mut client = world.client().await;
    let session = session(&world).await;
    for number in 0..200 {
        done(client.create_lock_ref(ask::create_in(
            &format!("{number}-{}", "k".repeat(1_000)),
            &session,
        )))
        .await;
    }
    let mut hog = Frames::to(&world.engine);
    let mut burst = hello_with_window(0);
    for stream in streams(200) {
        let list = ListLocksRequest {
            page_size: 1_000,
            ..Default::default()
        };
        burst.extend(call(stream, "ListLocks", &list));
    }
    hog.send(&burst).await;
    let mut came = Vec::new();
    until(async || {
        came.extend(hog.ping().await);
        refused(&came).len() >= 180
    })
    .await;
    let held = hog.accounts.held().bytes;
    assert!((MIB..=2 * MIB + 20 * 32 * 1024).contains(&held), "{held}");
}

/// A connection ends that sends none of its answers, whatever else goes on; one whose client takes others stays.
#[tokio::test]
async fn a_connection_whose_answers_nobody_takes_ends() {
    let world = world(Limits {
        call_max_ms: 200,
        answer_max_ms: 500,
        ..Limits::default()
    })
    .await;
    let get_unread = || {
        let mut burst = hello_with_window(0);
        burst.extend(call(1, "Get", &ask::get("large")));
        burst
    };
    let mut mixed = Frames::to(&world.engine);
    mixed.send(&get_unread()).await;
    let begun = Instant::now();
    for stream in streams(1_000).skip(1) {
        mixed.send(&call(stream, "Get", &ask::get("small"))).await;
        mixed.send(&window_update(stream, 1024 * KIB)).await;
        mixed.next_of(DATA).await;
        if begun.elapsed() > Duration::from_millis(1_500) {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    assert!(mixed.accounts.held().bytes > 256 * 1024);

    // One of its calls goes on: a watch.
    let held = hold(&mut world.client().await, "watched").await;
    let mut idle = Frames::to(&world.engine);
    let mut burst = get_unread();
    burst.extend(call(3, "WatchLock", &ask::watch(&held.lock_ref)));
    burst.extend(window_update(3, 1024 * KIB));
    idle.send(&burst).await;
    while idle.next().await.is_some() {}
    until(async || idle.accounts.held().bytes == 0 && idle.accounts.held().connections == 0).await;
}

/// A connection with a stream of renewals whose answers it does not take, and with so many KiB of renewals after the first.
async fn unread_renewals(frames: &mut Frames, session: &str, kib: u32) {
    frames.send(&hello_with_window(0)).await;
    frames.ping().await;
    // From here on it takes what its settings say.
    frames.send(&frame(SETTINGS, ACK, 0, &[])).await;
    let renewal = ask::keep_alive(session);
    let renewal = grpc(&renewal);
    let mut burst = frame(HEADERS, END_HEADERS, 1, &headers_of("KeepAlive"));
    burst.extend(frame(DATA, 0, 1, &renewal));
    let many = 16 * KIB as usize / renewal.len();
    for _ in 0..kib / 16 {
        burst.extend(frame(DATA, 0, 1, &renewal.repeat(many)));
    }
    // One that is cut off meanwhile takes nothing more.
    let _ = frames.io.write_all(&burst).await;
}

#[tokio::test]
async fn answers_that_nobody_takes_end_their_connection_however_small_they_are() {
    let world = world(Limits {
        answer_max_ms: 1_000,
        ..Limits::default()
    })
    .await;
    // What HTTP/2 has of messages that nobody asks for is a window at most, and ends with the answers that are not taken.
    let session = session(&world).await;
    let mut stream = Frames::to(&world.engine);
    unread_renewals(&mut stream, &session, 800).await;
    let mut small = Frames::to(&world.engine);
    let mut burst = hello_with_window(0);
    burst.extend(call(1, "CreateLockRef", &ask::create("k")));
    small.send(&burst).await;
    for hog in [&mut stream, &mut small] {
        while hog.next().await.is_some() {}
        until(async || hog.accounts.held().bytes == 0 && hog.accounts.held().connections == 0)
            .await;
    }
}

/// What was read counts no longer, however it was cut.
#[tokio::test]
async fn what_was_read_leaves_nothing_counted() {
    let world = world(Limits::default()).await;
    let mut many = Frames::to(&world.engine);
    let mut burst = hello();
    let watch = fermata_proto::WatchLockRequest {
        lock_ref: hold(&mut world.client().await, "watched").await.lock_ref,
    };
    burst.extend(call(1, "WatchLock", &watch));
    many.send(&burst).await;
    many.ping().await;
    // A watch stays: the connection is in use all along.
    let at_rest = many.accounts.held().bytes;
    for stream in streams(200).skip(1) {
        let message = grpc(&ask::get("small"));
        let (first, second) = message.split_at(3);
        let mut burst = frame(HEADERS, END_HEADERS, stream, &headers_of("Get"));
        match stream % 4 {
            1 => burst.extend(frame(DATA, END_STREAM, stream, &message)),
            _ => {
                burst.extend(frame(DATA, 0, stream, first));
                burst.extend(frame(DATA, 0, stream, second));
                burst.extend(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
            }
        }
        many.send(&burst).await;
    }
    // What comes after the answer to its call nobody reads.
    let late: Vec<u32> = streams(220).skip(200).collect();
    let mut burst = Vec::new();
    for stream in &late {
        let headers = headers_of("CriticalPut");
        burst.extend(frame(HEADERS, END_HEADERS, *stream, &headers));
        let mut message = vec![0, 0, 64, 0, 0];
        message.resize(1_000, 7);
        burst.extend(frame(DATA, 0, *stream, &message));
    }
    many.send(&burst).await;
    let mut came = Vec::new();
    until(async || {
        came.extend(many.ping().await);
        late.iter().all(|stream| refused(&came).contains(stream))
    })
    .await;
    for stream in &late {
        many.send(&frame(DATA, 0, *stream, &[7; 8_000])).await;
    }
    until(async || {
        many.ping().await;
        many.accounts.held().bytes <= at_rest
    })
    .await;
}

#[tokio::test]
async fn who_holds_most_is_cut_off_where_all_hold_too_much_together() {
    let world = world(Limits {
        call_max_ms: 1_000,
        bytes_in_flight_max: 9 * MIB / 2,
        ..Limits::default()
    })
    .await;
    let [mut large, mut small, mut other] = Frames::many(&world.engine);
    // Of the large one 7 answers have room.
    for (frames, calls) in [(&mut small, 5), (&mut other, 5), (&mut large, 16)] {
        let mut burst = hello_with_window(0);
        for stream in streams(calls) {
            burst.extend(call(stream, "Get", &ask::get("large")));
        }
        frames.send(&burst).await;
    }
    while large.next().await.is_some() {}
    small.ping().await;
    other.ping().await;
    assert_eq!(small.accounts.held().connections, 2);
}

#[tokio::test]
async fn a_reader_who_is_slow_and_takes_something_is_left_alone() {
    let world = world(Limits {
        call_max_ms: 100,
        answer_max_ms: 400,
        ..Limits::default()
    })
    .await;
    let mut slow = Frames::to(&world.engine);
    let mut burst = hello_with_window(0);
    burst.extend(call(1, "Get", &ask::get("large")));
    slow.send(&burst).await;
    let (mut bytes, begun) = (0, Instant::now());
    // 17 times 16 KiB, over more than three times answer_max.
    while bytes <= 256 * KIB as usize {
        slow.send(&window_update(0, 16 * KIB)).await;
        slow.send(&window_update(1, 16 * KIB)).await;
        while bytes <= 256 * KIB as usize {
            let came = slow.next_of(DATA).await;
            bytes += came.payload.len();
            if bytes.is_multiple_of(16 * KIB as usize) {
                break;
            }
        }
        sleep(Duration::from_millis(80)).await;
    }
    assert!(begun.elapsed() > Duration::from_millis(1_200));
}

/// A put of 256 KiB, in a lock that there never was.
fn large_put() -> Vec<u8> {
    let lock_ref = "default/k#1.aaaaaaaaaaaaaaaaaaaaaaaaaa";
    grpc(&ask::critical_put(lock_ref, vec![7; 256 * KIB as usize]))
}

/// Begins calls, each of which announces a message of 256 KiB and sends so much of it.
fn announced(calls: u32, sent: usize) -> Vec<u8> {
    let (message, headers) = (large_put(), headers_of("CriticalPut"));
    let mut burst = Vec::new();
    for stream in streams(calls) {
        burst.extend(frame(HEADERS, END_HEADERS, stream, &headers));
        burst.extend(frame(DATA, 0, stream, &message[..sent]));
    }
    burst
}

#[tokio::test]
async fn messages_that_never_end_are_bounded_and_end() {
    let world = world(Limits::default()).await;
    // However busy the machine is, no message is late before all were announced.
    tokio::time::pause();
    let mut hog = Frames::to(&world.engine);
    hog.send(&hello()).await;
    // More than HTTP/2 grants at first is on its way.
    hog.ping().await;
    hog.send(&announced(200, 1_000)).await;
    // What is announced counts at once: 7 messages of a little more than 256 KiB fit into 2 MiB, and the others are refused.
    let (calls, open) = (200 * 16 * 1024, 7 * 16 * 1024);
    until(async || hog.accounts.held().bytes >= 7 * 256 * 1024 + open).await;
    let mut came = Vec::new();
    until(async || {
        came.extend(hog.ping().await);
        refused(&came).len() >= 193
    })
    .await;
    assert_eq!(refused(&came).len(), 193);
    let held = hog.accounts.held().bytes;
    assert!(held <= 2 * MIB + calls + 200 * 1024, "{held}");
    tokio::time::resume();
    let mut innocent = world.client().await;
    done(innocent.get(ask::get("large"))).await;
    tokio::time::pause();
    until(async || {
        came.extend(hog.ping().await);
        refused(&came).len() == 200
    })
    .await;
    until(async || hog.accounts.held().bytes == 0).await;
}

/// Values that arrive in turns, a frame of each: none waits for another one that is not complete.
#[tokio::test]
async fn puts_whose_frames_come_in_turns_all_end() {
    let world = world(Limits::default()).await;
    let mut client = Frames::greeted(&world.engine).await;
    let message = large_put();
    let headers = headers_of("CriticalPut");
    for stream in streams(40) {
        let begun = frame(HEADERS, END_HEADERS, stream, &headers);
        client.send(&begun).await;
    }
    let parts: Vec<&[u8]> = message.chunks(16 * KIB as usize).collect();
    let mut came = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let is_last = number + 1 == parts.len();
        let flags = if is_last { END_STREAM } else { 0 };
        for stream in streams(40) {
            client.send(&frame(DATA, flags, stream, part)).await;
        }
        came.extend(client.ping().await);
    }
    until(async || {
        came.extend(client.ping().await);
        refused(&came).len() == 40
    })
    .await;
    until(async || client.accounts.held().bytes == 0).await;
}
