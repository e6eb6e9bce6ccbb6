//! The connections of a client. To each replica one for calls, which all end soon, and others for what stays open:
//! waits and watches. So these never take a stream that a holder's calls, or its renewals, need.
//!
//! A server says how many streams a connection may have, but the HTTP/2 library queues the calls above that by itself,
//! without a word. So the streams are counted here.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::Channel;

use super::call_metadata::CallMetadata;
use super::pipeline::Pipeline;

/// How many waits that have no stream may ask at the same moment, on the connections for calls.
const POLLS_MAX: usize = 16;

/// Makes a connection to one replica, which connects when it is first used.
pub(super) struct Connect {
    make: Box<dyn Fn() -> Channel + Send + Sync>,
    hears_tls: Arc<AtomicBool>,
}

impl Connect {
    pub(super) fn new(make: impl Fn() -> Channel + Send + Sync + 'static) -> Connect {
        Connect {
            make: Box::new(make),
            hears_tls: Arc::default(),
        }
    }

    /// A connection that is made sets this where what answers speaks TLS, and the endpoint does not.
    #[must_use]
    pub(super) fn that_sets(self, hears_tls: Arc<AtomicBool>) -> Connect {
        Connect { hears_tls, ..self }
    }
}

/// How many calls that stay open a client may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongCallLimits {
    /// On one connection.
    pub(super) per_connection: usize,
    /// How many such connections to each replica.
    pub(super) connections_max: usize,
}

/// One replica, as it is reached from here.
struct Replica {
    /// For messages.
    name: String,
    /// As [`Connect`] has it.
    hears_tls: Arc<AtomicBool>,
    calls: Channel,
    /// Over the connection for calls.
    pipeline: Pipeline,
    long_calls: Arc<LongConnections>,
}

/// All connections of one client.
pub(super) struct Connections {
    replicas: Vec<Replica>,
    /// The replica in use. One at a time: calls for a key are best made at one replica.
    current: AtomicUsize,
    /// Room for waits and watches.
    long_calls: Arc<Semaphore>,
    /// Room for watches, half of that: they last as long as their locks, and must not shut out those who wait.
    watches: Arc<Semaphore>,
    polls: Arc<Semaphore>,
}

/// Room for one call that stays open.
pub(super) struct LongCallPermit {
    _room: OwnedSemaphorePermit,
    _watch: Option<OwnedSemaphorePermit>,
}

