//! The settings for the work with other replicas.

use std::path::PathBuf;

use fermata_command::Span;
use http::uri::Authority;
use serde::{Deserialize, Serialize};

use super::listen::{Listen, ListenAt};
use super::store::StoreKind;
use crate::server::{PeerTlsFiles, Protection, check_listen};

/// Calls between replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PeersConfig {
    /// Addresses for calls of other replicas.
    pub listen: Option<Listen>,
    /// The `HOST:PORT` at which others reach it; by default the first address of `listen`.
    pub advertise: Option<String>,
    /// A file with the shared secret of all replicas.
    pub secret_file: Option<PathBuf>,
    /// The name of this replica, which stays over its restarts: keys are ranked by it. By default `HOST:PORT`, with the port for
    /// clients.
    pub name: String,
    /// The site or availability zone of this replica. Keys without a home go to the zone of the asked replica.
    pub zone: String,
    /// A replica without a heartbeat for this long is down.
    pub ttl: Span,
    /// Encryption, with certificates on both sides.
    pub tls: PeersTlsConfig,
}

/// Encryption of calls between replicas: all three files, or none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PeersTlsConfig {
    /// The CAs of the certificates of all replicas, as PEM.
    pub ca_file: Option<PathBuf>,
    /// The certificate of this replica, as PEM.
    pub cert_file: Option<PathBuf>,
    /// Its key, as PEM.
    pub key_file: Option<PathBuf>,
}

impl PeersTlsConfig {
    /// The files, if TLS is on.
    pub fn files(&self) -> Option<PeerTlsFiles> {
        Some(PeerTlsFiles {
            ca_file: self.ca_file.clone()?,
            cert_file: self.cert_file.clone()?,
            key_file: self.key_file.clone()?,
        })
    }

    /// Each setting, and whether it is set.
    fn named(&self) -> [(&'static str, bool); 3] {
        [
            ("ca_file", self.ca_file.is_some()),
            ("cert_file", self.cert_file.is_some()),
            ("key_file", self.key_file.is_some()),
        ]
    }
}

impl PeersConfig {
    /// The shortest replica TTL: the time for a request to the store.
    const TTL_MIN: Span = Span::from_secs(2);
    /// The longest replica TTL.
    const TTL_MAX: Span = Span::from_secs(600);
}

impl Default for PeersConfig {
    fn default() -> Self {
        PeersConfig {
            listen: None,
            advertise: None,
            secret_file: None,
            name: String::new(),
            zone: String::new(),
            ttl: Span::from_secs(5),
            tls: PeersTlsConfig::default(),
        }
    }
}

impl PeersConfig {
    /// Adds the faults, with the names of settings.
    pub(super) fn check(&self, kind: StoreKind, insecure: bool, wrong: &mut Vec<String>) {
        let listen = self.listen.as_ref();
        for at in listen.map_or(&[][..], Listen::all) {
            match at {
                // Certificates on both sides are a login as well.
                ListenAt::Address(address) if self.tls.files().is_none() => {
                    if check_listen(*address, Protection::NONE, insecure).is_err() {
                        wrong.push(format!(
                            "peers.listen: will not listen on {address}: other machines could reach it, and neither encryption \
                             nor certificates of replicas protect it. Set peers.tls, or listen on a loopback address, or set \
                             `insecure`"
                        ));
                    }
                }
                ListenAt::Address(_) => {}
                ListenAt::Socket(_) => wrong.push(format!(
                    "peers.listen: {at} is a Unix socket, which replicas on other machines cannot reach"
                )),
            }
        }
        let mut need = |good: bool, what: &str| {
            if !good {
                wrong.push(format!("peers.{what}"));
            }
        };
        let is_called = self.listen.is_some();
        let is_encrypted = self.tls.named().iter().any(|(_, is_set)| *is_set);
        for (name, is_set) in self.tls.named() {
            need(
                is_set == is_encrypted,
                &format!(
                    "tls.{name} is not set: peers.tls.ca_file, peers.tls.cert_file and peers.tls.key_file must be set together"
                ),
            );
        }
        need(
            !is_called || kind == StoreKind::Cassandra,
            "listen: the embedded store is for one replica; several need store.kind = \"cassandra\"",
        );
        need(
            !(is_called || is_encrypted) || self.secret_file.is_some(),
            "secret_file: name a file with a secret that all replicas know",
        );
        need(
            is_called || self.advertise.is_none(),
            "advertise: peers.listen is not set; set it as well",
        );
        let mut addresses = listen.into_iter().flat_map(Listen::addresses);
        let is_anywhere = addresses.any(|one| one.ip().is_unspecified());
        need(
            !is_anywhere || self.advertise.is_some(),
            "advertise: peers.listen is a wildcard address; set the HOST:PORT at which other replicas reach this one",
        );
        if let Some(advertise) = &self.advertise {
            need(is_host_and_port(advertise), "advertise must be HOST:PORT");
        }
        need(
            (Self::TTL_MIN..=Self::TTL_MAX).contains(&self.ttl),
            "ttl must be 2s to 10m",
        );
    }
}

/// Whether this is `HOST:PORT`, with a port that can be called.
pub(super) fn is_host_and_port(text: &str) -> bool {
    let named = text.parse::<Authority>().ok();
    named.is_some_and(|named| {
        named.port_u16().is_some_and(|port| port > 0) && !named.as_str().contains('@')
    })
}
