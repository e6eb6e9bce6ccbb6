//! The options of a client.

use std::time::Duration;

use super::call_metadata::{CallMetadata, Zone};
use super::tls::Tls;
use super::token::Token;

/// The options of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The time of one operation, its repeats included; a wait for a lock aside. 15 s. Where a replica crashes, another one serves
    /// its locks after the replica TTL (5 s by default), and an operation is to last until then. Use more than twice the replica
    /// TTL, where the service has another one.
    pub timeout: Duration,
    /// The time of one attempt, before it is repeated, on another endpoint if there is one. 5 s.
    pub attempt_timeout: Duration,
    /// The time that making a connection may take. 3 s.
    pub connect_timeout: Duration,
    /// A connection with calls in flight is checked this often, and given up when it does not answer
    /// for as long again. 5 s.
    pub ping_interval: Duration,
    /// The longest time between two renewals. No limit: a renewal is sent each third of the TTL (each quarter of a
    /// disconnect_grace). A lock with a long TTL that is renewed often outlasts its servers for that long.
    pub renewal_interval_max: Duration,
    /// A guard that is held for longer than this watches its lock on the server, and notices an end by force at once. Shorter
    /// sections spare the stream. 500 ms.
    pub watch_after: Duration,
    /// The waits and watches on one connection. 100, which is what HTTP/2 expects of any server; less where
    /// `limits.streams_per_connection_max` of the service, or what a proxy allows, is below that. They never share
    /// a connection with other calls.
    pub waits_per_connection: usize,
    /// The connections, to each replica, for waits and watches; more than one only where they are full. 64.
    ///
    /// Where all of them are full, further waits queue in this process. Until it has a stream, such a wait asks every third of its
    /// TTL, and every 10 s at the latest: so its entry stays alive, and may learn of its turn that much later. Watches, and
    /// sessions with a disconnect_grace, get half of the streams at most. Without a stream for its watch a lock learns of an end
    /// by force with the next call or renewal only. Calls and renewals of holders are not affected.
    pub wait_connections_max: usize,
    /// Whether the short calls to a replica go over one stream (Pipeline), which costs both sides about half of what calls by
    /// themselves cost. True; use false where a proxy cuts streams after a time, or is to spread the calls of one client over the
    /// replicas. Where the stream does not get through, calls go by themselves anyway, and once a minute the stream is tried
    /// again.
    pub pipeline: bool,
    /// The zone that this client runs in, as `peers.zone` of the replicas there names it. A key that nobody locks moves to the
    /// zone of most of its calls; without this the replicas that are called count, and not their client. `None`.
    pub zone: Option<Zone>,
    /// The token by which the service knows this client. `None` where the service takes calls of everybody, or knows its clients
    /// by their certificates.
    pub token: Option<Token>,
    /// The certificates for `https://` endpoints; `None` trusts the CAs of the system.
    pub tls: Option<Tls>,
}

impl ClientOptions {
    /// The metadata of the client's calls.
    pub(crate) fn metadata(&self) -> CallMetadata {
        CallMetadata {
            zone: self.zone.clone(),
            token: self.token.clone(),
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
            tls: None,
        }
    }
}