impl Connections {
    /// To replicas by name, beginning with the first one. There must be one at least.
    pub(super) fn new(
        replicas: impl IntoIterator<Item = (String, Connect)>,
        limits: LongCallLimits,
        metadata: &CallMetadata,
    ) -> Connections {
        let per_connection = limits.per_connection.max(1);
        let replicas = replicas.into_iter().map(|(name, connect)| {
            let calls = (connect.make)();
            Replica {
                name,
                hears_tls: Arc::clone(&connect.hears_tls),
                pipeline: Pipeline::new(calls.clone(), metadata.clone()),
                calls,
                long_calls: Arc::new(LongConnections::new(connect, per_connection)),
            }
        });
        let room = per_connection
            .saturating_mul(limits.connections_max.max(1))
            .min(Semaphore::MAX_PERMITS);
        Connections {
            replicas: replicas.collect(),
            current: AtomicUsize::new(0),
            long_calls: Arc::new(Semaphore::new(room)),
            watches: Arc::new(Semaphore::new((room / 2).max(1))),
            polls: Arc::new(Semaphore::new(POLLS_MAX)),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.replicas.len()
    }

    fn replica(&self, at: usize) -> &Replica {
        &self.replicas[at % self.replicas.len()]
    }

    /// The name of a replica.
    pub(super) fn name(&self, at: usize) -> &str {
        &self.replica(at).name
    }

    /// Whether a replica speaks TLS, though its endpoint says that it does not.
    pub(super) fn hears_tls(&self, at: usize) -> bool {
        self.replica(at).hears_tls.load(Ordering::Relaxed)
    }

    /// Whether all do: no call gets through until the endpoints are corrected.
    pub(super) fn all_hear_tls(&self) -> bool {
        (0..self.len()).all(|at| self.hears_tls(at))
    }

    /// The number of the replica that is reached at this address, `HOST:PORT`.
    pub(super) fn at_address(&self, address: &str) -> Option<usize> {
        let is_there = |replica: &Replica| {
            let name = replica.name.trim_end_matches('/');
            name.rsplit_once("://").map_or(name, |(_, rest)| rest) == address
        };
        self.replicas.iter().position(is_there)
    }

    /// The number of the replica in use.
    pub(super) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// Goes on to the next replica, unless another call has left `failed` already.
    pub(super) fn leave(&self, failed: usize) {
        let next = failed.wrapping_add(1) % self.replicas.len();
        let _another_left_it =
            self.current
                .compare_exchange(failed, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The connection for calls to a replica.
    pub(super) fn calls(&self, at: usize) -> Channel {
        self.replica(at).calls.clone()
    }

    /// The Pipeline to a replica.
    pub(super) fn pipeline(&self, at: usize) -> Pipeline {
        self.replica(at).pipeline.clone()
    }

    /// A stream to a replica for a call that stays open.
    pub(super) fn long_call(&self, at: usize, permit: LongCallPermit) -> LongCallStream {
        LongConnections::take(&self.replica(at).long_calls, permit)
    }

    /// Returns once there is room for one more wait; first come, first served.
    pub(super) async fn wait_permit(&self) -> LongCallPermit {
        LongCallPermit {
            _room: permit(&self.long_calls).await,
            _watch: None,
        }
    }

    /// The same for one more watch.
    pub(super) async fn watch_permit(&self) -> LongCallPermit {
        let watch = permit(&self.watches).await;
        LongCallPermit {
            _room: permit(&self.long_calls).await,
            _watch: Some(watch),
        }
    }

    /// Returns once one more wait without a stream may ask.
    pub(super) async fn poll_permit(&self) -> OwnedSemaphorePermit {
        permit(&self.polls).await
    }
}

async fn permit(semaphore: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    match Arc::clone(semaphore).acquire_owned().await {
        Ok(permit) => permit,
        // Nobody closes it.
        Err(_closed) => std::future::pending().await,
    }
}

/// The connections to one replica for calls that stay open. The first one that has room takes the next call, so that
/// the others run empty; those are closed, but for the last.
struct LongConnections {
    connect: Connect,
    per_connection: usize,
    open: Mutex<BTreeMap<u64, LongConnection>>,
}

struct LongConnection {
    channel: Channel,
    streams: usize,
}

/// A stream for one call that stays open; counted until this is dropped.
pub(super) struct LongCallStream {
    channel: Channel,
    number: u64,
    connections: Arc<LongConnections>,
    _permit: LongCallPermit,
}

impl LongCallStream {
    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }
}

impl Drop for LongCallStream {
    fn drop(&mut self) {
        let mut open = self.connections.open();
        let others = open.len() > 1;
        if let Some(connection) = open.get_mut(&self.number) {
            connection.streams = connection.streams.saturating_sub(1);
            if connection.streams == 0 && others {
                open.remove(&self.number);
            }
        }
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

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, LongConnection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All are full where there are as many as the permits allow, so there are never more.
    fn take(self: &Arc<Self>, permit: LongCallPermit) -> LongCallStream {
        let mut open = self.open();
        let with_room = open
            .iter_mut()
            .find(|(_, connection)| connection.streams < self.per_connection);
        let (number, channel) = match with_room {
            Some((number, connection)) => {
                connection.streams += 1;
                (*number, connection.channel.clone())
            }
            None => {
                let number = open.last_key_value().map_or(0, |(last, _)| last + 1);
                let channel = (self.connect.make)();
                let connection = LongConnection {
                    channel: channel.clone(),
                    streams: 1,
                };
                open.insert(number, connection);
                (number, channel)
            }
        };
        LongCallStream {
            channel,
            number,
            connections: Arc::clone(self),
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
        let limits = LongCallLimits {
            per_connection,
            connections_max,
        };
        Connections::new(
            [("a".to_owned(), Connect::new(connect))],
            limits,
            &CallMetadata::default(),
        )
    }

    fn open(connections: &Connections) -> Vec<usize> {
        let open = connections.replicas[0].long_calls.open();
        open.values().map(|connection| connection.streams).collect()
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
        streams.truncate(1);
        assert_eq!(open(&connections), [1]);
        streams.clear();
        assert_eq!(open(&connections), [0]);
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
