//! The connections of a client. Each replica has one for short calls, and others for calls that stay open: waits and watches. So
//! waits and watches never take a stream from the calls or renewals of a holder.
//!
//! A server limits the streams of a connection, but the HTTP/2 library queues the calls above that limit silently. So the
//! streams are counted here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::Channel;

use super::endpoint::Connect;
use super::options::ClientOptions;
use super::pipeline::Pipeline;

/// One replica, and the ways to it.
struct Replica {
    /// For messages.
    name: String,
    /// See [`Connect`].
    hears_tls: Arc<AtomicBool>,
    calls: Channel,
    /// On the connection for calls.
    pipeline: Pipeline,
    long_calls: LongConnections,
}

/// All connections of one client.
pub(crate) struct Connections {
    replicas: Vec<Replica>,
    /// The replica in use: one at a time, because all calls for a key are best made at one replica.
    current: AtomicUsize,
    /// Room for waits and watches.
    long_calls: Arc<Semaphore>,
    /// Room for watches, half of the room for long calls: a watch lasts as long as its lock, and must not shut out waits.
    watches: Arc<Semaphore>,
}

/// Room for one call that stays open.
pub(crate) struct LongCallPermit {
    _room: OwnedSemaphorePermit,
    _watch: Option<OwnedSemaphorePermit>,
}

