//! The network between hosts: connections whose bytes take a while, wait while the way between two hosts is
//! blocked, and come late but in order, as with TCP. Connections break when a host goes, or when the seed says so.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, Sleep, sleep};
use tonic::transport::server::Connected;

use super::log::Log;
use super::rng::Rng;

/// How many bytes may be in flight in one direction.
const IN_FLIGHT_MAX: usize = 1024 * 1024;

/// A running process: a host, and how often that was started before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Node {
    pub host: usize,
    pub life: u32,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Net {
    log: Arc<Log>,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    rng: Rng,
    /// From, to.
    blocked: BTreeSet<(usize, usize)>,
    /// Nothing comes from there or gets there.
    stopped: BTreeSet<usize>,
    /// Whoever waits for something to be unblocked.
    waiting: Vec<Waker>,
    listeners: BTreeMap<String, (Node, UnboundedSender<End>)>,
    fenced: BTreeSet<Node>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
}

struct Connection {
    nodes: [Node; 2],
    /// What each of the two is sent.
    to: [Pipe; 2],
    is_open: [bool; 2],
    is_reset: bool,
}

#[derive(Default)]
struct Pipe {
    chunks: VecDeque<(Instant, Vec<u8>)>,
    in_flight: usize,
    /// The last one comes then.
    last: Option<Instant>,
    /// Nothing comes after that.
    ends: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn wake(&mut self) {
        let wakers = [self.reader.take(), self.writer.take()];
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Inner {
    fn is_blocked(&self, from: usize, to: usize) -> bool {
        self.blocked.contains(&(from, to))
            || self.stopped.contains(&from)
            || self.stopped.contains(&to)
    }

    fn latency(&mut self) -> Duration {
        Duration::from_millis(match self.rng.below(50) {
            0 => 5 + self.rng.below(60),
            _ => 1 + self.rng.below(2),
        })
    }

    fn unblocked(&mut self) {
        std::mem::take(&mut self.waiting)
            .into_iter()
            .for_each(Waker::wake);
    }
}

impl Net {
    pub fn new(log: &Arc<Log>, rng: Rng) -> Net {
        Net {
            log: Arc::clone(log),
            inner: Arc::new(Mutex::new(Inner {
                rng,
                blocked: BTreeSet::new(),
                stopped: BTreeSet::new(),
                waiting: Vec::new(),
                listeners: BTreeMap::new(),
                fenced: BTreeSet::new(),
                connections: BTreeMap::new(),
                next: 0,
            })),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// Nothing goes from one to the other until it is unblocked.
    pub fn block(&self, from: usize, to: usize) {
        self.inner().blocked.insert((from, to));
    }

    pub fn unblock(&self, from: usize, to: usize) {
        let mut inner = self.inner();
        inner.blocked.remove(&(from, to));
        inner.unblocked();
    }

    /// Nothing comes from there or gets there until it goes on.
    pub fn stop(&self, host: usize) {
        self.inner().stopped.insert(host);
    }

    pub fn go_on(&self, host: usize) {
        let mut inner = self.inner();
        inner.stopped.remove(&host);
        inner.unblocked();
    }

    /// Every connection between the two breaks.
    pub fn reset(&self, a: usize, b: usize) {
        let mut inner = self.inner();
        for connection in inner.connections.values_mut() {
            let hosts = connection.nodes.map(|node| node.host);
            if hosts == [a, b] || hosts == [b, a] {
                connection.is_reset = true;
                connection.to.iter_mut().for_each(Pipe::wake);
            }
        }
        inner.unblocked();
    }

    /// A process is gone: what it does from here on nobody sees. `is_heard`: the others see its connections break.
    pub fn kill(&self, node: Node, is_heard: bool) {
        let mut inner = self.inner();
        inner.fenced.insert(node);
        inner.listeners.retain(|_, (by, _)| *by != node);
        for connection in inner.connections.values_mut() {
            if connection.nodes.contains(&node) && is_heard {
                connection.is_reset = true;
                connection.to.iter_mut().for_each(Pipe::wake);
            }
        }
        inner.unblocked();
    }

    /// The connections that are made to this address.
    pub fn listen(&self, node: Node, address: &str) -> UnboundedReceiver<End> {
        let (sender, incoming) = unbounded_channel();
        let mut inner = self.inner();
        inner.listeners.insert(address.to_owned(), (node, sender));
        incoming
    }

    /// A connection to an address of a host.
    pub async fn connect(&self, from: Node, host: usize, address: &str) -> io::Result<End> {
        let latency = self.inner().latency();
        sleep(latency).await;
        poll_fn(|cx| {
            let mut inner = self.inner();
            if inner.fenced.contains(&from) {
                return Poll::Pending;
            }
            let ways = [(from.host, host), (host, from.host)];
            if !ways.iter().any(|(a, b)| inner.is_blocked(*a, *b)) {
                return Poll::Ready(());
            }
            inner.waiting.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
        let mut inner = self.inner();
        let Some((to, accepts)) = inner.listeners.get(address).cloned() else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let id = inner.next;
        inner.next += 1;
        inner.connections.insert(
            id,
            Connection {
                nodes: [from, to],
                to: Default::default(),
                is_open: [true, true],
                is_reset: false,
            },
        );
        drop(inner);
        let [ours, theirs] = [0, 1].map(|me| End {
            net: self.clone(),
            id,
            me,
            sleep: None,
        });
        match accepts.send(theirs) {
            Ok(()) => Ok(ours),
            Err(_) => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }
}

/// One end of a connection.
pub struct End {
    net: Net,
    id: u64,
    me: usize,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Connected for End {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for End {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut guard = this.net.inner.lock().unwrap();
        let inner = &mut *guard;
        let Some(connection) = inner.connections.get_mut(&this.id) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        let [me, other] = [this.me, 1 - this.me].map(|at| connection.nodes[at]);
        connection.to[this.me].reader = Some(cx.waker().clone());
        if inner.fenced.contains(&me) {
            return Poll::Pending;
        }
        if connection.is_reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if inner.blocked.contains(&(other.host, me.host))
            || inner.stopped.contains(&me.host)
            || inner.stopped.contains(&other.host)
        {
            inner.waiting.push(cx.waker().clone());
            return Poll::Pending;
        }
        let pipe = &mut connection.to[this.me];
        let Some((at, chunk)) = pipe.chunks.front_mut() else {
            return match pipe.ends {
                true => Poll::Ready(Ok(())),
                false => Poll::Pending,
            };
        };
        if *at > Instant::now() {
            let mut sleep = Box::pin(tokio::time::sleep_until(*at));
            if sleep.as_mut().poll(cx).is_pending() {
                this.sleep = Some(sleep);
                return Poll::Pending;
            }
        }
        let bytes = chunk.len().min(buf.remaining());
        this.net.log.carried(this.id, &chunk[..bytes]);
        buf.put_slice(&chunk[..bytes]);
        chunk.drain(..bytes);
        if chunk.is_empty() {
            pipe.chunks.pop_front();
        }
        pipe.in_flight -= bytes;
        if let Some(writer) = pipe.writer.take() {
            writer.wake();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for End {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let mut guard = this.net.inner.lock().unwrap();
        let inner = &mut *guard;
        let latency = inner.latency();
        let Some(connection) = inner.connections.get_mut(&this.id) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let other = 1 - this.me;
        if inner.fenced.contains(&connection.nodes[this.me]) {
            return Poll::Pending;
        }
        if connection.is_reset || !connection.is_open[other] {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let pipe = &mut connection.to[other];
        if pipe.in_flight + buf.len() > IN_FLIGHT_MAX {
            pipe.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let at = (Instant::now() + latency).max(pipe.last.unwrap_or_else(Instant::now));
        pipe.last = Some(at);
        pipe.in_flight += buf.len();
        pipe.chunks.push_back((at, buf.to_vec()));
        if let Some(reader) = pipe.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.net.ends(self.id, self.me);
        Poll::Ready(Ok(()))
    }
}

impl Net {
    /// This end says no more.
    fn ends(&self, id: u64, me: usize) {
        let mut inner = self.inner();
        let fenced = inner.fenced.clone();
        if let Some(connection) = inner.connections.get_mut(&id)
            && !fenced.contains(&connection.nodes[me])
        {
            connection.to[1 - me].ends = true;
            connection.to[1 - me].wake();
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.net.ends(self.id, self.me);
        let mut inner = self.net.inner();
        let fenced = inner.fenced.clone();
        let Some(connection) = inner.connections.get_mut(&self.id) else {
            return;
        };
        // Of a process that is gone nobody sees it.
        if fenced.contains(&connection.nodes[self.me]) {
            return;
        }
        connection.is_open[self.me] = false;
        connection.to[self.me].wake();
        let other = 1 - self.me;
        if !connection.is_open[other] || fenced.contains(&connection.nodes[other]) {
            inner.connections.remove(&self.id);
        }
    }
}
