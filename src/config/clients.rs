//! The settings for client connections: TLS, tokens, rules.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::access::AccessFiles;
use crate::server::{ClientTlsFiles, Protection};

/// Encryption of the connections of clients over TCP.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientTlsConfig {
    /// The certificate of this server, as PEM; turns encryption on.
    pub cert_file: Option<PathBuf>,
    /// Its key, as PEM.
    pub key_file: Option<PathBuf>,
    /// The CAs of client certificates, as PEM.
    pub client_ca_file: Option<PathBuf>,
}

/// Tokens and rules of clients.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthConfig {
    /// Clients and their tokens.
    pub tokens_file: Option<PathBuf>,
    /// The rights of clients; without rules they may do everything.
    pub rules_file: Option<PathBuf>,
}

impl ClientTlsConfig {
    /// The files, if TLS is on.
    pub fn files(&self) -> Option<ClientTlsFiles> {
        Some(ClientTlsFiles {
            cert_file: self.cert_file.clone()?,
            key_file: self.key_file.clone()?,
            client_ca_file: self.client_ca_file.clone(),
        })
    }

    /// Whether clients are known by their certificates.
    pub fn knows_clients(&self) -> bool {
        self.files().is_some() && self.client_ca_file.is_some()
    }

    /// The protection by certificates and tokens.
    pub fn protection(&self, auth: &AuthConfig) -> Protection {
        Protection {
            tls: self.files().is_some(),
            login: self.knows_clients() || auth.tokens_file.is_some(),
        }
    }

    /// Adds the faults, with the names of settings.
    pub(super) fn check(&self, auth: &AuthConfig, wrong: &mut Vec<String>) {
        if self.cert_file.is_some() != self.key_file.is_some() {
            wrong.push("tls.cert_file and tls.key_file must be set together".to_owned());
        }
        if self.client_ca_file.is_some() && self.cert_file.is_none() {
            wrong.push(
                "tls.client_ca_file needs tls.cert_file: clients show certificates only over TLS"
                    .to_owned(),
            );
        }
        if auth.rules_file.is_some() && !self.protection(auth).login {
            wrong.push(
                "auth.rules_file: rules need known clients; set auth.tokens_file or tls.client_ca_file. For clients of a Unix \
                 socket alone an empty tokens file is enough"
                    .to_owned(),
            );
        }
    }
}

impl AuthConfig {
    /// The files.
    pub fn files(&self) -> AccessFiles {
        AccessFiles {
            tokens: self.tokens_file.clone(),
            rules: self.rules_file.clone(),
        }
    }
}
