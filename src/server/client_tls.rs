//! TLS for clients: the certificate of this server, and the identities of clients.
//!
//! A reload of the certificates counts for later handshakes. Open connections stay.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fermata_tls::{self as tls, FileError};
use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use super::wire::ByteStream;
use crate::access::Origin;
use crate::limits::IDENTITY_BYTES_MAX;

/// A certificate with less time than this left is reported.
const EXPIRES_SOON: Duration = Duration::from_secs(7 * 24 * 3600);

/// The start of a workload's name in a certificate.
const SPIFFE: &str = "spiffe://";

/// The files, as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTlsFiles {
    /// The certificate of this server, for the names that clients reach it at.
    pub cert_file: PathBuf,
    /// Its key.
    pub key_file: PathBuf,
    /// The certificates that those of clients must be signed by; clients show none where absent.
    pub client_ca_file: Option<PathBuf>,
}

impl ClientTlsFiles {
    /// All files.
    pub fn paths(&self) -> Vec<PathBuf> {
        let files = [&self.cert_file, &self.key_file].into_iter();
        files.chain(&self.client_ca_file).cloned().collect()
    }
}

/// How the server speaks TLS to clients. Cheap to clone; all clones have the same certificates.
#[derive(Clone)]
pub struct ClientTls {
    files: ClientTlsFiles,
    in_force: Arc<RwLock<Arc<ServerConfig>>>,
}

impl ClientTls {
    /// Reads the files.
    pub fn read(files: ClientTlsFiles) -> Result<ClientTls, FileError> {
        let chain = tls::certificates(&files.cert_file).map_err(FileError::Certificate)?;
        let in_force = Arc::new(RwLock::new(config(&files, chain)?));
        Ok(ClientTls { files, in_force })
    }

    /// Reads the files again, for the next handshakes, and warns about the certificate. Fails if a file cannot be used, or if
    /// they do not match.
    pub fn reload(&self) -> Result<(), FileError> {
        let chain = tls::certificates(&self.files.cert_file).map_err(FileError::Certificate)?;
        let own = chain.first().cloned();
        *self.in_force.write() = config(&self.files, chain)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        if let Some(doubt) = own.and_then(|own| doubt(&own, now.unwrap_or_default())) {
            let file = self.files.cert_file.display();
            tracing::warn!("tls.cert_file: {file}: {doubt}");
        }
        Ok(())
    }

    /// For the next handshake.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.in_force.read()))
    }

    /// The handshake of a connection of HTTP/1.1, and its origin with the identity of its certificate.
    pub async fn accept_http(
        &self,
        connection: TcpStream,
        caller: Origin,
    ) -> io::Result<(Box<dyn ByteStream>, Origin)> {
        let mut config = ServerConfig::clone(&self.in_force.read());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let connection = TlsAcceptor::from(Arc::new(config))
            .accept(connection)
            .await?;
        let (caller, _) = known(&connection, caller);
        Ok((Box::new(connection), caller))
    }
}

