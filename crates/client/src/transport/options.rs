//! How a client behaves.

use std::time::Duration;

use tonic::metadata::AsciiMetadataValue;

use super::call_metadata::CallMetadata;
use super::tls::Tls;
use super::token::Token;

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// How long one operation may take in all, its repeats included; a wait for a lock aside. 15 s: where a
    /// replica crashes, its locks go on at another one after the replica TTL (5 s by default), so that it takes
    /// more than that to see them go on. Where the service has another TTL, this should be twice as much.
    pub timeout: Duration,
    /// How long one attempt of it may take before it is repeated, on another endpoint if there is one. 5 s.
    pub attempt_timeout: Duration,
    /// How long making a connection may take. 3 s.
    pub connect_timeout: Duration,
    /// A connection with calls in flight is checked this often, and given up when it does not answer
    /// for as long again. 5 s.
    pub ping_interval: Duration,
    /// A renewal is sent each third of the TTL (each quarter of a disconnect_grace), and not less often than this. No limit. A lock
    /// with a long TTL that is renewed often stands that long without a server after each of them.
    pub renewal_interval_max: Duration,
    /// A guard that is held for longer than this watches its lock on the server, to hear at once of an
    /// end by force. Shorter sections spare the stream. 500 ms.
    pub watch_after: Duration,
    /// How many waits and watches share one connection. 100, which is what HTTP/2 expects of any server; less where
    /// `limits.streams_per_connection_max` of the service, or what a proxy allows, is below that. They never share
    /// a connection with other calls.
    pub waits_per_connection: usize,
    /// How many connections, to each replica, waits and watches may take; more than one only where they are full. 64.
    ///
    /// Where all of them are full, further waits queue in this process, first come, first served. Until it has a
    /// stream, such a wait asks every third of its TTL, and every 10 s at the latest: so its entry stays alive, and
    /// may learn of its turn that much later. Watches get half of the streams at most; where those are taken an end by
    /// force shows with the next call or renewal only. Calls and renewals of holders are not affected.
    pub wait_connections_max: usize,
    /// Whether the calls to a replica that end soon go over one stream (Pipeline), which costs both sides about half of what
    /// calls by themselves cost. True; false where a proxy cuts streams after a time, or is to spread the calls of one client
    /// over the replicas. Where the stream is refused, or nothing was ever answered on it when the first call times out, calls go
    /// by themselves anyway; once a minute it is tried whether the stream is taken by now.
    pub pipeline: bool,
    /// Where this client runs, as `peers.zone` of the replicas there says. A key that nobody locks moves to the
    /// zone that most of its calls come from; a client that calls the home of a key itself would else say nothing of where it
    /// is. `None`: where the replicas are that it calls.
    pub zone: Option<Zone>,
    /// The token by which the service knows this client. `None` where it takes calls of everybody, or knows its clients by
    /// their certificates.
    pub token: Option<Token>,
    /// How `https://` endpoints are connected to; `None` trusts the CAs of the system.
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

/// The name of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone(AsciiMetadataValue);

/// What is no name of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a zone has 1 to 64 printable ASCII characters")]
pub struct InvalidZone;

impl Zone {
    const BYTES_MAX: usize = 64;

    /// 1 to 64 printable ASCII characters.
    pub fn parse(text: &str) -> Result<Zone, InvalidZone> {
        let is_printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if text.is_empty() || text.len() > Zone::BYTES_MAX || !is_printable {
            return Err(InvalidZone);
        }
        text.parse().map(Zone).map_err(|_| InvalidZone)
    }

    /// As it goes with each call.
    pub(crate) fn value(&self) -> &AsciiMetadataValue {
        &self.0
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_has_as_many_characters_as_its_replicas_take() {
        let long = "x".repeat(64);
        for good in ["a", "eu-west 1", &long] {
            let zone = Zone::parse(good);
            assert_eq!(zone.unwrap().value().to_str().unwrap(), good);
        }
        for bad in ["", "zürich", "a\nb", &format!("{long}x")] {
            assert_eq!(Zone::parse(bad), Err(InvalidZone), "{bad:?}");
        }
    }
}
