//! TLS for clients: the certificate of this server, and whom it knows by theirs.
//!
//! Certificates are replaced while it serves: a handshake takes those that are in force when it begins, and connections that are
//! open stay as they are.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fermata_tls::{self as tls, FileError};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use tokio_rustls::TlsAcceptor;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{BasicConstraints, SubjectAltName};

/// What is spoken inside.
const HTTP2: &[u8] = b"h2";

/// What is left of a certificate about which that is said.
const EXPIRES_SOON: Duration = Duration::from_secs(7 * 24 * 3600);

/// How a workload is named in a certificate.
const SPIFFE: &str = "spiffe://";

/// The longest identity, in bytes.
const IDENTITY_BYTES_MAX: usize = 256;

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
    /// Those that there are.
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

    /// Reads the files again. Once what this gives is called, what they say is in force, from the next handshake on; it says why
    /// clients will not trust the certificate. Fails where a file cannot be used, or they do not go together.
    pub fn read_again(&self) -> Result<impl FnOnce() + Send + use<>, FileError> {
        let chain = tls::certificates(&self.files.cert_file).map_err(FileError::Certificate)?;
        let own = chain.first().cloned();
        let config = config(&self.files, chain)?;
        let tls = self.clone();
        Ok(move || {
            tls.say_doubts(own.as_ref());
            *tls.in_force.write().unwrap_or_else(PoisonError::into_inner) = config;
        })
    }

    fn say_doubts(&self, own: Option<&CertificateDer<'_>>) {
        let file = self.files.cert_file.display();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default();
        for why in own.into_iter().flat_map(|own| doubts(own, now)) {
            tracing::warn!("tls.cert_file: {file}: {why}");
        }
    }

    /// For the next handshake.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let config = self.in_force.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&config))
    }
}

/// Made anew each time: nobody goes on with a session that began under a CA which was taken away.
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
                // Who has a token needs none; who has neither hears so in a status, and not in an alert.
                .allow_unauthenticated()
                .build()
                .map_err(|error| FileError::ClientCa(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| {
        FileError::Key(tls::not_a_pair(&files.cert_file, &files.key_file, &error))
    })?;
    config.alpn_protocols = vec![HTTP2.to_vec()];
    if files.client_ca_file.is_some() {
        // A session that is resumed brings the certificate that was verified when it began, which may have expired since.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(Arc::new(config))
}

/// Why clients will not trust the certificate of this server, or soon will not; `now` since 1970. Who signed it, and for which
/// names, they know better.
fn doubts(own: &CertificateDer<'_>, now: Duration) -> Vec<String> {
    let Ok(parsed) = Certificate::from_der(own) else {
        // Whether it can be used is found out elsewhere.
        return Vec::new();
    };
    let parsed = parsed.tbs_certificate();
    let mut doubts = Vec::new();
    let (from, to) = (parsed.validity().not_before, parsed.validity().not_after);
    if now < from.to_unix_duration() {
        doubts.push(format!(
            "it is not valid before {from}: clients will not connect"
        ));
    }
    match to.to_unix_duration().checked_sub(now) {
        None => doubts.push(format!("it expired on {to}: clients will not connect")),
        Some(left) if left < EXPIRES_SOON => doubts.push(format!("it expires on {to}")),
        Some(_) => {}
    }
    if let Ok(Some((_, BasicConstraints { ca: true, .. }))) = parsed.get_extension() {
        doubts.push(
            "it is a CA's own: many clients will not connect to a server that shows it. Let the CA sign one for this server"
                .to_owned(),
        );
    }
    doubts
}

/// Who a client is by its certificate, which was verified: its SPIFFE id, or else its subject as RFC 4514 writes it, such as
/// `CN=worker,O=Acme`.
pub(super) fn identity(certificate: &CertificateDer<'_>) -> Result<Arc<str>, String> {
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
    fn what_clients_will_not_trust_is_said_beforehand() {
        let mut params = CertificateParams::default();
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2026, 4, 1);
        let signed = |params: &CertificateParams| {
            let key = KeyPair::generate().unwrap();
            params.self_signed(&key).unwrap().der().clone()
        };
        let own = signed(&params);
        let days = |days: u64| Duration::from_secs((20_454 + days) * 24 * 3600);
        for (at, said) in [
            (
                days(0) - Duration::from_secs(1),
                vec!["it is not valid before 2026-01-01T00:00:00Z: clients will not connect"],
            ),
            (days(0), vec![]),
            (days(83), vec![]),
            (days(84), vec!["it expires on 2026-04-01T00:00:00Z"]),
            (
                days(91),
                vec!["it expired on 2026-04-01T00:00:00Z: clients will not connect"],
            ),
        ] {
            assert_eq!(doubts(&own, at), said, "{at:?}");
        }
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let said = doubts(&signed(&params), days(1));
        assert!(
            said.len() == 1 && said[0].contains("a CA's own"),
            "{said:?}"
        );
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
