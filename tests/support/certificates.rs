//! Certificates of authorities that live for one test program.

use std::net::IpAddr;
use std::path::PathBuf;

use fermata::store::cassandra::ClientCertificate;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType, date_time_ymd,
};
use tempfile::TempDir;

/// When certificates expire that are to be valid.
const LATER_THAN_ANY_TEST: i32 = 4096;

/// An authority, and where it puts what it issues.
pub struct Authority {
    directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn named(name: &str) -> Authority {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("ca.pem");
        std::fs::write(file.with_extension("key"), key.serialize_pem()).unwrap();
        std::fs::write(file, certificate.pem()).unwrap();
        Authority {
            directory,
            issuer: Issuer::new(params, key),
        }
    }

    /// Its own certificate; the key is beside it.
    pub fn file(&self) -> PathBuf {
        self.path("ca.pem")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A certificate for a name or an IP address, or for none.
    pub fn issue(&self, name: &str, address: Option<&str>) -> ClientCertificate {
        self.issue_until(LATER_THAN_ANY_TEST, name, address)
    }

    /// The same, which is valid until this year.
    pub fn issue_until(&self, year: i32, name: &str, address: Option<&str>) -> ClientCertificate {
        let mut params = CertificateParams::new([]).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        params.distinguished_name.push(DnType::CommonName, name);
        let named = address.map(|address| match address.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(address.try_into().unwrap()),
        });
        params.subject_alt_names.extend(named);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = ClientCertificate {
            certificate_file: self.path(&format!("{name}.pem")),
            key_file: self.path(&format!("{name}.key")),
        };
        std::fs::write(&files.certificate_file, certificate.pem()).unwrap();
        std::fs::write(&files.key_file, key.serialize_pem()).unwrap();
        files
    }
}
