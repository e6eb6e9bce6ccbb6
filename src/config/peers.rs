//! The settings of a replica among others.

use std::path::PathBuf;

use http::uri::Authority;
use serde::{Deserialize, Serialize};

use super::{Listen, Span, StoreKind};
use crate::server::check_listen;

/// How replicas reach each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PeersConfig {
    /// Where to take calls of other replicas; nowhere where absent.
    pub listen: Option<Listen>,
    /// Where others reach that, `HOST:PORT`; the first address of `listen` where absent.
    pub advertise: Option<String>,
    /// A file with the secret that all replicas of the service know.
    pub secret_file: Option<PathBuf>,
    /// A replica without a sign of life for this long is down.
    pub ttl: Span,
}

impl PeersConfig {
    /// The shortest replica TTL.
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
            ttl: Span::from_secs(10),
        }
    }
}

impl PeersConfig {
    /// What does not fit together, in words that name the settings.
    pub(super) fn check(&self, kind: StoreKind, insecure: bool, wrong: &mut Vec<String>) {
        let addresses = self.listen.as_ref().map_or(&[][..], Listen::addresses);
        for address in addresses {
            if let Err(error) = check_listen(*address, insecure) {
                wrong.push(format!("peers.listen: {error}"));
            }
        }
        let mut need = |good: bool, what: &str| {
            if !good {
                wrong.push(format!("peers.{what}"));
            }
        };
        let is_called = self.listen.is_some();
        need(
            !is_called || kind == StoreKind::Cassandra,
            "listen: the embedded store is for one replica; several need store.kind = \"cassandra\"",
        );
        need(
            !is_called || self.secret_file.is_some(),
            "secret_file: name a file with a secret that all replicas know",
        );
        need(
            is_called || self.advertise.is_none(),
            "advertise: nothing listens there; set peers.listen as well",
        );
        let is_anywhere = addresses.iter().any(|one| one.ip().is_unspecified());
        need(
            !is_anywhere || self.advertise.is_some(),
            "advertise: say at which HOST:PORT others reach this replica; it listens on every address",
        );
        if let Some(advertise) = &self.advertise {
            let named = advertise.parse::<Authority>().ok();
            let good = named.is_some_and(|named| {
                named.port_u16().is_some_and(|port| port > 0) && !named.as_str().contains('@')
            });
            need(good, "advertise: write HOST:PORT");
        }
        need(
            (Self::TTL_MIN..=Self::TTL_MAX).contains(&self.ttl),
            "ttl must be 2s to 10m",
        );
    }
}
