//! The options of a client.

use std::time::Duration;

use super::call_metadata::{CallMetadata, TraceContext, Zone};
use super::tls::Tls;
use super::token::Token;

/// The options of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The time limit of one operation with its repeats, without the wait for a lock. 15 s. After the crash of a replica, another
    /// one serves its locks after the replica TTL (5 s by default), and an operation should last until then. If the service has
    /// another replica TTL, use more than twice that.
    pub timeout: Duration,
    /// The time limit of one attempt. After that it is repeated, on another endpoint if there is one. 5 s.
    pub attempt_timeout: Duration,
    /// The time limit for making a connection. 3 s.
    pub connect_timeout: Duration,
    /// A connection with calls in flight is checked this often, and closed if it does not answer for as long again. 5 s.
    pub ping_interval: Duration,
    /// The longest time between two renewals. By default no limit: a renewal is sent each third of the TTL (each quarter of a
    /// disconnect_grace). A lock with a long TTL and frequent renewals survives long outages of its servers.
    pub renewal_interval_max: Duration,
    /// A guard that is held for longer than this watches its lock on the server, and notices an end by force at once. Shorter
    /// sections need no stream. 500 ms.
    pub watch_after: Duration,
    /// The most waits and watches on one connection. 100, as HTTP/2 expects of any server. Use less if
    /// `limits.streams_per_connection_max` of the service, or the limit of a proxy, is lower. Waits and watches never share a
    /// connection with other calls.
    pub waits_per_connection: usize,
    /// The most connections to each replica for waits and watches. Another one is opened only when all are full. 64.
    ///
    /// When all are full, further waits queue in this process. Until it has a stream, such a wait asks every third of its TTL, at
    /// least every 10 s. So its entry stays alive, but the wait may learn of its turn that much later. Watches, and sessions with
    /// a disconnect_grace, get at most half of the streams. Without a stream for its watch, a lock learns of an end by force only
    /// with the next call or renewal. Calls and renewals of holders are not affected.
    pub wait_connections_max: usize,
    /// Whether the short calls to a replica go over one stream (Pipeline), which costs both sides about half as much as separate
    /// calls. True. Use false if a proxy cuts streams after a time, or should spread the calls of one client over the replicas.
    /// If the stream does not get through, calls go separately anyway, and the stream is tried again once a minute.
    pub pipeline: bool,
    /// The zone of this client, named as in `peers.zone` of the replicas there. A key that nobody locks moves to the zone that
    /// sends most of its calls. Without this option the zone of the called replica counts. `None`.
    pub zone: Option<Zone>,
    /// The token by which the service knows this client. `None` if the service accepts calls of everybody, or knows its clients
    /// by their certificates.
    pub token: Option<Token>,
    /// The traces that calls are part of, for the spans of the service. `None`: the service decides which calls it traces.
    pub traces: Option<TraceContext>,
    /// The certificates for `https://` endpoints; `None` trusts the CAs of the system.
    pub tls: Option<Tls>,
}

impl ClientOptions {
    /// The metadata of the client's calls.
    pub(crate) fn metadata(&self) -> CallMetadata {
        CallMetadata {
            zone: self.zone.clone(),
            token: self.token.clone(),
            traces: self.traces.clone(),
        }
    }
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            timeout: Duration::from_secs(15),
            attempt_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(3),
            ping_interval: Duration::from_secs(5),
            renewal_interval_max: Duration::MAX,
            watch_after: Duration::from_millis(500),
            waits_per_connection: 100,
            wait_connections_max: 64,
            pipeline: true,
            zone: None,
            token: None,
            traces: None,
            tls: None,
        }
    }
}