/// Made anew each time, so that no session of a removed CA is resumed.
fn config(
    files: &ClientTlsFiles,
    chain: Vec<CertificateDer<'static>>,
) -> Result<Arc<ServerConfig>, FileError> {
    let key = tls::key(&files.key_file).map_err(FileError::Key)?;
    let builder = ServerConfig::builder_with_provider(tls::provider())
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|error| FileError::Certificate(tls::unusable(error)))?;
    let builder = match &files.client_ca_file {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let roots = Arc::new(tls::authorities(file).map_err(FileError::ClientCa)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, tls::provider())
                // A client with a token needs none. A client with neither gets a status in place of an alert.
                .allow_unauthenticated()
                .build()
                .map_err(|error| FileError::ClientCa(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| {
        FileError::Key(tls::not_a_pair(&files.cert_file, &files.key_file, &error))
    })?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    if files.client_ca_file.is_some() {
        // A resumed session would bring a certificate that may have expired since.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(Arc::new(config))
}

/// Why clients refuse the certificate of this server, now or soon; `now` since 1970. Clients find other reasons at once.
fn doubt(own: &CertificateDer<'_>, now: Duration) -> Option<String> {
    let parsed = Certificate::from_der(own).ok()?;
    let validity = parsed.tbs_certificate().validity();
    let (from, to) = (validity.not_before, validity.not_after);
    if now < from.to_unix_duration() {
        return Some(format!(
            "it is not valid before {from}: clients refuse it until then"
        ));
    }
    match to.to_unix_duration().checked_sub(now) {
        None => Some(format!("it expired on {to}: clients refuse it")),
        Some(left) if left < EXPIRES_SOON => Some(format!("it expires on {to}")),
        Some(_) => None,
    }
}

/// The caller with the identity of its certificate, if it has one; and why a certificate names none.
pub(super) fn known(io: &TlsStream<TcpStream>, caller: Origin) -> (Origin, Option<String>) {
    let shown = io.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let (certificate, unnamed) = match shown.map(identity) {
        None => return (caller, None),
        Some(Ok(identity)) => (Some(identity), None),
        Some(Err(why)) => (None, Some(why)),
    };
    let caller = Origin {
        certificate,
        is_unnamed: unnamed.is_some(),
        ..caller
    };
    (caller, unnamed)
}

/// The identity in a verified certificate of a client: its SPIFFE id, otherwise its subject as in RFC 4514, such as
/// `CN=worker,O=Acme`.
fn identity(certificate: &CertificateDer<'_>) -> Result<Arc<str>, String> {
    let parsed = Certificate::from_der(certificate);
    let parsed = parsed.map_err(|error| format!("it cannot be read: {error}"))?;
    let parsed = parsed.tbs_certificate();
    let names = parsed.get_extension::<SubjectAltName>();
    let names = names.map_err(|error| format!("its other names cannot be read: {error}"))?;
    let names = names.map_or_else(Vec::new, |(_, SubjectAltName(names))| names);
    let mut workloads = names.iter().filter_map(|name| match name {
        GeneralName::UniformResourceIdentifier(uri) if uri.as_str().starts_with(SPIFFE) => {
            Some(uri.as_str())
        }
        _ => None,
    });
    let identity = match (workloads.next(), workloads.next()) {
        (Some(one), None) => one.to_owned(),
        (Some(_), Some(_)) => return Err("it has more than one SPIFFE id".to_owned()),
        (None, _) => parsed.subject().to_string(),
    };
    match identity.len() {
        0 => Err("it names nobody: it has no subject and no SPIFFE id".to_owned()),
        1..=IDENTITY_BYTES_MAX if !identity.contains(char::is_control) => Ok(identity.into()),
        _ => Err(format!(
            "its name has control characters, or more than {IDENTITY_BYTES_MAX} bytes"
        )),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn named(subject: &[(DnType, &str)], names: &[&str]) -> Result<String, String> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (part, text) in subject {
            params.distinguished_name.push(part.clone(), *text);
        }
        let names = names
            .iter()
            .map(|name| SanType::URI((*name).try_into().unwrap()));
        params.subject_alt_names = names.collect();
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        identity(certificate.der()).map(|identity| identity.to_string())
    }

    #[test]
    fn a_client_is_named_by_its_spiffe_id_or_its_subject() {
        let subject = [
            (DnType::CommonName, "worker"),
            (DnType::OrganizationName, "Acme"),
        ];
        let by_subject = Ok("O=Acme,CN=worker".to_owned());
        assert_eq!(named(&subject, &[]), by_subject);
        assert_eq!(named(&subject, &["https://acme/worker"]), by_subject);
        let id = "spiffe://acme/billing/7";
        assert_eq!(named(&subject, &[id]), Ok(id.to_owned()));
        assert_eq!(named(&[], &["https://acme", id]), Ok(id.to_owned()));
    }

    #[test]
    fn a_certificate_outside_its_validity_is_told_beforehand() {
        let mut params = CertificateParams::default();
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2026, 4, 1);
        let key = KeyPair::generate().unwrap();
        let own = params.self_signed(&key).unwrap().der().clone();
        let days = |days: u64| Duration::from_secs((20_454 + days) * 24 * 3600);
        for (at, told) in [
            (
                days(0) - Duration::from_secs(1),
                Some("it is not valid before 2026-01-01T00:00:00Z: clients refuse it until then"),
            ),
            (days(0), None),
            (days(83), None),
            (days(84), Some("it expires on 2026-04-01T00:00:00Z")),
            (
                days(91),
                Some("it expired on 2026-04-01T00:00:00Z: clients refuse it"),
            ),
        ] {
            assert_eq!(doubt(&own, at).as_deref(), told, "{at:?}");
        }
    }

    #[test]
    fn no_part_of_a_subject_looks_like_more_of_them() {
        let plain = named(&[(DnType::CommonName, "worker,O=Acme")], &[]);
        assert_eq!(plain, Ok("CN=worker\\,O=Acme".to_owned()));
    }

    #[test]
    fn a_certificate_that_could_name_two_names_nobody() {
        let id = "spiffe://acme/billing";
        for (subject, names, why) in [
            (&[][..], &[][..], "names nobody"),
            (&[], &[id, "spiffe://acme/other"], "more than one SPIFFE id"),
        ] {
            let refused = named(subject, names).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
