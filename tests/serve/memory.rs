//! What a process takes, as the system sees it, whatever its clients do not read.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fermata_proto::{
    CreateLockRefRequest, CriticalPutRequest, GetRequest, ListLocksRequest, ReleaseLockRequest,
};
use prost::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::frames::{ACK, HEADERS, PING, call, frame, hello_with_window, streams};
use crate::process::{Client, Serve};

const MIB: u64 = 1024 * 1024;

/// `limits.bytes_in_flight_max`, and what a process takes besides.
const TAKEN_MAX: u64 = 512 * MIB + 256 * MIB;

const CALLS: u32 = 2_000;

/// Until when each of them is answered with something.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);

/// The most memory that a process had.
fn most_taken(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.unwrap().parse::<u64>().unwrap() * 1024
}

/// Makes this call on 2,000 streams, takes nothing of what it answers, and returns once each was answered with something. `None`: the
/// server has ended the connection.
async fn hog(port: u16, method: &str, request: &impl Message) -> Option<TcpStream> {
    let mut io = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let mut burst = hello_with_window(0);
    for stream in streams(CALLS) {
        burst.extend(call(stream, method, request));
    }
    io.write_all(&burst).await.ok()?;
    let mut answered = BTreeSet::new();
    while answered.len() < CALLS as usize {
        let mut head = [0; 9];
        io.read_exact(&mut head).await.ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        io.read_exact(&mut payload).await.ok()?;
        match kind {
            HEADERS => drop(answered.insert(u32::from_be_bytes(stream))),
            PING if flags & ACK == 0 => {
                io.write_all(&frame(PING, ACK, 0, &payload)).await.ok()?;
            }
            _ => {}
        }
    }
    Some(io)
}

/// Two connections make this call and read nothing; sections of another client go on meanwhile, and there is no more memory taken
/// than is allowed.
async fn bounded(
    server: &Serve,
    client: &mut Client,
    method: &'static str,
    request: impl Message + 'static,
) {
    let port = server.port;
    let hogs = tokio::spawn(async move {
        tokio::join!(hog(port, method, &request), hog(port, method, &request))
    });
    let mut sections = 0;
    let begun = Instant::now();
    while !hogs.is_finished() {
        section(client).await;
        sections += 1;
        assert!(
            begun.elapsed() < ANSWERED_WITHIN,
            "{method}: not all answered"
        );
    }
    let hogs = hogs.await.unwrap();
    section(client).await;
    let taken = most_taken(server.pid());
    assert!(sections > 0, "{method}: nothing went on meanwhile");
    let ended = [&hogs.0, &hogs.1].iter().filter(|io| io.is_none()).count();
    println!(
        "{method}: {} MiB, {sections} sections, {ended} connections ended",
        taken / MIB
    );
    // Each was answered, with a refusal where there was no room.
    assert_eq!(ended, 0, "{method}");
    assert!(taken < TAKEN_MAX, "{} MiB", taken / MIB);
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

    let get = GetRequest {
        key: "large".to_owned(),
        ..Default::default()
    };
    bounded(&server, &mut client, "Get", get).await;
}

/// An answer of the largest page is of more than 1 MB, and as long as the test lasts.
const LISTED: usize = 1_000;
const LISTED_TTL: prost_types::Duration = prost_types::Duration {
    seconds: 600,
    nanos: 0,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_that_nobody_reads_take_no_more_memory_than_is_allowed_and_others_go_on() {
    let server = Serve::start();
    let mut client = server.client();
    for n in 0..LISTED {
        let create = CreateLockRefRequest {
            key: format!("{n:01024}"),
            ttl: Some(LISTED_TTL),
            ..Default::default()
        };
        client.create_lock_ref(create).await.unwrap();
    }
    let list = ListLocksRequest {
        page_size: i32::try_from(LISTED).unwrap(),
        ..Default::default()
    };
    bounded(&server, &mut client, "ListLocks", list).await;
}
