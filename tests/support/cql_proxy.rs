//! A proxy before the nodes of a cluster that reads frames of CQL (protocol version 4), and on command loses some
//! requests, some responses, or delivers some requests late. What it does to a request is what a network may do:
//! whoever sent it cannot tell.
//!
//! A driver asks the first node it reaches for the addresses of the others, and takes it that all of them listen at
//! the same port. So there is a listener at the address of each node, all at one port of their own: whoever is given
//! these as contact points never speaks to a node past it.
#![allow(
    dead_code,
    reason = "each program that includes this uses a part of it"
)]

use std::collections::HashSet;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};

/// What is done to requests that execute a statement or a batch, and to their responses: each a share from 0 to 1.
/// All others pass: a connection is made, and lives.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Requests that never arrive: the client times out, and nothing has happened.
    pub lose_requests: f64,
    /// Responses that never arrive: the client times out, and it has happened.
    pub lose_responses: f64,
    /// Requests that arrive late, perhaps when the client has given up.
    pub delay_requests: f64,
    /// How late at most.
    pub delay_max: Duration,
    /// Whether all requests that execute a text, which is not prepared, are lost as well.
    pub lose_queries: bool,
    /// Whether all requests that prepare a statement are lost.
    pub lose_prepares: bool,
    /// A connection that sends more bytes than this at once is not read any more: its node is busy. None where this is 0.
    pub stuck_above: usize,
}

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that execute something, the lost ones included.
    pub requests: u64,
    pub lost_requests: u64,
    pub lost_responses: u64,
    pub delayed_requests: u64,
}

/// The listeners; they and all connections end with this.
pub struct CqlProxy {
    addresses: Vec<SocketAddr>,
    nodes: Vec<Arc<BeforeNode>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct BeforeNode {
    address: SocketAddr,
    faults: Mutex<Faults>,
    random: Mutex<u64>,
    breaks: watch::Sender<u64>,
    counts: Mutex<Counts>,
}

impl CqlProxy {
    /// Before these nodes (`127.0.0.1:9042`), and faultless at first. What is lost is drawn from the seed.
    pub fn before(nodes: &[String], seed: u64) -> CqlProxy {
        let nodes: Vec<SocketAddr> = nodes.iter().map(|node| node.parse().unwrap()).collect();
        let listeners = listeners(&nodes);
        let addresses = listeners.iter().map(|one| one.local_addr().unwrap());
        let addresses = addresses.collect();
        let nodes: Vec<_> = nodes
            .into_iter()
            .zip(seed..)
            .map(|(address, seed)| {
                Arc::new(BeforeNode {
                    address,
                    faults: Mutex::default(),
                    random: Mutex::new(seed),
                    breaks: watch::Sender::new(0),
                    counts: Mutex::default(),
                })
            })
            .collect();
        let (stop, stopped) = oneshot::channel();
        let serving: Vec<_> = listeners.into_iter().zip(nodes.clone()).collect();
        // A runtime of its own: it goes on while a test blocks, and ends whole.
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                for (listener, node) in serving {
                    tokio::spawn(serve(TcpListener::from_std(listener).unwrap(), node));
                }
                let _ = stopped.await;
            });
        });
        CqlProxy {
            addresses,
            nodes,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// What clients take for the nodes.
    pub fn contact_points(&self) -> Vec<String> {
        self.addresses.iter().map(SocketAddr::to_string).collect()
    }

    /// From now on, before every node.
    pub fn set(&self, faults: Faults) {
        for number in 1..=self.nodes.len() {
            self.set_before(number, faults);
        }
    }

    /// From now on, before one node; its number is from 1.
    pub fn set_before(&self, number: usize, faults: Faults) {
        *self.nodes[number - 1].faults.lock().unwrap() = faults;
    }

    /// Breaks every connection to a node, in the middle of whatever is in flight.
    pub fn break_connections(&self, number: usize) {
        self.nodes[number - 1]
            .breaks
            .send_modify(|breaks| *breaks += 1);
    }

    /// Before all nodes together.
    pub fn counts(&self) -> Counts {
        let mut all = Counts::default();
        for number in 1..=self.nodes.len() {
            let one = self.counts_before(number);
            all.requests += one.requests;
            all.lost_requests += one.lost_requests;
            all.lost_responses += one.lost_responses;
            all.delayed_requests += one.delayed_requests;
        }
        all
    }

    /// Before one node.
    pub fn counts_before(&self, number: usize) -> Counts {
        *self.nodes[number - 1].counts.lock().unwrap()
    }
}

impl Drop for CqlProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One at the address of each node, at a port that is free at all of them.
fn listeners(nodes: &[SocketAddr]) -> Vec<StdListener> {
    const TRIES: usize = 100;
    for _ in 0..TRIES {
        let mut port = 0;
        let bound: io::Result<Vec<StdListener>> = nodes
            .iter()
            .map(|node| {
                let listener = StdListener::bind((node.ip(), port))?;
                listener.set_nonblocking(true)?;
                port = listener.local_addr()?.port();
                Ok(listener)
            })
            .collect();
        if let Ok(bound) = bound {
            return bound;
        }
    }
    panic!("no port is free at all of {nodes:?}");
}

