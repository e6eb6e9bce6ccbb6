//! TLS to the nodes: trusted certificates, and our own.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::options::CassandraTls;
use fermata_tls as tls;

/// What connections are made with; else what is wrong with which file.
pub fn client_config(options: &CassandraTls) -> Result<Arc<ClientConfig>, String> {
    let roots = tls::authorities(&options.ca_file)?;
    let provider = tls::provider();
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(tls::unusable)?;
    let builder = match options.verify_host {
        true => builder.with_root_certificates(roots),
        false => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyHost { roots, provider })),
    };
    let config = match &options.client {
        None => builder.with_no_client_auth(),
        Some(client) => {
            let (certificate_file, key_file) = (&client.certificate_file, &client.key_file);
            let chain = tls::certificates(certificate_file)?;
            builder
                .with_client_auth_cert(chain, tls::key(key_file)?)
                .map_err(|error| tls::not_a_pair(certificate_file, key_file, &error))?
        }
    };
    Ok(Arc::new(config))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientCertificate;

    /// A certificate that signs itself, and its key, as text.
    fn self_signed() -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default();
        let certificate = certificate.self_signed(&key).unwrap();
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
        let (certificate, key) = self_signed();
        let (_, other_key) = self_signed();
        let good = file("ca.pem", &certificate);
        let options = |ca: &str, client: Option<[&str; 2]>| CassandraTls {
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
        assert!(client_config(&options("ca.pem", Some(["ca.pem", "key"]))).is_ok());
        for (options, answered) in [
            (options("none", None), "none: No such file"),
            (options("empty", None), "empty holds no certificate"),
            (options("key", None), "key holds no certificate"),
            (options("cut", None), "cut holds no certificate"),
            (
                options("ca.pem", Some(["ca.pem", "empty"])),
                "empty holds no private key",
            ),
            (
                options("ca.pem", Some(["empty", "key"])),
                "empty holds no certificate",
            ),
            (
                options("ca.pem", Some(["ca.pem", "other key"])),
                "other key do not match",
            ),
        ] {
            let error = client_config(&options).unwrap_err();
            assert!(error.contains(answered), "{error}");
            assert!(
                error.contains(&*good.parent().unwrap().to_string_lossy()),
                "{error}"
            );
        }
    }
}