impl Connections {
    /// Connections to replicas by name, beginning with the first one. There must be at least one.
    pub(crate) fn new(
        replicas: impl IntoIterator<Item = (String, Connect)>,
        options: &ClientOptions,
    ) -> Connections {
        let per_connection = options.waits_per_connection;
        let per_connection = per_connection.clamp(1, Semaphore::MAX_PERMITS);
        let replicas = replicas.into_iter().map(|(name, connect)| {
            let calls = (connect.make)();
            Replica {
                name,
                hears_tls: Arc::clone(&connect.hears_tls),
                pipeline: Pipeline::new(calls.clone(), options.metadata()),
                calls,
                long_calls: LongConnections::new(connect, per_connection),
            }
        });
        let room = per_connection
            .saturating_mul(options.wait_connections_max.max(1))
            .min(Semaphore::MAX_PERMITS);
        Connections {
            replicas: replicas.collect(),
            current: AtomicUsize::new(0),
            long_calls: Arc::new(Semaphore::new(room)),
            watches: Arc::new(Semaphore::new((room / 2).max(1))),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.replicas.len()
    }

    fn replica(&self, at: usize) -> &Replica {
        &self.replicas[at % self.replicas.len()]
    }

    /// The name of a replica.
    pub(crate) fn name(&self, at: usize) -> &str {
        &self.replica(at).name
    }

    /// Whether a replica speaks TLS, and its endpoint does not name it.
    pub(crate) fn hears_tls(&self, at: usize) -> bool {
        self.replica(at).hears_tls.load(Ordering::Relaxed)
    }

    /// Whether all replicas speak TLS, and no endpoint names it: no call gets through until the endpoints are corrected.
    pub(crate) fn all_hear_tls(&self) -> bool {
        (0..self.len()).all(|at| self.hears_tls(at))
    }

    /// The number of the replica at this address, `HOST:PORT`.
    pub(crate) fn at_address(&self, address: &str) -> Option<usize> {
        let is_there = |replica: &Replica| {
            let name = replica.name.trim_end_matches('/');
            name.rsplit_once("://").map_or(name, |(_, rest)| rest) == address
        };
        self.replicas.iter().position(is_there)
    }

    /// The number of the replica in use.
    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// Switches to the next replica, unless another call has already switched from `failed`.
    pub(crate) fn leave(&self, failed: usize) {
        let next = failed.wrapping_add(1) % self.replicas.len();
        let _another_left_it =
            self.current
                .compare_exchange(failed, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The connection for calls to a replica.
    pub(crate) fn calls(&self, at: usize) -> Channel {
        self.replica(at).calls.clone()
    }

    /// The Pipeline to a replica.
    pub(crate) fn pipeline(&self, at: usize) -> Pipeline {
        self.replica(at).pipeline.clone()
    }

    /// A stream to a replica for a call that stays open.
    pub(crate) fn long_call(&self, at: usize, permit: LongCallPermit) -> LongCallStream {
        self.replica(at).long_calls.take(permit)
    }

    /// Returns once there is room for one more wait; first come, first served.
    pub(crate) async fn wait_permit(&self) -> LongCallPermit {
        LongCallPermit {
            _room: permit(&self.long_calls).await,
            _watch: None,
        }
    }

    /// Returns once there is room for one more watch.
    pub(crate) async fn watch_permit(&self) -> LongCallPermit {
        let watch = permit(&self.watches).await;
        LongCallPermit {
            _room: permit(&self.long_calls).await,
            _watch: Some(watch),
        }
    }

    /// Room for one more wait, unless all is in use.
    pub(crate) fn try_wait_permit(&self) -> Option<LongCallPermit> {
        Some(LongCallPermit {
            _room: Arc::clone(&self.long_calls).try_acquire_owned().ok()?,
            _watch: None,
        })
    }

    /// Room for one more watch, unless all is in use.
    pub(crate) fn try_watch_permit(&self) -> Option<LongCallPermit> {
        let watch = Arc::clone(&self.watches).try_acquire_owned().ok()?;
        Some(LongCallPermit {
            _room: Arc::clone(&self.long_calls).try_acquire_owned().ok()?,
            _watch: Some(watch),
        })
    }
}

async fn permit(semaphore: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    match Arc::clone(semaphore).acquire_owned().await {
        Ok(permit) => permit,
        // Nobody closes it.
        Err(_closed) => std::future::pending().await,
    }
}

/// The connections to one replica for calls that stay open. The first connection with room takes the next call, so that the
/// others run empty. With the next call empty ones are closed, but for the first.
struct LongConnections {
    connect: Connect,
    per_connection: usize,
    open: Mutex<Vec<LongConnection>>,
}

struct LongConnection {
    channel: Channel,
    streams: Arc<Semaphore>,
}

/// A stream for one call that stays open; counted until this is dropped.
pub(crate) struct LongCallStream {
    channel: Channel,
    _stream: Option<OwnedSemaphorePermit>,
    _permit: LongCallPermit,
}

impl LongCallStream {
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }
}

impl LongConnections {
    fn new(connect: Connect, per_connection: usize) -> LongConnections {
        LongConnections {
            connect,
            per_connection,
            open: Mutex::default(),
        }
    }

    /// The permits bound the connections: one more is opened only while all are full.
    fn take(&self, permit: LongCallPermit) -> LongCallStream {
        let mut open = self.open.lock();
        let mut is_first = true;
        open.retain(|connection| {
            let is_empty = connection.streams.available_permits() == self.per_connection;
            std::mem::take(&mut is_first) || !is_empty
        });
        let has_room = |connection: &LongConnection| connection.streams.available_permits() > 0;
        let at = open.iter().position(has_room).unwrap_or_else(|| {
            open.push(LongConnection {
                channel: (self.connect.make)(),
                streams: Arc::new(Semaphore::new(self.per_connection)),
            });
            open.len() - 1
        });
        LongCallStream {
            channel: open[at].channel.clone(),
            _stream: Arc::clone(&open[at].streams).try_acquire_owned().ok(),
            _permit: permit,
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::transport::Endpoint;

    use super::*;

    fn connections(per_connection: usize, connections_max: usize) -> Connections {
        let connect = || Endpoint::from_static("http://nobody:1").connect_lazy();
        let options = ClientOptions {
            waits_per_connection: per_connection,
            wait_connections_max: connections_max,
            ..ClientOptions::default()
        };
        Connections::new([("a".to_owned(), Connect::new(connect))], &options)
    }

    fn open(connections: &Connections) -> Vec<usize> {
        let open = connections.replicas[0].long_calls.open.lock();
        let streams = |connection: &LongConnection| connection.streams.available_permits();
        open.iter().map(|open| 2 - streams(open)).collect()
    }

    #[tokio::test]
    async fn connections_are_filled_one_after_the_other_and_closed_when_they_are_empty() {
        let connections = connections(2, 3);
        let mut streams = Vec::new();
        for _ in 0..6 {
            let permit = connections.wait_permit().await;
            streams.push(connections.long_call(0, permit));
        }
        assert_eq!(open(&connections), [2, 2, 2]);
        // One that found room again, in the first one.
        drop(streams.remove(0));
        let permit = connections.wait_permit().await;
        streams.push(connections.long_call(0, permit));
        assert_eq!(open(&connections), [2, 2, 2]);
        streams.clear();
        let permit = connections.wait_permit().await;
        streams.push(connections.long_call(0, permit));
        assert_eq!(open(&connections), [1]);
    }

    #[tokio::test]
    async fn watches_leave_half_of_the_room_to_waits() {
        let connections = connections(2, 2);
        let mut held = vec![connections.watch_permit().await];
        held.push(connections.watch_permit().await);
        let third = connections.watch_permit();
        tokio::pin!(third);
        assert!(futures_util::poll!(&mut third).is_pending());
        held.push(connections.wait_permit().await);
        held.push(connections.wait_permit().await);
        let waiting = connections.wait_permit();
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        drop(held.pop());
        assert!(futures_util::poll!(&mut waiting).is_ready());
    }
}
