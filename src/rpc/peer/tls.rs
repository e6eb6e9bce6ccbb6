//! TLS between replicas: both sides show a certificate of the same CA.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use fermata_tls::{self as tls, FileError};
use parking_lot::RwLock;
use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// What is spoken inside.
const HTTP2: &str = "h2";

/// The files of the CA and of this replica, as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerTlsFiles {
    /// The certificates of the CA that signs those of all replicas.
    pub ca_file: PathBuf,
    /// The certificate of this replica, for the name or address that others reach it at.
    pub cert_file: PathBuf,
    /// Its key.
    pub key_file: PathBuf,
}

impl PeerTlsFiles {
    /// All of them.
    pub fn paths(&self) -> Vec<PathBuf> {
        [&self.ca_file, &self.cert_file, &self.key_file]
            .map(Clone::clone)
            .into()
    }
}

/// How a replica speaks TLS to others, in both directions.
///
/// Certificates are replaced while it runs: a handshake takes those in force at its begin.
#[derive(Clone)]
pub struct PeerTls {
    files: PeerTlsFiles,
    in_force: Arc<RwLock<InForce>>,
}

#[derive(Clone)]
struct InForce {
    calling: TlsConnector,
    called: TlsAcceptor,
}

impl PeerTls {
    /// Reads the files.
    pub fn read(files: &PeerTlsFiles) -> Result<PeerTls, FileError> {
        Ok(PeerTls {
            files: files.clone(),
            in_force: Arc::new(RwLock::new(InForce::read(files)?)),
        })
    }

    /// Reads the files again, and returns what puts them in force. Fails if one cannot be used, or they do not belong together.
    pub fn read_again(&self) -> Result<impl FnOnce() + Send + use<>, FileError> {
        let read = InForce::read(&self.files)?;
        let in_force = Arc::clone(&self.in_force);
        Ok(move || *in_force.write() = read)
    }

    fn in_force(&self) -> InForce {
        self.in_force.read().clone()
    }

    /// For the next handshake with another replica that calls.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.in_force().called
    }

    /// To the replica that is reached at this name or IP address. Done once that replica has taken our certificate
    /// as well: until then it says nothing inside.
    pub(super) async fn connect<IO>(&self, host: &str, io: IO) -> io::Result<TlsStream<IO>>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let named = ServerName::try_from(host.to_owned());
        let named = named.map_err(|error| io::Error::other(format!("{host}: {error}")))?;
        let mut secured = self.in_force().calling.connect(named, io).await?;
        // The called replica sends its HTTP/2 settings unasked.
        match secured.fill_buf().await?.is_empty() {
            true => Err(io::ErrorKind::UnexpectedEof.into()),
            false => Ok(secured),
        }
    }
}

impl InForce {
    fn read(files: &PeerTlsFiles) -> Result<InForce, FileError> {
        let roots = Arc::new(tls::authorities(&files.ca_file).map_err(FileError::Ca)?);
        let chain = tls::certificates(&files.cert_file).map_err(FileError::Certificate)?;
        let key = tls::key(&files.key_file).map_err(FileError::Key)?;
        let unusable = |error| FileError::Ca(tls::unusable(error));
        let not_a_pair =
            |error| FileError::Key(tls::not_a_pair(&files.cert_file, &files.key_file, &error));

        let mut calling = ClientConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(not_a_pair)?;
        calling.alpn_protocols = vec![HTTP2.into()];

        let with_certificate = WebPkiClientVerifier::builder_with_provider(roots, tls::provider())
            .build()
            .map_err(|error| FileError::Ca(error.to_string()))?;
        let mut called = ServerConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_client_cert_verifier(with_certificate)
            .with_single_cert(chain, key)
            .map_err(not_a_pair)?;
        called.alpn_protocols = vec![HTTP2.into()];

        Ok(InForce {
            calling: TlsConnector::from(Arc::new(calling)),
            called: TlsAcceptor::from(Arc::new(called)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_used_is_named_with_its_setting() {
        let directory = tempfile::TempDir::new().unwrap();
        let (certificate, key) = super::super::for_tests::certificate();
        let (_, other_key) = super::super::for_tests::certificate();
        for (name, text) in [("cert", certificate), ("key", key), ("other", other_key)] {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let read = |ca: &str, certificate: &str, key: &str| {
            PeerTls::read(&PeerTlsFiles {
                ca_file: directory.path().join(ca),
                cert_file: directory.path().join(certificate),
                key_file: directory.path().join(key),
            })
        };
        assert!(read("cert", "cert", "key").is_ok());
        for (ca, certificate, key, answered) in [
            ("none", "cert", "key", ["ca_file: ", "none: No such file"]),
            ("key", "cert", "key", ["ca_file: ", "holds no certificate"]),
            ("cert", "none", "key", ["cert_file: ", "none: No such file"]),
            ("cert", "cert", "none", ["key_file: ", "none: No such file"]),
            (
                "cert",
                "cert",
                "cert",
                ["key_file: ", "holds no private key"],
            ),
            ("cert", "cert", "other", ["key_file: ", "do not match"]),
        ] {
            let Err(error) = read(ca, certificate, key) else {
                panic!("{answered:?}: it was taken");
            };
            let error = error.to_string();
            assert!(error.starts_with(answered[0]), "{error}");
            assert!(error.contains(answered[1]), "{error}");
        }
    }
}
