//! Encrypted connections to the nodes: what is trusted, and what a refusal means.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use super::options::CassandraTls;

/// What connections are made with; else what is wrong with which file.
pub(super) fn client_config(tls: &CassandraTls) -> Result<Arc<ClientConfig>, String> {
    let unusable = |error: Error| format!("TLS cannot be set up: {error}");
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&tls.ca_file)? {
        let added = roots.add(certificate);
        added.map_err(|error| format!("{}: {error}", tls.ca_file.display()))?;
    }
    // Named, so that a second provider that is linked one day changes nothing.
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let builder = match tls.verify_host {
        true => builder.with_root_certificates(roots),
        false => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyHost { roots, provider })),
    };
    let config = match &tls.client {
        None => builder.with_no_client_auth(),
        Some(client) => {
            let chain = certificates(&client.certificate_file)?;
            let key = PrivateKeyDer::from_pem_file(&client.key_file);
            let key = key.map_err(|error| unreadable(&client.key_file, "private key", &error))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| {
                let certificate = client.certificate_file.display();
                let key = client.key_file.display();
                format!("{certificate} and {key} do not go together: {error}")
            })?
        }
    };
    Ok(Arc::new(config))
}

/// One at least.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let unreadable = |error: pem::Error| unreadable(file, "certificate", &error);
    let read = CertificateDer::pem_file_iter(file).map_err(unreadable)?;
    let certificates: Vec<_> = read.collect::<Result<_, _>>().map_err(unreadable)?;
    match certificates.is_empty() {
        true => Err(unreadable(pem::Error::NoItemsFound)),
        false => Ok(certificates),
    }
}

fn unreadable(file: &Path, what: &str, error: &pem::Error) -> String {
    let file = file.display();
    match error {
        pem::Error::NoItemsFound => format!("{file} holds no {what} in PEM"),
        pem::Error::Io(error) => format!("{file}: {error}"),
        other => format!("{file} holds no {what} in PEM: {other}"),
    }
}

/// Trusts every certificate that the CA has signed, wherever it is shown.
#[derive(Debug)]
struct AnyHost {
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyHost {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

/// Why a connection broke, where TLS is the reason.
pub(super) fn distrust(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        // The second where another authority has the same name.
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "the node's certificate is not signed by the CA that was named".to_owned(),
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => format!("the node's certificate is not for the address it is reached at ({error})"),
        Error::AlertReceived(alert) => {
            format!("the node refused our certificate, or that we have none ({alert:?})")
        }
        Error::InvalidMessage(_) => format!("the node does not speak TLS ({error})"),
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::cassandra::ClientCertificate;

    /// A certificate that signs itself, and its key, as text.
    fn certificate() -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default()
            .self_signed(&key)
            .unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        let directory = tempfile::TempDir::new().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (certificate, key) = certificate();
        let (_, other_key) = self::certificate();
        let good = file("ca.pem", &certificate);
        let tls = |ca: &str, client: Option<[&str; 2]>| CassandraTls {
            ca_file: directory.path().join(ca),
            client: client.map(|names| ClientCertificate {
                certificate_file: directory.path().join(names[0]),
                key_file: directory.path().join(names[1]),
            }),
            verify_host: true,
        };
        file("key", &key);
        file("other key", &other_key);
        file("empty", "");
        file("cut", &certificate[..certificate.len() / 2]);
        assert!(client_config(&tls("ca.pem", Some(["ca.pem", "key"]))).is_ok());
        for (tls, told) in [
            (tls("none", None), "none: No such file"),
            (tls("empty", None), "empty holds no certificate"),
            (tls("key", None), "key holds no certificate"),
            (tls("cut", None), "cut holds no certificate"),
            (
                tls("ca.pem", Some(["ca.pem", "empty"])),
                "empty holds no private key",
            ),
            (
                tls("ca.pem", Some(["empty", "key"])),
                "empty holds no certificate",
            ),
            (
                tls("ca.pem", Some(["ca.pem", "other key"])),
                "other key do not go together",
            ),
        ] {
            let error = client_config(&tls).unwrap_err();
            assert!(error.contains(told), "{error}");
            assert!(
                error.contains(&*good.parent().unwrap().to_string_lossy()),
                "{error}"
            );
        }
    }
}
