//! Shared by all uses of TLS: certificates from files, the cryptography, the meaning of refusals. Trust decisions are elsewhere.

mod sniffed;

use std::io;
use std::path::Path;
use std::sync::Arc;

use fermata_files::{ReadError, SMALL_FILE_BYTES_MAX, read_regular};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CertificateError, Error, OtherError, RootCertStore};

pub use sniffed::Sniffed;

/// An unusable file, by its setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// The CAs of servers.
    #[error("ca_file: {0}")]
    Ca(String),
    /// The CAs of clients.
    #[error("client_ca_file: {0}")]
    ClientCa(String),
    /// The certificate.
    #[error("cert_file: {0}")]
    Certificate(String),
    /// The key, by itself or with the certificate.
    #[error("key_file: {0}")]
    Key(String),
}

/// Explicit: a second linked provider would change nothing.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// TLS was refused by the library itself.
pub fn unusable(error: Error) -> String {
    format!("TLS cannot be set up: {error}")
}

/// The CAs of a file.
pub fn authorities(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        let added = roots.add(certificate);
        added.map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(roots)
}

/// The certificates of a file, one at least.
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let unusable = |error: pem::Error| unusable_pem(file, "certificate", &error);
    let pem = read(file)?;
    let found = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let certificates = found.map_err(unusable)?;
    match certificates.is_empty() {
        true => Err(unusable(pem::Error::NoItemsFound)),
        false => Ok(certificates),
    }
}

/// A private key.
pub fn key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let key = PrivateKeyDer::from_pem_slice(&read(file)?);
    key.map_err(|error| unusable_pem(file, "private key", &error))
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    let unread = |error: ReadError| format!("{}: {error}", file.display());
    read_regular(file, SMALL_FILE_BYTES_MAX).map_err(unread)
}

/// The certificate and the key of these files are not of each other.
pub fn not_a_pair(certificate_file: &Path, key_file: &Path, error: &Error) -> String {
    let (certificate, key) = (certificate_file.display(), key_file.display());
    format!("{certificate} and {key} do not match: {error}")
}

fn unusable_pem(file: &Path, what: &str, error: &pem::Error) -> String {
    let file = file.display();
    match error {
        pem::Error::NoItemsFound => format!("{file} holds no {what} in PEM"),
        other => format!("{file} holds no {what} in PEM: {other}"),
    }
}

/// The signer of the other side's certificate, if a file names it.
pub const NAMED_CA: &str = "the configured CA";

/// The reason of TLS for a broken connection to `whom`, whose certificate `signer` must have signed.
pub fn distrust(error: &io::Error, whom: &str, signer: &str) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        // The second where another authority has the same name.
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => format!("{whom}'s certificate is not signed by {signer}"),
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => format!("{whom}'s certificate does not name the address of the connection ({error})"),
        Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => format!("{whom}'s certificate has expired, or the clock of this machine is wrong"),
        Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => {
            format!("{whom}'s certificate is not valid yet, or the clock of this machine is wrong")
        }
        Error::InvalidCertificate(CertificateError::Other(other)) if is_of_a_ca(other) => {
            format!(
                "{whom} shows the certificate of a CA; it needs a certificate that the CA signed for it"
            )
        }
        Error::NoCertificatesPresented => format!("{whom} shows no certificate"),
        Error::AlertReceived(alert) => {
            format!("{whom} refused our certificate, or requires one and got none ({alert:?})")
        }
        Error::InvalidMessage(_) => format!("{whom} does not speak TLS ({error})"),
        other => other.to_string(),
    })
}

fn is_of_a_ca(error: &OtherError) -> bool {
    // The library has no type for it.
    error.to_string().contains("CaUsedAsEndEntity")
}

/// Whether a first byte is of TLS: of an alert or a handshake. HTTP/2 begins with neither.
pub fn is_begun_by(byte: u8) -> bool {
    matches!(byte, 0x15 | 0x16)
}
