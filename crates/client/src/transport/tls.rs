//! TLS to a service: the trusted CAs, and the certificate of the client.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fermata_files::ReloadingFile;
use fermata_tls::{self as tls, FileError};
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The certificates for connections to `https://` endpoints. Clones share them.
///
/// The files are read again for each connection, so that certificates may be replaced. If the files cannot be used, the last
/// certificates stay in use.
#[derive(Clone)]
pub struct Tls {
    files: Arc<Files>,
    last: ReloadingFile<Arc<ClientConfig>>,
}

struct Files {
    /// `None`: the CAs that the system trusts.
    ca: Option<PathBuf>,
    /// The client's own certificate and its key.
    own: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Trusts the certificates in `ca_file` (PEM), and servers that they have signed. `own` names the files of the client's own
    /// certificate and of its key. Each is a regular file, or a link to one, of 1 MiB at most.
    pub fn from_files(
        ca_file: impl Into<PathBuf>,
        own: Option<(PathBuf, PathBuf)>,
    ) -> Result<Tls, FileError> {
        Tls::of(Some(ca_file.into()), own)
    }

    /// Trusts the CAs of this system (where OpenSSL looks, or in `SSL_CERT_FILE`). `own` is as above.
    pub fn from_system(own: Option<(PathBuf, PathBuf)>) -> Result<Tls, FileError> {
        Tls::of(None, own)
    }

    fn of(ca: Option<PathBuf>, own: Option<(PathBuf, PathBuf)>) -> Result<Tls, FileError> {
        let files = Arc::new(Files { ca, own });
        let config = files.read()?;
        let read_from = Arc::clone(&files);
        let last = ReloadingFile::new("the certificates", config, move || {
            read_from.read().map_err(|error| error.to_string())
        });
        Ok(Tls { files, last })
    }

    /// Connects to the server with this name or IP address.
    pub(crate) async fn connect(
        &self,
        host: &str,
        io: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let named = ServerName::try_from(host.to_owned());
        let named = named.map_err(|error| io::Error::other(format!("{host}: {error}")))?;
        let connector = TlsConnector::from(self.last.value(Duration::ZERO));
        connector.connect(named, io).await.map_err(|error| {
            let signer = match self.files.ca {
                Some(_) => tls::NAMED_CA,
                None => "a CA that this system trusts; name the CA of the server",
            };
            let Some(why) = tls::distrust(&error, "the server", signer) else {
                return error;
            };
            let words = match self.last.failure() {
                None => why,
                Some(failure) => format!("{why}; the TLS files cannot be read again: {failure}"),
            };
            io::Error::new(error.kind(), words)
        })
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let own = self.files.own.as_ref().map(|(certificate, _)| certificate);
        f.debug_struct("Tls")
            .field("ca", &self.files.ca)
            .field("certificate", &own)
            .finish()
    }
}

impl Files {
    fn read(&self) -> Result<Arc<ClientConfig>, FileError> {
        let roots = match &self.ca {
            Some(ca) => tls::authorities(ca),
            None => of_system(),
        };
        let roots = roots.map_err(FileError::Ca)?;
        let builder = ClientConfig::builder_with_provider(tls::provider())
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|error| FileError::Ca(tls::unusable(error)))?
            .with_root_certificates(roots);
        let mut config = match &self.own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = tls::certificates(certificate).map_err(FileError::Certificate)?;
                let read = tls::key(key).map_err(FileError::Key)?;
                let built = builder.with_client_auth_cert(chain, read);
                built.map_err(|error| FileError::Key(tls::not_a_pair(certificate, key, &error)))?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}

/// The CAs that this system trusts.
fn of_system() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    match (roots.is_empty(), found.errors.first()) {
        (true, None) => Err("this system has no CA certificates".to_owned()),
        (true, Some(error)) => Err(format!("this system's CA certificates: {error}")),
        (false, _) => Ok(roots),
    }
}

/// The words of rustls for a connection that the other side has ended.
const ALERT: &str = "received fatal alert: ";

/// Why a server has ended a handshake, in words, if the certificate of this client was the cause.
pub(crate) fn refused_certificate(cause: &str) -> Option<&'static str> {
    let (_, alert) = cause.split_once(ALERT)?;
    let name = alert.split(|c: char| !c.is_ascii_alphanumeric()).next()?;
    match name {
        "UnknownCA" | "BadCertificate" | "CertificateUnknown" | "CertificateRevoked" => {
            Some("the server does not trust the certificate of this client")
        }
        "CertificateExpired" => {
            Some("the server says that the certificate of this client has expired")
        }
        "CertificateRequired" => Some("the server requires a certificate of this client"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_server_takes_no_certificate_is_said() {
        let why = |alert: &str| refused_certificate(&format!("received fatal alert: {alert}"));
        let distrusted = "the server does not trust the certificate of this client";
        assert_eq!(why("UnknownCA"), Some(distrusted));
        assert_eq!(why("BadCertificate"), Some(distrusted));
        let expired = "the server says that the certificate of this client has expired";
        assert_eq!(why("CertificateExpired"), Some(expired));
        let wanted = "the server requires a certificate of this client";
        assert_eq!(why("CertificateRequired"), Some(wanted));
        for other in ["HandshakeFailure", "UnsupportedCertificate", ""] {
            assert_eq!(why(other), None, "{other}");
        }
        assert_eq!(refused_certificate("Connection refused"), None);
    }
}