async fn serve(listener: TcpListener, node: Arc<BeforeNode>) {
    while let Ok((client, _)) = listener.accept().await {
        let node = Arc::clone(&node);
        tokio::spawn(async move {
            // A node that is down, or a broken connection: the client sees it end.
            let _ = carry(client, &node).await;
        });
    }
}

/// How many frames may wait to be written to one side.
const FRAMES_MAX: usize = 1_024;

async fn carry(client: TcpStream, node: &Arc<BeforeNode>) -> io::Result<()> {
    let mut breaks = node.breaks.subscribe();
    let server = TcpStream::connect(node.address).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (requests, requests_out) = mpsc::channel(FRAMES_MAX);
    let (responses, responses_out) = mpsc::channel(FRAMES_MAX);
    // The streams of what is being executed.
    let executed = Mutex::new(HashSet::new());
    // Whichever ends first ends all.
    tokio::select! {
        ended = carry_requests(from_client, requests, node, &executed) => ended,
        ended = carry_responses(from_server, responses, node, &executed) => ended,
        ended = write(requests_out, to_server) => ended,
        ended = write(responses_out, to_client) => ended,
        _ = breaks.changed() => Ok(()),
    }
}

async fn carry_requests(
    mut from: OwnedReadHalf,
    to: mpsc::Sender<Frame>,
    node: &BeforeNode,
    executed: &Mutex<HashSet<u16>>,
) -> io::Result<()> {
    loop {
        let frame = Frame::read(&mut from).await?;
        let faults = *node.faults.lock().unwrap();
        if faults.stuck_above > 0 && frame.0.len() > faults.stuck_above {
            return std::future::pending().await;
        }
        if frame.executes() {
            node.counts.lock().unwrap().requests += 1;
            if node.hits(faults.lose_requests) {
                node.counts.lock().unwrap().lost_requests += 1;
                continue;
            }
            executed.lock().unwrap().insert(frame.stream());
            if node.hits(faults.delay_requests) {
                node.counts.lock().unwrap().delayed_requests += 1;
                let late = faults.delay_max.mul_f64(node.draw());
                let to = to.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(late).await;
                    let _ = to.send(frame).await;
                });
                continue;
            }
        }
        let is_lost = match frame.opcode() {
            Frame::QUERY => faults.lose_queries,
            Frame::PREPARE => faults.lose_prepares,
            _ => false,
        };
        if is_lost {
            continue;
        }
        to.send(frame).await.map_err(io::Error::other)?;
    }
}

async fn carry_responses(
    mut from: OwnedReadHalf,
    to: mpsc::Sender<Frame>,
    node: &BeforeNode,
    executed: &Mutex<HashSet<u16>>,
) -> io::Result<()> {
    loop {
        let frame = Frame::read(&mut from).await?;
        let faults = *node.faults.lock().unwrap();
        let was_executed = executed.lock().unwrap().remove(&frame.stream());
        if was_executed && node.hits(faults.lose_responses) {
            node.counts.lock().unwrap().lost_responses += 1;
            continue;
        }
        to.send(frame).await.map_err(io::Error::other)?;
    }
}

async fn write(mut frames: mpsc::Receiver<Frame>, mut to: OwnedWriteHalf) -> io::Result<()> {
    while let Some(frame) = frames.recv().await {
        to.write_all(&frame.0).await?;
    }
    Ok(())
}

impl BeforeNode {
    fn hits(&self, share: f64) -> bool {
        share > 0.0 && self.draw() < share
    }

    /// A number below 1 (splitmix64).
    fn draw(&self) -> f64 {
        let mut random = self.random.lock().unwrap();
        *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A frame as it came: 9 bytes of version, flags, stream (2), opcode and length (4), then the body.
struct Frame(Vec<u8>);

impl Frame {
    const HEADER_BYTES: usize = 9;
    const BODY_BYTES_MAX: usize = 64 << 20;
    const QUERY: u8 = 0x07;
    const PREPARE: u8 = 0x09;
    const EXECUTE: u8 = 0x0a;
    const BATCH: u8 = 0x0d;

    async fn read(from: &mut OwnedReadHalf) -> io::Result<Frame> {
        let mut bytes = vec![0; Frame::HEADER_BYTES];
        from.read_exact(&mut bytes).await?;
        let length = u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]) as usize;
        if bytes[0] & 0x7f != 4 || length > Frame::BODY_BYTES_MAX {
            return Err(io::Error::other(format!("no frame of CQL: {bytes:?}")));
        }
        bytes.resize(Frame::HEADER_BYTES + length, 0);
        from.read_exact(&mut bytes[Frame::HEADER_BYTES..]).await?;
        Ok(Frame(bytes))
    }

    fn stream(&self) -> u16 {
        u16::from_be_bytes([self.0[2], self.0[3]])
    }

    fn opcode(&self) -> u8 {
        self.0[4]
    }

    fn executes(&self) -> bool {
        matches!(self.opcode(), Frame::EXECUTE | Frame::BATCH)
    }
}
