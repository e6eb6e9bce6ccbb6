//! The TLS that clients are offered: which versions of it, and nothing that goes on where something before it ended.

use std::sync::Arc;

use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, HandshakeKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::certificates::Authority;
use super::secured::{EVERYTHING, Files, Server, token};

/// A session that is resumed brings a certificate which nobody verifies again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_session_of_tls_is_resumed_where_clients_have_certificates() {
    let authority = Authority::named("only");
    let server = Server::start(Files::new(&authority, &[&token("billing")], EVERYTHING));
    let address = server.endpoint.strip_prefix("https://").unwrap();
    for version in [&TLS13, &TLS12] {
        let config = ClientConfig::builder_with_provider(fermata_tls::provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(fermata_tls::authorities(&authority.file()).unwrap())
            .with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(config));
        for _ in 0..3 {
            let io = TcpStream::connect(address).await.unwrap();
            let name = "127.0.0.1".try_into().unwrap();
            let mut io = connector.connect(name, io).await.unwrap();
            let kind = io.get_ref().1.handshake_kind();
            assert_eq!(kind, Some(HandshakeKind::Full));
            // What the server says first, with what could be resumed from.
            io.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
                .await
                .unwrap();
            io.read_exact(&mut [0; 9]).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_versions_of_tls_are_refused() {
    let authority = Authority::named("only");
    let server = Server::start(Files::new(&authority, &[&token("billing")], EVERYTHING));
    let address = server.endpoint.strip_prefix("https://").unwrap();
    // The minor number of 1.0, 1.1 and 1.2 in a first message; with 1.2 the server goes on.
    for (minor, kind) in [(1, 0x15), (2, 0x15), (3, 0x16)] {
        let mut hello = vec![3, minor];
        hello.extend([7; 32]);
        // No session, ECDHE with AES-128-GCM by ECDSA or RSA, no compression.
        hello.extend([0, 0, 4, 0xc0, 0x2b, 0xc0, 0x2f, 1, 0]);
        // ECDSA with SHA-256; P-256, uncompressed.
        hello.extend([0, 22, 0, 13, 0, 4, 0, 2, 4, 3, 0, 10, 0, 4, 0, 2, 0, 23]);
        hello.extend([0, 11, 0, 2, 1, 0]);
        let length = u8::try_from(hello.len()).unwrap();
        let mut record = vec![0x16, 3, 1, 0, length + 4, 1, 0, 0, length];
        record.extend(hello);
        let mut io = TcpStream::connect(address).await.unwrap();
        io.write_all(&record).await.unwrap();
        let mut answer = [0; 7];
        io.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer[0], kind, "{minor}: {answer:?}");
        // An alert, which ends it: protocol_version.
        assert!(
            kind == 0x16 || answer[5..] == [2, 70],
            "{minor}: {answer:?}"
        );
    }
}
