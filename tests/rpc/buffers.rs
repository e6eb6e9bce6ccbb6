//! Buffers that HTTP/2 keeps for the sake of a few bytes in each: they count as what they are.

use fermata::limits::Limits;

use crate::budgets::{session, unread_renewals, until};
use crate::frames::{
    DATA, END_HEADERS, END_STREAM, Frames, HEADERS, call_in_frames, frame, headers_of_path, hello,
    path_of, streams,
};
use crate::retained::{ended, gone};
use crate::world::World;

/// Of a kind that nobody knows, which is ignored.
fn ignored() -> Vec<u8> {
    frame(0xbe, 0, 0, &[0; 8_000])
}

/// A call that nobody serves, whose path is to be remembered.
fn remembered(stream: u32, path: &str) -> Vec<u8> {
    let mut block = headers_of_path(path);
    assert_eq!(block[2], 0x04, "a path that is not remembered");
    block[2] = 0x44;
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
}

#[tokio::test]
async fn paths_that_are_remembered_count_with_what_came_between_them() {
    let world = World::with(Limits::default()).await;
    let [mut hog, mut other] = Frames::many(&world.engine);
    for frames in [&mut hog, &mut other] {
        frames.send(&hello()).await;
    }
    let mut came = Vec::new();
    for (number, stream) in streams(80).enumerate() {
        let call = remembered(stream, &format!("/x.Y/{number:03}"));
        other.send(&call).await;
        hog.send(&[call, ignored()].concat()).await;
        came.extend(hog.ping().await);
        other.ping().await;
    }
    until(async || {
        came.extend(hog.ping().await);
        ended(&came) == 80
    })
    .await;
    let accounts = hog.accounts.clone();
    let kept = 79 * 8_000;
    until(async || {
        let held = accounts.held().bytes;
        (kept..kept + 80 * 1_000).contains(&held)
    })
    .await;
    // The table has no room for all of them any more.
    let mut came = Vec::new();
    for stream in streams(280).skip(80) {
        hog.send(&remembered(stream, &format!("/x.Y/{stream:03}")))
            .await;
        came.extend(hog.ping().await);
    }
    until(async || {
        came.extend(hog.ping().await);
        ended(&came) == 200
    })
    .await;
    until(async || accounts.held().bytes < 100 * 1_000).await;
    drop((hog, other));
    until(async || accounts.held().bytes == 0).await;
}

/// Waits until so many streams have ended.
async fn until_ended(frames: &mut Frames, count: usize) {
    let mut came = Vec::new();
    until(async || {
        came.extend(frames.ping().await);
        gone(&came) == count
    })
    .await;
}

#[tokio::test]
async fn paths_of_blocks_in_several_frames_count_with_what_those_are_joined_in() {
    let world = World::with(Limits::default()).await;
    let mut hog = Frames::to(&world.engine);
    hog.send(&hello()).await;
    for stream in streams(50) {
        let block = [vec![0x83, 0x86], path_of(0x44, 10, false)].concat();
        hog.send(&call_in_frames(stream, &block, 5)).await;
    }
    until_ended(&mut hog, 50).await;
    until(async || hog.accounts.held().bytes >= 50 * 16 * 1024).await;
}

#[tokio::test]
async fn what_strings_are_decoded_into_counts() {
    let world = World::with(Limits::default()).await;
    let mut hog = Frames::to(&world.engine);
    hog.send(&hello()).await;
    // Only the first path is taken for one, and the stream refused.
    let block = [
        vec![0x83, 0x86],
        path_of(0x04, 1, false),
        path_of(0x04, 20_000, true),
        path_of(0x44, 5, true),
    ];
    for stream in streams(50) {
        hog.send(&call_in_frames(stream, &block.concat(), 16_384))
            .await;
    }
    until_ended(&mut hog, 50).await;
    until(async || hog.accounts.held().bytes >= 50 * 40_000).await;
}

#[tokio::test]
async fn a_block_of_headers_is_read_up_to_a_bound() {
    let world = World::with(Limits::default()).await;
    let mut frames = Frames::to(&world.engine);
    frames.send(&hello()).await;
    let block = |length| [vec![0x83, 0x86], path_of(0x04, length, false)].concat();
    frames
        .send(&call_in_frames(1, &block(30_000), 16_384))
        .await;
    until_ended(&mut frames, 1).await;
    frames
        .send(&call_in_frames(3, &block(40_000), 16_384))
        .await;
    while frames.next().await.is_some() {}
    until(async || frames.accounts.held().connections == 0).await;
    assert_eq!(frames.accounts.held().bytes, 0);
}

/// HTTP/2 refuses the stream that it is of, and keeps what its headers have it remember.
#[tokio::test]
async fn a_client_that_promises_a_stream_loses_its_connection() {
    const PUSH_PROMISE: u8 = 5;
    let world = World::with(Limits::default()).await;
    let mut frames = Frames::to(&world.engine);
    frames.send(&hello()).await;
    frames.ping().await;
    assert_eq!(frames.accounts.held().connections, 1);
    let mut promise = vec![0, 0, 0, 2];
    promise.extend(path_of(0x44, 10, false));
    // No header of HTTP/2.
    promise.extend([0x00, 10]);
    promise.extend(b"connection");
    promise.extend([1, b'x']);
    frames
        .send(&frame(PUSH_PROMISE, END_HEADERS, 1, &promise))
        .await;
    until(async || frames.accounts.held().connections == 0).await;
    assert_eq!(frames.accounts.held().bytes, 0);
}

/// In a block that goes on HTTP/2 leaves it out, and goes on: of what it would push out all is kept.
#[tokio::test]
async fn a_client_that_sends_a_header_without_a_name_loses_its_connection() {
    let world = World::with(Limits::default()).await;
    let mut frames = Frames::to(&world.engine);
    frames.send(&hello()).await;
    frames.send(&remembered(1, "/x.Y/1")).await;
    frames.ping().await;
    assert_eq!(frames.accounts.held().connections, 1);
    let block = [vec![0x83, 0x86], vec![0x40, 0, 1, b'x']].concat();
    frames.send(&frame(HEADERS, END_STREAM, 3, &block)).await;
    until(async || frames.accounts.held().connections == 0).await;
    assert_eq!(frames.accounts.held().bytes, 0);
}

#[tokio::test]
async fn small_frames_count_with_what_came_between_them() {
    let world = World::with(Limits::default()).await;
    let session = session(&world).await;
    let mut hog = Frames::to(&world.engine);
    // What comes from here on nobody reads.
    unread_renewals(&mut hog, &session, 16).await;
    until(async || hog.accounts.held().bytes >= 16 * 1_024).await;
    let before = hog.accounts.held().bytes;
    for _ in 0..50 {
        hog.send(&frame(DATA, 0, 1, &[0; 300])).await;
        hog.send(&ignored()).await;
    }
    until(async || hog.accounts.held().bytes >= before + 49 * 7_000).await;
    let accounts = hog.accounts.clone();
    drop(hog);
    until(async || accounts.held().bytes == 0).await;
}
