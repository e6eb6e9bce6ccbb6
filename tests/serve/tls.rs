//! The TLS that clients are offered: which versions of it, whose certificates, and nothing that goes on where something before it
//! ended.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fermata::store::cassandra::ClientCertificate;
use fermata_client::{ClientOptions, Dialer, Tls};
use fermata_proto::GetRequest;
use fermata_proto::lock_service_client::LockServiceClient;
use rustls::client::WantsClientCert;
use rustls::version::{TLS12, TLS13};
use rustls::{
    AlertDescription, ClientConfig, ConfigBuilder, Error, HandshakeKind, SupportedProtocolVersion,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::certificates::Authority;
use super::secured::{EVERYTHING, Files, PATIENCE, Server, token, until};

/// A client of this version that trusts what this one signed.
fn trusting(
    authority: &Authority,
    version: &'static SupportedProtocolVersion,
) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    ClientConfig::builder_with_provider(fermata_tls::provider())
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(fermata_tls::authorities(&authority.file()).unwrap())
}

/// The same with a certificate of its own.
fn showing(
    own: &ClientCertificate,
    authority: &Authority,
    version: &'static SupportedProtocolVersion,
) -> TlsConnector {
    let certificate = fermata_tls::certificates(&own.certificate_file).unwrap();
    let key = fermata_tls::key(&own.key_file).unwrap();
    let config = trusting(authority, version).with_client_auth_cert(certificate, key);
    TlsConnector::from(Arc::new(config.unwrap()))
}

/// A connection on which the server said what HTTP/2 begins with: it has seen all that the client showed.
async fn connected(server: &Server, client: &TlsConnector) -> io::Result<TlsStream<TcpStream>> {
    let address = server.endpoint.strip_prefix("https://").unwrap();
    let io = TcpStream::connect(address).await?;
    let name = "127.0.0.1".try_into().unwrap();
    let mut io = client.connect(name, io).await?;
    // Where the server has ended the connection, why comes with what is read.
    let hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let _ = io.write_all(hello).await;
    io.read_exact(&mut [0; 9]).await?;
    Ok(io)
}

/// Whether this is what the server ended the handshake with.
fn is_alert(error: &io::Error, alert: AlertDescription) -> bool {
    let why = error
        .get_ref()
        .and_then(|error| error.downcast_ref::<Error>());
    matches!(why, Some(Error::AlertReceived(came)) if *came == alert)
}

async fn is_refused(server: &Server, client: &TlsConnector, alert: AlertDescription) {
    let refused = connected(server, client).await.map(drop).unwrap_err();
    assert!(is_alert(&refused, alert), "{refused:?}, and not {alert:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_certificate_that_has_expired_is_refused_in_the_handshake() {
    let authority = Authority::named("only");
    let server = Server::start(Files::new(&authority, &[&token("billing")], EVERYTHING));
    let valid = authority.issue("valid", None);
    let expired = authority.issue_until(2020, "expired", None);
    for version in [&TLS13, &TLS12] {
        let client = showing(&valid, &authority, version);
        connected(&server, &client).await.unwrap();
        let client = showing(&expired, &authority, version);
        is_refused(&server, &client, AlertDescription::CertificateExpired).await;
    }
    until("the audit log says so", || {
        let log = server.log();
        log.contains("a connection was refused")
            && log.contains("the caller's certificate has expired")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_ca_that_is_taken_away_admits_no_new_connection_and_cuts_none_off() {
    let (removed, added) = (Authority::named("removed"), Authority::named("added"));
    // Its own certificate stays that of the first.
    let server = Server::start(Files::new(&removed, &[&token("billing")], EVERYTHING));
    let (old, new) = (removed.issue("old", None), added.issue("new", None));
    for version in [&TLS13, &TLS12] {
        let client = showing(&old, &removed, version);
        connected(&server, &client).await.unwrap();
        let client = showing(&new, &removed, version);
        is_refused(&server, &client, AlertDescription::UnknownCA).await;
    }
    // One connection, which is not made again.
    let own = (old.certificate_file.clone(), old.key_file.clone());
    let options = ClientOptions {
        tls: Some(Tls::from_files(removed.file(), Some(own)).unwrap()),
        ..ClientOptions::default()
    };
    let dialer = Dialer::new(&server.endpoint, &options).unwrap();
    let mut open = LockServiceClient::new(dialer.connect().await.unwrap());
    let get = || GetRequest {
        key: "k".to_owned(),
        ..Default::default()
    };
    open.get(get()).await.unwrap();

    server.files.trust(&added);
    let client = showing(&new, &removed, &TLS13);
    let taken = async {
        while connected(&server, &client).await.is_err() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, taken).await.unwrap();
    for version in [&TLS13, &TLS12] {
        let client = showing(&new, &removed, version);
        connected(&server, &client).await.unwrap();
        let client = showing(&old, &removed, version);
        is_refused(&server, &client, AlertDescription::UnknownCA).await;
    }
    open.get(get()).await.unwrap();
}

/// A session that is resumed brings a certificate which nobody verifies again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_session_of_tls_is_resumed_where_clients_have_certificates() {
    let authority = Authority::named("only");
    let server = Server::start(Files::new(&authority, &[&token("billing")], EVERYTHING));
    for version in [&TLS13, &TLS12] {
        // One that would resume.
        let config = trusting(&authority, version).with_no_client_auth();
        let client = TlsConnector::from(Arc::new(config));
        for _ in 0..3 {
            let io = connected(&server, &client).await.unwrap();
            let kind = io.get_ref().1.handshake_kind();
            assert_eq!(kind, Some(HandshakeKind::Full));
        }
    }
}
