//! What a process takes, as the system sees it, whatever its clients do not read.

use std::collections::BTreeSet;
use std::time::Duration;

use fermata_proto::{CreateLockRefRequest, CriticalPutRequest, GetRequest, ReleaseLockRequest};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::frames::{
    ACK, HEADERS, PING, call, call_in_frames, frame, hello, hello_with_window, path_of, streams,
};
use crate::process::{Client, Serve};

const MIB: u64 = 1024 * 1024;

/// `limits.bytes_in_flight_max`, and what a process takes besides.
const TAKEN_MAX: u64 = 512 * MIB + 256 * MIB;

const CALLS: u32 = 2_000;

/// The most memory that a process had.
fn most_taken(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.unwrap().parse::<u64>().unwrap() * 1024
}

/// Asks for a value of 1 MiB on 2,000 streams, takes nothing of it, and returns once each was answered with something.
async fn hog(port: u16) -> TcpStream {
    let mut io = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let mut burst = hello_with_window(0);
    let get = GetRequest {
        key: "large".to_owned(),
        ..Default::default()
    };
    for stream in streams(CALLS) {
        burst.extend(call(stream, "Get", &get));
    }
    io.write_all(&burst).await.unwrap();
    let mut answered = BTreeSet::new();
    while answered.len() < CALLS as usize {
        let mut head = [0; 9];
        io.read_exact(&mut head).await.unwrap();
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        io.read_exact(&mut payload).await.unwrap();
        match kind {
            HEADERS => drop(answered.insert(u32::from_be_bytes(stream))),
            PING if flags & ACK == 0 => {
                io.write_all(&frame(PING, ACK, 0, &payload)).await.unwrap();
            }
            _ => {}
        }
    }
    io
}

/// A section of somebody who does no harm.
async fn section(client: &mut Client) {
    let create = CreateLockRefRequest {
        key: "small".to_owned(),
        ..Default::default()
    };
    let held = client.create_lock_ref(create).await.unwrap().into_inner();
    let put = CriticalPutRequest {
        lock_ref: held.lock_ref.clone(),
        value: vec![1; 100].into(),
        ..Default::default()
    };
    client.critical_put(put).await.unwrap();
    let release = ReleaseLockRequest {
        lock_ref: held.lock_ref,
        ..Default::default()
    };
    client.release_lock(release).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_reads_take_no_more_memory_than_is_allowed_and_others_go_on() {
    let server = Serve::start();
    let mut client = server.client();
    let create = CreateLockRefRequest {
        key: "large".to_owned(),
        ..Default::default()
    };
    let held = client.create_lock_ref(create).await.unwrap().into_inner();
    let put = CriticalPutRequest {
        lock_ref: held.lock_ref,
        value: vec![7; MIB as usize].into(),
        ..Default::default()
    };
    client.critical_put(put).await.unwrap();

    let port = server.port;
    let hogs = tokio::spawn(async move { tokio::join!(hog(port), hog(port)) });
    while !hogs.is_finished() {
        section(&mut client).await;
    }
    let hogs = timeout(Duration::from_secs(60), hogs).await.unwrap();
    section(&mut client).await;
    let taken = most_taken(server.pid());
    assert!(taken < TAKEN_MAX, "{} MiB", taken / MIB);
    drop(hogs.unwrap());
}

/// As many paths as are remembered, each after a string for which more than 32 KiB are taken to decode it. `None`: the server has
/// ended the connection.
async fn remembered(port: u16) -> Option<TcpStream> {
    let mut io = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let block = [
        vec![0x83, 0x86],
        path_of(0x04, 1, false),
        path_of(0x04, 30_000, true),
        path_of(0x44, 5, true),
    ];
    io.write_all(&hello()).await.ok()?;
    let streams = streams(107).collect::<Vec<_>>();
    for some in streams.chunks(10) {
        for stream in some {
            let call = call_in_frames(*stream, &block.concat(), 16_384);
            io.write_all(&call).await.ok()?;
        }
        io.write_all(&frame(PING, 0, 0, b"thereyet")).await.ok()?;
        loop {
            let mut head = [0; 9];
            io.read_exact(&mut head).await.ok()?;
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            io.read_exact(&mut payload).await.ok()?;
            if (head[3], head[4]) == (PING, ACK) {
                break;
            }
        }
    }
    Some(io)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_are_remembered_take_no_more_memory_than_is_allowed() {
    let allowed = 64 * MIB;
    let server = Serve::with(&[
        ("LIMITS__BYTES_IN_FLIGHT_MAX", allowed),
        ("LIMITS__CONNECTION_BYTES_MAX", allowed),
    ]);
    let mut client = server.client();
    section(&mut client).await;
    let before = most_taken(server.pid());
    let mut all = Vec::new();
    for _ in 0..16 {
        all.push(remembered(server.port).await);
        section(&mut client).await;
    }
    let ended = all.iter().filter(|io| io.is_none()).count();
    let taken = most_taken(server.pid()) - before;
    assert!(taken < allowed, "{} MiB, {ended} ended", taken / MIB);
}
